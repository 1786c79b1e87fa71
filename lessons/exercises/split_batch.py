"""Exercises of lesson 4: shares of different sizes. `python lessons/check.py 4` checks them."""
import numpy as np  # noqa: F401
import tensorflow.compat.v1 as tf  # noqa: F401


def weighted_mean(gradients, sizes):
    """Returns the gradient of a whole batch from the gradients of its K shares.

    The gradient of a share is the mean over its examples. For example, a share of 3 examples with the gradient 2 and
    a share of 1 example with the gradient 6 make a batch of 4 with the gradient (3 * 2 + 1 * 6) / 4 = 3.

    A share may be empty, if there are more devices than examples. Its gradient is a mean over no examples, which is
    NaN, and does not count.

    Args:
      gradients: a list of K float arrays, or numbers, all of one shape.
      sizes: a list of K whole numbers: how many examples each share has; at least one is above 0.

    Returns:
      A float array of the same shape: the mean over all examples of the batch.
    """
    raise NotImplementedError


def weighted_step(devices, batch, rate):
    """Builds one step of training for batches of any size, in the default graph.

    The model is as in `build_step` in the exercises of lesson 1: one weight on /cpu:0 that starts at 0, whose loss is
    the mean of (weight - number)^2 over the numbers of the batch. The shares of the K towers differ by one number at
    most, and may be empty. The update subtracts the rate times the gradient of the whole batch.

    For example, with two devices and the rate 0.1, the batch [1, 3, 4, 5, 12] takes the weight from 0 to 1, because the
    mean of the batch is 5 and the gradient -10. The mean of the gradients of [1, 3] and [4, 5, 12] is -9.

    Args:
      devices: the names of the K towers' devices, such as ['/cpu:0', '/cpu:1']; each of them computes.
      batch: a float32 tensor [B]; B, at least 1, is known only when a step is run.
      rate: the learning rate, a float.

    Returns:
      An operation. Each `session.run(update, {batch: numbers})` takes one step.
    """
    raise NotImplementedError
