"""Turns: the towers of one device compute one after the other, so that memory is that of one tower's activations."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices


class Turns:
    """The operations between which a tower has its turn.

    Every tower gets the same two operations, also one that waits for no other tower: control edges change what
    TensorFlow's graph optimisation fuses, and with another fusion come other roundings. They count, because an
    operation on a variable is never optimised away.

    Args:
      devices: of the towers.

    Attributes:
      ended: for each tower that was built, the operation that ends its turn.
    """

    def __init__(self, devices: Devices):
        self.ended, self._devices, self._counters = [], devices, []
        for host in devices.group_hosts:
            with tf.device(host), tf.name_scope('turns/'):
                self._counters.append(tf.Variable(tf.constant(0, tf.int64), trainable=False, name='count',
                                                  collections=[tf.GraphKeys.LOCAL_VARIABLES]))

    def begin(self, k: int) -> tf.Operation:
        """Returns the operation that begins tower k's turn, once the tower before it on its device has ended."""
        before = k - len(self._devices.groups)
        return self._count(k, self.ended[before:before + 1] if before >= 0 else [])

    def end(self, k: int, gradients: list) -> None:
        """Ends tower k's turn after its (gradient, variable) pairs; to be called in the order of the towers."""
        self.ended.append(self._count(k, [gradient for gradient, _ in gradients if gradient is not None]))

    def _count(self, k, after):
        with tf.control_dependencies(after), tf.device(self._devices.hosts[k]), tf.name_scope('turns/'):
            return self._counters[self._devices.group_of(k)].assign_add(1, read_value=False)
