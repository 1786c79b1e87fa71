import tensorflow.compat.v1 as tf


def zero_step(stage, devices, start, loss_of, rate):
    """Each device sends its chunks straight to the device that needs them, without a ring: the bytes are the same."""
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
