"""`--explain`: measures the steps of a training, and steps that omit a part of the work.

It writes nothing into the train_dir. Data missing from data_dir are downloaded or prepared, as for a training. Kinds of
steps take turns, so that a change of the machine's speed affects every kind. The towers of each device are also
measured alone, because all devices wait for a slow device in a step.
"""
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line, say, say_all
from cifar10.base.errors import UsageError
from cifar10.base.signals import Termination
from cifar10.data.pipeline import batches_ahead
from cifar10.run import failures
from cifar10.run.checkpoints import Saved
from cifar10.settings.training import TrainSettings
from cifar10.training.decisions import plan
from cifar10.training.description import describe
from cifar10.training.graph import TrainingGraph
from cifar10.training.plan import Plan
from cifar10.training.run import Run
from cifar10.training.start import prepared

# The kinds of steps. The name of a group of devices is also a kind: the gradients of its towers alone, for one batch.
STEP = 'a step'  # as in the training loop
SAME_BATCH = 'same batch'  # the same batch in every step
NO_UPDATE = 'no update'  # up to the averaged gradients
NO_AVERAGE = 'no average'  # up to the gradients of each tower
_TAKE_BATCHES = STEP, NO_UPDATE, NO_AVERAGE
_LEFT_OUT = {SAME_BATCH: 'without input', NO_UPDATE: 'without update', NO_AVERAGE: 'without averaging and update'}

_SECONDS = 20  # of measurement, without building the graph
_ENDLESS = 10 ** 8  # steps, more than any measurement takes
_ROUNDS = 5  # rounds; all kinds of steps take turns in each
_FEWEST = 2  # steps of a kind in a round
_SLOW = 1.2  # a device is slow from this multiple of the other devices' seconds
# The share of all seconds to warm up each kind of steps. In its first steps, TensorFlow learns which operations are too
# short to run on a separate thread; until then, steps with many short operations take longer.
_WARM_UP = 1 / 40


def explain(settings: TrainSettings, termination: Termination | None = None, devices: Any = None,
            before_session: Callable[[], None] | None = None, seconds: float = _SECONDS) -> None:
    """Measures the configured training and prints the timing of its steps. Writes nothing into the train_dir.

    The training starts from the newest checkpoint of the run, if it has one.

    Args:
      termination: not used: there is nothing to save, so a signal ends the program immediately.
      devices, before_session: as `trainer.train` takes them.
      seconds: the duration of the measurement, without the time to build the graph.
    """
    del termination
    devices, images, lines_of_start = prepared(settings, devices)
    planned, decisions = plan(settings, devices, images)
    say_all([*lines_of_start, *decisions, *describe(planned)])
    with failures.plain_errors():
        training = _Training(planned)
        if before_session:
            before_session()
        with training.opened(planned.restored):
            expected = _expected_seconds(training, seconds)
            say('measuring', f'whole steps and steps without some parts, in turn, for about {expected:.0f} s')
            measured = _measure(training, seconds)
    say_all(lines(measured, planned.examples_per_step, planned.devices.num_towers))


def lines(measured: Mapping[str, Sequence[float]], examples_per_step: int, towers: int) -> list[Line]:
    """Returns lines with the times of a step and of partial steps, and their ratio to a step.

    Args:
      measured: {kind of steps: seconds in each round}.
      examples_per_step, towers: numbers of examples and towers in a step of the training.
    """
    step = np.median(measured[STEP])
    places = max(3, 2 - math.floor(math.log10(step)))  # three digits at least
    low, high = (f'{of(measured[STEP]):.{places}f}' for of in (np.min, np.max))
    found = [Line(STEP, f'{step:.{places}f} s ({low}-{high}), {examples_per_step / step:,.0f} images/s')]
    alone = {}  # device -> the seconds of its towers' step, relative to the median step
    for kind, rounds in list(measured.items())[1:]:
        ratios = np.divide(rounds, measured[STEP])  # the machine's speed hardly changes within a round
        ratio = np.median(ratios)
        percent, low, high = (f'{round(each - 1, 2) + 0.0:+.0%}' for each in (ratio, ratios.min(), ratios.max()))
        change = f'{ratio * step:.{places}f} s, {percent} ({low} to {high})'
        if kind in _LEFT_OUT:
            found.append(Line(kind, f'{change}, {_LEFT_OUT[kind]}'))
        else:
            found.append(Line('one device', f'{change}, {kind} alone, without input, averaging and update'))
            alone[kind] = ratio * step
    if alone:
        counts = [len(range(k, towers, len(alone))) for k in range(len(alone))]  # the towers of each device
        rate = sum(examples_per_step * count / towers / seconds for count, seconds in zip(counts, alone.values()))
        found.append(Line('efficiency', f'{examples_per_step / step:,.0f} images/s of the {rate:,.0f} that these '
                                        f'devices reach alone: {examples_per_step / step / rate:.0%}'))
        found += _slow({kind: np.divide(measured[kind], count) for kind, count in zip(alone, counts)}, counts, places)
    return found


def _slow(seconds, counts, places):
    """Returns lines that name the devices whose towers take longer than the other devices' towers.

    Args:
      seconds: device -> the seconds of one of its towers in each round.
      counts: the number of towers of each device.
      places: decimal places of the seconds in the lines.
    """
    found = []
    for (device, own), count in zip(seconds.items(), counts):
        others = np.median([each for other, each in seconds.items() if other != device], 0)
        ratio, cost = np.median(own / others), count * np.median(own - others)
        if ratio >= _SLOW and (own > others).all():
            found.append(Line('slow', f'each step waits {cost:.{places}f} s for {device} (a tower takes '
                                      f'{np.median(own):.{places}f} s alone, {ratio:.1f} times the other devices); end '
                                      'other programs there, use another device, or try --variable_update=async'))
    return found


class _Training:
    """A training that takes steps within `opened`; `kinds` are its kinds of steps."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._run = Run(plan._replace(last_step=plan.step + _ENDLESS))
        self._fixed: dict[tf.Tensor, np.ndarray] = {}  # the values of one batch of each tower
        self._shorter = _shorter_steps(plan, self._run.graph)
        self.kinds = [STEP, SAME_BATCH, *self._shorter]

    @contextlib.contextmanager
    def opened(self, start: Saved | None) -> Iterator[None]:
        """Opens a session that starts from a checkpoint; raises a UsageError if the checkpoint's network differs."""
        run = self._run
        if start and (found := start.misfit(run.saved)):
            raise UsageError(f'{start.prefix} {found}; use the checkpoint and the network of the same run')
        with run.opened(start.values if start else None):
            self.take(STEP)  # a step that exceeds the memory fails here
            fixed = run.session.run(run.graph.batches)
            self._fixed = dict(zip(tf.nest.flatten(run.graph.batches), tf.nest.flatten(fixed)))
            yield

    def settle(self, kind: str) -> None:
        """Takes steps of a kind until their rate is steady.

        Cold caches make the first steps too long, and prefetched batches, which hide a slow input, make them too short.
        """
        if kind in _TAKE_BATCHES:
            devices = self._plan.devices
            streams = len(devices.groups) // len(set(devices.group_hosts))
            for _ in range(batches_ahead(devices.on_gpus, streams)):
                self._run.session.run([tensor.op for tensor in tf.nest.flatten(self._run.graph.batches)])
        self.take(kind)

    def take(self, kind: str) -> None:
        """Takes a step of a kind; a whole step runs as in the training loop."""
        run, feed = self._run, None if kind in _TAKE_BATCHES else self._fixed
        if kind in self._shorter:
            run.session.run(self._shorter[kind], feed)
            return
        losses = run.take(feed=feed)['losses']
        failures.refuse_divergence(run.step, losses, self._plan.settings.run.train_dir)
        if run.averages_after(run.step):
            run.average()


def _shorter_steps(plan: Plan, graph: TrainingGraph) -> dict[str, list[tf.Operation]]:
    """Returns the operations to run for each kind of steps that end early."""
    computed = graph.step.turns.computed if graph.step.turns else []
    towers = [[gradient.op for gradient in gradients] for gradients in computed]
    if plan.mode.drifts:  # nothing is averaged in a step
        steps = {NO_UPDATE: sum(towers, [])}
    else:
        averaged = [gradient.op for gradient, _ in graph.step.gradients if gradient is not None]
        # `averaged` is the result of one member of an all-reduce, which would wait forever for the other members.
        members = [each for each in graph.global_step.graph.get_operations() if each.type == 'CollectiveReduce']
        steps = {NO_UPDATE: averaged + members, NO_AVERAGE: sum(towers, [])}
    groups = plan.devices.groups
    if len(groups) > 1:
        steps.update({'+'.join(group): sum(towers[g::len(groups)], []) for g, group in enumerate(groups)})
    return steps


def _expected_seconds(training, seconds):
    """Returns the approximate duration of `_measure`, which exceeds `seconds` if steps are long."""
    training.settle(STEP)
    steps_of_a_kind = _FEWEST + _ROUNDS * (_FEWEST + 2)  # to settle takes about as long as two steps
    return max(seconds, len(training.kinds) * steps_of_a_kind * _mean_seconds(training, STEP, 0))


def _measure(training, seconds):
    """Takes steps of all kinds for some seconds; returns {kind: the mean seconds of a step in each round}."""
    for kind in training.kinds:
        training.settle(kind)  # optimises the graph
        _mean_seconds(training, kind, _WARM_UP * seconds)
    means: dict[str, list[float]] = {kind: [] for kind in training.kinds}
    for _ in range(_ROUNDS):
        for kind in training.kinds:
            training.settle(kind)
            means[kind].append(_mean_seconds(training, kind, seconds / _ROUNDS / len(training.kinds)))
    return means


def _mean_seconds(training, kind, seconds):
    begin, count = time.perf_counter(), 0
    while count < _FEWEST or time.perf_counter() - begin < seconds:
        training.take(kind)
        count += 1
    return (time.perf_counter() - begin) / count
