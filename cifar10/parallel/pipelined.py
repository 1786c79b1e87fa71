"""Towers over several devices: each device computes a part of a tower, and the towers go through them as a pipeline."""
import tensorflow as tf2

from cifar10.parallel.devices import Devices
from cifar10.parallel.turns import Turns


class Pipeline(Turns):
    """Turns of towers over G devices each.

    A tower takes a turn on each device: forward F(k, 0) to F(k, G - 1), then backward B(k, G - 1) to B(k, 0).
    With k - 1 for the tower before k in its group of devices, the rules are:

      F(k, s) waits for F(k - 1, s) and B(k - (G - s), s)
      B(k, s) waits for B(k - 1, s)

    So the device s holds the activations of at most G - s towers, and while it computes a tower, the others compute its
    neighbours. This is the order 1F1B (Narayanan et al. 2019, PipeDream, section 3.2), with towers as the micro-batches
    of a pipeline (Huang et al. 2019, GPipe). A tower waits for earlier ones only, so there is no deadlock. With one
    device, F(k, 0) waits for B(k - 1, 0): one tower after the other.
    """

    def __init__(self, devices: Devices):
        super().__init__(devices)
        self._handed = {}  # (k, s, t) -> the tensor that tower k has handed from its device number s to number t

    def _before(self, k):
        return self._before_forward(k, 0)

    def gate(self, k, tensor, source, target):
        if source == target:
            return super().gate(k, tensor, source, target)
        self._handed[k, source, target] = tensor
        before = self._before_forward(k, target) if target > source else self._backward(self._previous(k), target)
        gate = self._count(k, [tensor, *before], turns=0)
        self.moments[k] += [[tensor], [gate]]
        return gate

    def _previous(self, k, towers=1):
        """Returns the number of the tower that is so many towers before k in its group; negative if there is none."""
        return k - towers * len(self._devices.groups)

    def _before_forward(self, k, s):
        """Returns what F(k, s) waits for: F(k - 1, s) and B(k - (G - s), s)."""
        devices = len(self._devices.parts[k])
        return [*self._forward(self._previous(k), s), *self._backward(self._previous(k, devices - s), s)]

    def _forward(self, k, s):
        """Returns what F(k, s) ends with; nothing on the last device, where B(k, s) follows and is waited for too."""
        if k < 0 or s == len(self._devices.parts[k]) - 1:
            return []
        return [self._handed.get((k, s, s + 1), self.ended[k])]  # a tower that is not cut is on its first device

    def _backward(self, k, s):
        """Returns the last tensors of B(k, s): the gradients that it hands back, and its gradients of variables."""
        if k < 0:
            return []
        if s == 0:
            return [self.ended[k]]
        handed = [self._handed[k, s, s - 1]] if (k, s, s - 1) in self._handed else []
        device = tf2.DeviceSpec.from_string(self._devices.parts[k][s]).to_string()
        return handed + [gradient for gradient in self.computed[k] if gradient.device == device]
