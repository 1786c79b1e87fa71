"""Exercises of lesson 3: the second half of a ring, and a step with copies. `python lessons/check.py 3` checks them."""
import tensorflow.compat.v1 as tf  # noqa: F401


def all_gather(num_devices):
    """Returns which chunk each device of a ring sends in each step of the second half, the all-gather.

    This ring runs in the opposite direction to the lesson's: device d sends to device d - 1, and device 0 to the last
    one. After the first half of the ring, device d has the complete sum of chunk d, and of no other chunk. In each of
    the D - 1 steps of the second half every device sends one chunk whose sum is complete there, and all devices send at
    the same time. After the last step every device has the complete sums of all D chunks.

    With D = 2 there is one step: device 0 sends chunk 0 and device 1 sends chunk 1, [[0, 1]].

    Args:
      num_devices: D, at least 1.

    Returns:
      A list of D - 1 lists, one for each step, of D whole numbers: number d is the chunk that device d sends.
    """
    raise NotImplementedError


def replicated_step(devices, x, rate):
    """Builds one step of training with a copy of the weight on each device, in the default graph.

    The model, its loss and the shares of x are as in `build_step` in the exercises of lesson 1. But here tower k has a
    weight of its own, a trainable variable on devices[k] that starts at 0, and its loss is computed from that copy. An
    all-reduce (write it yourself or use tf.raw_ops.CollectiveReduce, as the lesson does) gives every device the mean of
    the K gradients, and the device updates its own copy with it.

    For example, x = [1, 2, 3, 6] on two devices with the rate 0.1: the gradients are -3 and -9, and after one step both
    copies are 0.6.

    Args:
      devices: the names of the K towers' devices, such as ['/cpu:0', '/cpu:1'].
      x: a float32 tensor [N] of known shape; K divides N.
      rate: the learning rate, a float.

    Returns:
      (losses, update): a list of the K losses, float32 scalars of the graph, and an operation. Each
      `session.run(update, {x: numbers})` takes one step, which updates all copies.
    """
    raise NotImplementedError
