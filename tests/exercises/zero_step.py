"""Answers to zero_step."""
import numpy as np
import tensorflow.compat.v1 as tf

from lessons.ring import all_gather, reduce_scatter


def accepted_plain(stage, devices, start, loss_of, rate):
    D = len(devices)
    own = np.split(start, D)
    held, velocities, gradients = [], [], []
    for d, device in enumerate(devices):
        with tf.device(device):
            held.append(tf.get_variable(f'w{d}', initializer=start if stage == 1 else own[d]))
            velocities.append(tf.get_variable(f'v{d}', initializer=0 * own[d]))
    read = []
    for device, variable in zip(devices, held):
        with tf.device(device):
            read.append(tf.identity(variable))
    whole = all_gather(read, devices) if stage == 3 else read
    for d, device in enumerate(devices):
        with tf.device(device):
            gradients += tf.gradients(loss_of(d, whole[d]), whole[d])
    sums = reduce_scatter(gradients, devices)
    updates, shards = [], []
    for d, device in enumerate(devices):
        with tf.device(device):
            velocity = velocities[d].assign(0.9 * velocities[d] + sums[d] / D)
            shard = tf.split(whole[d], D)[d] - rate * velocity
            shards.append(shard)
    new = all_gather(shards, devices) if stage == 1 else shards
    for d, device in enumerate(devices):
        with tf.device(device):
            updates.append(held[d].assign(new[d]))
    return held, tf.group(updates)


mistakes_in_plain = {
    'gradient_gathered_too': (
        'bytes in an update',
        'sums = reduce_scatter(gradients, devices)',
        'gradients = all_gather(reduce_scatter(gradients, devices), devices)\n'
        'sums = [tf.split(each, D)[d] for d, each in enumerate(gradients)]'),
    'sum': ('for stage 1, D = 2', 'sums[d] / D', 'sums[d]'),
    'whole_velocity': (
        'keeps 8 numbers in variables; 6 is right',
        '0 * own[d]', '0 * start',
        'velocity = velocities[d].assign(0.9 * velocities[d] + sums[d] / D)\n'
        'shard = tf.split(whole[d], D)[d] - rate * velocity',
        'velocity = velocities[d].assign(0.9 * velocities[d] + tf.tile(sums[d] / D, [D]))\n'
        'shard = tf.split(whole[d], D)[d] - rate * tf.split(velocity, D)[d]'),
    'without_velocity': ('after 2 updates, the variable of device 0', '0.9 *', '0.0 *'),
}


# Each device sends its chunks straight to the device that needs them, without a ring: the bytes are the same.
def accepted_straight(stage, devices, start, loss_of, rate):
    D = len(devices)
    size = len(start) // D
    chunk = [slice(d * size, (d + 1) * size) for d in range(D)]
    held, velocities, chunks, gradients, new = [], [], [], [], []
    for d, device in enumerate(devices):
        with tf.device(device):
            held.append(tf.get_variable(f'weights{d}', initializer=start if stage == 1 else start[chunk[d]]))
            velocities.append(tf.get_variable(f'velocity{d}', [size], initializer=tf.zeros_initializer()))
            chunks.append(tf.identity(held[d]))
    for d, device in enumerate(devices):
        with tf.device(device):
            weights = tf.concat(chunks, 0) if stage == 3 else chunks[d]
            gradient, = tf.gradients(loss_of(d, weights), weights)
            gradients.append([gradient[own] for own in chunk])
    for d, device in enumerate(devices):
        with tf.device(device):
            mean = tf.add_n([each[d] for each in gradients]) / D
            velocity = velocities[d].assign(0.9 * velocities[d] + mean)
            old = chunks[d][chunk[d]] if stage == 1 else chunks[d]
            new.append(old - rate * velocity)
    updates = []
    for d, device in enumerate(devices):
        with tf.device(device):
            updates.append(held[d].assign(tf.concat(new, 0) if stage == 1 else new[d]))
    return held, tf.group(*updates)
