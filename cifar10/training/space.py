"""The space that the checkpoints of a run need on the disk of its train_dir, beside what is free there."""
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.base.files import shortage
from cifar10.run.train_dir import TrainDir
from cifar10.training.plan import Plan


class Space(NamedTuple):
    """The space for the checkpoints that a start writes.

    Attributes:
      one: bytes of a checkpoint.
      all: bytes of those that there will be at a time, without what is there already.
      what: a phrase that says so.
    """
    one: int
    all: int
    what: str


def of_checkpoints(plan: Plan, directory: TrainDir, variables: Iterable[tf.Variable]) -> Space:
    """Returns the space for checkpoints of some variables."""
    reports = plan.settings.reports
    size = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
    if keep := reports.max_to_keep:
        # One more than are kept: the oldest is removed only after the newest is written. Existing ones need no more.
        count = max(keep + 1 - len(directory.checkpoints()), 1)
        limit = f'--max_to_keep={keep}'
    else:
        count = plan.last_step // reports.save_steps - plan.step // reports.save_steps + 1
        limit = f'all are kept, --save_steps={reports.save_steps}'
    if reports.keep_best:
        count += 2  # the best so far, and one that may be better
        limit += ', --keep_best'
    return Space(size, size * count, f'a checkpoint takes {size / 1e6:.1f} MB, {limit}')


def compare(space: Space, directory: TrainDir, others: int = 0) -> list[str]:
    """Compares what checkpoints need with what is free; returns a warning if the disk has no room for all of them.

    What is free changes while a run goes on, so only what it needs to begin with must be there.

    Args:
      space: of the checkpoints.
      directory: the train_dir.
      others: bytes that the start would write to the same disk before.

    Raises:
      UsageError: there is no room for one.
    """
    where = directory.path, '--train_dir'
    if problem := shortage(*where, space.one, space.what, others):
        raise UsageError(problem)
    problem = shortage(*where, space.all, space.what, others)
    return [f'warning: {problem}'] if problem else []
