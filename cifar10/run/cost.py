"""What a run has cost: its time by what it went into, over all starts, in records of kind `cost`.

A record stands before each checkpoint. What a process that was killed did after it is done again, so that time counts
as `again`, up to the last record that the process wrote. How long it lived on nobody knows, so the time from there to
the next start is `unknown`; after an orderly end it is `idle`.
"""
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from cifar10.parallel.update import UpdateMode
from cifar10.run import metrics
from cifar10.run.reporter import Reporter

START, STEPS, INPUT, EVALUATION, SAVING = 'start', 'steps', 'input', 'evaluation', 'saving'
_AGAIN, _IDLE, _UNKNOWN = 'again', 'idle', 'unknown'
# What the time of a run goes into, as lines call it.
_NAMES = {STEPS: 'steps', INPUT: 'waiting for input', EVALUATION: 'evaluation', SAVING: 'saving', START: 'starting',
          _AGAIN: 'taken again'}


class Cost(Reporter):
    """Adds up the time of a run, and writes it.

    Args:
      directory: the path of the train_dir.
      began: when this start of the run began, in seconds since 1970.
      examples_per_step: of all towers.
      mode: the update mode.
      is_new: whether the records of an earlier run do not count.

    Attributes:
      tell: function that is called with a line and a step at the end.
    """

    def __init__(self, directory: str, began: float, examples_per_step: int, mode: UpdateMode, is_new: bool = False):
        self._directory = directory
        self._log = metrics.Metrics(directory)
        self._examples_per_step = examples_per_step
        self._mode = mode
        self._step = None  # the last one taken
        self.tell: Callable[[str, int], None] = lambda line, step: None
        self._part, self._mark = START, began
        self._starts = 1
        self._seconds = dict.fromkeys([*_NAMES, _IDLE, _UNKNOWN], 0.0)
        if not is_new and (earlier := metrics.last(directory, metrics.COST)):
            newest = metrics.last(directory)['time']
            self._starts += earlier['starts']
            self._seconds.update(earlier['seconds'])
            self._seconds[_AGAIN] += newest - earlier['time']
            self._seconds[_IDLE if earlier['ended'] else _UNKNOWN] += max(began - newest, 0.0)

    @contextlib.contextmanager
    def session(self, step: int) -> Iterator[None]:
        """Context of a session that goes on from `step`; later records have been dropped, so what they tell is lost."""
        self._enter(START)
        self._is_warm = False  # whether a step has been taken: the first one belongs to the start
        base = metrics.last(self._directory, metrics.COST) or dict(step=step, examples=0, seconds={})
        for part in (STEPS, INPUT, EVALUATION, SAVING):
            lost = self._seconds[part] - base['seconds'].get(part, 0)
            self._seconds[part] -= lost
            self._seconds[_AGAIN] += lost
        self._examples = base['examples'] - step * self._examples_per_step
        self.write(step)
        try:
            yield
        finally:
            self._enter(START)  # of the next session, if there is one

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Context whose time belongs to a part, and not to the one around it."""
        outer = self._part
        self._enter(part)
        try:
            yield
        finally:
            self._enter(outer)

    def _enter(self, part):
        now = time.time()
        self._seconds[self._part] += now - self._mark
        self._part, self._mark = part, now

    def also(self, step):
        self._enter(STEPS if self._is_warm else START)
        return {}

    def after_step(self, step, results):
        self._step = step
        if self._is_warm:
            waited = self._waited(results['seconds'][:, 0])
            self._seconds[STEPS] -= waited
            self._seconds[INPUT] += waited
        self._is_warm = True

    def _waited(self, seconds):
        """Returns for how long a step waited for its inputs, of the seconds of each tower; 0 if there are none."""
        devices = self._mode.devices
        if not len(seconds):
            return 0.0
        if not self._mode.synchronous:  # this thread waits for tower 0 alone
            return float(seconds[0])
        of_host = {}
        for group, host in enumerate(devices.group_hosts):
            of_host.setdefault(host, []).append(float(seconds[group::len(devices.groups)].sum()))
        # All GPUs wait for the one that waits longest. CPU devices share a processor, which waits if all of them do.
        return max((max if devices.on_gpus else min)(each) for each in of_host.values())

    def at_end(self, step):
        self.tell(line(self.write(step, ended=True)), step)

    def fail(self) -> None:
        """Writes the last record of a run that fails."""
        if self._step is not None:
            self.write(self._step, ended=True)

    def write(self, step: int, ended: bool = False) -> dict[str, Any]:
        """Writes a record at a step, and returns it.

        Args:
          step: the last step that was taken.
          ended: whether nothing follows in this process.
        """
        self._enter(self._part)
        return self._log.add(metrics.COST, step, starts=self._starts, ended=ended,
                             examples=self._examples + step * self._examples_per_step,
                             seconds={part: round(seconds, 3) for part, seconds in self._seconds.items()})


def line(record: dict[str, Any]) -> str:
    """Returns a record of kind `cost` as a line."""
    seconds = record['seconds']
    active = sum(seconds[part] for part in _NAMES)
    shares = [f'{seconds[part] / active:.0%} {name}' for part, name in sorted(
        _NAMES.items(), key=lambda item: -seconds[item[0]]) if seconds[part] >= active / 200]
    starts = '1 start' if record['starts'] == 1 else f"{record['starts']} starts"
    text = f"cost       {_duration(active)} in {starts}: {', '.join(shares)}"
    if steps := seconds[STEPS] + seconds[INPUT]:
        text += f"; {record['examples'] / active:.0f} images/s over all, {record['examples'] / steps:.0f} in steps"
    for part, name in ((_IDLE, 'idle between starts'),
                       (_UNKNOWN, 'unknown, between the last record and the next start')):
        if seconds[part] >= 1:
            text += f'; {_duration(seconds[part])} {name}'
    if not record['ended']:  # a record stands only at a start and a checkpoint
        text += f"; up to step {record['step']}, what came later is not counted yet"
    return text


def _duration(seconds):
    """Returns a time in two units: '3 h 12 min'."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours} h {minutes} min' if hours else f'{minutes} min {seconds} s' if minutes else f'{seconds} s'
