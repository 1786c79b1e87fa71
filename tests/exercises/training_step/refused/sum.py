# refused: after 1 step the variable weights is
import tensorflow.compat.v1 as tf


def training_step(devices, loss_of, optimizer):
    losses, tower_grads = [], []
    for k, device in enumerate(devices):
        with tf.device(device), tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
            losses.append(loss_of(k))
            tower_grads.append(optimizer.compute_gradients(losses[k]))
    means = []
    for pairs in zip(*tower_grads):
        gradients, variables = zip(*pairs)
        means.append((tf.add_n(gradients), variables[0]))
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())
        return tf.add_n(losses) / len(losses), train_op
