"""What a start does with a train_dir: whether it may use it, what it deletes there, and in which order.

The functions get a `Folder` and the settings; they read and write nothing. No run starts in a folder with checkpoints
of another program.
"""
import os
from collections.abc import Mapping

from cifar10.base.console import Line
from cifar10.base.errors import listed
from cifar10.base.registry import DATASETS
from cifar10.run import metrics
from cifar10.run.folder import FIGURES, LIST, SETTINGS, Folder, is_of_run, is_unfinished, step_of, step_without_index
from cifar10.settings.definition import Change, Of, fields
from cifar10.settings.training import GROUPS, OVER_WHOSE_LENGTH, TrainSettings, as_flags

ANOTHER_DIR = 'use another --train_dir'  # the remedies in messages
OR_RESTART = ', or --restart to delete that run'
ANOTHER_RUN = ANOTHER_DIR + OR_RESTART
# Settings that determine which variables there are, so that another value asks for a new run with those that fit.
_OF_THE_VARIABLES = {'preset', 'network', 'image_size'}


def refusal(folder: Folder, settings: TrainSettings) -> str | None:
    """Returns why a start with some settings may not use a folder, with the remedy; None if it may.

    Settings without a checkpoint belong to a run that failed before its first one: there is nothing to resume.
    """
    if folder.record is None:
        return _of_others(folder)
    if settings.run.restart:
        return None
    # A kill leaves at most one record of a checkpoint that is not there, and no list.
    if not folder.checkpoints and (LIST in folder.files or len(folder.recorded) > 1):
        return f'{folder.given} holds a run whose checkpoints have been removed; put them back, {ANOTHER_RUN}'
    return _another_run(folder, settings)


def replaces(folder: Folder, settings: TrainSettings) -> bool:
    """Returns whether a start, which is not refused, deletes an earlier run: on request, or if it has no checkpoint."""
    return folder.record is not None and (settings.run.restart or not folder.checkpoints)


def replaced(folder: Folder) -> str:
    """Returns the line about a run that a start deletes."""
    if folder.checkpoints:
        count = len([name for name in folder.files if is_of_run(name)])
        return Line('restart', f'deleting the {count} files of the earlier run in {folder.path}')
    best = _best(folder)
    also = f', with its best checkpoint, {best.checkpoints[0]}' if best and best.checkpoints else ''
    return Line('replaced', f'the run in {folder.path} that ended before its first checkpoint{also}')


def deletions(folder: Folder) -> list[str]:
    """Returns the paths of what is deleted with the run in a folder, in the order of deletion.

    In each folder the list of checkpoints goes first: without it, no remaining file is taken for a part of a checkpoint
    that the user needs. The metrics and the settings go last: while the settings are there, what remains is known to be
    this program's, so an interrupted deletion can be repeated. A folder is removed if nothing is left in it.
    """
    paths = []
    if best := _best(folder):
        paths += [*_of_run(best, FIGURES), best.path]
    evaluations = folder.evaluations
    if evaluations.evaluated and all(run == folder.run_id for run in evaluations.evaluated):
        paths += [*_of_run(evaluations, 'lock'), evaluations.path]
    for of_run in (folder.curves, *(() if evaluations.evaluated else [evaluations])):  # where nobody else has evaluated
        if of_run.events and SETTINGS not in of_run.files:  # it is no other run's folder
            paths += [*of_run.events, of_run.path]
    return paths + _of_run(folder)


def abandoned(folder: Folder) -> list[str]:
    """Returns the paths of what killed processes of this program left behind in the folder of a run.

    That is unfinished files, and data files of recorded checkpoints without an index: checkpoints that were being
    written or removed.
    """
    missing = folder.recorded - set(map(step_of, folder.checkpoints))
    return [os.path.join(folder.path, name) for name in sorted(folder.files)
            if is_unfinished(name) or step_without_index(name) in missing]


def remedy(folder: Folder, warm_start: bool = False) -> str:
    """Returns what a user can do if the run in a folder is another one; with `warm_start`, also by using its model."""
    return ANOTHER_DIR + _there(folder.path) * warm_start + OR_RESTART


def refuse_others(prefix: str) -> str:
    """Returns why no run continues from a checkpoint that another program has written, with the remedy."""
    return f'{prefix} was written by another program, so no run continues from it; {ANOTHER_DIR}{_there(prefix)}'


def _there(model):
    return f' (there --warm_start={model} takes over the variables that fit)'


def _best(folder):
    """Returns the folder of the best checkpoint of the run in a folder.

    None if it is of another run, or somebody has gone on training there.
    """
    best = folder.best
    is_the_runs = best and best.record and best.run_id == folder.run_id
    return best if is_the_runs and metrics.NAME not in best.files else None


def _of_run(folder, other=''):
    """Returns the paths of a run's files in a folder, and of the `other` one, in the order of `deletions`."""
    last = {LIST: -1, metrics.NAME: 1, SETTINGS: 2}
    # The index of a checkpoint before its other files: data without an index are no checkpoint.
    names = sorted((name for name in folder.files if is_of_run(name) or name == other),
                   key=lambda name: (last.get(name, 0), name.removesuffix('.index')))
    return [os.path.join(folder.path, name) for name in names]


def _of_others(folder):
    """Returns why no run may begin beside the files of another program, or None."""
    if names := folder.of_checkpoints:
        return (f'{folder.given} holds {names[0]}, but no {SETTINGS}, so it is no run of this program; {ANOTHER_DIR}'
                f'{_there(folder.path)}')
    if metrics.NAME in folder.files:
        return (f'{folder.given} holds a {metrics.NAME}, but no run of this program; is it an --eval_dir? Use another '
                '--train_dir')
    return None


def _another_run(folder, settings):
    """Returns why the run in a folder is another one than that of some settings, with the remedies, or None."""
    if not folder.checkpoints:
        return None
    here = folder.record.settings.replace(train_dir=folder.path)  # the folder may have been moved
    stored = folder.record._replace(settings=here)
    before, now = stored.settings.flat(), settings.flat()
    names, why = _unlike(stored, settings)
    if not names:
        return None
    newest = step_of(folder.checkpoints[-1])
    is_spent = newest in folder.spent
    has_ended = is_spent or stored.last_step is not None and newest >= stored.last_step
    offers_variables = _OF_THE_VARIABLES & set(names) or 'dataset' in names and DATASETS.is_own(now['dataset'])
    was = f'run of {_phrase(before, names)}'.replace('run of a run', 'run')
    return (f"{folder.given} has {'a finished' if has_ended else 'an unfinished'} {was}{why}. For "
            f'{_phrase(now, names)} {remedy(folder, bool(offers_variables))}'
            f'{_how_to_go_on(stored, has_ended, is_spent, settings)}')


def _unlike(stored, settings):
    """Returns the names of the settings that make a run another one than the stored one, and why if that is unclear."""
    recipe, now = settings.recipe, settings.flat()
    names = list(stored.difference_to(chosen(settings, Change.NEVER)))
    others = stored.difference_to({name: now[name] for name in ('preset', 'epochs')})
    if 'epochs' in others and not names and recipe.planned:
        return ['epochs'], f', {OVER_WHOSE_LENGTH[recipe.planned]}'
    if 'preset' in others and len(names) > 1:
        names = ['preset', *(name for name in ('dataset', 'seed') if name in names)]
    return names, ''


def chosen(settings: TrainSettings, change: Change) -> dict:
    """Returns the settings of the run with this `Change`, by their names; its length is left out."""
    values = settings.flat()
    return {field.name: values[field.name] for field in fields(*GROUPS) if field.metadata['of'] is Of.RUN
            and field.metadata['change'] is change and field.name not in ('max_steps', 'epochs')}


def _phrase(values: Mapping, names):
    """Returns settings as flags: '--seed=5', 'a run without --freeze', or '--seed=5 without --freeze'."""
    given = as_flags({name: values[name] for name in names}) or ['a run']
    missing = [f'--{name}' for name in names if values[name] is None]
    return ' '.join([*given, *(['without', listed(missing)] if missing else [])])


def _how_to_go_on(stored, has_ended, is_spent, settings):
    """Returns the end of a remedy: the command that continues the stored run, if any does.

    A run that has ended gets more patience, if that is spent, or the length of the settings, those of another run, if
    that is longer.
    """
    if not has_ended:
        return f'; to continue it: {stored.command()}'
    if is_spent:
        further = dict(patience=2 * stored.settings.run.patience)
    elif stored.settings.recipe.planned:
        return ''
    else:
        steps = settings.run.max_steps or 0
        further = dict(max_steps=steps if steps > stored.last_step else 2 * stored.last_step, epochs=None)
    return f'; to train it further: {stored._replace(settings=stored.settings.replace(**further)).command()}'
