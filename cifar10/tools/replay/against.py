"""Compares the records of two runs: at which checkpoint and which loss they diverge, and how their starts differ."""
import itertools
from collections.abc import Sequence

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.run import metrics
from cifar10.run.folder import Folder
from cifar10.run.record import RunRecord, text
from cifar10.tools.replay.verify import named_steps


def compare_runs(folder: Folder, against: Folder) -> list[Line]:
    """Returns the lines of a report on two runs, A and B; raises a UsageError if they cannot be compared."""
    runs = folder, against
    for run in runs:
        if run.record is None:
            raise UsageError(f'{run.path} holds no run of this program, so there is nothing to compare; name the '
                             'train_dir of a run')
    equal, checkpoint, _ = _compared(runs, metrics.CHECKPOINT, 'sha256')
    equal_losses, loss, losses = _compared(runs, metrics.TRAIN, 'loss')
    differ = [] if checkpoint is None else [f'step {checkpoint}, by the SHA-256 of the checkpoints']
    if loss is not None:
        differ.append('the recorded loss of step {} is {} and {}'.format(loss, *losses))
    if not (equal or equal_losses or differ):
        raise UsageError(f'{folder.path} and {against.path} have no records of the same step, so they cannot be '
                         'compared; train both to a step that both record')
    parted = min((step for step in (checkpoint, loss) if step is not None), default=None)
    return [*(Line(name, run.path) for name, run in zip('AB', runs)),
            Line('equal', f"{named_steps(equal) if equal else 'no step'}, by the SHA-256 of the checkpoints"),
            Line('differ', '; '.join(differ) or 'no recorded checkpoint or loss'),
            Line('starts', _different_starts(runs, parted))]


def _compared(runs, kind, name):
    """Compares what the records of two runs have under a name.

    Returns:
      (the steps at which both have the same, the first step at which they differ or None, both values there).
    """
    one, other = ({record['step']: record[name] for record in metrics.read(run.path, kind)} for run in runs)
    common = sorted(one.keys() & other.keys())
    equal = [step for step in common if one[step] == other[step]]
    first = next((step for step in common if one[step] != other[step]), None)
    return equal, first, (one.get(first), other.get(first))


def _different_starts(runs, parted):
    """Returns a phrase that says how the starts of two runs differ, up to the step `parted` if they have parted."""
    one, other = (_histories([start for start in run.started if parted is None or start.step < parted]) for run in runs)
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
