"""The types that towers compute in, and the scaled loss that float16 needs.

Variables, losses and updates are float32 in every precision.
"""
import dataclasses
from collections.abc import Callable, Collection

import tensorflow.compat.v1 as tf

# Names of the variables that LossScaled keeps; checkpoints of other precisions have none.
LOSS_SCALE = ('current_loss_scale', 'good_steps')


@dataclasses.dataclass(frozen=True)
class Precision:
    """A type that towers compute in.

    Attributes:
      dtype: the type.
      cpu_flags: flags of /proc/cpuinfo, any of which means that the CPU multiplies in this type; empty: every CPU.
      gpu_capability: the lowest compute capability of GPUs that multiply in this type.
      scales_loss: whether gradients are so small in this type that the loss must be scaled.
    """
    dtype: tf.DType
    cpu_flags: frozenset[str] = frozenset()
    gpu_capability: tuple[int, int] = (0, 0)
    scales_loss: bool = False

    def is_emulated(self, cpu_flags: Collection[str] | None = None) -> bool:
        """Returns whether computing in this type is slow on CPU devices, for lack of an instruction.

        Args:
          cpu_flags: those of the CPU; default: this machine's.
        """
        if not self.cpu_flags:
            return False
        if cpu_flags is None:
            with open('/proc/cpuinfo') as stream:
                cpu_flags = next((line for line in stream if line.startswith('flags')), '').split()
        return self.cpu_flags.isdisjoint(cpu_flags)

    def optimizer(self, make_optimizer: Callable[[], tf.train.Optimizer]) -> Callable[[], tf.train.Optimizer]:
        """Returns `make_optimizer`, or a function that makes the same optimizer with its loss scaled."""
        return (lambda: LossScaled(make_optimizer())) if self.scales_loss else make_optimizer


FP32 = Precision(tf.float32)
BF16 = Precision(tf.bfloat16, frozenset({'avx512_bf16', 'amx_bf16'}), gpu_capability=(8, 0))
FP16 = Precision(tf.float16, frozenset({'avx512_fp16', 'amx_fp16'}), scales_loss=True)


class LossScaled(tf.mixed_precision.MixedPrecisionLossScaleOptimizer):
    """An optimizer that scales the loss, so that small float16 gradients do not become 0.

    A step whose gradients overflow is skipped and halves the scale, but increments global_step, because its
    examples are spent. After 2,000 good steps the scale is doubled.

    Args:
      optimizer: the `tf.train.Optimizer` that gets the unscaled gradients.
    """

    def __init__(self, optimizer: tf.train.Optimizer):
        super().__init__(optimizer, tf.mixed_precision.DynamicLossScale())

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        applied = super().apply_gradients(grads_and_vars, None, name)
        if global_step is None:
            return applied
        with tf.control_dependencies([applied]):
            return global_step.assign_add(1, read_value=False)
