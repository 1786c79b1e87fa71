"""The floating-point types of towers, and loss scaling for float16.

Variables, losses and updates are float32 in every precision.
"""
import dataclasses
from collections.abc import Callable

import tensorflow.compat.v1 as tf


@dataclasses.dataclass(frozen=True)
class Precision:
    """A floating-point type of towers, and its hardware support.

    Attributes:
      dtype: the type.
      cpu_flags: flags of /proc/cpuinfo; a CPU with any of them multiplies in this type. Empty if every CPU does.
      gpu_capability: the lowest compute capability of GPUs that multiply in this type.
      scales_loss: whether the loss must be scaled, because gradients may be too small for this type.
    """
    dtype: tf.DType
    cpu_flags: frozenset[str] = frozenset()
    gpu_capability: tuple[int, int] = (0, 0)
    scales_loss: bool = False

    def is_slow(self, cpuinfo: str | None = None) -> bool:
        """Returns whether this type is slower than float32 on the CPU.

        On Intel's processors, only AMX makes bfloat16 fast, and a virtual machine may hide AMX. On a Xeon with
        AVX512_BF16 alone, training in bfloat16 takes 1.6 times as long as in float32 (docs/measured.md).

        Args:
          cpuinfo: the text of /proc/cpuinfo; by default, this machine's.
        """
        if not self.cpu_flags:
            return False
        if cpuinfo is None:
            with open('/proc/cpuinfo') as stream:
                cpuinfo = stream.read()
        flags = set(next((line for line in cpuinfo.splitlines() if line.startswith('flags')), '').split())
        if 'GenuineIntel' in cpuinfo:
            flags.discard('avx512_bf16')
        return self.cpu_flags.isdisjoint(flags)

    def optimizer(self, make_optimizer: Callable[[], tf.train.Optimizer]) -> Callable[[], tf.train.Optimizer]:
        """Wraps a function that makes an optimizer: adds loss scaling if this type needs it."""
        if not self.scales_loss:
            return make_optimizer
        return lambda: LossScaled(make_optimizer())

    def loss_scale(self, optimizer: tf.train.Optimizer) -> tf.Tensor | None:
        """Returns the optimizer's loss scale; None if this type needs no loss scaling."""
        return optimizer.scale() if self.scales_loss else None


FP32 = Precision(tf.float32)
BF16 = Precision(tf.bfloat16, frozenset({'avx512_bf16', 'amx_bf16'}), gpu_capability=(8, 0))
FP16 = Precision(tf.float16, frozenset({'avx512_fp16', 'amx_fp16'}), scales_loss=True)


class LossScaled(tf.mixed_precision.MixedPrecisionLossScaleOptimizer):
    """An optimizer with dynamic loss scaling, which keeps small float16 gradients from becoming 0.

    If gradients overflow, the scale is halved and the variables do not change; global_step is still incremented,
    because the step has consumed its examples. The scale is doubled after 2,000 good steps.

    Args:
      optimizer: the optimizer that applies the unscaled gradients.

    Attributes:
      scale: function that returns the current scale, float32 scalar.
    """

    def __init__(self, optimizer: tf.train.Optimizer):
        self.scale = tf.mixed_precision.DynamicLossScale()
        super().__init__(optimizer, self.scale)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        applied = super().apply_gradients(grads_and_vars, None, name)
        if global_step is None:
            return applied
        with tf.control_dependencies([applied]):
            return global_step.assign_add(1, read_value=False)
