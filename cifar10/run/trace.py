"""A trace of some steps: which operation ran when, on which device and thread, for Chrome or Perfetto."""
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base import files


class Trace:
    """Runs steps, and writes those from `first` to `last` (inclusive) to a JSON file.

    The file opens in chrome://tracing and https://ui.perfetto.dev.

    Args:
      first, last: the steps; both 0 for none.
      folder: where the file is, named by the steps that it holds.
    """

    def __init__(self, first: int, last: int, folder: str):
        self._first = first
        self._last = last
        self._folder = folder
        self._stats = {}  # number of a step -> its StepStats; one that is repeated after a loss replaces the first
        self._is_awaited = False  # whether steps before the first were seen, and none that is to be traced

    def drop_after(self, step: int) -> None:
        """Removes the traces with steps after `step`, which are repeated."""
        for name in os.listdir(self._folder):
            if (last := re.fullmatch(r'trace-\d+-(\d+)\.json', name)) and int(last[1]) > step:
                os.remove(os.path.join(self._folder, name))

    def run(self, take: Callable[..., dict[str, Any]], step: int) -> dict[str, Any]:
        """Takes a step, traces it if it is one of those, and returns its results.

        Args:
          take: takes a step; function of the `options` and the `run_metadata` of `tf.Session.run` that returns the
            results, with the number of the step at 'step'.
          step: the number that the step has if no other thread takes one meanwhile. Where others do, the numbers may
            pass over those that are to be traced; then the next step is.
        """
        was_passed_over = self._is_awaited and step > self._last
        self._is_awaited = step < self._first
        if not (self._first <= step <= self._last or was_passed_over):
            return take()
        metadata = tf.RunMetadata()
        results = take(options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
        self._stats[int(results['step'])] = metadata.step_stats
        return results

    def write_when_complete(self, step: int, say: Callable[[str], Any]) -> None:
        """Writes the file once `step` is the last to be traced, or lies behind it; `say` gets a line about it."""
        if step >= self._last:
            self.write(say)

    def write(self, say: Callable[[str], Any]) -> None:
        """Writes what was traced and is not written yet, if there is anything; `say` gets a line about it."""
        if self._stats:
            path = os.path.join(self._folder, f'trace-{min(self._stats)}-{max(self._stats)}.json')
            files.replace(path, json.dumps(dict(traceEvents=trace_events(self._stats), displayTimeUnit='ms')))
            number = 'one step' if len(self._stats) == 1 else f'{len(self._stats)} steps'
            say(f'traced     {path}, {number}; open it in https://ui.perfetto.dev or chrome://tracing')
            self._stats = {}


def trace_events(steps: Mapping[int, Any]) -> list[dict]:
    """Returns the operations of steps as events of Chrome's trace format (its 'complete' and 'metadata' events).

    Args:
      steps: number -> a `tf.StepStats`: for each device the operations with their begin and duration in microseconds.
        Each step has the devices in an order of its own; a device has one process number in all of them.
    """
    devices = sorted({device.device for stats in steps.values() for device in stats.dev_stats})
    events = [dict(ph='M', name='process_name', pid=process, args=dict(name=device))
              for process, device in enumerate(devices)]
    for step, stats in steps.items():
        for device in stats.dev_stats:
            for node in device.node_stats:
                label = node.timeline_label.partition(' = ')[2].partition('(')[0] or node.node_name
                events.append(dict(ph='X', pid=devices.index(device.device), tid=node.thread_id, name=label,
                                   args=dict(node=node.node_name, step=step),
                                   ts=node.all_start_micros + node.op_start_rel_micros,
                                   dur=max(node.op_end_rel_micros - node.op_start_rel_micros, 1)))
    return events
