"""Exercises of lesson 6: a rate for stale gradients, and a late tower. `python lessons/check.py 6` checks them."""
import tensorflow.compat.v1 as tf  # noqa: F401


def staleness_aware_rate(rate, started, applied):
    """Returns the learning rate for a gradient that was started at one update and is applied at another.

    The staler a gradient is, the less it says about the variables that it is applied to, so the shorter its step should
    be (Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", 2016):

        staleness = applied - started
        returned rate = rate / staleness, or the whole rate if the staleness is 0

    For example, a gradient that was started at update 1342 and is applied at 1349 has the staleness 7. If the rate is
    0.7, its own rate is 0.1.

    Args:
      rate: the learning rate of a gradient that is not stale, a float.
      started: how many updates had been made when the tower read the variables.
      applied: how many had been made when its gradient was applied; at least `started`.

    Returns:
      A float.
    """
    raise NotImplementedError


def step_with_losses(devices, weight, read, loss_of, rate):
    """Builds one synchronous step of K towers in the default graph; some towers may read the weight late.

    Tower k, on devices[k], reads the weight with read(k), and its loss is loss_of(k, value). The update subtracts the
    rate times the mean of the K gradients of the losses. `session.run([losses, update])` must return the losses of the
    weight as it was before the update, however late a tower reads it.

    For example, one tower, a weight of 1, the loss 3 * value and the rate 0.1. The gradient is 3 for any value, so
    nothing makes the update wait for the read: if the tower is late, its loss is 3 * 0.7 = 2.1, and 3 is right.

    Args:
      devices: the names of the K towers' devices, such as ['/cpu:0', '/cpu:1'].
      weight: the variable, a float32 scalar.
      read: function k -> the weight as tower k reads it, a tensor. Call it under the device of the tower.
      loss_of: function (k, value) -> the loss of tower k, a float32 scalar.
      rate: the learning rate, a float.

    Returns:
      (losses, update): a list of the K losses, and an operation that takes one step.
    """
    raise NotImplementedError
