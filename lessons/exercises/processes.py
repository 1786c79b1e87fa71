"""Exercise of lesson 5: shares for any number of processes. `python lessons/check.py 5` checks it."""


def split_points(points, processes):
    """Returns the shares of N points that P processes get, and the weights of their partial gradients.

    Every point is in exactly one share, and the numbers of points in any two shares differ by at most one. Any of
    the shares may have one more. If there are more processes than points, some shares are empty, with the weight 0.

    For example, 5 points over 2 processes are [(0, 3, 0.6), (3, 5, 0.4)], or [(0, 2, 0.4), (2, 5, 0.6)].

    Args:
      points: N, how many points there are, at least 1.
      processes: P, at least 1.

    Returns:
      A list of P tuples (first, end, weight). Process p gets the points x[first:end] of an array x of N points. Its
      weight is its number of points divided by N, so that the weighted mean of the P partial gradients is the gradient
      of all points.
    """
    raise NotImplementedError
