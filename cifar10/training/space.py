"""The disk space that the files of a run take."""
from collections.abc import Collection

import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.base.files import in_bytes, shortage
from cifar10.training.plan import Plan


def check_space(plan: Plan, variables: Collection[tf.Variable]) -> list[Line]:
    """Raises a UsageError if the disk has no room for a checkpoint; returns a warning if it has none for all files.

    Free space changes during a run, so only the first checkpoint must fit.
    """
    train_dir = plan.settings.run.train_dir
    one, added, what = needed(plan, variables)
    if problem := shortage(train_dir, '--train_dir', one, what):
        raise UsageError(problem)
    problem = shortage(train_dir, '--train_dir', added, what)
    return [Line('warning', problem)] if problem else []


def needed(plan: Plan, variables: Collection[tf.Variable]) -> tuple[int, int, str]:
    """Returns (bytes of a checkpoint of some variables, bytes of all files that will be added, a phrase about both)."""
    reports = plan.settings.reports
    size = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
    if keep := reports.max_to_keep:
        # One more than are kept: the oldest is removed only after the newest is written. Existing ones need no more.
        count = max(keep + 1 - len(plan.folder.checkpoints), 1)
        limit = f'--max_to_keep={keep}'
    else:
        # With that of the last step, and one of --save_minutes.
        count = plan.last_step // reports.save_steps - plan.step // reports.save_steps + 2
        limit = f'all are kept, --save_steps={reports.save_steps}'
    if reports.keep_best:
        count += 1  # the best so far
        limit += ', --keep_best'
    curves = _space_for_tensorboard(plan, len(variables))
    return size, size * count + curves, (
        f'TensorBoard takes about {in_bytes(curves)}, a checkpoint takes {in_bytes(size)}, {limit}')


def _space_for_tensorboard(plan, variables):
    """Estimates the bytes of the files for TensorBoard, as measured in runs of the built-in networks."""
    reports = plan.settings.reports
    lines, summaries, evaluations = ((plan.last_step - plan.step) // every if every else 0 for every in (
        reports.log_frequency, reports.summary_steps, reports.eval_steps))
    return (variables * (15_000 + 25 * lines + 2000 * summaries)
            + (50_000 + 32 * plan.recipe.image_size ** 2) * evaluations)
