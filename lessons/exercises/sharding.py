"""Exercises of lesson 8: shards, an update with shards, and a cut layer. `python lessons/check.py 8` checks them."""
import numpy as np  # noqa: F401
import tensorflow.compat.v1 as tf  # noqa: F401

from lessons import ring  # noqa: F401


def shards(numbers, devices: int) -> list:
    """Cuts an array into shards of equal size, one for each device.

    A ring sends chunks of equal size. If D does not divide the size of the array, the last shards are filled with
    zeros. Adam and momentum do not change a weight of 0 whose gradient is 0.

    Args:
      numbers: an array of one dimension, with at least one number.
      devices: D, at least 1.

    Returns:
      D arrays of equal length, which are as short as possible. For example,

        shards([1, 2, 3, 4, 5], 3) -> [[1, 2], [3, 4], [5, 0]]
    """
    raise NotImplementedError


def zero_step(stage: int, devices: list, start, loss_of, rate: float) -> tuple:
    """Builds, in the default graph, an update with momentum and sharded variables (ZeRO 1 and 3).

        velocity = 0.9 * velocity + gradient          (the velocity starts at 0)
        weights = weights - rate * velocity

    The gradient is the mean of the gradients of D losses, one on each device. In stage 1, the variables of
    device d are all weights and shard d of the velocity; in stage 3, shard d of both. It keeps no other variables. In
    an update it sends at most 2 (D - 1) / D times the bytes of the weights: `reduce_scatter` and `all_gather` of
    lessons.ring do that. (In stage 3, too: a loss gets all weights at once, so they are gathered once, not once forward
    and once backward.)

    For example, two devices, two weights that start at 0, the losses (weights[0] - 1)^2 and (weights[1] - 2)^2, and
    the rate 0.1: the gradients are [-2, 0] and [0, -4], their mean is [-1, -2], and the weights become [0.1, 0.2]. In
    the second update they are [0.28, 0.56], as the velocity is 0.9 * -1 - 0.9 = -1.8 and -3.6.

    Args:
      stage: 1 or 3.
      devices: the names of the D devices, such as '/cpu:0'.
      start: the weights at the start, a float32 array whose length D divides.
      loss_of: function that takes (d, weights), where weights is a tensor of all weights, and returns the loss of
        device d, a scalar tensor. Call it once for each device, on that device.
      rate: learning rate.

    Returns:
      (variables, update): the D variables of the weights, or of the shards, in the order of the devices, and the
      operation that makes one update.
    """
    raise NotImplementedError


def tensor_parallel(x, w1_parts: list, b1_parts: list, w2_parts: list, b2, all_reduce) -> list:
    """Computes two layers, relu(x @ W1 + b1) @ W2 + b2, divided over D devices.

    For example, x = [[1]] on two devices, W1 = [[1, 2]], b1 = [0, -1], W2 = [[3], [4]] and b2 = [5]: the hidden units
    are 1 on device 0 and 2 - 1 = 1 on device 1, the parts of the sum are [[3]] and [[4]], and both devices have
    [[3 + 4 + 5]] = [[12]] in the end ([[17]] if each device adds b2 to its part).

    Args:
      x: inputs, [B, inputs], which every device has.
      w1_parts, b1_parts: for each device its columns of W1, [inputs, hidden / D], and of b1, [hidden / D].
      w2_parts: for each device its rows of W2, [hidden / D, outputs].
      b2: biases, [outputs], which every device has.
      all_reduce: function that takes a list of D arrays, one of each device, and returns their sum D times. Call it
        once, with arrays of [B, outputs]; nothing else travels between devices.

    Returns:
      The outputs on each device: D arrays [B, outputs], all equal to the two layers on one device.
    """
    raise NotImplementedError
