import numpy as np
import tensorflow.compat.v1 as tf

from lessons.ring import all_gather, on_each, reduce_scatter


def zero_step(stage, devices, start, loss_of, rate):
    ranks = range(len(devices))
    parts = np.split(start, len(devices))

    def weights_of(d):
        return tf.get_variable(f'layer/weights_{d}', initializer=tf.constant(parts[d] if stage == 3 else start))

    weights = on_each(devices, weights_of, ranks)
    velocity = on_each(devices, lambda d: tf.get_variable(f'layer/velocity_{d}', parts[d].shape,
                                                          initializer=tf.zeros_initializer()), ranks)
    values = on_each(devices, tf.identity, weights)
    values = all_gather(values, devices) if stage == 3 else values
    losses = on_each(devices, loss_of, ranks, values)
    gradients = on_each(devices, lambda loss, value: tf.gradients(loss / len(devices), [value])[0], losses, values)
    mean = reduce_scatter(gradients, devices)
    moved = on_each(devices, lambda v, g: tf.assign(v, 0.9 * v + g), velocity, mean)
    if stage == 3:
        return weights, tf.group(on_each(devices, lambda w, v: tf.assign_sub(w, rate * v), weights, moved))
    size = len(parts[0])
    own = on_each(devices, lambda d, w, v: w[d * size:(d + 1) * size] - rate * v, ranks, values, moved)
    return weights, tf.group(on_each(devices, tf.assign, weights, all_gather(own, devices)))
