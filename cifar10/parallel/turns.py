"""Turns: towers that share a device compute one after the other, so it holds one tower's activations at a time."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices


class Turns:
    """The operations that begin and end a tower's turn.

    Every tower gets these two operations, even if it waits for no other tower: control edges change what
    TensorFlow's graph optimisation fuses, and a different fusion rounds differently. The operations increment
    a counter, because graph optimisation never removes an operation on a variable.

    Args:
      devices: the Devices of the towers.

    Attributes:
      ended: for each tower built so far, the operation that ends its turn.
    """

    def __init__(self, devices: Devices):
        self.ended = []
        self._devices = devices
        self._counters = []
        for host in devices.group_hosts:
            with tf.device(host), tf.name_scope('turns/'):
                self._counters.append(tf.Variable(tf.constant(0, tf.int64), trainable=False, name='count',
                                                  collections=[tf.GraphKeys.LOCAL_VARIABLES]))

    def begin(self, k: int) -> tf.Operation:
        """Returns the operation that begins tower k's turn, after the previous tower on its device."""
        previous = k - len(self._devices.groups)
        return self._count(k, [self.ended[previous]] if previous >= 0 else [])

    def end(self, k: int, gradients: list) -> None:
        """Ends tower k's turn after its (gradient, variable) pairs; call it in the order of the towers."""
        self.ended.append(self._count(k, [gradient for gradient, _ in gradients if gradient is not None]))

    def _count(self, k, after):
        """Returns the operation that increments tower k's counter once the operations `after` have run."""
        with tf.control_dependencies(after), tf.device(self._devices.hosts[k]), tf.name_scope('turns/'):
            return self._counters[self._devices.group_of(k)].assign_add(1, read_value=False)
