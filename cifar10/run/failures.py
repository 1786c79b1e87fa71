"""Turns failures of a run, such as TensorFlow's errors, into one line with a remedy."""
import contextlib
import math
import re
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError, TemporaryError, reason
from cifar10.base.graphs import LOST, place_of
from cifar10.base.own_files import place
from cifar10.run.checkpoints import describe_latest


def diverged(train_dir: str, step: int, what: str, remedy: str = '') -> RunError:
    """Returns the error for a step with a non-finite value, which `what` describes."""
    return RunError('; '.join(filter(None, [f'step {step}: {what}', describe_latest(train_dir), remedy])))


def refuse_divergence(step: int, losses: Sequence[float], train_dir: str, drifts: bool = False,
                      first: int = 0) -> None:
    """Raises the RunError from `diverged` if any tower's loss in a step is not finite.

    Args:
      losses: the losses of the towers, starting with number `first`.
      drifts: whether the towers may have drifted too far apart between averages.
    """
    for k, loss in enumerate(losses, first):
        if not math.isfinite(loss):
            remedy = 'try a lower learning rate' + ', or fewer --local_steps' * drifts
            raise diverged(train_dir, step, f'the loss of tower {k} is {loss}', remedy)


@contextlib.contextmanager
def plain_errors(train_dir: str | None = None) -> Iterator[None]:
    """Context that turns TensorFlow's errors into one-line RunErrors that name a train_dir's newest checkpoint."""
    try:
        yield
    except tf.errors.OpError as error:
        latest = f'; {describe_latest(train_dir)}' if train_dir else ''
        # The message locates the operation's definition, and any exception in the user's Python code.
        frames = re.findall(r'File "([^"]*)", line (\d+)', str(error))
        is_lost = isinstance(error, LOST)  # which another task notices than the one that is lost
        where = place(frames) or (place_of(error.op.name, error.op.graph) if error.op is not None else '')
        failure = TemporaryError if is_lost else RunError
        text = reason(error, not is_lost)
        remedy = '; use a smaller --batch_size' * bool(re.search(r'\bOOM when allocating', text))
        raise failure(f'{text}{where}{latest}{remedy}') from error
