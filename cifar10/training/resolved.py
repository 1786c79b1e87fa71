"""Resolves the settings of a start: the run in its train_dir supplies settings that the command omits.

Importing this module must not import TensorFlow.
"""
import os
from collections.abc import Mapping
from typing import Any

from cifar10.base.console import Line
from cifar10.base.directories import TRAIN_DIR
from cifar10.base.errors import UsageError
from cifar10.base.registry import CODE, OWN
from cifar10.run import takeover, trust
from cifar10.run.folder import look
from cifar10.settings.definition import OF_RUN, checked, fields
from cifar10.settings.presets import PRESETS
from cifar10.settings.training import (
    GROUPS,
    RecipeSettings,
    TrainSettings,
    as_flags,
    meaningless,
    train_settings,
)

# In these update modes the number of towers follows the devices of each start.
_TOWER_PER_DEVICE = 'async', 'mirrored'
# given setting -> settings not to take from the run, because the given one replaces them
_SAYS_ALSO = {'max_steps': ['epochs'], 'epochs': ['max_steps'], 'use_fp16': ['precision']}
_OF_PRESETS = [*(field.name for field in fields(RecipeSettings)), 'max_steps', 'epochs', 'batch_size', 'precision']


def resolve(given: Mapping[str, Any]) -> tuple[TrainSettings, list[Line]]:
    """Returns the settings of a start, and lines about them for the user.

    Settings that describe the run come from the run in `train_dir`, if they were given there and are not given now. So
    does data_dir, if it exists here, but no other setting of the machine or of a start. `restart` ignores the settings
    of the earlier run.
    """
    given = checked(GROUPS, {name: value for name, value in given.items() if value is not None})
    directory = given.get('train_dir', TRAIN_DIR)
    folder = look(directory)
    record = None if given.get('restart') else folder.record
    if record is None:
        return train_settings(**given), []
    # Before other checks, whose remedies may change what belongs to the run.
    if problem := takeover.refusal(folder, _changed(record.settings, given)):
        raise UsageError(problem)
    taken = _taken(record.settings, given)
    settings = train_settings(**{**taken, **given})
    lines = [*dict.fromkeys(trust.check(flag, taken[flag], directory) for flag in CODE
                            if flag in taken and OWN[flag].is_code(taken[flag]))]
    if taken:
        lines.append(Line('taken', f"from the run: {' '.join(as_flags(taken))}"))
    data_dir = record.settings.data.data_dir
    if 'data_dir' not in taken.keys() | given.keys() and data_dir != settings.data.data_dir:
        lines.append(Line('not here', f"the run's --data_dir={data_dir}; now it is {settings.data.data_dir}"))
    return settings, lines


def _changed(run, given):
    """Returns a run's settings with the given ones, unchecked."""
    preset = given.get('preset', run.recipe.preset)
    without = {also: None for name in given for also in _SAYS_ALSO.get(name, ())}
    return run.replace(**{**(PRESETS[preset] if preset != run.recipe.preset else {}), **without, **given})


def _taken(run, given):
    """Returns the run's given settings that a start takes in addition to its own, by name."""
    values = {**run.flat(), **given}
    replaced = {*given, *meaningless(values)}
    if values['variable_update'] in _TOWER_PER_DEVICE:
        replaced.add('num_towers')
    if given.get('eval_steps') == 0:
        replaced |= {'keep_best', 'patience'}  # which compare evaluations
    if given.get('preset', run.recipe.preset) != run.recipe.preset:  # a whole recipe; or the start is refused
        replaced.update(_OF_PRESETS)
    for name in given:
        replaced.update(_SAYS_ALSO.get(name, ()))
    return {field.name: run.given[field.name] for field in fields(*GROUPS)
            if field.name in run.given and field.name not in replaced
            and (field.metadata['kind'] in OF_RUN
                 or field.name == 'data_dir' and os.path.isdir(run.data.data_dir))}  # not so on another machine
