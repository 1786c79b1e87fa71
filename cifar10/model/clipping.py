"""Clipping of gradients by the norm of all of them together."""
import tensorflow.compat.v1 as tf


class Clipped(tf.train.Optimizer):
    """An optimizer whose gradients are scaled down together where their global norm is too large.

    The norm is that of the gradients that are applied: of the mean over the towers where a mode has one, so it does
    not depend on their number (Pascanu et al. 2013, https://arxiv.org/abs/1211.5063; `tf.clip_by_global_norm`). If a
    gradient is not finite, all become NaN.

    Args:
      optimizer: the optimizer that applies the gradients.
      norm: the largest norm.
    """

    def __init__(self, optimizer: tf.train.Optimizer, norm: float):
        super().__init__(use_locking=False, name='Clipped')
        self._optimizer = optimizer
        self._norm = norm

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        gradients, variables = zip(*grads_and_vars)
        clipped, _ = tf.clip_by_global_norm(gradients, self._norm)
        return self._optimizer.apply_gradients(list(zip(clipped, variables)), global_step, name)
