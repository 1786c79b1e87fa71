"""Reports the steps of a run: entries and lines every few steps, and a progress bar on a terminal."""
import collections
import datetime
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from cifar10.base import console
from cifar10.run.events import LOSSES
from cifar10.run.metrics import TRAIN, Log
from cifar10.run.reporter import Reporter, due

_SECS = 10  # minimum between lines outside a log, so that the first lines stay visible
_WINDOWS = 5  # number of windows, each at least _SECS long, before comparing the next with their median
_MOST_WINDOWS = 1000  # number of windows in the median
_DECAY = 0.9  # for the moving averages of losses, as in the tutorial
_UNKNOWN = 10  # steps before the first estimate of the end
_LONG = 60  # seconds; a line estimates the rest of a run that takes longer
# In a run of a million steps, the bar itself gets ten of 80 columns. `desc` is the remaining time.
_BAR = '{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{desc}{postfix}]'


class Progress(Reporter):
    """Writes an entry and a line every `every` steps and at the end; a terminal gets a bar with fewer lines above it.

    Leaving this context removes the bar from the terminal, even after an error. The moving averages of losses restart
    in each session.

    Args:
      step: the step before the first one.
      facts: function (step) that returns further named values for an entry, such as the number of towers.
      clock: `Cost.seconds_of_steps`.
      explained: whether `--explain` can measure this run, and slow steps should recommend it.
    """

    def __init__(self, step: int, last_step: int, every: int, examples_per_step: int, log: Log,
                 facts: Callable[[int], Mapping[str, Any]], clock: Callable[[], float], explained: bool = True):
        self._first_step, self._last_step = step + 1, last_step
        self._every = every
        self._examples_per_step = examples_per_step
        self._log = log
        self._facts = facts
        self._clock = clock
        self._losses: dict[int, float] = {}  # the newest total loss of each tower
        # For each loss, the weighted sum over the steps and the sum of the weights; their ratio is the average.
        self._sums: dict[str, float] = collections.defaultdict(float)
        self._next_line = 0.0
        self._windows = collections.deque[float](maxlen=_MOST_WINDOWS)  # seconds per step in each
        self._recommends = explained
        self._estimates = True  # whether the line with the estimate may still come
        self._unsaid: tuple | None = None  # the time and the text of the newest line, if it came too soon
        # The last steps with a record and with a line, the first step, and their times.
        self._recorded = self._said = self._compared = self._begun = step, clock()
        self._bar = console.progress_bar(initial=step, total=last_step, bar_format=_BAR, dynamic_ncols=True,
                                         leave=False)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with console.reader_may_leave():
            self._bar.close()

    def after_step(self, step, results):
        figures, now = results['figures'], self._clock()
        self._losses.update(enumerate(results['losses'], results['thread']))
        for name, figure in {**figures, '': 1.0}.items():
            if name in ('', 'loss') or name.startswith(LOSSES):
                self._sums[name] += (1 - _DECAY) * (float(figure) - self._sums[name])
        seconds = self._seconds_left(step, now)
        self._move_bar(step, figures['loss'], seconds, now)
        if due(self._every, step) or step == self._last_step:
            self._report(step, figures, now)
        if step == self._first_step:  # a warm-up, which counts only if it is the only step
            self._recorded = self._said = self._compared = self._begun = step, now
        elif self._estimates and seconds and now - self._begun[1] >= _SECS:
            self._estimates = False
            if seconds >= _LONG:
                say('estimate', f'about {seconds / 60:,.0f} min for the other {self._last_step - step:,} steps')

    def _seconds_left(self, step, now):
        """Returns the seconds that the remaining steps will take; None in the first steps."""
        if step < self._first_step + _UNKNOWN:
            return None
        return self._speed(self._begun, step, now)[1] * (self._last_step - step)

    def _speed(self, since, step, now):
        """Returns (examples per second, seconds per step) since an earlier step and its time."""
        seconds = (now - since[1]) / (step - since[0])
        return self._examples_per_step / seconds, seconds

    def _report(self, step, figures, now):
        images_per_sec, _ = self._speed(self._recorded, step, now)
        self._recorded = step, now
        total = self._sums['']
        averages = {f'averaged/{name}': value / total for name, value in self._sums.items() if name}
        towers = {f'towers/tower_{k}': loss for k, loss in self._losses.items()} if len(self._losses) > 1 else {}
        measured = {name: float(figure) for name, figure in figures.items()} | dict(images_per_sec=images_per_sec)
        recorded = {name: figure for name, figure in measured.items() if '/' not in name}
        self._log.write(TRAIN, step, recorded, {**measured, **averages, **towers}, **self._facts(step))
        examples_per_sec, sec_per_step = self._speed(self._said, step, now)
        line = (f"step {step}, loss = {figures['loss']:.2f} "
                f'({examples_per_sec:.1f} examples/sec; {sec_per_step:.3f} sec/batch)')
        if 'staleness' in figures:
            line += f", staleness = {figures['staleness']:.1f}"
        self._unsaid = datetime.datetime.now(), line
        if console.Output.current.is_log or time.perf_counter() > self._next_line:
            self._next_line = time.perf_counter() + _SECS
            self._said = step, now
            self.say_newest()
        self._compare(step, now)

    def _compare(self, step, now):
        """Recommends `--explain`, once, if the last steps took twice as long as usual in this run."""
        if now - self._compared[1] < _SECS:
            return
        _, seconds = self._speed(self._compared, step, now)
        if len(self._windows) >= _WINDOWS and self._recommends:
            usual = statistics.median(self._windows)
            if seconds >= 2 * usual:
                self._recommends = False
                say('slow', f'steps {self._compared[0] + 1} to {step} took {seconds:.3g} s each instead of the usual '
                            f'{usual:.3g} s; the same command with --explain shows where the time goes')
        self._windows.append(seconds)
        self._compared = step, now

    def _move_bar(self, step, loss, seconds, now):
        if self._bar.disable:
            return
        if step > self._first_step:
            images_per_sec, _ = self._speed(self._said, step, now)
            self._bar.set_postfix_str(f'loss {loss:.2f}, {images_per_sec:,.0f} images/s', refresh=False)
        if seconds is not None:
            self._bar.set_description_str(f'<{self._bar.format_interval(seconds)}', refresh=False)
        with console.reader_may_leave():
            self._bar.update(step - self._bar.n)

    def at_end(self, step):
        self.say_newest()

    def say_newest(self) -> None:
        """Prints the newest line, if it has come too soon after another one."""
        if self._unsaid:
            say(*self._unsaid)
            self._unsaid = None


def say(word: str | datetime.datetime, text: str) -> None:
    """Prints a line, unless standard output is closed."""
    with console.reader_may_leave():
        console.say(word, text)
