"""The log of a run: lines, a progress bar on a terminal, and a record of each line in metrics.jsonl."""
import datetime
import time
from typing import Any

from cifar10.base import console
from cifar10.run.metrics import TRAIN, Metrics
from cifar10.run.reporter import Rate, Reporter, due

_TERMINAL_SECS = 10  # between two lines on a terminal, so that those at the start stay in sight
# Of 80 columns, ten are left for the bar itself in a run of a million steps.
_BAR = '{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]'


class Progress(Reporter):
    """A line and a record every `every` steps and for the last one; on a terminal a bar with fewer lines above it.

    A context: leaving it takes the bar off the terminal, after an error too.

    Args:
      step: the step that the first one follows.
      every: steps between two lines.
      metrics: the file that the records go to.
      constants: figures that every record repeats, such as the number of towers.

    Attributes:
      output_closed: whether standard output was closed, as a pipe or a terminal can be.
    """

    def __init__(self, step: int, last_step: int, every: int, examples_per_step: int, metrics: Metrics,
                 constants: dict[str, Any]):
        self.output_closed = False
        self._last_step = last_step
        self._every = every
        self._metrics = metrics
        self._constants = constants
        self._next_line = 0.0
        self._unsaid = None  # the newest line, if it came too soon after another
        self._rate = Rate(examples_per_step)
        self._begin = time.perf_counter()  # None once the first step, a warm-up, has ended
        self._bar = console.progress_bar(
            initial=step, total=last_step, bar_format=_BAR, dynamic_ncols=True, leave=False)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with console.reader_may_leave(self._leave):
            self._bar.close()

    def after_step(self, step, results):
        figures = results['figures']
        self._move_bar(step, figures['loss'])
        if due(self._every, step) or step == self._last_step:
            if self._begin is not None:
                self._rate.start(step - 1, self._begin)  # warm-up and all, it is the only figure there is
            self._report(step, figures)
        if self._begin is not None:
            self._rate.start(step)
            self._begin = None

    def _report(self, step, figures):
        examples_per_sec, sec_per_step = self._rate.measure(step)
        self._metrics.add(TRAIN, step, **{name: float(figure) for name, figure in figures.items()},
                          images_per_sec=examples_per_sec, **self._constants)
        self._print(step, figures, examples_per_sec, sec_per_step)

    def say(self, word: str, text: str) -> None:
        """Prints a line, unless standard output was closed."""
        with console.reader_may_leave(self._leave):
            console.say(word, text)

    def _move_bar(self, step, loss):
        if self._bar.disable:
            return
        speed = self._rate.so_far(step)
        if speed:
            self._bar.set_postfix_str(f'loss {loss:.2f}, {speed[0]:.0f} examples/s', refresh=False)
        with console.reader_may_leave(self._leave):
            self._bar.update(step - self._bar.n)

    def _print(self, step, figures, examples_per_sec, sec_per_step):
        line = (f"{datetime.datetime.now()}: step {step}, loss = {figures['loss']:.2f} "
                f'({examples_per_sec:.1f} examples/sec; {sec_per_step:.3f} sec/batch)')
        if 'staleness' in figures:
            line += f", staleness = {figures['staleness']:.1f}"
        self._unsaid = line
        if self._bar.disable or not console.is_terminal() or time.perf_counter() > self._next_line:
            self._next_line = time.perf_counter() + _TERMINAL_SECS
            self._say_newest()

    def at_end(self, step):
        self._say_newest()

    def _say_newest(self):
        if self._unsaid:
            self.say('', self._unsaid)
            self._unsaid = None

    def _leave(self):
        """Notes that standard output was closed, which ends the run without an error."""
        self.output_closed = True
