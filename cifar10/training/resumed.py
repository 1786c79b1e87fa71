"""Resumes a run by its --train_dir: settings that are missing from the command come from the run there.

Importing this module must not import TensorFlow.
"""
import os
from collections.abc import Mapping
from typing import Any

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.base.registry import CODE, OWN
from cifar10.run import trust
from cifar10.run.folder import look
from cifar10.settings.definition import OF_RUN, checked, fields
from cifar10.settings.training import (
    GROUPS,
    OVER_WHOSE_LENGTH,
    RecipeSettings,
    TrainSettings,
    completed,
    flags_of,
    meaningless,
    train_settings,
)

# A resumed run keeps its number of towers in any case, and some update modes know no other than that of the devices.
_DECIDED = {'num_towers'}
# What is not taken from the run beside a setting that is given, because that says it as well. A preset is a recipe as a
# whole: it replaces the run's, or the start is refused.
_REPLACES = {
    'max_steps': ['epochs'], 'epochs': ['max_steps'], 'use_fp16': ['precision'],
    'preset': [*(field.name for field in fields(RecipeSettings)), 'max_steps', 'epochs', 'batch_size', 'precision']}


def settings_of(given: Mapping[str, Any]) -> tuple[TrainSettings, list[str]]:
    """Returns the settings of a start, and the lines that a person should read about them.

    With `train_dir`, settings that describe the run come from the run there, unless they are given. So does data_dir,
    if it exists here, but no other setting of the machine or of a start. With `restart`, only given settings count.

    Args:
      given: the settings that the user gave, by their names; None stands for one that is not given.

    Raises:
      UsageError: a setting is wrong, or others may have written the code that the run names.
    """
    given = checked(GROUPS, {name: value for name, value in given.items() if value is not None})
    directory = given.get('train_dir')
    if directory is None or given.get('restart'):
        return train_settings(**given), []
    record = look(directory).record
    if record is None:
        return train_settings(**given), []
    values = record.settings.flat()
    _refuse_steps(given, values, directory)
    taken = _taken(values, given)
    settings = train_settings(**{**taken, **given})
    lines = [trust.check(flag, taken[flag], directory) for flag in CODE
             if flag in taken and OWN[flag].is_own(taken[flag])]
    shown = [flag for flag in flags_of(settings) if flag.partition('=')[0][2:] in taken]
    if shown:
        lines.append(Line('taken', f"from the run: {' '.join(shown)}"))
    data_dir = values['data_dir']
    if 'data_dir' not in taken.keys() | given.keys() and data_dir != settings.data.data_dir:
        lines.append(Line('not here', f"the run's --data_dir={data_dir}; now it is {settings.data.data_dir}"))
    return settings, lines


def _taken(values, given):
    """Returns those of the run's settings that a start takes, by their names, beside what is given."""
    replaced = {*given, *_DECIDED, *meaningless({**values, **given})}
    if given.get('eval_steps') == 0:
        replaced |= {'keep_best', 'patience'}  # which compare evaluations
    for name in given:
        if name != 'preset' or given[name] != values[name]:
            replaced.update(_REPLACES.get(name, ()))
    of_run = {field.name for field in fields(*GROUPS) if field.metadata['kind'] in OF_RUN}
    if os.path.isdir(values['data_dir']):  # not so on another machine
        of_run.add('data_dir')
    return {name: values[name] for name in of_run - replaced if values[name] is not None}


def _refuse_steps(given, values, directory):
    """Raises a UsageError if a run is to end after so many steps whose recipe is for its length in epochs."""
    now = {**values, **given}
    is_the_runs = all(now.get(name) == values[name] for name in ('preset', 'schedule', 'sizes', 'epochs'))
    planned = completed(values).recipe.planned
    if 'max_steps' in given and is_the_runs and values['epochs'] and planned:
        raise UsageError(f"--max_steps={given['max_steps']}: the run in {directory} has --epochs={values['epochs']}, "
                         f'{OVER_WHOSE_LENGTH[planned]}; leave --max_steps out (Ctrl-C saves and stops the run, and '
                         'the same command continues it)')
