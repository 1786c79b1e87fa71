# refused: for stage 3, D = 1, 2 weights and the rate 0.1, device 0 keeps 6 numbers
import numpy as np
import tensorflow.compat.v1 as tf

from lessons.ring import all_gather, reduce_scatter


def zero_step(stage, devices, start, loss_of, rate):
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
    if stage == 3:
        for d, device in enumerate(devices):
            with tf.device(device):
                copy = tf.get_local_variable(f'copy{d}', initializer=start)
                updates.append(copy.assign(whole[d]))
    return held, tf.group(updates)
