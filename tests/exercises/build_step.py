"""Answers to build_step."""
import tensorflow.compat.v1 as tf


def accepted_one_loop(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradients += tf.gradients(losses[-1], weight)
    with tf.device('/cpu:0'):
        update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
    return losses, update


mistakes_in_one_loop = {
    'all_towers_on_one_device': (
        'the loss of tower 1 is on /device:CPU:0; /cpu:1 is right',
        'tf.device(device)', 'tf.device(devices[0])'),
    'no_barrier': (
        'weight has 2 updates in a step, and nothing orders them; one update is right',
        'weight.assign_sub(rate * tf.add_n(gradients) / len(devices))',
        'tf.group([weight.assign_sub(rate / len(devices) * gradient) for gradient in gradients])'),
    'sum': ('the updated weight is 1.2; 0.6 is right', ' / len(devices)', ''),
}


def accepted_optimizer(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.Variable(0.0, name='weight')
        optimizer = tf.train.GradientDescentOptimizer(rate)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.math.squared_difference(weight, share)))
        gradients += [gradient for gradient, _ in optimizer.compute_gradients(losses[-1])]
    return losses, optimizer.apply_gradients([(tf.add_n(gradients) / len(devices), weight)])


def refused_variable_for_each_tower(devices, x, rate):
    """the graph has 2 trainable variables (tower_0/weight, tower_1/weight); 1 is right"""
    losses, updates = [], []
    for k, share in enumerate(tf.split(x, len(devices))):
        with tf.name_scope(f'tower_{k}'):
            with tf.device('/cpu:0'):
                weight = tf.Variable(0.0, name='weight')
            with tf.device(devices[k]):
                losses.append(tf.reduce_mean(tf.square(weight - share)))
                updates.append(weight.assign_sub(rate * tf.gradients(losses[k], weight)[0]))
    return losses, tf.group(updates)
