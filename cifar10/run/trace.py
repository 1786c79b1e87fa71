"""Traces the time, device and thread of each operation in some steps, for Chrome or Perfetto."""
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from cifar10.base import files
from cifar10.run.folder import glance
from cifar10.run.progress import say
from cifar10.run.reporter import Reporter


class Trace(Reporter):
    """Traces the steps from `first` to `last` (inclusive) and writes them to a JSON file.

    The file opens in chrome://tracing and https://ui.perfetto.dev.

    Args:
      first, last: the steps; both 0 for none.
      folder: the folder for the file, which is named after its steps.
    """

    def __init__(self, first: int, last: int, folder: str):
        self._first = first
        self._last = last
        self._folder = folder
        self._stats: dict[int, Any] = {}  # step -> its StepStats, the newest if it was repeated

    def drop_after(self, step: int) -> None:
        """Removes the traces with steps after `step`, which the run repeats."""
        for name in glance(self._folder).files:
            if (last := re.fullmatch(r'trace-\d+-(\d+)\.json', name)) and int(last[1]) > step:
                os.remove(os.path.join(self._folder, name))

    def traces(self, step):
        return self._first <= step <= self._last

    def awaits(self, step):
        # TensorFlow traces one step at a time, although towers run concurrently in `async`.
        return self._first - 1 <= step <= self._last

    def after_step(self, step, results):
        if 'metadata' in results:
            self._stats[step] = results['metadata'].step_stats
        if step >= self._last:
            self.write()

    def write(self) -> None:
        """Writes any traces since the last call."""
        if self._stats:
            path = os.path.join(self._folder, f'trace-{min(self._stats)}-{max(self._stats)}.json')
            files.replace(path, json.dumps(dict(traceEvents=trace_events(self._stats), displayTimeUnit='ms')))
            number = 'one step' if len(self._stats) == 1 else f'{len(self._stats)} steps'
            say('traced', f'{path}, {number}; open it in https://ui.perfetto.dev or chrome://tracing')
            self._stats = {}


def trace_events(steps: Mapping[int, Any]) -> list[dict]:
    """Converts the operations of steps to 'complete' and 'metadata' events of Chrome's trace format.

    Args:
      steps: number -> a `tf.StepStats`: each device's operations with their start and duration in microseconds. The
        order of devices varies between steps; a device's process number does not.
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
