"""In which type the towers compute, and what that asks for: a warning, or a scaled loss.

Variables, losses and updates are float32 always. Knows types and optimizers; nothing of networks or towers.
"""
import tensorflow.compat.v1 as tf

TYPES = {'fp32': tf.float32, 'bf16': tf.bfloat16, 'fp16': tf.float16}

# Names of the variables that LossScaled keeps; checkpoints of other precisions have none.
LOSS_SCALE = ('current_loss_scale', 'good_steps')

# Flags of /proc/cpuinfo: an instruction that multiplies in this type.
_NATIVE = {'fp32': {''}, 'bf16': {'avx512_bf16', 'amx_bf16'}, 'fp16': {'avx512_fp16', 'amx_fp16'}}


def is_emulated(precision, on_cpu, cpu_flags=None):
    """Returns whether computing in a precision is slow, because the CPU has no instruction for it.

    Args:
      precision: a key of TYPES.
      on_cpu: whether the towers are CPU devices.
      cpu_flags: set of str; default: those of this machine's CPU.
    """
    if not on_cpu or precision == 'fp32':
        return False
    if cpu_flags is None:
        with open('/proc/cpuinfo') as stream:
            cpu_flags = set(next((line for line in stream if line.startswith('flags')), '').split())
    return not cpu_flags & _NATIVE[precision]


class LossScaled(tf.mixed_precision.MixedPrecisionLossScaleOptimizer):
    """An optimizer that scales the loss, lest small float16 gradients become 0.

    A step whose gradients overflow changes no variable and halves the scale; it counts as a step all the
    same, because its examples are spent. After 2,000 good steps the scale is doubled.

    Args:
      optimizer: the `tf.train.Optimizer` that gets the gradients, unscaled.
    """

    def __init__(self, optimizer):
        super().__init__(optimizer, tf.mixed_precision.DynamicLossScale())

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        applied = super().apply_gradients(grads_and_vars, None, name)
        if global_step is None:
            return applied
        with tf.control_dependencies([applied]):
            return global_step.assign_add(1, read_value=False)


def optimizer(precision, make_optimizer):
    """Returns `make_optimizer`; for fp16 a function that makes the same optimizer with its loss scaled."""
    return (lambda: LossScaled(make_optimizer())) if precision == 'fp16' else make_optimizer
