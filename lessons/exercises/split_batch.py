"""Exercise of lesson 3: shares of different sizes. `python lessons/check.py 3` says whether it is right."""
import numpy as np  # noqa: F401


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
