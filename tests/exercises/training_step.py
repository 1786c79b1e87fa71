"""Answers to training_step."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, build_towers


def accepted_by_hand(devices, loss_of, optimizer):
    losses, tower_grads = [], []
    for k, device in enumerate(devices):
        with tf.device(device), tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
            losses.append(loss_of(k))
            tower_grads.append(optimizer.compute_gradients(losses[k]))
    means = []
    for pairs in zip(*tower_grads):
        gradients, variables = zip(*pairs)
        means.append((tf.reduce_mean(tf.stack(gradients), 0), variables[0]))
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())
        return tf.add_n(losses) / len(losses), train_op


mistakes_in_by_hand = {
    'all_towers_on_one_device': (
        'tower 1 is on /device:CPU:0; /cpu:1 is right',
        'tf.device(device)', 'tf.device(devices[0])'),
    'loss_of_tower_0': ('the loss that is fetched with step', 'tf.add_n(losses) / len(losses)', 'losses[0]'),
    'no_barrier': ('because nothing orders them', ', tf.control_dependencies(losses)', ''),
    'tower_left_out': (
        'it builds the losses [0]; [0, 1] is right',
        'enumerate(devices)', 'enumerate(devices[:-1] or devices)'),
    'without_reuse': (
        'it raises ValueError in line 8: Variable weights already exists',
        ', tf.variable_scope(tf.get_variable_scope(), reuse=k > 0)', ''),
}


def accepted_package(devices, loss_of, optimizer):
    losses = build_towers(devices, lambda k, scope: loss_of(k))
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies(losses):
        pairs = average_gradients([optimizer.compute_gradients(loss) for loss in losses])
        return tf.add_n(losses) / len(losses), optimizer.apply_gradients(pairs, global_step=step)
