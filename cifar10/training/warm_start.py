"""Initialises a new run with the variables that fit from a checkpoint or a file of weights."""
import contextlib
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError, listed
from cifar10.base.graphs import AVERAGE
from cifar10.run import checkpoints
from cifar10.run.folder import look
from cifar10.training import weights
from cifar10.training.plan import Plan

_FOLDERS = 'the train_dir of a run, DIR/best for the best checkpoint in one, or '  # for messages


def with_model(plan: Plan) -> tuple[Plan, list[Line]]:
    """Returns the plan of a new run with its warm-start model, and lines about it.

    A resumed run keeps its warm-start model, even if the user gives a different one.
    """
    given = plan.settings.run.warm_start
    if plan.record:
        taken = plan.record.settings.run.warm_start
        plan = plan._replace(settings=plan.settings.replace(warm_start=taken))
        is_ignored = given and not plan.ended
        ignored = Line('ignored', f'--warm_start={given}: the run continues from its own checkpoint', note=True)
        return plan, [ignored] if is_ignored else []
    values, notes, pattern = dict[str, np.ndarray](), [], plan.settings.recipe.freeze
    towers = plan.settings.towers
    variables = plan.recipe.variables(towers.batch_size, plan.precision.dtype) if given or pattern else {}
    if given:
        weights.refuse_other_formats(given)
        is_weights = given.endswith(weights.SUFFIX)
        found, lines = weights.named_as(variables, given) if is_weights else (
            checkpoints.named('warm_start', given, _FOLDERS), [])
        found = found._replace(prefix=os.path.abspath(found.prefix))
        values, taken = fitting(found, variables)
        plan = plan._replace(settings=plan.settings.replace(warm_start=found.prefix), first_values=values)
        notes += [Line('warm start', taken, note=True), *lines,
                  *_other_classes(given, found.prefix, plan.source.classes)]
    untrained = [name for name in variables if pattern and re.search(pattern, name) and name not in values]
    if untrained:
        notes.append(Line('warning', f'--freeze={pattern} keeps {listed(untrained)} at untrained initial '
                                     'values; start from a model with --warm_start'))
    return plan, notes


def fitting(found: checkpoints.Saved, variables: Mapping[str, tf.Variable]) -> tuple[dict[str, np.ndarray], str]:
    """Returns the variables of a checkpoint that fit by name and shape.

    Takes the model's moving averages if it has them, because evaluation uses them.

    Returns:
      (name of a variable -> its initial value, a phrase that lists taken and omitted variables).
    """
    prefix, values = found.prefix, {}
    left: dict[str, list[str]] = {'of another type there': [], 'of another shape there': [], 'not there': []}
    for name, variable in variables.items():
        source = name + AVERAGE if name + AVERAGE in found.values else name
        if why := _misfit(found.values.get(source), variable):
            left[why].append(name)
            continue
        values[name] = found.values[source].astype(variable.dtype.as_numpy_dtype)
        if not np.isfinite(values[name]).all():
            raise UsageError(f'--warm_start={prefix} has values of {name} that are not finite; give another checkpoint')
    if not values:
        example = next((f'{name} {variable.shape.as_list()}' for name, variable in variables.items()), 'any')
        raise UsageError(f'--warm_start={prefix} has no variable that fits this network by name and shape, such as '
                         f'{example}; '
                         'give a checkpoint of a similar network')
    averaged = any(name + AVERAGE in found.values for name in values)
    text = f"{len(values)} of {len(variables)} variables{', as moving averages,' * averaged} from {prefix}"
    return values, text + ''.join(f'; {why}: {listed(names)}' for why, names in left.items() if names)


def _misfit(value, variable):
    """Returns a phrase for why a variable cannot take a value; None if it can."""
    if value is None:
        return 'not there'
    if list(np.shape(value)) != variable.shape.as_list():
        return 'of another shape there'
    # A type may convert to another of the same kind, floating or not.
    kind, wanted = tf.as_dtype(value.dtype), variable.dtype.base_dtype
    return None if kind == wanted or kind.is_floating and wanted.is_floating else 'of another type there'


def _other_classes(given, prefix, classes):
    """Returns a warning if the last layer fits, but its classes or their order differ."""
    with contextlib.suppress(UsageError):  # another program's config.json
        record = look(os.path.dirname(prefix)).record
        if record and record.classes and len(record.classes) == len(classes) and (
                changes := record.difference_to(dict(classes=classes))):
            return [Line('warning', f"--warm_start={given} was trained with {changes['classes']}, so its last "
                                    'layer is for other classes')]
    return []
