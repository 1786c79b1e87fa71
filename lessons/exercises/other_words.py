"""Exercises of lesson 12: who divides, and what three mistakes change. `python lessons/check.py 12` checks them."""
import numpy as np  # noqa: F401

FRAMEWORKS = ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet')


def divide(framework, loss_sum, local, world):
    """Returns the loss that a device has to give its framework, so that the update equals the whole batch's.

    Every device has `local` examples. The table "Who divides" of the lesson shows how each framework then combines the
    gradients. For example, let `loss_sum` be 6 and `local` 3. For PyTorch, the loss is 2 for any `world`, because DDP
    takes the mean of the processes' gradients. With `world` 4, it is 6 / 12 = 0.5 for tf.distribute, and 6 for MXNet.

    Args:
      framework: one of FRAMEWORKS. 'JAX' is `jax.shard_map` with its defaults, and 'MXNet' is `Trainer.step` with the
        number of all examples.
      loss_sum: the sum of the losses of the device's examples, a float.
      local: how many examples each device has.
      world: how many devices there are.

    Raises:
      ValueError: the framework is not in FRAMEWORKS.
    """
    raise NotImplementedError


def after_update(faults, w, x, replicas, rate):
    """Returns w after one update on mean((w - x)^2) by a program for tf.distribute that has some faults.

    The program divides the batch over the replicas as `np.array_split` does. Each replica's loss is the sum of its
    squared errors divided by the number of examples in the whole batch, and the gradients of the replicas are added.
    A fault changes one of these rules. For example, take w = 0, x = 1 2 3 4, two replicas and the rate 0.1: w becomes
    0.5 without a fault, and 1 if means are added, because their gradients are -3 and -7.

    Args:
      faults: a set of
        'one device': the strategy is a OneDeviceStrategy, so there is one replica, for any `replicas`;
        'means added': each replica's loss is the mean over the examples that it computes;
        'same batch': the batch is not divided, and every replica computes the whole batch.
      w: the variable before the update, a float.
      x: the batch, a float64 array [B], with at least as many examples as replicas.
      replicas: how many devices the program was to use.
      rate: the learning rate.
    """
    raise NotImplementedError


def examples_computed(faults, examples, replicas):
    """Returns a list with the number of examples that each device computes in an update.

    For example, for 5 examples on 3 devices it is [2, 2, 1] without a fault, and [5, 0, 0] with one device.

    Args:
      faults: a set of faults, as in `after_update`.
      examples: how many examples are in the batch, at least as many as replicas.
      replicas: how many devices the program was to use; the first one is used in any case.
    """
    raise NotImplementedError
