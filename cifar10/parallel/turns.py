"""Turns: towers on the same device compute one after another, so it holds one tower's activations at a time."""
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices


class Turns:
    """The operations that begin and end the towers' turns on their devices.

    Every tower gets these operations, even if it does not wait for another tower: control edges change the fusions of
    TensorFlow's graph optimisation, and different fusions round differently. The operations increment a counter,
    because graph optimisation never removes an operation on a variable.

    Attributes:
      ended: for each tower built so far, the operation that ends its turn.
      computed: for each tower built so far, its gradients and statistics, the last tensors of its turn.
      counters: for each group of devices an int64 variable on its host; each turn adds 2.
    """

    def __init__(self, devices: Devices):
        self.computed: list[list[tf.Tensor]] = []
        self.ended: list[tf.Operation] = []
        self._devices = devices
        self.counters = []
        for host in devices.group_hosts:
            with tf.device(host), tf.name_scope('turns/'):
                self.counters.append(tf.Variable(tf.constant(0, tf.int64), trainable=False, name='count',
                                                  collections=[tf.GraphKeys.LOCAL_VARIABLES]))

    def begin(self, k: int) -> tf.Operation:
        """Returns the operation that begins tower k's turn, after the turn of the previous tower on its device."""
        previous = k - len(self._devices.groups)
        return self._count(k, [self.ended[previous]] if previous >= 0 else [])

    def gate(self, k: int, tensor: tf.Tensor, source: int, target: int) -> tf.Operation:
        """Returns the operation after which tower k may use a tensor in the next part, or in the previous part.

        Args:
          k: index of the tower that is being built.
          tensor: activations, or in the backward pass their gradient.
          source, target: indices, among the tower's devices, of the device that computes the tensor and of the device
            that uses it.
        """
        del source, target  # the same device
        return self._count(k, [tensor], turns=0)

    def end(self, k: int, computed: list) -> None:
        """Ends tower k's turn after its gradients and statistics; call it in tower order."""
        self.computed.append([tensor for tensor in computed if tensor is not None])
        self.ended.append(self._count(k, self.computed[k]))

    def _count(self, k, after, turns=1):
        """Returns the operation that adds to tower k's counter once the operations `after` have run."""
        # Gradient functions colocate their operations with the forward operation, but the counter has its own device.
        with tf.get_default_graph().colocate_with(None, ignore_existing=True), tf.control_dependencies(after), \
                tf.device(self._devices.hosts[k]), tf.name_scope('turns/'):
            return self.counters[self._devices.group_of(k)].assign_add(turns, read_value=False)


class TurnsOfParts(Turns):
    """The turns of towers whose network is divided over several devices.

    Tower k takes a turn on each of its G devices: forward F(k, 0) to F(k, G - 1), then backward B(k, G - 1) to B(k, 0).
    With k - 1 for the previous tower in the same group of devices, the rules are:

      F(k, s) waits for F(k - 1, s) and B(k - (G - s), s)
      B(k, s) waits for B(k - 1, s)

    So device s holds the activations of at most G - s towers, and the other devices compute neighbouring towers at the
    same time. This is the 1F1B schedule (Narayanan et al. 2019, PipeDream, section 3.2), with towers as the
    micro-batches of a pipeline (Huang et al. 2019, GPipe). A tower only waits for earlier towers, so there is no
    deadlock.
    """

    def __init__(self, devices):
        super().__init__(devices)
        self._sent = {}  # (k, s, t) -> the tensor that tower k sends from its device s to its device t

    def begin(self, k):
        return self._count(k, self._before_forward(k, 0))

    def gate(self, k, tensor, source, target):
        before = []
        if source != target:
            self._sent[k, source, target] = tensor
            before = self._before_forward(k, target) if target > source else self._backward(self._previous(k), target)
        return self._count(k, [tensor, *before], turns=0)

    def _previous(self, k, towers=1):
        """Returns the index of the tower `towers` positions before k in its group; negative if there is none."""
        return k - towers * len(self._devices.groups)

    def _before_forward(self, k, s):
        """Returns the dependencies of F(k, s): F(k - 1, s) and B(k - (G - s), s)."""
        devices = len(self._devices.devices_of(k))
        return [*self._forward(self._previous(k), s), *self._backward(self._previous(k, devices - s), s)]

    def _forward(self, k, s):
        """Returns the last tensor of F(k, s); nothing on the last device, where waiting for B(k, s) is enough."""
        if k < 0 or s == len(self._devices.devices_of(k)) - 1:
            return []
        return [self._sent.get((k, s, s + 1), self.ended[k])]  # a tower that is not cut is on its first device

    def _backward(self, k, s):
        """Returns the last tensors of B(k, s): the gradients that it sends back, and its gradients of variables."""
        if k < 0:
            return []
        if s == 0:
            return [self.ended[k]]
        sent = [self._sent[k, s, s - 1]] if (k, s, s - 1) in self._sent else []
        device = tf2.DeviceSpec.from_string(self._devices.devices_of(k)[s]).to_string()
        return sent + [gradient for gradient in self.computed[k] if gradient.device == device]
