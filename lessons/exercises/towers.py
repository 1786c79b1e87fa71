"""Exercise of lesson 1: the mean of sparse gradients. `python lessons/check.py 1` says whether it is right."""
import numpy as np  # noqa: F401


def mean_of_sparse_gradients(gradients):
    """Returns the mean of the gradients of K towers for a table, of which each tower looked up some rows.

    A sparse gradient is a pair (values, indices): values[i] is the gradient of row indices[i] of the table. If a row
    appears several times, its gradient is the sum of these values. If it does not appear, its gradient is zero.
    For example, one tower has the gradient ([[2, 4]], [0]), so row 0 has the gradient [2, 4]. Another tower has
    ([[6, 0]], [3]). Their mean is ([[1, 2], [3, 0]], [0, 3]).

    Do not build an array of all rows: the table may have millions of them.

    Args:
      gradients: a list of K pairs (values, indices). Tower k has a float array [n_k, d] and an int array [n_k],
        where d is the length of a row, and n_k may be 0.

    Returns:
      One such pair, a float array [n, d] and an int array [n], of shapes [0, d] and [0] if no tower looked up a row.
      The rows may be in any order, and may appear several times.
    """
    raise NotImplementedError
