"""A trace of some steps: which operation ran when, on which device and thread, for Chrome or Perfetto."""
import json
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10 import files


class Trace:
    """Runs steps, and writes those from `first` to `last` (inclusive) to a JSON file.

    The file opens in chrome://tracing and https://ui.perfetto.dev.

    Args:
      first, last: the steps; both 0 for none.
      path: of the file.
    """

    def __init__(self, first: int, last: int, path: str):
        self._first = first
        self._last = last
        self._path = path
        self._events = []

    def run(self, session: tf.Session, fetches: Any, step: int) -> Any:
        """Returns what `session.run(fetches)` does, which takes step number `step`; traces it if it is one of those."""
        if not self._first <= step <= self._last:
            return session.run(fetches)
        metadata = tf.RunMetadata()
        results = session.run(fetches, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
                              run_metadata=metadata)
        self._events += trace_events(metadata.step_stats)
        return results

    def write_when_complete(self, step: int, say: Callable[[str], Any]) -> None:
        """Writes the file once `step` is the last to be traced, or lies behind it; `say` gets a line about it."""
        if step >= self._last:
            self.write(say)

    def write(self, say: Callable[[str], Any]) -> None:
        """Writes what was traced and is not written yet, if there is anything; `say` gets a line about it."""
        if self._events:
            files.replace(self._path, json.dumps(dict(traceEvents=self._events, displayTimeUnit='ms')))
            self._events = []
            say(f'traced     {self._path}; open it in https://ui.perfetto.dev or chrome://tracing')


def trace_events(step_stats: Any) -> list[dict]:
    """Returns a step's operations as events of Chrome's trace format (its 'complete' and 'metadata' events).

    Args:
      step_stats: a `tf.StepStats`: for each device the operations with their begin and duration in microseconds.
    """
    events = []
    for process, device in enumerate(step_stats.dev_stats):
        events.append(dict(ph='M', name='process_name', pid=process, args=dict(name=device.device)))
        for node in device.node_stats:
            label = node.timeline_label.partition(' = ')[2].partition('(')[0] or node.node_name
            events.append(dict(ph='X', pid=process, tid=node.thread_id, name=label, args=dict(node=node.node_name),
                               ts=node.all_start_micros + node.op_start_rel_micros,
                               dur=max(node.op_end_rel_micros - node.op_start_rel_micros, 1)))
    return events
