"""Exercises of lesson 2: the clipped mean, and a step of any model. `python lessons/check.py 2` checks them."""
import tensorflow.compat.v1 as tf  # noqa: F401


def clip_mean_gradients(tower_gradients: list, limit: float) -> list:
    """Returns the mean of the towers' gradients, scaled down if its norm is above a limit.

    A single bad batch can have gradients so large that one step spoils the model. Clipping scales a gradient that is
    too long down to the limit, and keeps its direction. The norm covers the gradients of all variables together,
    as if they were one long vector (Pascanu et al. 2013):

        norm = the square root of the sum of the squares of all numbers in all gradients
        each gradient is multiplied by limit / norm, if norm > limit

    Clip the mean, not the gradient of each tower: then the step does not depend on the number of towers that
    the batch is divided over.

    Args:
      tower_gradients: a list for each of the K towers, with an array for each variable, its gradient, in the same
        order. All towers have shares of the same size.
      limit: the largest norm, above 0.

    Returns:
      A list with an array for each variable. For example, with two towers, two variables of one number each, and the
      limit 1:

        clip_mean_gradients([[[2.0], [8.0]], [[4.0], [0.0]]], 1.0) -> [[0.6], [0.8]]

      The means are 3 and 4, their norm is 5, and so both are divided by 5.
    """
    raise NotImplementedError


def training_step(devices, loss_of, optimizer):
    """Builds one step of training over K towers for any model and optimizer, in the default graph.

    Tower k is on devices[k] and has the loss loss_of(k), which makes its variables with `tf.get_variable`. All towers
    share one set of variables. The optimizer is applied once, to the mean of the K gradients of each variable, and
    the global step, of `tf.train.get_or_create_global_step()`, is counted up by one. `session.run([loss, train_op])`
    returns the loss of the variables as they were before the step.

    For example, with two devices, tf.train.GradientDescentOptimizer(0.1) and one variable with the gradients -3 and -9
    on the two towers, the variable is 0.6 greater after the step, and the global step is 1.

    You may write the loop yourself, or use two functions of cifar10/parallel/towers.py: `build_towers(devices, tower)`
    calls tower(k, scope) for each device, where scope is the name scope of the tower, and returns the K results;
    `average_gradients` takes K lists as `optimizer.compute_gradients(loss)` returns them.

    Args:
      devices: the names of the K towers' devices, such as ['/cpu:0', '/cpu:1'].
      loss_of: function k -> the loss of tower k, a float32 scalar. Call it once for each tower, under its device.
      optimizer: a tf.train.Optimizer.

    Returns:
      (loss, train_op): the mean of the K losses, and an operation that takes one step.
    """
    raise NotImplementedError
