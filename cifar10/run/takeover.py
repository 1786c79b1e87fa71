"""What a start does with a train_dir: whether it may use it, and what it removes there.

The functions get a `Folder` and the settings; they read and write nothing. No run starts in a folder with checkpoints
of another program.
"""
import os
from collections.abc import Mapping

from cifar10.base.errors import listed
from cifar10.base.registry import DATASETS
from cifar10.run import metrics
from cifar10.run.ended import ended
from cifar10.run.folder import BEST, LIST, SETTINGS, Folder, is_unfinished, step_of, step_without_index
from cifar10.settings.definition import Kind, fields
from cifar10.settings.training import GROUPS, OVER_WHOSE_LENGTH, TrainSettings, as_flags

ANOTHER_DIR = 'use another --train_dir'  # the remedies in messages
OR_RESTART = ', or --restart to rename that folder'
ANOTHER_RUN = ANOTHER_DIR + OR_RESTART
# Settings that determine which variables there are, so that another value asks for a new run with those that fit.
_OF_THE_VARIABLES = {'preset', 'network', 'image_size'}


def refusal(folder: Folder, settings: TrainSettings) -> str | None:
    """Returns why a start with some settings may not use a folder, with the remedy; None if it may.

    A run without a checkpoint has nothing to resume, so another one may begin in its place.
    """
    if folder.record is None:
        return _of_others(folder)
    if settings.run.restart:
        return None
    # A kill leaves at most one record of a checkpoint that is not there, and no list.
    if not folder.checkpoints and (LIST in folder.files or len(folder.recorded) > 1):
        return f'{folder.given} holds a run whose checkpoints have been removed; put them back, {ANOTHER_RUN}'
    return _another_run(folder, settings)


def sets_aside(folder: Folder, settings: TrainSettings) -> bool:
    """Returns whether a start, which is not refused, renames the folder with the earlier run in it."""
    return settings.run.restart and folder.record is not None


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


def _of_others(folder):
    """Returns why no run may begin beside the files of another program, or None."""
    if names := folder.of_checkpoints:
        return (f'{folder.given} holds {names[0]}, but no {SETTINGS}, so it is no run of this program; {ANOTHER_DIR}'
                f'{_there(folder.path)}')
    if names := folder.files & {metrics.NAME, BEST}:
        return (f'{folder.given} holds a {min(names)}, but no run of this program; is it an --eval_dir? Use another '
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
    rule = ended(folder.evaluations, stored.settings, newest, stored.last_step)
    offers_variables = _OF_THE_VARIABLES & set(names) or 'dataset' in names and DATASETS.is_own(now['dataset'])
    was = f'run of {_phrase(before, names)}'.replace('run of a run', 'run')
    return (f"{folder.given} has {'a finished' if rule else 'an unfinished'} {was}{why}. For "
            f'{_phrase(now, names)} {remedy(folder, bool(offers_variables))}'
            f'{_how_to_go_on(stored, rule, settings)}')


def _unlike(stored, settings):
    """Returns the names of the settings that make a run another one than the stored one, and why if that is unclear."""
    recipe, now = settings.recipe, settings.flat()
    names = list(stored.difference_to(chosen(settings, Kind.FIXED)))
    others = stored.difference_to({name: now[name] for name in ('preset', 'epochs')})
    if 'epochs' in others and not names and recipe.planned:
        return ['epochs'], f', {OVER_WHOSE_LENGTH[recipe.planned]}'
    if 'preset' in others and len(names) > 1:
        names = ['preset', *(name for name in ('dataset', 'seed') if name in names)]
    return names, ''


def chosen(settings: TrainSettings, kind: Kind) -> dict:
    """Returns the settings of the run of this `Kind`, by their names; its length is left out."""
    values = settings.flat()
    return {field.name: values[field.name] for field in fields(*GROUPS) if field.metadata['kind'] is kind
            and field.name not in ('max_steps', 'epochs')}


def _phrase(values: Mapping, names):
    """Returns settings as flags: '--seed=5', 'a run without --freeze', or '--seed=5 without --freeze'."""
    given = as_flags({name: values[name] for name in names}) or ['a run']
    missing = [f'--{name}' for name in names if values[name] is None]
    return ' '.join([*given, *(['without', listed(missing)] if missing else [])])


def _how_to_go_on(stored, rule, settings):
    """Returns the end of a remedy: the command that continues the stored run, if any does.

    A run that has ended by its patience gets more. Another gets the length of the settings, if that is longer.
    """
    if not rule:
        return f'; to continue it: {stored.command()}'
    if rule == 'patience':
        further = dict(patience=2 * stored.settings.run.patience)
    elif stored.settings.recipe.planned:
        return ''
    else:
        steps = settings.run.max_steps or 0
        further = dict(max_steps=steps if steps > stored.last_step else 2 * stored.last_step, epochs=None)
    return f'; to train it further: {stored._replace(settings=stored.settings.replace(**further)).command()}'
