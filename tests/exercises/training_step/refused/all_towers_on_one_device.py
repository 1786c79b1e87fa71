# refused: tower 1 is on /device:CPU:0; /cpu:1 is right
import tensorflow.compat.v1 as tf


def training_step(devices, loss_of, optimizer):
    losses, tower_grads = [], []
    for k, device in enumerate(devices):
        with tf.device(devices[0]), tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
            losses.append(loss_of(k))
            tower_grads.append(optimizer.compute_gradients(losses[k]))
    means = []
    for pairs in zip(*tower_grads):
        gradients, variables = zip(*pairs)
        means.append((tf.reduce_mean(tf.stack(gradients), 0), variables[0]))
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())
        return tf.add_n(losses) / len(losses), train_op
