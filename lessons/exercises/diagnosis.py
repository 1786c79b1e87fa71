"""Exercises of lesson 11: a diagnosis, and a test of a training step. `python lessons/check.py 11` checks them."""


def diagnose(run: dict) -> tuple:
    """Finds the fault of a training from its measurements.

    Times jitter by up to 10%, and now and then a tower takes several times as long in a single update; that is no
    fault. In a sound training a tower waits for its input for less time than it computes.

    Args:
      run: arrays of U updates of K towers, K >= 3, with a batch of b examples each and a copy of all variables each:
        input, computing: float [U, K], seconds that a tower waited for its input, and computed; NaN if it did not
          finish.
        examples: int [U, K, b], the numbers of the examples that each tower got.
        copies: float32 [U, K, variables], the copies of the variables after each update.
        moved: float [U, variables], how far the variables of tower 0 moved in each update.
        right: float [U, variables], how far they should have moved: computed by hand, from all examples of the
          update.
        In an update that did not end, copies, moved and right are NaN.

    Returns:
      (fault, tower). The tower is None unless the list gives its number. The fault is one of

        'stopped'      the tower (its number) does not finish the last update
        'slow_tower'   the tower (its number) computes at least twice as long as the others
        'slow_input'   all towers wait for their input longer than they compute
        'sum'          the gradients are added, not averaged: a step K times too long
        'not_shared'   towers have a variable each, which they train alone
        'flipped_bit'  the copy of one tower (its number) differs from some update on; at most in one number
        'small_rate'   the rate was not multiplied by K: a step K times too short
        'same_batch'   the towers get the same examples
        'none'         a sound training

      For example, with computing times of 0.102, 0.103, 0.102 and 0.252 s it is ('slow_tower', 3), and with a first
      `moved` of 2.8 where `right` has 0.7, K = 4 times as far, ('sum', None).
    """
    raise NotImplementedError


def is_right(build) -> bool:
    """Tests whether a training step with towers, in graph mode, is right for any number of towers.

    Args:
      build: function that takes (devices, x, rate), builds a step in the default graph, and returns (losses, update).
        A right step has one variable w, which starts at 0, and a tower on each of the K devices. Tower k has the k-th
        share of x, a NumPy array or a placeholder of known shape, float32 [N], where K divides N. Its loss,
        mean((w - x)^2) over the share, is the k-th of `losses`, a tensor on the k-th device with the loss before the
        update. `update` is an operation, which subtracts from w once the rate times the gradient of the loss of all x.

    Returns:
      True if it is right, else False. For example, a step is wrong if it takes the sum instead of the mean, applies
      the update twice, has a variable for each tower, or if all towers are on one device or have the same share. With
      x = 1 2 3 6 on two devices and the rate 0.1, a right step has the losses 2.5 and 22.5 and takes w from 0 to 0.6; a
      sum takes it to 1.2.
    """
    raise NotImplementedError
