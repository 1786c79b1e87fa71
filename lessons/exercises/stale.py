"""Exercise of lesson 5: a rate that depends on staleness. `python lessons/check.py 5` says whether it is right."""


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
