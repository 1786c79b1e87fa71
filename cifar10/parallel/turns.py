"""Turns: towers that share a device compute one after the other, so it holds one tower's activations at a time."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices


class Turns:
    """The operations that begin and end the towers' turns.

    Every tower gets these operations, even if it waits for no other tower: control edges change what
    TensorFlow's graph optimisation fuses, and a different fusion rounds differently. The operations increment
    a counter, because graph optimisation never removes an operation on a variable.

    Args:
      devices: the Devices of the towers.

    Attributes:
      begun, ended: for each tower built so far, the operations that begin and end its turn.
      computed: for each tower built so far, the gradients and statistics that its turn ends with.
      moments: for each tower built so far, lists of operations that begin and, in turn, end its work on one device.
      inputs: for each tower that is timed, by its number, the tensors that it waits for before it computes.
      counters: for each group of devices an int64 variable on the CPU beside it, in which a turn counts as two.
    """

    def __init__(self, devices: Devices):
        self.begun = []
        self.computed = []
        self.ended = []
        self.inputs = {}
        self.moments = []
        self._devices = devices
        self.counters = []
        for host in devices.group_hosts:
            with tf.device(host), tf.name_scope('turns/'):
                self.counters.append(tf.Variable(tf.constant(0, tf.int64), trainable=False, name='count',
                                                  collections=[tf.GraphKeys.LOCAL_VARIABLES]))

    def begin(self, k: int) -> tf.Operation:
        """Returns the operation that begins tower k's turn, after the previous tower on its device."""
        self.begun.append(self._count(k, self._before(k)))
        self.moments.append([[self.begun[k]]])
        return self.begun[k]

    def _before(self, k):
        """Returns the operations that tower k's turn waits for."""
        previous = k - len(self._devices.groups)
        return [self.ended[previous]] if previous >= 0 else []

    def gate(self, k: int, tensor: tf.Tensor, source: int, target: int) -> tf.Operation:
        """Returns the operation after which tower k goes on with a tensor in the next part, or back in the one before.

        On a single device it waits for nothing but the tensor.

        Args:
          k: number of the tower that is being built.
          tensor: activations, or on the way back their gradient.
          source, target: the numbers, among the tower's devices, of the one that has computed the tensor, and of the
            one that is to use it.
        """
        del source, target
        return self._count(k, [tensor], turns=0)

    def end(self, k: int, gradients: list) -> None:
        """Ends tower k's turn after its (gradient, variable) pairs; call it in the order of the towers."""
        self.computed.append([gradient for gradient, _ in gradients if gradient is not None])
        self.ended.append(self._count(k, self.computed[k]))
        self.moments[k].append([self.ended[k]])

    def _count(self, k, after, turns=1):
        """Returns the operation that adds to tower k's counter once the operations `after` have run."""
        # Within the gradient of an operation, operations are colocated with it, but not this one.
        with tf.get_default_graph().colocate_with(None, ignore_existing=True), tf.control_dependencies(after), \
                tf.device(self._devices.hosts[k]), tf.name_scope('turns/'):
            return self.counters[self._devices.group_of(k)].assign_add(turns, read_value=False)
