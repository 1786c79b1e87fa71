"""Deletes from a train_dir an earlier run, and the files that killed processes left behind.

Files of other programs are left alone. A restart deletes only files that provably belong to a run of this program.
"""
import contextlib
import os

from cifar10.base import files
from cifar10.base.console import say
from cifar10.base.directories import BEST, EVALUATIONS
from cifar10.base.errors import UsageError
from cifar10.run import metrics
from cifar10.run.names import FIGURES, LIST, SETTINGS, is_of_run, is_unfinished, step_of, step_without_index
from cifar10.run.saved import is_ours
from cifar10.run.train_dir import ANOTHER_DIR, ANOTHER_RUN, OR_RESTART, TrainDir


def tidy(directory: TrainDir) -> None:
    """Removes what killed processes of a run left behind; the caller holds its lock.

    That is unfinished files, and data files of recorded checkpoints without an index: checkpoints that were being
    written or removed. If another program wrote checkpoints here, whatever may be its own stays.
    """
    if directory.stored() is None:
        return
    checkpoints = directory.checkpoints()
    indexed = {step_of(prefix) for prefix in checkpoints}
    recorded = {record['step'] for record in metrics.read(directory.path, metrics.CHECKPOINT)}
    last_of_others = max((step_of(prefix) for prefix in checkpoints if not is_ours(prefix)), default=-1)
    for name in os.listdir(directory.path):
        step = step_without_index(name)
        is_abandoned = step in recorded - indexed and step > last_of_others
        if is_abandoned or is_unfinished(name):
            os.remove(os.path.join(directory.path, name))


def refuse_remains(directory: TrainDir) -> None:
    """Raises a UsageError for incomplete checkpoints, or records that no run here wrote: a new run would drop some."""
    stored = directory.stored()
    if missing := directory.incomplete():
        remedy = ANOTHER_RUN if stored else f'or {ANOTHER_DIR}'
        raise UsageError(f'{directory.given} {missing}, {remedy}')
    # A kill leaves at most one record of a checkpoint that is not there.
    if stored and not directory.checkpoints() and len(metrics.read(directory.path, metrics.CHECKPOINT)) > 1:
        raise UsageError(f'{directory.given} holds a run whose checkpoints have been removed; put them '
                         f'back, {ANOTHER_RUN}')
    if stored is None and os.path.exists(os.path.join(directory.path, metrics.NAME)):
        raise UsageError(f'{directory.given} holds a {metrics.NAME}, but no run of this program; is it an '
                         '--eval_dir? Use another --train_dir')


def has_run(directory: TrainDir) -> bool:
    """Returns whether there is an earlier run of this program that `restart` would delete.

    Raises:
      UsageError: it is not certain that this program wrote all checkpoints.
    """
    if directory.stored() is None:
        if directory.checkpoints():
            raise UsageError(f'--restart: {directory.path} holds checkpoints, but no {SETTINGS} of this program, so '
                             'they are not deleted; use another --train_dir')
        refuse_remains(directory)
        return False
    foreign = [prefix for prefix in directory.checkpoints() if not is_ours(prefix)]
    if foreign:
        raise UsageError(f'--restart: {foreign[0]} was not written by this program, so it is not deleted; '
                         'use another --train_dir')
    return True


def remedy(directory: TrainDir, warm_start: bool = False) -> str:
    """Returns what a user can do if the run in a directory is another one: delete it only where `restart` would.

    Args:
      directory: the train_dir.
      warm_start: whether a new run may be meant to start from the model of that one.
    """
    another = ANOTHER_DIR
    if warm_start:
        another += f' (there --warm_start={directory.path} takes the variables of this run where they fit)'
    with contextlib.suppress(UsageError):
        has_run(directory)
        return another + OR_RESTART
    return another


def restart(directory: TrainDir) -> None:
    """Deletes an earlier run of this program, with its best checkpoint and evaluations; the caller holds its lock."""
    if not has_run(directory):
        return
    if directory.checkpoints():
        count = sum(map(is_of_run, os.listdir(directory.path)))
        say(f'restart    deleting the {count} files of the earlier run in {directory.path}')
    else:
        say(replaced(directory))
    for folder, other in _folders(directory):
        _delete(folder, other)
        with contextlib.suppress(OSError):  # not empty: the rest is the user's
            os.rmdir(folder.path)
    _delete(directory)


def replaced(directory: TrainDir) -> str:
    """Returns the line about a run without a checkpoint that a start replaces."""
    best = [prefix for folder, _ in _folders(directory) for prefix in folder.checkpoints()]
    return (f'replaced   the run in {directory.path} that ended before its first checkpoint'
            f"{f', with its best one, {best[0]}' if best else ''}")


def deletes(directory: TrainDir, prefix: str) -> bool:
    """Returns whether a start that deletes the run in a train_dir deletes a checkpoint with it."""
    folders = [directory, *(folder for folder, _ in _folders(directory))]
    deleted = [checkpoint for folder in folders for checkpoint in folder.checkpoints()]
    return os.path.realpath(prefix) in map(os.path.realpath, deleted)


def _folders(directory):
    """Yields each folder in a train_dir that is deleted with its run, as (TrainDir, name of a file besides a run's)."""
    run = directory.stored()
    if run and (best := _best(directory, run)):
        yield best, FIGURES
    evaluations = TrainDir(os.path.join(directory.path, EVALUATIONS))
    records = metrics.read(evaluations.path, metrics.EVAL)
    if run and records and all(record.get('run') == run.run for record in records):
        yield evaluations, 'lock'


def _best(directory, run):
    """Returns the folder of a run's best checkpoint as a TrainDir; None if it is of another run than a RunRecord's.

    A folder in which somebody has gone on training does not count either.
    """
    best = TrainDir(os.path.join(directory.path, BEST))
    with contextlib.suppress(UsageError):
        stored = best.stored()
        if stored and stored.run == run.run and not os.path.exists(os.path.join(best.path, metrics.NAME)):
            return best
    return None


def _delete(directory, *others):
    """Deletes the files of a run, its list first, its metrics and settings last, and files of other names.

    While the settings are there, the remaining files are known to be this program's, so a restart that was interrupted
    can be repeated. Without the list, no remaining file is taken for a part of a checkpoint that the user needs.
    """
    names = [name for name in os.listdir(directory.path) if is_of_run(name) or name in others]
    for name in sorted(names, key=lambda name: {LIST: -1, metrics.NAME: 1, SETTINGS: 2}.get(name, 0)):
        if name == SETTINGS:
            files.sync(directory.path)
        os.remove(os.path.join(directory.path, name))
