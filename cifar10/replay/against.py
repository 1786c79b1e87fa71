"""Where two runs part: their records say between which checkpoints, and taking the steps again says at which step.

A difference that recurs comes from what the runs record: settings, files, software. One that does not recur came from
elsewhere.
"""
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cifar10.errors import UsageError
from cifar10.replay.probe import Probe, norm
from cifar10.replay.rerun import Rerun, Taken
from cifar10.replay.verify import Verification, named_steps
from cifar10.run import checkpoint, metrics, starts
from cifar10.run.train_dir import TrainDir

_MOST = 10  # variables that are listed
# Settings that say where a run is and what it reports, but not how it takes its steps. Summaries are not among them:
# what they fetch may change how operations are fused, and so how they round.
_ELSEWHERE = ('train_dir', 'data_dir', 'restart', 'check', 'job_name', 'task_index', 'worker_hosts', 'ps_hosts',
              'cluster_timeout_secs', 'log_device_placement', 'log_frequency', 'eval_steps', 'save_steps',
              'max_to_keep', 'keep_best', 'keep_every', 'profile_steps')


class Recorded(NamedTuple):
    """What a run has recorded, by the numbers of its steps.

    Attributes:
      directory: of the run.
      hashes: the SHA-256 of the variables in its checkpoints, also in those that are no longer kept.
      losses: those of its training records.
    """
    directory: TrainDir
    hashes: dict[int, str]
    losses: dict[int, float]


class Parting(NamedTuple):
    """Where the records of two runs part.

    Attributes:
      equal: the steps of the checkpoints at which they are still equal.
      differ: the step of the first checkpoint at which they differ, or None.
      loss: the first step after the last equal checkpoint whose recorded losses differ, or None.
    """
    equal: list[int]
    differ: int | None
    loss: int | None

    @property
    def last(self) -> int | None:
        """A step by which the runs have parted; None if they have not."""
        return self.loss if self.differ is None else self.differ


def compare(directory: TrainDir, against: TrainDir,
            watched: Callable[[Iterable, int], Iterable] = lambda steps, count: steps, **options: Any) -> Iterator[str]:
    """Compares two runs, A and B, and yields the lines of a report.

    Args:
      directory, against: of A and of B.
      watched: function (steps, their number) -> the same steps, which shows how far they are.
      options: the options of `Rerun`, for both.

    Raises:
      UsageError: the runs cannot be compared, or their steps cannot be taken again.
    """
    runs = [_recorded(each) for each in (directory, against)]
    parting = part(*runs)
    for name, run in zip('AB', runs):
        yield f'{name:<10} {run.directory.path}'
    yield from _describe_parting(parting, *runs)
    if parting.last is None:
        return
    prefix, step = _last_equal(runs, parting.equal)
    reruns = [Rerun(run.directory, parting.last, step + 1, prefix, **options) for run in runs]
    yield f"from       {prefix or 'the initial values'}, steps {step + 1} to {parting.last} of each run"
    verifications = [Verification(run.directory, rerun) for run, rerun in zip(runs, reruns)]
    first = replay(watched(zip(*(rerun.steps() for rerun in reruns)), parting.last - step), verifications)
    for name, verification in zip('AB', verifications):
        word, text = verification.line().split(maxsplit=1)
        yield f'replay {name:<3} {word} {text}'
    if first:
        yield from _describe_first(*first, reruns)
    else:
        yield from _describe_elsewhere(verifications, parting.last)
    at = first[0].step if first else parting.last
    differences = _differences(*(rerun.segment_of(at).start for rerun in reruns))
    alike = 'the same settings, devices, threads and versions'
    if first:
        alike += ', so an operation is not deterministic, or files differ whose contents are not recorded'
    yield f"starts     {'; '.join(differences) or alike}"


def _recorded(directory):
    """Returns what the run in a directory has recorded; raises a UsageError if it has recorded no hash."""
    if directory.stored() is None:
        raise UsageError(f'{directory.path} holds no run of this program, so there is nothing to compare; name the '
                         'train_dir of a run')
    hashes, losses = ({record['step']: record[name] for record in metrics.read(directory.path, kind)}
                      for kind, name in ((metrics.CHECKPOINT, 'sha256'), (metrics.TRAIN, 'loss')))
    if not hashes:
        raise UsageError(f'the run in {directory.path} has recorded no hash of a checkpoint: it has none yet, or an '
                         'earlier version wrote them; continue it, or train it again')
    return Recorded(directory, hashes, losses)


def part(one: Recorded, other: Recorded) -> Parting:
    """Compares the records of two runs; raises a UsageError if they have no checkpoint of the same step."""
    common = sorted(one.hashes.keys() & other.hashes.keys())
    if not common:
        raise UsageError(f'{one.directory.path} and {other.directory.path} have no checkpoint of the same step, so '
                         'they cannot be compared; train both with the same --save_steps')
    differ = next((step for step in common if one.hashes[step] != other.hashes[step]), None)
    equal = [step for step in common if differ is None or step < differ]
    losses = sorted(step for step in one.losses.keys() & other.losses.keys() if step > max(equal, default=0))
    loss = next((step for step in losses if one.losses[step] != other.losses[step]), None)
    return Parting(equal, differ, loss)


def _describe_parting(parting, one, other):
    """Yields the lines that say where the records part."""
    yield f"equal      {named_steps(parting.equal) if parting.equal else 'no step'}, by the SHA-256 of the checkpoints"
    differ = [] if parting.differ is None else [f'step {parting.differ}, by the SHA-256 of the checkpoints']
    if parting.loss is not None:
        losses = [run.losses[parting.loss] for run in (one, other)]
        differ.append(f'the recorded loss of step {parting.loss} is {losses[0]} and {losses[1]}')
    yield f"differ     {'; '.join(differ) or 'nothing: all checkpoints and losses that both recorded are equal'}"


def _last_equal(runs, steps):
    """Returns (prefix, step) of the newest kept checkpoint, of either run, at which both are equal.

    It must have the recorded hash. Without any it is (None, 0), the initial values.

    Raises:
      UsageError: there is none, and a run did not begin with initial values.
    """
    for step in reversed(steps):
        for run in runs:
            prefix = f'{run.directory.checkpoint_prefix}-{step}'
            with contextlib.suppress(OSError):  # it is not kept, or can no longer be read
                if checkpoint.digest(prefix) == run.hashes[step]:
                    return prefix, step
    for run in runs:
        begin = min((start.step for start in starts.read(run.directory.path)), default=0)
        if begin:
            raise UsageError(f'no checkpoint at which both runs are equal is kept, and the records of the run in '
                             f'{run.directory.path} begin after step {begin}; train both again with --max_to_keep=0')
    return None, 0


def replay(pairs: Iterable[tuple[Taken, Taken]], verifications: Sequence[Verification]) -> tuple[Taken, Taken] | None:
    """Takes the steps of two runs beside each other, and compares each step with its records and with the other run.

    Args:
      pairs: each step of both.
      verifications: those of both.

    Returns:
      The first step, in both runs, after which their variables differ; None if there is none.
    """
    first = None
    for pair in pairs:
        for verification, taken in zip(verifications, pair):
            verification.compare(taken)
        if first is None and differing(*_comparable(*pair, 'after')):
            first = pair
    return first


def differing(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the names of the variables whose bits differ, or that only one run has, in order.

    How a step is divided does not count, as in `checkpoint.digest_of`.
    """
    names = (one.keys() | other.keys()).difference(checkpoint.DIVISION)
    return sorted(name for name in names if not (name in one and name in other and _same_bits(one[name], other[name])))


def _comparable(one, other, moment):
    """Returns the variables of a step in both runs without the copies that only one has.

    Args:
      one, other: the step in both runs.
      moment: 'before', 'updated' or 'after', as in `Taken`.
    """
    values = [getattr(taken, moment) for taken in (one, other)]
    both = values[0].keys() & values[1].keys()
    return [{name: value for name, value in each.items() if name in both or name in taken.saved}
            for taken, each in zip((one, other), values)]


def _same_bits(one, other):
    one, other = np.asarray(one), np.asarray(other)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


# What is said of the steps that were taken again.

def _describe_first(one, other, reruns):
    """Yields the lines about the first step that differs.

    Args:
      one, other: this step in both runs.
      reruns: what took it.
    """
    before = _comparable(one, other, 'before')
    if differing(*before):
        yield f'recurs     yes: the variables differ before step {one.step} already'
        yield from _describe_arrays('before', *before)
        return
    yield f'recurs     yes: step {one.step} is the first that differs'
    yield from _describe_towers(one, other, reruns)
    rates = [taken.figures['learning_rate'] for taken in (one, other)]
    if rates[0] != rates[1]:
        yield f'rate       {rates[0]:.7g} and {rates[1]:.7g}'
    yield from _describe_arrays('after', *_comparable(one, other, 'after'))


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
            losses, gradients = zip(*(probe.gradients(taken, k) for probe, taken in zip(probes, (one, other))))
            lines = [f'tower {k:<4} {name} of the batch' for name in differing(*batches)]
            if not _same_bits(*losses):
                lines.append(f'tower {k:<4} loss {losses[0]:.9g} and {losses[1]:.9g}')
            lines += _describe_arrays(f'tower {k}', *gradients, 'gradient of ')
            same = same and not lines
            yield from lines
    if not same:
        return
    if differing(*_comparable(one, other, 'updated')):
        yield 'towers     batches, losses and gradients are equal in all of them, so only the update differs'
        return
    averaging = [name for name, taken in zip('AB', (one, other)) if taken.updated is not taken.after]
    whose = f', which only {averaging[0]} takes after this step' if len(averaging) == 1 else ''
    yield ('towers     batches, losses, gradients and updates are equal in all of them, so only the average of their '
           f'copies differs{whose}')


def _describe_arrays(word, one, other, what=''):
    """Yields a line for each variable whose values in two runs differ, those that differ most first.

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
    is_scalar = not one.shape
    one, other = np.atleast_1d(one, other)
    flipped = np.bitwise_xor(*(np.ascontiguousarray(array).view(f'u{array.itemsize}') for array in (one, other)))
    with np.errstate(invalid='ignore', over='ignore'):  # values may be infinite
        distance = np.subtract(one, other, dtype=np.float64)
        size = norm(one)
        relative = norm(distance) / size if size else np.inf
    relative = relative if np.isfinite(relative) else np.inf  # the largest difference of all
    if is_scalar:
        return relative, f'{one[0]:.9g} and {other[0]:.9g}'
    count = np.count_nonzero(flipped)
    if count > 1:
        return relative, (f'{count} of {one.size} numbers, by at most {np.abs(distance).max():.3g}; '
                          f"{f'{relative:.2g} of the norm' if size else 'all were 0 in A'}")
    place = tuple(map(int, np.argwhere(flipped)[0]))
    bit = ', a single bit' if int(flipped[place]).bit_count() == 1 else ''
    return relative, f'1 of {one.size} numbers, {list(place)}: {one[place]:.9g} and {other[place]:.9g}{bit}'


def _describe_elsewhere(verifications, last):
    """Yields the lines about two runs that part, but whose steps come out the same when they are taken again."""
    yield f'recurs     no: the replays of A and B come out the same up to step {last}'
    for name, verification in zip('AB', verifications):
        begin, same, end = verification.equal_at, verification.same_at, verification.failed_at
        if end:
            probably = f', probably not before step {same}, whose loss is as recorded' if same and same > begin else ''
            yield (f'between    steps {begin} and {end} something happened to {name} that its records do not explain'
                   f'{probably}')


def _differences(one, other):
    """Returns phrases that say how two starts differ."""
    settings = one.settings.flat(), other.settings.flat()
    names = [name for name in settings[0] if name not in _ELSEWHERE]
    pairs = [(f'{name}=', *(values[name] for values in settings)) for name in names]
    pairs += [('towers on ', *(' '.join(sorted(set(start.devices))) for start in (one, other))),
              ('threads=', one.threads, other.threads)]
    pairs += [(f'{name} ', one.versions.get(name), other.versions.get(name))
              for name in {**one.versions, **other.versions}]
    for own in ('network', 'optimizer'):
        sha256 = [getattr(start, f'{own}_sha256') or 'none' for start in (one, other)]
        pairs.append((f'SHA-256 of the {own} ', *(each[:12] for each in sha256)))
    return [f'{what}{first} and {second}' for what, first, second in pairs if first != second]
