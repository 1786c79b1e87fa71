"""The lines about a replayed step. Each begins with a word in the first column, such as `tower` or `cause`."""
from collections.abc import Sequence

import numpy as np

from cifar10.run.train_dir import TrainDir
from cifar10.tools.replay.probe import Origin, Step, badness
from cifar10.tools.replay.rerun import Rerun

_MOST_EXAMPLES = 5
_MOST_NAMES = 3
_MOST_SUGGESTED = 10  # steps before one that a line suggests to look at


def heading(directory: TrainDir, rerun: Rerun, wanted: str) -> list[str]:
    """Returns the lines that say what is replayed, and from where.

    Args:
      directory: of the run.
      rerun: takes the steps.
      wanted: a phrase that names the steps that are shown.
    """
    count = rerun.last - rerun.step
    number = 'one step' if count == 1 else f'{count} steps'
    plan = rerun.segments[0].plan
    beginning = 'the initial values' + (f' and {plan.settings.run.warm_start}' if plan.first_values else '')
    return [f'run        {directory.path}, {wanted}', *map(_start, rerun.segments),
            f'from       {rerun.prefix or beginning}, {number}']


def unrecorded(rerun: Rerun, step: Step) -> list[str]:
    """Returns the line that says that a run may not have taken the last of some steps.

    A step whose loss or gradients are not finite explains by itself why nothing is recorded after it.
    """
    if rerun.last <= rerun.recorded or not (step.is_finite or step.was_skipped):
        return []
    return [f'unrecorded the steps after {rerun.recorded}: nothing shows that the run came further; if it does, it '
            'takes these steps']


def _start(segment):
    """Returns the line on a start of the run that took some of the steps."""
    towers, recipe = segment.plan.settings.towers, segment.plan.settings.recipe
    plural = 's' if towers.num_towers > 1 else ''
    more = ''
    if recipe.clip_norm:
        more += f', clipped to {recipe.clip_norm:g}'
    if recipe.freeze:
        more += f', frozen {recipe.freeze}'
    return (f'start      at step {segment.start.step}: {towers.num_towers} tower{plural} of {towers.batch_size}, '
            f'{towers.variable_update}, {towers.precision}, network {recipe.network}, {recipe.optimizer}, '
            f'learning rate {recipe.learning_rate:g}{more}')


def table_of_steps(steps: Sequence[Step]) -> list[str]:
    """Returns a table with a row for each step."""
    rows = []
    for step in steps:
        largest = step.largest
        rows.append([f'{step.number}', _number(step.figures['loss'], 7), _number(step.gradient),
                     _number(largest and largest.ratio), largest.name if largest else '-'])
    return _table('step', ['', 'loss', '|gradient|', '|update|/|value|', 'of'], rows)


def details(step: Step, classes: Sequence[str]) -> list[str]:
    """Returns the tables of the towers, variables and examples of a step; `classes` are the names of the classes."""
    lines = _table('tower', ['', 'loss', '|gradient|', 'correct'], [
        [f'{k}', _number(loss, 7), _number(each.gradient), f'{int((each.labels == each.predictions).sum())} of '
         f'{len(each.labels)}'] for k, (loss, each) in enumerate(zip(step.losses, step.towers))])
    lines += _table('variable', ['', '|value|', '|gradient|', '|update|', '|update|/|value|'], [
        [change.name, _number(change.value), _number(change.gradient), _number(change.update), _number(change.ratio)]
        for change in step.changes], left=1)
    found = [(each.cross_entropies[i], k, i) for k, each in enumerate(step.towers) for i in range(len(each.labels))]
    rows = []
    for loss, k, i in sorted(found, key=lambda item: badness(item[0]), reverse=True)[:_MOST_EXAMPLES]:
        each = step.towers[k]
        rows.append([_number(loss, 5), f'{k}', f'{i}', f'{each.examples[i]}', classes[each.labels[i]],
                     classes[each.predictions[i]]])
    return lines + _table('example', ['cross entropy', 'tower', 'place', 'index', 'label', 'prediction'], rows)


def not_finite_lines(steps: Sequence[Step], classes: Sequence[str], origin: Origin | None) -> list[str]:
    """Returns the lines on values that are not finite in the last of some steps, the cause first.

    Args:
      steps: the step and those before it that were probed.
      classes: the names of the classes.
      origin: of the first tower whose loss or gradients are not finite in the step, if there is one.
    """
    step = steps[-1]
    lines = []
    if step.bad_before:
        lines.append(f'not finite before the step: {_counted(step.bad_before)}')
    if step.is_finite:
        return [f"finite     all {'losses and gradients' if lines else 'losses, gradients and variables'}", *lines,
                *_jump(steps, 'jump')]
    for k in step.bad_losses:
        bad = ~np.isfinite(step.towers[k].cross_entropies)
        of = f', from {_examples(step, k, bad, classes)}' if bad.any() else ', but every cross entropy is finite'
        lines.append(f'not finite tower {k}: loss {step.losses[k]}{of}')
    for k in step.bad_gradients:
        lines.append(f'not finite tower {k}: gradients of {_counted(step.towers[k].bad_gradients)}')
    if step.bad_made:
        lines.append(f'not finite after the step: {_counted(step.bad_made)}')
    if step.was_skipped:
        return [*lines, f'skipped    gradients overflowed at a loss scale of {step.loss_scale:g}, as they may in fp16; '
                        'the variables stayed as they were']
    return _cause(steps, classes, origin) + lines


def _cause(steps, classes, origin):
    """Returns the lines that name the earliest cause that can be seen, and what else may help to find it."""
    *earlier, step = steps
    for each in earlier:
        if each.bad_made:
            return [f'cause      step {each.number} left variables that are not finite: {_counted(each.bad_made)}; '
                    f'--step={each.number} shows how']
    if step.huge and not steps[0].huge and (jump := _jump(earlier, 'cause')):
        return jump + _operation(step, classes, origin, 'operation')
    jump = _jump(earlier, 'jump')
    if steps[0].huge:  # it may have grown in steps before these, or have begun so
        largest = max(steps[0].huge, key=lambda change: badness(change.value))
        jump.append(f'large      {largest.name} had norm {_number(largest.value)} before step {steps[0].number} '
                    f'already; {_steps_before(steps[0])} shows the steps before it')
    if step.bad_tower is None:
        moved = [change.name for change in step.changes if change.name in step.bad_made]
        if moved and not any(change.name in moved for change in step.trained):
            return [f"cause      what was passed to add_moving_statistic for {', '.join(moved[:_MOST_NAMES])}: losses, "
                    'gradients and trained variables are finite', *jump]
        return [f'cause      the update: losses and gradients are finite; the gradients have norm '
                f"{_number(step.gradient)}, the learning rate is {step.figures['learning_rate']:g}", *jump]
    return _operation(step, classes, origin, 'cause') + jump


def _operation(step, classes, origin, word):
    """Returns the line on the operation that an Origin names; [] if there is none."""
    if origin is None:
        return []
    k = step.bad_tower
    which = ''
    if origin.examples:
        which = f', for {_examples(step, k, np.isin(np.arange(len(step.towers[k].labels)), origin.examples), classes)}'
    ranges = ' and '.join(f'from {_number(low)} to {_number(high)}' for low, high in origin.inputs[:_MOST_NAMES])
    target = 'loss' if k in step.bad_losses else 'gradients'
    return [f'{word:<10} tower {k}: {origin.operation} is the first operation on the way to the {target} whose result '
            f"is not finite{which}{ranges and f'; its inputs range {ranges}'}"]


def _jump(steps, word):
    """Returns the line on the first step that changed the variables by more than their own norm; [] if none did."""
    for step in steps:
        if step.ratio > 1:
            largest = step.largest
            # With one that is the first of those shown, the variables may have begun to blow up before.
            hint = f'; {_steps_before(step)} shows the steps before it' if step is steps[0] and step.number > 1 else ''
            return [f'{word:<10} step {step.number} changed the variables by {_number(step.ratio)} times their own '
                    f'norm, most of all {largest.name} ({_number(largest.ratio)} times); its gradients had norm '
                    f"{_number(step.gradient)}, the learning rate was {step.figures['learning_rate']:g}{hint}"]
    return []


def _steps_before(step):
    """Returns the flag that shows the steps up to one."""
    return f'--steps={max(step.number - _MOST_SUGGESTED, 1)}:{step.number}'


def _counted(counts):
    """Returns a phrase for how many values of some variables are not finite, the first few by name."""
    names = [f'{name} ({count} of {size} values)' for name, (count, size) in counts.items()]
    more = f' and {len(names) - _MOST_NAMES} more' if len(names) > _MOST_NAMES else ''
    return ', '.join(names[:_MOST_NAMES]) + more


def _examples(step, k, mask, classes):
    """Returns a phrase that names the examples of tower k where a mask is set."""
    places = np.flatnonzero(mask)
    tower = step.towers[k]
    if len(places) == len(mask):
        return f'all {len(mask)} images'
    names = [f'image {i} of its batch (index {tower.examples[i]}, {classes[tower.labels[i]]})'
             for i in places[:_MOST_NAMES]]
    more = f' and {len(places) - _MOST_NAMES} more' if len(places) > _MOST_NAMES else ''
    return ', '.join(names) + more


def _number(number, digits=4):
    return '-' if number is None else f'{number:.{digits}g}'


def _table(word, header, rows, left=0):
    """Returns aligned lines that begin with a word, below a line with the names of the columns.

    Args:
      word: of every row.
      header: the names of the columns.
      rows: lists of strings.
      left: how many columns are aligned to the left; the others are to the right.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows)]

    def line(first, cells):
        aligned = [f'{cell:<{width}}' if i < left else f'{cell:>{width}}'
                   for i, (cell, width) in enumerate(zip(cells, widths))]
        return f"{first:<10} {'  '.join(aligned)}".rstrip()
    return [line('', header), *[line(word, row) for row in rows]]
