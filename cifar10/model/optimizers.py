"""The optimizers that a recipe chooses from, as functions of learning rates: float32 scalars."""
import tensorflow.compat.v1 as tf

from cifar10.model.muon import Muon

MOMENTUM = 0.9


def sgd(rate: tf.Tensor) -> tf.train.Optimizer:
    """Returns plain gradient descent."""
    return tf.train.GradientDescentOptimizer(rate)


def momentum(rate: tf.Tensor) -> tf.train.Optimizer:
    """Returns gradient descent with momentum 0.9."""
    return tf.train.MomentumOptimizer(rate, MOMENTUM)


def nesterov(rate: tf.Tensor) -> tf.train.Optimizer:
    """Returns gradient descent with Nesterov momentum 0.9."""
    return tf.train.MomentumOptimizer(rate, MOMENTUM, use_nesterov=True)


def adam(rate: tf.Tensor) -> tf.train.Optimizer:
    """Returns Adam (Kingma and Ba 2014) with TensorFlow's default constants."""
    return _Adam(rate)


def adamw(rate: tf.Tensor, weight_decay: float) -> tf.train.Optimizer:
    """Returns `AdamW`."""
    return AdamW(rate, weight_decay)


class _Adam(tf.train.AdamOptimizer):
    """Adam whose powers of beta have the same names in the checkpoints of all update modes."""

    def _create_slots(self, var_list):
        with tf.name_scope(None):  # otherwise their names contain the name scope in which the update is built
            super()._create_slots(var_list)


class AdamW(_Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101).

    Before Adam's step, variables of two or more dimensions are multiplied by 1 - rate * weight decay, as in PyTorch's
    AdamW; biases, scales and offsets are not. Unlike an L2 loss, the decay does not pass through Adam's moments, and
    float16's loss scaling does not reach it.

    Args:
      rate: learning rate, float32 scalar.
      weight_decay: the fraction of a variable, times the rate, that a step takes away.
    """

    def __init__(self, rate: tf.Tensor | float, weight_decay: float):
        super().__init__(rate, name='AdamW')
        self._weight_decay = weight_decay

    def _prepare(self):
        super()._prepare()
        self._decay_tensor = tf.convert_to_tensor(self._weight_decay * self._lr, tf.float32)

    def _resource_apply_dense(self, grad, handle):
        if handle.shape.rank < 2:
            return super()._resource_apply_dense(grad, handle)
        decayed = handle.assign_sub(self._decay_tensor * handle.read_value(), read_value=False)
        with tf.control_dependencies([decayed]):
            return super()._resource_apply_dense(grad, handle)


def muon(rate: tf.Tensor, auxiliary_rate: tf.Tensor | None = None) -> tf.train.Optimizer:
    """Returns `Muon`; without an auxiliary rate, all variables have the same rate."""
    return Muon(rate, rate if auxiliary_rate is None else auxiliary_rate)
