# refused: for stage 1, D = 2
import numpy as np
import tensorflow.compat.v1 as tf

from lessons.ring import all_gather


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
    updates, shards = [], []
    for d, device in enumerate(devices):
        with tf.device(device):
            velocity = velocities[d].assign(0.9 * velocities[d] + tf.split(gradients[d], D)[d])
            shard = tf.split(whole[d], D)[d] - rate * velocity
            shards.append(shard)
    new = all_gather(shards, devices) if stage == 1 else shards
    for d, device in enumerate(devices):
        with tf.device(device):
            updates.append(held[d].assign(new[d]))
    return held, tf.group(updates)
