"""An optimizer of your own: Lion (Chen et al. 2023, https://arxiv.org/abs/2302.06675).

    python multi_gpu_train.py --optimizer=examples/lion.py:lion --learning_rate=0.0003
"""
import tensorflow.compat.v1 as tf

KEEP, BLEND = 0.99, 0.9  # fraction of the momentum that a step keeps; share of the momentum in a step's direction


def lion(rate):
    """Returns a Lion optimizer; `rate` is its learning rate, a float32 scalar."""
    return Lion(rate)


class Lion(tf.train.Optimizer):
    """Moves each value by the learning rate, in the direction of its momentum blended with its gradient."""

    def __init__(self, rate):
        super().__init__(use_locking=False, name='Lion')
        self._rate = rate

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, 'momentum', self._name)

    def _resource_apply_dense(self, grad, handle):
        slot = self.get_slot(handle, 'momentum')
        momentum = slot.read_value()
        direction = tf.sign(BLEND * momentum + (1 - BLEND) * grad)
        with tf.control_dependencies([momentum]):
            kept = slot.assign(KEEP * momentum + (1 - KEEP) * grad, read_value=False)
        return tf.group(kept, handle.assign_sub(self._rate * direction, read_value=False))
