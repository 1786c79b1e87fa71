"""Where a network can be cut into parts, each of which may be on a device of its own.

A network calls `next_part` at each cut. Its caller says, with `divided`, which device computes which part, and what the
parts wait for.
"""
import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

import tensorflow.compat.v1 as tf

# In each thread the Division of the network that is being built.
_division = contextvars.ContextVar('division', default=None)


def next_part(x: tf.Tensor) -> tf.Tensor:
    """Cuts a built-in network: what is built after this call belongs to its next part.

    In a user's file it returns x. With `--gpus_per_tower` the parts are on several devices. While one device
    computes the next part of this tower, the device before it computes the next tower. Cut where a single tensor holds
    everything that later layers need of earlier ones.

    Args:
      x: the tensor that the part before the cut hands to the part after it, float.

    Returns:
      The same values, for the part after the cut.

    Raises:
      TypeError: x is not a single tensor.
      ValueError: it was called within `tf.cond`, `tf.while_loop` or `tf.function`.
    """
    division = _division.get()
    if division is None:
        return x
    if not isinstance(x, tf.Tensor):
        raise TypeError(f'next_part takes a single tensor, not a {type(x).__name__}')
    if tf.get_default_graph() is not division.graph:
        raise ValueError('next_part was called within tf.cond, tf.while_loop or tf.function; call it outside')
    return division.cut(x)


class Division:
    """A network that is being built, part by part; made by `divided`.

    Attributes:
      graph: in which it is built.
      parts: the number of parts that have been begun; once the network is built, of all.
    """

    def __init__(self, devices: Sequence[str], of_parts: int, gate: Callable | None):
        self.parts = 1
        self._devices = devices
        self._of_parts = of_parts
        self._gate = gate
        self.graph = tf.get_default_graph()

    def device_of(self, operation: tf.Operation) -> str:
        """Returns the device of a new operation: its part's, unless it names one already."""
        return operation.device or self._devices[self._place()]

    def cut(self, x: tf.Tensor) -> tf.Tensor:
        """Begins the next part; returns what `next_part` returns."""
        source = self._place()
        self.parts += 1
        target = self._place()
        if self._gate is None:
            return x

        @tf.custom_gradient
        def gated(x):
            def gradient(dy):
                with tf.control_dependencies([self._gate(dy, target, source)]):
                    return tf.identity(dy)
            with tf.control_dependencies([self._gate(x, source, target)]):
                return tf.identity(x), gradient
        return gated(x)

    def _place(self):
        """Returns the number of the device of the part that is being built: each has parts that follow each other."""
        return (self.parts - 1) * len(self._devices) // self._of_parts if len(self._devices) > 1 else 0


@contextlib.contextmanager
def divided(devices: Sequence[str] = ('',), of_parts: int = 1, gate: Callable | None = None) -> Iterator[Division]:
    """Context in which a network is built whose parts are on several devices, and wait for a gate at each cut.

    Args:
      devices: the names of the devices, each of which gets a share of the parts that follow each other; '' is the
        device of the caller.
      of_parts: the number of parts that the network has, which matters if there are several devices.
      gate: function (tensor, source, target) -> the operation after which a tensor that was computed on device
        number `source` is used on device number `target`, by the next part or, on the way back, by the one before. It
        is called for the activations and for their gradient at each cut, also where both parts are on one device. None
        if they wait for nothing.
    """
    division = Division(devices, of_parts, gate)
    token = _division.set(division)
    try:
        with tf.device(division.device_of):
            yield division
    finally:
        _division.reset(token)


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Context in which `next_part` cuts nothing."""
    token = _division.set(None)
    try:
        yield
    finally:
        _division.reset(token)
