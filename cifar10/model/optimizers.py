"""The optimizers that a recipe chooses from, besides Muon, as functions of the learning rate: a float32 scalar."""
import tensorflow.compat.v1 as tf

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


class Adam(tf.train.AdamOptimizer):
    """Adam (Kingma and Ba 2014) with TensorFlow's default constants.

    The powers of beta have the same names in the checkpoints of all update modes.

    Args:
      rate: learning rate, float32 scalar.
    """

    def _create_slots(self, var_list):
        with tf.name_scope(None):  # otherwise their names contain the name scope in which the update is built
            super()._create_slots(var_list)


class AdamW(Adam):
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
