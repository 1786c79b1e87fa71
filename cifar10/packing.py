"""Small tensors travel as one: between devices, the delay of a transfer counts more than its bytes.

Knows tensors and towers' gradients; nothing of optimizers, images or networks.
"""
import tensorflow.compat.v1 as tf

from cifar10.towers import gradients_by_variable, mean_gradient

_LARGE = 1 << 18  # elements of a tensor that travels alone, because packing would copy it


def pack(tensors):
    """Joins all small tensors to one.

    Args:
      tensors: tensors of one type and of known shapes.

    Returns:
      (a list of tensors: the large ones, then the small ones as one; the function that takes such a
      list back to tensors of the order and the shapes of `tensors`).
    """
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    large = [i for i in range(len(tensors)) if sizes[i] >= _LARGE]
    small = [i for i in range(len(tensors)) if sizes[i] < _LARGE]
    packed = [tensors[i] for i in large]
    if small:
        packed.append(tf.concat([tf.reshape(tensors[i], [-1]) for i in small], 0))

    def unpack(values):
        found = dict(zip(large, values))
        if small:
            parts = tf.split(values[-1], [sizes[i] for i in small])
            found.update((i, tf.reshape(part, tensors[i].shape)) for i, part in zip(small, parts))
        return [found[i] for i in range(len(tensors))]
    return packed, unpack


def average_packed(tower_grads, devices):
    """Does what `average_gradients` does, with small gradients joined on the tower's device before they leave it.

    Args:
      tower_grads: K towers x N (gradient, variable) pairs.
      devices: the K towers' device names.

    Returns:
      N (gradient, variable) pairs, as `average_gradients`.
    """
    matched = gradients_by_variable(tower_grads)
    dense = [i for i, (gradients, _) in enumerate(matched)
             if gradients and not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)]
    travelling = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.name_scope('pack_%d' % k):
            packed, unpack = pack([matched[i][0][k] for i in dense])
        travelling.append(packed)
    means = dict(zip(dense, unpack([mean_gradient(list(parts)) for parts in zip(*travelling)])))
    return [(means[i] if i in means else mean_gradient(gradients), variable)
            for i, (gradients, variable) in enumerate(matched)]
