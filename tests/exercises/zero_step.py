"""Answers to zero_step."""
import numpy as np
import tensorflow.compat.v1 as tf

from lessons.ring import all_gather, on_each, reduce_scatter


def accepted_helpers(stage, devices, start, loss_of, rate):
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


variants_of_plain = {
    'list_of_updates': ('held, tf.group(updates)', 'tuple(held), updates'),
    'tf_variable': (
        "held.append(tf.get_variable(f'w{d}', initializer=start if stage == 1 else own[d]))\n"
        "velocities.append(tf.get_variable(f'v{d}', initializer=0 * own[d]))",
        'held.append(tf.Variable(start if stage == 1 else own[d]))\n'
        'velocities.append(tf.Variable(np.zeros_like(own[d]), trainable=False))'),
}


mistakes_in_plain = {
    'all_on_device_0': (
        'loss_of is called for',
        'whole = all_gather(read, devices) if stage == 3 else read\n'
        'for d, device in enumerate(devices):\n'
        '    with tf.device(device):',
        'whole = all_gather(read, devices) if stage == 3 else read\n'
        'for d, _ in enumerate(devices):\n'
        '    with tf.device(devices[0]):'),
    'damped': ('after 1 update, the variable of device 0', 'sums[d]', '0.1 * sums[d]'),
    'gradient_gathered_too': (
        'bytes in an update',
        'sums = reduce_scatter(gradients, devices)',
        'gradients = all_gather(reduce_scatter(gradients, devices), devices)\n'
        'sums = [tf.split(each, D)[d] for d, each in enumerate(gradients)]'),
    'hidden_copy_in_stage_3': (
        'for stage 3, D = 1, 2 weights and the rate 0.1, device 0 keeps 6 numbers',
        'return',
        'if stage == 3:\n'
        '    for d, device in enumerate(devices):\n'
        '        with tf.device(device):\n'
        "            copy = tf.get_local_variable(f'copy{d}', initializer=start)\n"
        '            updates.append(copy.assign(whole[d]))\n'
        'return'),
    'no_devices': (
        'on none of the devices',
        "velocities.append(tf.get_variable(f'v{d}', initializer=0 * own[d]))",
        'with tf.device(None):\n'
        "    velocities.append(tf.get_variable(f'v{d}', initializer=0 * own[d]))"),
    'old_chunk_gathered': (
        'after 1 update, the variable of device 0',
        'shards.append(shard)', 'shards.append(shard + rate * velocity if stage == 1 else shard)'),
    'one_copy_updated': ('for stage 1, D = 2', 'new[d]', 'new[d] if d == 0 else read[d]'),
    'only_the_update': ('a pair (variables, operation) is right', 'return held, ', 'return '),
    'sum': ('for stage 1, D = 2', 'sums[d] / D', 'sums[d]'),
    'weights_kept_whole_in_stage_3': (
        'for stage 3',
        ' if stage == 1 else own[d]', '',
        'all_gather(read, devices) if stage == 3', 'all_gather(read, devices) if stage == 4',
        'all_gather(shards, devices) if stage == 1', 'all_gather(shards, devices) if stage'),
    'weights_on_device_0': (
        'device 0 keeps',
        'held, velocities, gradients = [], [], []\n'
        'for d, device in enumerate(devices):\n'
        '    with tf.device(device):',
        'held, velocities, gradients = [], [], []\n'
        'for d, _ in enumerate(devices):\n'
        '    with tf.device(devices[0]):'),
    'whole_velocity': (
        'keeps 8 numbers in variables; 6 is right',
        '0 * own[d]', '0 * start',
        'velocity = velocities[d].assign(0.9 * velocities[d] + sums[d] / D)\n'
        'shard = tf.split(whole[d], D)[d] - rate * velocity',
        'velocity = velocities[d].assign(0.9 * velocities[d] + tf.tile(sums[d] / D, [D]))\n'
        'shard = tf.split(whole[d], D)[d] - rate * tf.split(velocity, D)[d]'),
    'without_velocity': ('after 2 updates, the variable of device 0', '0.9 *', '0.0 *'),
    'wrong_chunk': ('for stage 1, D = 2', '[d] - rate', '[d - 1] - rate'),
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


def refused_all_reduce_on_device_0(stage, devices, start, loss_of, rate):
    """bytes in an update"""
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
    with tf.device(devices[0]):
        total = tf.add_n(gradients)
    sums = []
    for d, device in enumerate(devices):
        with tf.device(device):
            sums.append(tf.split(tf.identity(total), D)[d])
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


def refused_update_before_the_reduce(stage, devices, start, loss_of, rate):
    """for stage 1, D = 2"""
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
