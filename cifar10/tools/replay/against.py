"""Compares the records of two runs: at which checkpoint and which loss they part, and how their starts differ."""
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.run import metrics
from cifar10.run.folder import Folder
from cifar10.run.record import RunRecord, text
from cifar10.tools.replay.verify import named_steps


class _Records(NamedTuple):
    """What a run recorded: the loss of steps and the hash of checkpoints, by the step, and the starts."""
    path: str
    losses: dict[int, float]
    hashes: dict[int, str]
    starts: list[RunRecord]

    @property
    def steps(self):
        return sorted(self.losses.keys() | self.hashes.keys())


def compare_runs(folder: Folder, against: Folder) -> list[str]:
    """Returns the lines of a report on two runs, A and B; raises a UsageError if they cannot be compared."""
    runs = [_records_of(each) for each in (folder, against)]
    losses, hashes = ([getattr(run, name) for run in runs] for name in ('losses', 'hashes'))
    checkpoints, steps = _common(hashes), _common(losses)
    if not (checkpoints or steps):
        has = [f'{run.path} has records of {named_steps(run.steps)}' for run in runs]
        raise UsageError(f"{' and '.join(has)}, so they cannot be compared; train both to a step that both record")
    equal = [step for step in checkpoints if hashes[0][step] == hashes[1][step]]
    checkpoint = next((step for step in checkpoints if step not in equal), None)
    # As text: NaN does not equal itself.
    loss = next((step for step in steps if str(losses[0][step]) != str(losses[1][step])), None)
    differ = [] if checkpoint is None else [f'step {checkpoint}, by the SHA-256 of the checkpoints']
    if loss is not None:
        differ.append(f'the recorded loss of step {loss} is {losses[0][loss]} and {losses[1][loss]}')
    parted = min((step for step in (checkpoint, loss) if step is not None), default=None)
    return [*(f'{name:<10} {run.path}, with records up to step {run.steps[-1]}' for name, run in zip('AB', runs)),
            Line('equal', f"{named_steps(equal) if equal else 'no step'}, by the SHA-256 of the checkpoints"),
            Line('differ', '; '.join(differ) or 'no recorded checkpoint or loss'),
            Line('starts', _different_starts(runs, parted))]


def _records_of(folder):
    """Returns the _Records of the run in a folder; raises a UsageError if there are none."""
    if folder.run is None:
        raise UsageError(f'{folder.path} holds no run of this program, so there is nothing to compare; name the '
                         'train_dir of a run')
    records = _Records(
        folder.path, {record['step']: record['loss'] for record in metrics.read(folder.path, metrics.TRAIN)},
        {record['step']: record['sha256'] for record in metrics.read(folder.path, metrics.CHECKPOINT)}, folder.started)
    if not records.steps:
        raise UsageError(f'the run in {folder.path} has no record of a checkpoint or a step yet; compare it later')
    return records


def _common(by_step):
    """Returns the steps that both of two dicts have, in order."""
    return sorted(by_step[0].keys() & by_step[1].keys())


def _different_starts(runs, parted):
    """Returns a phrase that says how the starts of two runs differ, up to the step `parted` if they have parted."""
    one, other = (_histories([start for start in run.starts if parted is None or start.step < parted]) for run in runs)
    if not (one and other):
        return 'not compared, because a run has no record of one'
    differences = [f'{name}={one.get(name)} and {other.get(name)}' for name in {**one, **other}
                   if one.get(name) != other.get(name)]
    return '; '.join(differences) or 'the same settings, images, devices, threads and versions'


def _histories(starts: Sequence[RunRecord]) -> dict[str, str]:
    """Returns all that some starts recorded: name -> its values, one after the other."""
    recorded = [{name: text(name, value) for name, value in start.flat().items()} for start in starts]
    return {name: ', then '.join(value for value, _ in itertools.groupby(each.get(name, '-') for each in recorded))
            for each in recorded[-1:] for name in each}
