"""Exercises of lesson 1: the mean of sparse gradients, and a step. `python lessons/check.py 1` checks them."""
import numpy as np  # noqa: F401
import tensorflow.compat.v1 as tf  # noqa: F401


def mean_of_sparse_gradients(gradients):
    """Returns the mean of the gradients of K towers for a table; each tower looked up some rows.

    A sparse gradient is a pair (values, indices): values[i] is the gradient of row indices[i] of the table. If a row
    appears several times, its gradient is the sum of these values. If it does not appear, its gradient is zero.
    For example, one tower has the gradient ([[2, 4]], [0]), so row 0 has the gradient [2, 4]. Another tower has
    ([[6, 0]], [3]). Their mean is ([[1, 2], [3, 0]], [0, 3]).

    Do not build an array of all rows: the table may have millions of them.

    Args:
      gradients: a list of K pairs (values, indices): a float array [rows, width] and an int array [rows]. The number
        of rows differs from tower to tower and may be 0; the width is the table's.

    Returns:
      One such pair, of shapes [0, width] and [0] if no tower looked up a row.
      The rows may be in any order, and may appear several times.
    """
    raise NotImplementedError


def build_step(devices, x, rate):
    """Builds one step of training over K towers, in the default graph.

    The model is one weight, a float32 scalar that starts at 0. Its loss is the mean of (weight - number)^2 over some
    numbers. The weight is a variable on /cpu:0, which all towers share. Tower k computes on devices[k] the loss of its
    share of x: of N numbers it has the numbers from k * N / K up to, but not including, (k + 1) * N / K. The update
    subtracts the rate times the mean of the K gradients from the weight.

    For example, x = [1, 2, 3, 6] on two devices with the rate 0.1: the losses are 2.5 and 22.5, the gradients -3 and
    -9, and after one step the weight is 0 - 0.1 * -6 = 0.6.

    Args:
      devices: the names of the K towers' devices, such as ['/cpu:0', '/cpu:1'].
      x: a float32 tensor [N] of known shape; K divides N.
      rate: the learning rate, a float.

    Returns:
      (losses, update): a list of the K losses, float32 scalars of the graph, and an operation. Each
      `session.run(update, {x: numbers})` takes one step.
    """
    raise NotImplementedError
