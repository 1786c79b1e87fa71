"""Exercises of lesson 10: a larger batch. `python lessons/check.py 10` checks them."""


def noise_scale(small: int, large: int, of_small: float, of_large: float) -> float:
    """Returns the gradient noise scale V / |G|^2 from gradients of two batch sizes (McCandlish et al. 2018, A.1).

    The mean gradient of a batch of B examples is the true gradient G and noise, so the mean of its squared norm is

      |G|^2 + V / B

    where V is the variance of the gradient of one example, summed over all weights (the paper calls it tr of Sigma).

    This function solves that for two values of B. (The towers have both: a tower's batch is the small one, the batch of
    all towers together is the large one.) Nothing is an estimate here: the two means are exact.

    Args:
      small, large: the numbers of examples in the two batches. They differ, and `small` may be the larger one.
      of_small, of_large: the means of the squared norms of the gradients of such batches.

    Returns:
      V / |G|^2. For example, with |G|^2 = 2 and V = 48:

        noise_scale(4, 16, 14.0, 5.0) -> 24.0
    """
    raise NotImplementedError


def scaled_rate(rate: float, batch: int, new_batch: int, curvature: float) -> float:
    """Returns the learning rate for another batch size: the linear rule, as far as the curvature allows it.

    The rate grows and shrinks with the batch. But gradient descent diverges if rate * curvature is above 2, and it
    swings from one side of the minimum to the other if the product is above 1. So the rate never exceeds 1 / curvature.

    Args:
      rate: the learning rate that goes with the batch.
      batch, new_batch: examples in a batch, before and after.
      curvature: the largest curvature of the loss, above 0.

    Returns:
      The rate for the new batch. For example:

        scaled_rate(0.1, 128, 512, 1.0) -> 0.4
        scaled_rate(0.1, 128, 4096, 1.0) -> 1.0
    """
    raise NotImplementedError


def updates_and_epochs(updates: int, gpus: int, batch: int, examples: int) -> tuple[float, float]:
    """Returns how long a training with several GPUs was, in epochs and in updates of a single GPU.

    Args:
      updates: how many updates were made; each used one batch of every GPU.
      gpus: how many GPUs there were.
      batch: examples of one GPU in an update.
      examples: examples of the data set; an epoch uses each of them once.

    Returns:
      (the epochs; the updates of one GPU with the same `batch` for as many examples). For example:

        updates_and_epochs(100000, 1, 128, 50000) -> (256.0, 100000)
    """
    raise NotImplementedError
