# refused: is right
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
        means.append((tf.reduce_mean(tf.stack(gradients), 0), variables[0]))
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        step = tf.train.get_or_create_global_step()
        train_op = tf.group([optimizer.apply_gradients(pairs, step) for pairs in tower_grads])
        return tf.add_n(losses) / len(losses), train_op
