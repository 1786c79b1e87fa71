"""Solutions of the exercises of lesson 8."""
import numpy as np
import tensorflow.compat.v1 as tf

from lessons.ring import all_gather, on_each, reduce_scatter


def shards(numbers, devices):
    """Zeros at the end, up to the next multiple of the number of devices."""
    numbers = np.asarray(numbers)
    return list(np.pad(numbers, (0, -len(numbers) % devices)).reshape(devices, -1))


def zero_step(stage, devices, start, loss_of, rate):
    """Reduce-scatter, an update of the own shard, and all-gather: of the new weights, or of the old ones."""
    pieces = np.split(start, len(devices))
    numbers = range(len(devices))
    held = on_each(devices, lambda d: tf.get_variable(f'weights_{d}', initializer=start if stage == 1 else pieces[d]),
                   numbers)
    velocities = on_each(devices, lambda d: tf.get_variable(f'velocity_{d}', initializer=np.zeros_like(pieces[d])),
                         numbers)
    weights = on_each(devices, lambda variable: variable.read_value(), held)
    if stage == 3:
        weights = all_gather(weights, devices)
    gradients = on_each(devices, lambda d, each: tf.gradients(loss_of(d, each), each)[0], numbers, weights)
    means = on_each(devices, lambda total: total / len(devices), reduce_scatter(gradients, devices))
    new = on_each(devices, lambda velocity, mean: velocity.assign(0.9 * velocity + mean), velocities, means)
    shards_of_weights = on_each(devices, lambda d, each: tf.split(each, len(devices))[d], numbers, weights)
    changed = on_each(devices, lambda old, velocity: old - rate * velocity, shards_of_weights, new)
    if stage == 1:
        changed = all_gather(changed, devices)
    updates = on_each(devices, lambda variable, value: variable.assign(value).op, held, changed)
    return held, tf.group(updates)


def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    """ReLU on the own columns, which are complete; the sum after the rows; the last biases once, after it."""
    hidden = [np.maximum(x @ w1 + b1, 0) for w1, b1 in zip(w1_parts, b1_parts)]
    return [total + b2 for total in all_reduce([own @ w2 for own, w2 in zip(hidden, w2_parts)])]
