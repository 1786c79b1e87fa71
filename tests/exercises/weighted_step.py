"""Answers to weighted_step."""
import tensorflow.compat.v1 as tf


def accepted_split(devices, batch, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
        size = tf.shape(batch)[0]
        more = tf.cast(tf.range(len(devices)) < size % len(devices), tf.int32)
        shares = tf.split(batch, size // len(devices) + more)
    gradients = []
    for device, share in zip(devices, shares):
        with tf.device(device):
            loss = tf.reduce_sum(tf.square(weight - share)) / tf.cast(size, tf.float32)
            gradients += tf.gradients(loss, weight)
    with tf.device('/cpu:0'):
        return weight.assign_sub(rate * tf.add_n(gradients))


def accepted_sum_over_the_size(devices, batch, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
        size = tf.shape(batch)[0]
    gradients = []
    for k, device in enumerate(devices):
        with tf.device(device):
            share = batch[k * size // len(devices):(k + 1) * size // len(devices)]
            loss = tf.reduce_sum(tf.square(weight - share)) / tf.cast(size, tf.float32)
            gradients += tf.gradients(loss, weight)
    with tf.device('/cpu:0'):
        return weight.assign_sub(rate * tf.add_n(gradients))


mistakes_in_sum_over_the_size = {
    'all_towers_on_one_device': ('nothing is computed on /cpu:1', 'tf.device(device)', 'tf.device(devices[0])'),
    'applied_twice': (
        'the weight after a batch of [1, 3, 4, 5, 12] is 2; 1 is right',
        'return weight.assign_sub(rate * tf.add_n(gradients))',
        'total = tf.add_n(gradients)\n'
        'return tf.group(weight.assign_sub(rate * total), weight.assign_sub(rate * total))'),
    'empty_share_is_nan': (
        'the weight after a batch of [7] is nan',
        'loss = tf.reduce_sum(tf.square(weight - share)) / tf.cast(size, tf.float32)\n'
        'gradients += tf.gradients(loss, weight)',
        'part = tf.cast(tf.size(share), tf.float32) / tf.cast(size, tf.float32)\n'
        'gradients.append(part * tf.reduce_mean(2 * (weight - share)))'),
    'no_barrier': (
        'weight has 2 updates in a step, and nothing orders them; one update is right',
        'weight.assign_sub(rate * tf.add_n(gradients))',
        'tf.group([weight.assign_sub(rate * gradient) for gradient in gradients])'),
    'plain_mean': (
        'the weight after a batch of [1, 3, 4, 5, 12] is',
        'tf.reduce_sum(tf.square(weight - share)) / tf.cast(size, tf.float32)',
        'tf.reduce_mean(tf.square(weight - share)) / len(devices)'),
    'size_when_it_is_built': ('it raises', 'tf.shape(batch)[0]', 'int(batch.shape[0])'),
    'without_the_rest': (
        'the weight after a batch of [1, 3, 4, 5, 12] is',
        'size // len(devices):(k + 1) * size // len(devices)',
        '(size // len(devices)):(k + 1) * (size // len(devices))'),
}


def refused_variable_for_each_tower(devices, batch, rate):
    """the graph has 2 trainable variables"""
    size = tf.shape(batch)[0]
    updates = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.name_scope(f'tower_{k}'):
            weight = tf.Variable(0.0)
            share = batch[k * size // len(devices):(k + 1) * size // len(devices)]
            loss = tf.reduce_sum(tf.square(weight - share)) / tf.cast(size, tf.float32)
            updates.append(weight.assign_sub(rate * tf.gradients(loss, weight)[0]))
    return tf.group(updates)
