"""How a run fails: TensorFlow's errors as one line, and what a person can do then."""
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
    """Returns the error of a step with a value that is not finite, as `what` says."""
    return RunError('; '.join(filter(None, [f'step {step}: {what}', describe_latest(train_dir), remedy])))


def refuse_divergence(step: int, losses: Sequence[float], train_dir: str, drifts: bool = False,
                      first: int = 0) -> None:
    """Raises a RunError, as `diverged` returns it, if any tower's loss in a step is not finite.

    Args:
      losses: of the towers from number `first` on.
      drifts: whether the towers may have drifted too far apart between two averages.
    """
    for k, loss in enumerate(losses, first):
        if not math.isfinite(loss):
            remedy = 'try a lower learning rate' + ', or fewer --local_steps' * drifts
            raise diverged(train_dir, step, f'the loss of tower {k} is {loss}', remedy)


@contextlib.contextmanager
def plain_errors(train_dir: str | None = None) -> Iterator[None]:
    """Context that turns errors of TensorFlow into RunErrors: a line, with the newest checkpoint of a train_dir."""
    try:
        yield
    except tf.errors.OpError as error:
        latest = f'; {describe_latest(train_dir)}' if train_dir else ''
        # The message has where the operation was made, and where Python code of the user's raised an exception.
        frames = re.findall(r'File "([^"]*)", line (\d+)', str(error))
        is_lost = isinstance(error, LOST)  # which another task notices than the one that is lost
        where = place(frames) or (place_of(error.op.name, error.op.graph) if error.op is not None else '')
        failure = TemporaryError if is_lost else RunError
        raise failure(f'{reason(error, not is_lost)}{where}{latest}') from error
