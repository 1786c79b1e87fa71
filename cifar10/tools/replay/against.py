"""Finds the first step at which two runs differ: the records narrow it to two checkpoints, a replay finds the step.

If the difference recurs in the replay, it comes from settings, files or software. If not, it came from elsewhere.
"""
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cifar10.base.errors import UsageError
from cifar10.run import metrics, saved
from cifar10.run.folder import look, step_of
from cifar10.run.record import RunRecord, text
from cifar10.run.train_dir import TrainDir
from cifar10.tools.replay.probe import Probe, norm
from cifar10.tools.replay.rerun import Rerun, Taken
from cifar10.tools.replay.verify import Verification, named_steps

_MOST = 10  # variables that are listed


class Recorded(NamedTuple):
    """The records of a run.

    Attributes:
      directory: of the run.
      starts: the starts that took its steps.
      losses: step -> the recorded loss.
      hashes: step -> the hash of the checkpoint's variables. A checkpoint that was copied from another run has no
        record; the hash of its file is here.
    """
    directory: TrainDir
    starts: list[RunRecord]
    losses: dict[int, float]
    hashes: dict[int, str]

    @property
    def steps(self) -> list[int]:
        """The steps with a record, in order."""
        return sorted(self.losses.keys() | self.hashes.keys())


def compare(directory: TrainDir, against: TrainDir,
            watched: Callable[[Iterable, int], Iterable] = lambda steps, count: steps, **options: Any) -> Iterator[str]:
    """Compares two runs, A and B, and yields the lines of a report.

    Args:
      directory, against: of A and of B.
      watched: function (steps, their number) -> the same steps, which shows how far they are.
      options: the options of `Rerun`, for both.

    Raises:
      UsageError: the runs cannot be compared.
    """
    runs = [_recorded(each) for each in (directory, against)]
    equal, checkpoint, loss = part(*runs)
    for name, run in zip('AB', runs):
        yield f'{name:<10} {run.directory.path}, with records up to step {run.steps[-1]}'
    yield f"equal      {named_steps(equal) if equal else 'no step'}, by the SHA-256 of the checkpoints"
    differ = [] if checkpoint is None else [f'step {checkpoint}, by the SHA-256 of the checkpoints']
    if loss is not None:
        differ.append(f'the recorded loss of step {loss} is {runs[0].losses[loss]} and {runs[1].losses[loss]}')
    yield f"differ     {'; '.join(differ) or 'no recorded checkpoint or loss'}"
    # By `at` they have parted. A checkpoint that differs also verifies the steps up to it.
    is_late = loss is not None and any(step >= loss for step in equal)
    at, recurs = loss if checkpoint is None or is_late else checkpoint, False
    if at is not None:
        try:
            prefix, step = _last_equal(runs, [each for each in equal if each < min(checkpoint or at, loss or at)])
            reruns = [Rerun(run.directory, at, step + 1, prefix, **options) for run in runs]
            yield f"from       {prefix or 'the initial values'}, steps {step + 1} to {at} of each run"
            verifications = [Verification(run.directory, rerun) for run, rerun in zip(runs, reruns)]
            first = replay(watched(zip(*(rerun.steps() for rerun in reruns)), at - step), verifications)
        except UsageError as error:  # what the records say holds all the same
            yield f'replay     not possible: {error}'
        else:
            for name, verification in zip('AB', verifications):
                word, text = verification.line().split(maxsplit=1)
                yield f'replay {name:<3} {word} {text}'
            if first:
                at, recurs = first[0].step, True
                yield from _describe_first(*first, reruns)
            else:
                yield from _describe_elsewhere(verifications, at)
    yield from _describe_starts(runs, at, recurs)


def _recorded(directory):
    """Returns the records of the run in a directory; raises a UsageError if there are none."""
    if look(directory.path).run is None:
        raise UsageError(f'{directory.path} holds no run of this program, so there is nothing to compare; name the '
                         'train_dir of a run')
    losses = {record['step']: record['loss'] for record in metrics.read(directory.path, metrics.TRAIN)}
    hashes = {record['step']: record['sha256'] for record in metrics.read(directory.path, metrics.CHECKPOINT)}
    for prefix in look(directory.path).checkpoints:
        if step_of(prefix) not in hashes:
            with contextlib.suppress(OSError):  # it cannot be read
                hashes[step_of(prefix)] = saved.digest(prefix)
    if not (losses or hashes):
        raise UsageError(f'the run in {directory.path} has no checkpoint and no record of a step yet; compare it later')
    return Recorded(directory, look(directory.path).started, losses, hashes)


def part(one: Recorded, other: Recorded) -> tuple[list[int], int | None, int | None]:
    """Compares the records of two runs.

    Returns:
      (the steps of the checkpoints at which they are equal, the step of the first checkpoint that differs, the first
      step whose recorded loss differs); None where none differs.

    Raises:
      UsageError: no record is of the same step.
    """
    hashes = sorted(one.hashes.keys() & other.hashes.keys())
    losses = sorted(one.losses.keys() & other.losses.keys())
    if not (hashes or losses):
        has = [f'{run.directory.path} has records of {named_steps(run.steps)}' for run in (one, other)]
        raise UsageError(f"{' and '.join(has)}, so they cannot be compared; train both to a step that both record")
    return ([step for step in hashes if one.hashes[step] == other.hashes[step]],
            next((step for step in hashes if one.hashes[step] != other.hashes[step]), None),
            next((step for step in losses if str(one.losses[step]) != str(other.losses[step])), None))


def _last_equal(runs, steps):
    """Returns (prefix, step) of the newest kept checkpoint, of either run, at which both are equal.

    It is one of some steps, and must have the recorded hash. Without any it is (None, 0), the initial values.

    Raises:
      UsageError: there is none, and a run did not begin with initial values.
    """
    for step in reversed(steps):
        for run in runs:
            prefix = f'{run.directory.checkpoint_prefix}-{step}'
            with contextlib.suppress(OSError):  # it is not kept, or can no longer be read
                if saved.digest(prefix) == run.hashes[step]:
                    return prefix, step
    for run in runs:
        begin = min((start.step for start in run.starts), default=0)
        if begin:
            raise UsageError(f'the records of the run in {run.directory.path} begin after step {begin}, and no '
                             'checkpoint at which both runs are equal is kept; train both again with --max_to_keep=0')
    return None, 0


def replay(pairs: Iterable[tuple[Taken, Taken]], verifications: Sequence[Verification]) -> tuple[Taken, Taken] | None:
    """Takes the steps of two runs beside each other, and compares each step with its records and with the other run.

    Args:
      pairs: each step of both.
      verifications: of both runs.

    Returns:
      The first step, in both runs, in which a loss or after which a variable differs; None if there is none.
    """
    first = None
    for pair in pairs:
        for verification, taken in zip(verifications, pair):
            verification.compare(taken)
        if first is None and (not _same_bits(*(taken.losses for taken in pair))
                              or differing(*_comparable('after', *pair))):
            first = pair
    return first


def differing(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the names of the variables whose bits differ, or that only one run has, in order."""
    names = one.keys() | other.keys()
    return sorted(name for name in names if not (name in one and name in other and _same_bits(one[name], other[name])))


def _comparable(moment, *pair):
    """Returns the variables 'before' or 'after' a step of both runs, without the copies that only one of them has."""
    values = [getattr(taken, moment) for taken in pair]
    both = values[0].keys() & values[1].keys()
    return [{name: value for name, value in each.items() if name in both or name in taken.saved}
            for taken, each in zip(pair, values)]


def _same_bits(one, other):
    one, other = np.asarray(one), np.asarray(other)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


# What is said of the steps that were taken again.

def _describe_first(one, other, reruns):
    """Yields the lines about the first step that differs.

    Args:
      one, other: this step in both runs.
      reruns: the Rerun of each run.
    """
    before = _comparable('before', one, other)
    if differing(*before):
        yield f'recurs     yes: the variables differ before step {one.step} already'
        yield from _describe_arrays('before', *before)
        return
    yield f'recurs     yes: step {one.step} is the first that differs'
    yield from _describe_towers(one, other, reruns)
    yield from _describe_arrays('after', *_comparable('after', one, other))


def _describe_towers(one, other, reruns):
    """Yields the lines about the towers whose losses or gradients differ in a step that begins with equal variables."""
    counts = [(taken.settings.towers.num_towers, taken.settings.towers.batch_size) for taken in (one, other)]
    if counts[0] != counts[1]:
        yield 'towers     {} of {} and {} of {}, so each tower has other examples'.format(*counts[0], *counts[1])
        return
    same = True
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(contextlib.closing(Probe(rerun.segment_of(one.step).plan))) for rerun in reruns]
        for k in range(counts[0][0]):
            batches = [probe.batch(taken, k)._asdict() for probe, taken in zip(probes, (one, other))]
            if names := differing(*batches):
                yield f"tower {k:<4} has another batch: its {', '.join(names)} differ"
                return
            losses, gradients = zip(*(probe.gradients(taken, k) for probe, taken in zip(probes, (one, other))))
            lines = [*_describe_arrays(f'tower {k}', *gradients, 'gradient of ')]
            if not _same_bits(*losses):
                lines.insert(0, f'tower {k:<4} loss {losses[0]:.9g} and {losses[1]:.9g}')
            same = same and not lines
            yield from lines
    if same:
        yield 'towers     batches, losses and gradients are equal in all of them, so only the update differs'


def _describe_arrays(word, one, other, what=''):
    """Yields a line for each variable whose values in two runs differ, the largest difference first.

    Args:
      word: the first word of the lines.
      one, other: name -> array.
      what: what the arrays are, before the name.
    """
    found = [(*_difference(one.get(name), other.get(name)), name) for name in differing(one, other)]
    found.sort(key=lambda each: -each[0])
    for _, phrase, name in found[:_MOST]:
        yield f'{word:<10} {what}{name}: {phrase}'
    if len(found) > _MOST:
        yield f'{word:<10} and {len(found) - _MOST} more'


def _difference(one, other):
    """Returns (how far two arrays differ, relative to the norm of the first; a phrase that says it)."""
    if one is None or other is None:
        return np.inf, f"only {'B' if one is None else 'A'} has it"
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf, f'{one.dtype} {list(one.shape)} and {other.dtype} {list(other.shape)}'
    # The views of bits have at least one dimension, also those of scalars.
    flipped = np.bitwise_xor(*(np.ascontiguousarray(array).view(f'u{array.itemsize}') for array in (one, other)))
    with np.errstate(invalid='ignore', over='ignore'):  # values may be infinite
        distance = np.subtract(one, other, dtype=np.float64)
        size = norm(one)
        relative = norm(distance) / size if size else np.inf
    relative = relative if np.isfinite(relative) else np.inf  # the largest difference of all
    count = np.count_nonzero(flipped)
    if count > 1:
        return relative, (f'{count} of {one.size} numbers, by at most {np.abs(distance).max():.3g}; '
                          f"{f'{relative:.2g} of the norm' if size else 'all were 0 in A'}")
    place = np.unravel_index(np.flatnonzero(flipped)[0], one.shape)
    return relative, f'1 of {one.size} numbers, {list(map(int, place))}: {one[place]:.9g} and {other[place]:.9g}'


def _describe_elsewhere(verifications, last):
    """Yields the lines about two runs that part, but whose steps come out the same when they are taken again."""
    yield f'recurs     no: the replays of A and B come out the same up to step {last}'
    for name, verification in zip('AB', verifications):
        begin, end = verification.equal_at, verification.failed_at
        if end and verification.changes:
            yield (f'between    steps {begin} and {end} {name} parted from its replay; since then '
                   f"{'; '.join(verification.changes)}")
        elif end:
            yield f'between    steps {begin} and {end} something happened to {name} that its records do not explain'


def _describe_starts(runs, last, recurs):
    """Yields the lines on how the starts of two runs differ.

    Args:
      runs: both.
      last: a step by which they have parted; None for all of their steps.
      recurs: whether the difference comes again when they are replayed.
    """
    one, other = [_histories([start for start in run.starts if last is None or start.step < last]) for run in runs]
    differences = [f'{name}={one.get(name)} and {other.get(name)}' for name in {**one, **other}
                   if one.get(name) != other.get(name)]
    alike = 'the same settings, images, devices, threads and versions'
    if recurs:
        alike += ', so an operation is not deterministic, or files differ whose contents are not recorded'
    if not (one and other):
        differences = ['not compared, because a run has no record of one']
    yield f"starts     {'; '.join(differences) or alike}"


def _histories(started):
    """Returns all that some starts recorded: name -> its values, one after the other."""
    recorded = [{name: text(name, value) for name, value in start.flat().items()} for start in started]
    return {name: ', then '.join(value for value, _ in itertools.groupby(each.get(name, '-') for each in recorded))
            for each in recorded[-1:] for name in each}
