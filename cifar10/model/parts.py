"""Model parallelism: cuts a network into parts for several devices.

A network calls `next_part` at each cut. Its caller assigns parts to devices, and adds their gates, with `divided`.
"""
import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence

import tensorflow.compat.v1 as tf

# The Division of the network that is being built in this thread.
_division: contextvars.ContextVar['Division | None'] = contextvars.ContextVar('division', default=None)


def next_part(x: tf.Tensor) -> tf.Tensor:
    """Cuts a built-in network: later layers belong to its next part.

    In a user's file it returns x. With `--gpus_per_tower` the parts are on several devices. While one device
    computes the next part of this tower, the previous device computes the next tower. Cut at a tensor that is the only
    input of later layers.

    Args:
      x: float, the output of the part before the cut.

    Returns:
      The same values, the input of the part after the cut.

    Raises:
      TypeError: x is not a single tensor.
      ValueError: the call is within `tf.cond`, `tf.while_loop` or `tf.function`.
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
    """A network that is being built part by part, from `divided`.

    Attributes:
      graph: the network's graph.
      parts: the number of parts so far.
    """

    def __init__(self, devices: Sequence[str], num_parts: int, gate: Callable | None):
        self.parts = 1
        self._devices = devices
        self._of_parts = num_parts
        self._gate = gate
        self.graph = tf.get_default_graph()

    def device_of(self, operation: tf.Operation) -> str:
        """Returns the operation's own device, or else the device of its part."""
        return operation.device or self._devices[self._device_index()]

    def cut(self, x: tf.Tensor) -> tf.Tensor:
        """Begins the next part; returns its input."""
        source = self._device_index()
        self.parts += 1
        target = self._device_index()
        if (gate := self._gate) is None:
            return x

        @tf.custom_gradient
        def gated(x):
            def gradient(dy):
                with tf.control_dependencies([gate(dy, target, source)]):
                    return tf.identity(dy)
            with tf.control_dependencies([gate(x, source, target)]):
                return tf.identity(x), gradient
        return gated(x)

    def _device_index(self):
        """Returns the index of the current part's device; each device has consecutive parts."""
        return (self.parts - 1) * len(self._devices) // self._of_parts if len(self._devices) > 1 else 0


@contextlib.contextmanager
def divided(devices: Sequence[str] = ('',), num_parts: int = 1, gate: Callable | None = None) -> Iterator[Division]:
    """Context for building a network with parts on several devices and a gate at each cut.

    Args:
      devices: the names of the devices, each with consecutive parts; '' is the caller's device.
      num_parts: the network's number of parts, required with several devices.
      gate: function (tensor, source, target) -> the operation after which device number `target` may use a tensor that
        device number `source` has computed. It is called at each cut for the activations, and for their gradient in
        the backward pass, even if both parts are on one device. None for no gates.
    """
    division = Division(devices, num_parts, gate)
    token = _division.set(division)
    try:
        with tf.device(division.device_of):
            yield division
    finally:
        _division.reset(token)


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """Context in which `next_part` does nothing."""
    token = _division.set(None)
    try:
        yield
    finally:
        _division.reset(token)
