"""The lines about a replayed step. Each begins with a word in the first column, such as `tower` or `cause`."""
import math
from collections.abc import Sequence

import numpy as np

from cifar10.base.console import Line
from cifar10.tools.replay.probe import Look, norm
from cifar10.tools.replay.rerun import Rerun

_MOST_EXAMPLES = 5
_MOST_NAMES = 3
_MOST_SUGGESTED = 10  # steps before one that a line suggests to look at
_HUGE = 1e6  # norm of a variable that has blown up: products of such values overflow soon


def heading(rerun: Rerun, wanted: str) -> list[Line]:
    """Returns the lines that say what is replayed, and from where.

    Args:
      rerun: takes the steps.
      wanted: a phrase that names the steps that are shown.
    """
    count = rerun.last - rerun.step
    plan = rerun.segments[0].plan
    start = 'the initial values' + (f' and {plan.settings.run.warm_start}' if plan.first_values else '')
    if rerun.start:
        start = rerun.start.prefix
    return [Line('run', f'{rerun.folder.path}, {wanted}'), *map(_start, rerun.segments),
            Line('from', f"{start}, {'one step' if count == 1 else f'{count} steps'}")]


def _start(segment):
    """Returns the line on a start of the run that took some of the steps."""
    towers, recipe = segment.plan.settings.towers, segment.plan.settings.recipe
    plural = 's' if towers.num_towers > 1 else ''
    clipped = f', clipped to {recipe.clip_norm:g}' if recipe.clip_norm else ''
    frozen = f', frozen {recipe.freeze}' if recipe.freeze else ''
    return Line('start', f'at step {segment.start.step}: {towers.num_towers} tower{plural} of {towers.batch_size}, '
                         f'{towers.variable_update}, {towers.precision}, network {recipe.network}, {recipe.optimizer}, '
                         f'learning rate {recipe.learning_rate:g}{clipped}{frozen}')


def table_of_steps(looks: Sequence[Look]) -> list[Line]:
    """Returns a table with a row for each step."""
    rows = []
    for look in looks:
        name, share = _largest_change(look) or ('-', None)
        rows.append([f'{look.step}', _number(look.figures['loss'], 7), _number(look.gradient), _number(share), name])
    return _table('step', ['', 'loss', '|gradient|', '|update|/|value|', 'of'], rows)


def details(look: Look, classes: Sequence[str]) -> list[Line]:
    """Returns the tables of the towers, variables and examples of a step; `classes` are the names of the classes."""
    lines = _table('tower', ['', 'loss', '|gradient|', 'correct'], [
        [f'{k}', _number(loss, 7), _number(tower['gradient']), f"{int((tower['labels'] == tower['predictions']).sum())}"
         f" of {len(tower['labels'])}"] for k, (loss, tower) in enumerate(zip(look.losses, look.towers))])
    lines += _table('variable', ['', '|value|', '|gradient|', '|update|', '|update|/|value|'], [
        [name, *map(_number, norms), _number(_share(*norms))] for name, norms in look.norms.items()], left=1)
    found = [(loss, k, i) for k, tower in enumerate(look.towers) for i, loss in enumerate(tower['losses'])]
    rows = []
    for loss, k, i in sorted(found, key=lambda item: _badness(item[0]), reverse=True)[:_MOST_EXAMPLES]:
        tower = look.towers[k]
        rows.append([_number(loss, 5), f'{k}', f'{i}', f"{tower['examples'][i]}", classes[tower['labels'][i]],
                     classes[tower['predictions'][i]]])
    return lines + _table('example', ['cross entropy', 'tower', 'place', 'index', 'label', 'prediction'], rows)


def not_finite_lines(looks: Sequence[Look], classes: Sequence[str]) -> list[Line]:
    """Returns the lines on values that are not finite in the last of some steps, the cause first.

    Args:
      looks: at the step and at those before it.
      classes: the names of the classes.
    """
    look = looks[-1]
    lines = [Line('not finite', f'before the step: {_counted(look.bad_before)}')] if look.bad_before else []
    if look.is_finite:
        return [Line('finite', f"all {'losses and gradients' if lines else 'losses, gradients and variables'}"), *lines,
                *_jump(looks, 'jump')]
    for k in look.bad_losses:
        places = np.flatnonzero(~np.isfinite(look.towers[k]['losses'])).tolist()
        of = f', from {_examples(look.towers[k], places, classes)}' if places else ', but every cross entropy is finite'
        lines.append(Line('not finite', f'tower {k}: loss {look.losses[k]}{of}'))
    for k, bad in look.bad_gradients.items():
        lines.append(Line('not finite', f'tower {k}: gradients of {_counted(bad)}'))
    if look.bad_made:
        lines.append(Line('not finite', f'after the step: {_counted(look.bad_made)}'))
    if look.was_skipped:
        return [*lines, Line('skipped', f'gradients overflowed at a loss scale of {look.loss_scale:g}, as they may in '
                                        'fp16; the variables stayed as they were')]
    return _cause(looks, classes) + lines


def _cause(looks, classes):
    """Returns the lines that name the earliest cause that can be seen, and what else may help to find it."""
    *earlier, look = looks
    for each in earlier:
        if each.bad_made:
            return [Line('cause', f'step {each.step} left variables that are not finite: {_counted(each.bad_made)}; '
                                  f'--step={each.step} shows how')]
    if _huge(look) and not _huge(looks[0]) and (jump := _jump(earlier, 'cause')):
        return jump + _operation(look, classes, 'operation')
    jump = _jump(earlier, 'jump')
    if huge := _huge(looks[0]):  # it may have grown in steps before these, or have begun so
        name = max(huge, key=lambda name: _badness(huge[name]))
        jump.append(Line('large', f'{name} had norm {_number(huge[name])} before step {looks[0].step} already; '
                                  f'{_steps_before(looks[0])} shows the steps before it'))
    if look.bad_tower is not None:
        return _operation(look, classes, 'cause') + jump
    if statistics := [name for name in look.norms if name in look.bad_made]:
        if not any(name in _trained(look) for name in statistics):
            return [Line('cause', f"what was passed to add_moving_statistic for {', '.join(statistics[:_MOST_NAMES])}: "
                                  'losses, gradients and trained variables are finite'), *jump]
    return [Line('cause', 'the update: losses and gradients are finite; the gradients have norm '
                          f"{_number(look.gradient)}, the learning rate is {look.figures['learning_rate']:g}"), *jump]


def _operation(look, classes, word):
    """Returns the line on the operation where values that are not finite come from; [] if there is none."""
    origin = look.origin
    if origin is None:
        return []
    which = f', for {_examples(look.towers[look.bad_tower], origin.places, classes)}' if origin.places else ''
    ranges = ' and '.join(f'from {_number(low)} to {_number(high)}' for low, high in origin.ranges[:_MOST_NAMES])
    target = 'loss' if look.bad_losses else 'gradients'
    return [Line(word, f'tower {look.bad_tower}: {origin.operation} is the first operation on the way to the {target} '
                       f"whose result is not finite{which}{ranges and f'; its inputs range {ranges}'}")]


def _jump(looks, word):
    """Returns the line on the first step that changed the variables by more than their own norm; [] if none did."""
    look = next((look for look in looks if _share_of_all(look) > 1), None)
    if look is None:
        return []
    name, largest = _largest_change(look)
    # With one that is the first of those shown, the variables may have begun to blow up before.
    hint = f'; {_steps_before(look)} shows the steps before it' if look is looks[0] and look.step > 1 else ''
    return [Line(word, f'step {look.step} changed the variables by {_number(_share_of_all(look))} times their own '
                       f'norm, most of all {name} ({_number(largest)} times); its gradients had norm '
                       f"{_number(look.gradient)}, the learning rate was {look.figures['learning_rate']:g}{hint}")]


def _steps_before(look):
    """Returns the flag that shows the steps up to one."""
    return f'--steps={max(look.step - _MOST_SUGGESTED, 1)}:{look.step}'


# What follows from the norms of a step. Moving statistics follow the data, so their changes are large and harmless.

def _trained(look):
    """Returns the norms of the trained variables."""
    return {name: norms for name, norms in look.norms.items() if norms[1] is not None}


def _huge(look):
    """Returns the norms of the trained variables that had blown up before the step, by name."""
    return {name: value for name, (value, *_) in _trained(look).items() if not value < _HUGE}


def _share(value, _, update):
    """Returns the norm of a change relative to that of the value; None where the value is 0."""
    return update / value if value else None


def _share_of_all(look):
    """Returns the norm of the change of all trained variables, relative to the norm of their values."""
    values, updates = ([norms[i] for norms in _trained(look).values()] for i in (0, 2))
    return norm(updates) / norm(values) if norm(values) else math.nan


def _largest_change(look):
    """Returns (name, share) of the trained variable that changed most, relative to its value; None if all were 0."""
    shares = [(name, _share(*norms)) for name, norms in _trained(look).items() if norms[0]]
    return max(shares, key=lambda item: _badness(item[1]), default=None)


def _badness(number):
    """Returns a sort key: NaN above infinity above all numbers."""
    return (2, 0.0) if math.isnan(number) else (1, 0.0) if math.isinf(number) else (0, float(number))


def _counted(counts):
    """Returns a phrase for how many values of some variables are not finite, the first few by name."""
    names = [f'{name} ({count} of {size} values)' for name, (count, size) in counts.items()]
    more = f' and {len(names) - _MOST_NAMES} more' if len(names) > _MOST_NAMES else ''
    return ', '.join(names[:_MOST_NAMES]) + more


def _examples(tower, places, classes):
    """Returns a phrase that names the examples at some places in the batch of a tower."""
    if len(places) == len(tower['labels']):
        return f'all {len(places)} images'
    names = [f"image {i} of its batch (index {tower['examples'][i]}, {classes[tower['labels'][i]]})"
             for i in places[:_MOST_NAMES]]
    more = f' and {len(places) - _MOST_NAMES} more' if len(places) > _MOST_NAMES else ''
    return ', '.join(names) + more


def _number(number, digits=4):
    return '-' if number is None else f'{number:.{digits}g}'


def _table(word, header, rows, left=0):
    """Returns aligned lines with a word, below a line with the names of the columns; the first `left` are text."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]

    def aligned(cells):
        columns = enumerate(zip(cells, widths))
        return '  '.join(f'{cell:<{width}}' if i < left else f'{cell:>{width}}' for i, (cell, width) in columns)
    return [Line('', ' ' * 11 + aligned(header).rstrip()), *(Line(word, aligned(row).rstrip()) for row in rows)]
