"""The optimizers that a recipe chooses from, as functions of learning rates: float32 scalars."""
import tensorflow.compat.v1 as tf

from cifar10.optim.muon import Muon

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


class _Adam(tf.train.AdamOptimizer):
    """Adam whose powers of beta have the same names in the checkpoints of all update modes."""

    def _create_slots(self, var_list):
        with tf.name_scope(None):  # otherwise their names contain the name scope in which the update is built
            super()._create_slots(var_list)


def muon(rate: tf.Tensor, auxiliary_rate: tf.Tensor | None = None) -> tf.train.Optimizer:
    """Returns `Muon`; without an auxiliary rate, all variables have the same rate."""
    return Muon(rate, rate if auxiliary_rate is None else auxiliary_rate)
