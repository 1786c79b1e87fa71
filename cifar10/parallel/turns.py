"""Turns: towers that share a device compute one after the other, so it holds one tower's activations at a time."""
from collections.abc import Callable, Sequence

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
      begun, ended: for each tower built so far, the operations that begin and end its turn.
      computed: for each tower built so far, the gradients and statistics that its turn ends with.
      counters: for each group of devices an int64 variable on the CPU beside it, in which a turn counts as two.
    """

    def __init__(self, devices: Devices):
        self.begun = []
        self.computed = []
        self.ended = []
        self._devices = devices
        self.counters = []
        for host in devices.group_hosts:
            with tf.device(host), tf.name_scope('turns/'):
                self.counters.append(tf.Variable(tf.constant(0, tf.int64), trainable=False, name='count',
                                                  collections=[tf.GraphKeys.LOCAL_VARIABLES]))

    def begin(self, k: int) -> tf.Operation:
        """Returns the operation that begins tower k's turn, after the previous tower on its device."""
        previous = k - len(self._devices.groups)
        self.begun.append(self._count(k, [self.ended[previous]] if previous >= 0 else []))
        return self.begun[k]

    def end(self, k: int, gradients: list) -> None:
        """Ends tower k's turn after its (gradient, variable) pairs; call it in the order of the towers."""
        self.computed.append([gradient for gradient, _ in gradients if gradient is not None])
        self.ended.append(self._count(k, self.computed[k]))

    def seconds(self, inputs: Callable[[int], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Builds the times that the towers take; call it once all towers are built.

        A tower's time begins when its turn has begun and its inputs have come, so a tower that waits for them is not
        slow; it ends with its turn. Both are read from the clock of the tower's machine. Nothing waits for the
        timestamps, and they wait for no operation of a tower that computes: the towers stay as they are, to the bit.

        Args:
          inputs: function k -> the tensors that tower k waits for before it computes.

        Returns:
          For each tower a float32 scalar, seconds, on the CPU of its machine.
        """
        return [self._seconds_between(k, [self.begun[k], *inputs(k)], [ended]) for k, ended in enumerate(self.ended)]

    def _seconds_between(self, k, begin, end):
        """Returns the seconds from when the operations `begin` have run to when the operations `end` have."""
        with tf.device(self._devices.hosts[k]), tf.name_scope('turns/'):
            times = []
            for operations in (begin, end):
                with tf.control_dependencies(operations):
                    times.append(tf.timestamp())
            # Where all threads are busy, a timestamp may be taken late, and the one at the begin after the other.
            return tf.cast(tf.maximum(times[1] - times[0], 0), tf.float32)

    def _count(self, k, after):
        """Returns the operation that increments tower k's counter once the operations `after` have run."""
        with tf.control_dependencies(after), tf.device(self._devices.hosts[k]), tf.name_scope('turns/'):
            return self.counters[self._devices.group_of(k)].assign_add(1, read_value=False)
