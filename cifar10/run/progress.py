"""The log of a run: lines, a progress bar on a terminal, and records in metrics.jsonl."""
import collections
import datetime
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from cifar10.base import console
from cifar10.run.metrics import TRAIN, Metrics
from cifar10.run.reporter import Reporter, due

_SECS = 10  # between two lines that are no log, so that those at the start stay in sight
_WINDOWS = 5  # of at least _SECS each, before the next one is compared with their median
_MOST_WINDOWS = 1000  # of which the median is taken
_UNKNOWN = 10  # steps, after which the end is estimated: the first ones tell little
# Of 80 columns, ten are left for the bar itself in a run of a million steps.
_BAR = '{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]'


class Progress(Reporter):
    """A record every `every` steps and for the last one, and a line; on a terminal a bar with fewer lines above it.

    A context: leaving it takes the bar off the terminal, after an error too.

    Args:
      step: the step that the first one follows.
      every: steps between two lines.
      metrics: the file that the records go to.
      facts: function (step) that returns what else a record has, by names, such as the number of towers.
      clock: `Cost.seconds_of_steps`.
      explained: whether `--explain` can measure this run, so that it is recommended if steps become slow.

    Attributes:
      images_per_sec: of the newest record; None before the first.
    """

    def __init__(self, step: int, last_step: int, every: int, examples_per_step: int, metrics: Metrics,
                 facts: Callable[[int], Mapping[str, Any]], clock: Callable[[], float], explained: bool = True):
        self.images_per_sec = None
        self._first_step, self._last_step = step + 1, last_step
        self._every = every
        self._examples_per_step = examples_per_step
        self._metrics = metrics
        self._facts = facts
        self._clock = clock
        self._next_line = 0.0
        self._windows = collections.deque(maxlen=_MOST_WINDOWS)  # the seconds of a step in each
        self._recommends = explained
        self._unsaid = None  # the time and the text of the newest line, if it came too soon after another
        # The newest step with a record, or with a line, and its time.
        self._recorded = self._said = self._compared = step, clock()
        self._bar = console.progress_bar(initial=step, total=last_step, bar_format=_BAR.replace('<{remaining}', ''),
                                         dynamic_ncols=True, leave=False)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with console.reader_may_leave():
            self._bar.close()

    def after_step(self, step, results):
        figures, now = results['figures'], self._clock()
        self._move_bar(step, figures['loss'], now)
        if due(self._every, step) or step == self._last_step:
            self._report(step, figures, now)
        if step == self._first_step:  # a warm-up, which counts only where it is the only step
            self._recorded = self._said = self._compared = step, now

    def _speed(self, since, step, now):
        """Returns (examples a second, seconds a step) since an earlier step and its time."""
        seconds = (now - since[1]) / (step - since[0])
        return self._examples_per_step / seconds, seconds

    def _report(self, step, figures, now):
        self.images_per_sec, _ = self._speed(self._recorded, step, now)
        self._recorded = step, now
        recorded = {name: float(figure) for name, figure in figures.items() if '/' not in name}
        self._metrics.add(TRAIN, step, **recorded, images_per_sec=self.images_per_sec, **self._facts(step))
        examples_per_sec, sec_per_step = self._speed(self._said, step, now)
        line = (f"step {step}, loss = {figures['loss']:.2f} "
                f'({examples_per_sec:.1f} examples/sec; {sec_per_step:.3f} sec/batch)')
        if 'staleness' in figures:
            line += f", staleness = {figures['staleness']:.1f}"
        self._unsaid = datetime.datetime.now(), line
        if console.Output.current.is_log or time.perf_counter() > self._next_line:
            self._next_line = time.perf_counter() + _SECS
            self._said = step, now
            self._say_newest()
        self._compare(step, now)

    def _compare(self, step, now):
        """Recommends `--explain`, once, if the last steps took twice as long as steps of this run usually do."""
        if now - self._compared[1] < _SECS:
            return
        _, seconds = self._speed(self._compared, step, now)
        if len(self._windows) >= _WINDOWS and self._recommends:
            usual = statistics.median(self._windows)
            if seconds >= 2 * usual:
                self._recommends = False
                self.say('slow', f'steps {self._compared[0] + 1} to {step} took {seconds:.3g} s each, {usual:.3g} s is '
                                 'usual in this run; the same command with --explain shows where the time goes')
        self._windows.append(seconds)
        self._compared = step, now

    def say(self, word: str | datetime.datetime, text: str) -> None:
        """Prints a line, unless standard output was closed."""
        with console.reader_may_leave():
            console.say(word, text)

    def _move_bar(self, step, loss, now):
        if self._bar.disable:
            return
        if step > self._first_step:
            images_per_sec, _ = self._speed(self._said, step, now)
            self._bar.set_postfix_str(f'loss {loss:.2f}, {images_per_sec:,.0f} images/s', refresh=False)
        if step >= self._first_step + _UNKNOWN:
            self._bar.bar_format = _BAR
        with console.reader_may_leave():
            self._bar.update(step - self._bar.n)

    def at_end(self, step):
        self._say_newest()

    def _say_newest(self):
        if self._unsaid:
            self.say(*self._unsaid)
            self._unsaid = None
