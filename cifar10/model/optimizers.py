"""The built-in optimizers, as functions of the learning rate, and gradient clipping."""
import tensorflow.compat.v1 as tf

MOMENTUM = 0.9
# Coefficients of the odd polynomial a x + b x^3 + c x^5 that moves singular values towards 1 (Keller Jordan,
# https://kellerjordan.github.io/posts/muon/). They are chosen for speed: the values end between 0.7 and 1.2.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_MUON_ITERATIONS = 3
_MUON_MOMENTUM = 0.6
_AUXILIARY_MOMENTUM = 0.85
_TINY = 2.0 ** -126  # float32's smallest normal number


def sgd(rate: tf.Tensor) -> tf.train.Optimizer:
    """Returns plain gradient descent."""
    return tf.train.GradientDescentOptimizer(rate)


def momentum(rate: tf.Tensor) -> tf.train.Optimizer:
    """Returns an optimizer: gradient descent with a momentum of 0.9."""
    return tf.train.MomentumOptimizer(rate, MOMENTUM)


def nesterov(rate: tf.Tensor) -> tf.train.Optimizer:
    """Returns an optimizer: gradient descent with a Nesterov momentum of 0.9."""
    return tf.train.MomentumOptimizer(rate, MOMENTUM, use_nesterov=True)


class Adam(tf.train.AdamOptimizer):
    """Adam (Kingma and Ba 2014) with TensorFlow's default constants.

    The beta powers have the same names in the checkpoints of all update modes.

    Args:
      rate: learning rate, float32 scalar.
    """

    def _create_slots(self, var_list):
        with tf.name_scope(None):  # otherwise the names of the beta powers include the update mode's name scope
            super()._create_slots(var_list)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101).

    Before Adam's step, variables of two or more dimensions are multiplied by 1 - rate * weight_decay, as in PyTorch's
    AdamW; biases, scales and offsets do not decay. Unlike an L2 loss, the decay does not affect Adam's moments, and
    loss scaling does not affect the decay.

    Args:
      rate: learning rate, float32 scalar.
      weight_decay: a step removes this fraction of a variable, times the rate.
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


class Clipped(tf.train.Optimizer):
    """An optimizer that clips the global norm of the gradients.

    It clips the gradients that are applied: the mean over the towers in modes that have a mean, so the norm does not
    depend on the number of towers (Pascanu et al. 2013, https://arxiv.org/abs/1211.5063; `tf.clip_by_global_norm`). If
    a gradient is not finite, all become NaN.
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


def orthogonalise(matrix: tf.Tensor, iterations: int = _MUON_ITERATIONS) -> tf.Tensor:
    """Approximates the nearest matrix with orthonormal rows or columns: U V^T of the SVD.

    Each Newton-Schulz iteration maps X to a X + (b A + c A^2) X with A = X X^T, which applies the polynomial
    to every singular value. The norm is scaled to 1 first, so no singular value exceeds 1.

    Args:
      matrix: float32 [rows, columns].
      iterations: number of Newton-Schulz iterations.
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrix.shape[0] <= matrix.shape[1]  # A is X X^T or X^T X, whichever is smaller
    x = matrix * tf.rsqrt(tf.reduce_sum(matrix * matrix) + 1e-14)
    for _ in range(iterations):
        gram = tf.matmul(x, x, transpose_a=not wide, transpose_b=wide)
        polynomial = b * gram + c * (gram @ gram)
        x = a * x + (polynomial @ x if wide else x @ polynomial)
    return x


class Muon(tf.train.Optimizer):
    """Muon for convolution filters, gradient descent with Nesterov momentum for all other variables.

    Filters [height, width, in, out] are treated as a matrix [height * width * in, out]. A step computes the
    momentum m <- 0.6 m + g, orthogonalises g + 0.6 m to u, and sets w <- w sqrt(out) / |w| - rate u. Fixing the norm
    of the weights before each step replaces weight decay; batch normalisation makes their scale irrelevant. The
    source is `airbench94_muon.py` of cifar10-airbench (Keller Jordan 2024).

    Args:
      rate: learning rate of the filters, float32 scalar.
      auxiliary_rate: learning rate of all other variables, float32 scalar.
    """

    def __init__(self, rate: tf.Tensor | float, auxiliary_rate: tf.Tensor | float):
        super().__init__(use_locking=False, name='Muon')
        self._rate = rate
        self._auxiliary_rate = auxiliary_rate

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, 'momentum', self._name)

    def _prepare(self):
        self._rate_tensor = tf.convert_to_tensor(self._rate, tf.float32)
        self._auxiliary_tensor = tf.convert_to_tensor(self._auxiliary_rate, tf.float32)

    def _resource_apply_dense(self, grad, handle):
        slot = self.get_slot(handle, 'momentum')
        if handle.shape.rank != 4:
            return tf.raw_ops.ResourceApplyMomentum(
                var=handle.handle, accum=slot.handle, lr=self._auxiliary_tensor, grad=grad,
                momentum=_AUXILIARY_MOMENTUM, use_nesterov=True, use_locking=False)
        momentum = slot.assign(_MUON_MOMENTUM * slot.read_value() + grad).read_value()
        update = orthogonalise(tf.reshape(grad + _MUON_MOMENTUM * momentum, [-1, handle.shape[-1]]))
        weights = handle.read_value()
        # The maximum keeps filters of zeros from becoming NaN: 0 * rsqrt(0).
        scale = tf.rsqrt(tf.maximum(tf.reduce_sum(weights * weights), _TINY)) * float(handle.shape[-1]) ** 0.5
        return handle.assign(weights * scale - self._rate_tensor * tf.reshape(update, handle.shape), read_value=False)
