# refused: 4 trainable variables (tower_0/weights, tower_0/bias, tower_1/weights, tower_1/bias); 2 is right
import tensorflow.compat.v1 as tf


def training_step(devices, loss_of, optimizer):
    losses, tower_grads = [], []
    for k, device in enumerate(devices):
        with tf.device(device), tf.variable_scope(f'tower_{k}'):
            losses.append(loss_of(k))
            variables = tf.trainable_variables(f'tower_{k}/')
            tower_grads.append(optimizer.compute_gradients(losses[k], variables))
    means = []
    for pairs in zip(*tower_grads):
        gradients, variables = zip(*pairs)
        means.append((tf.reduce_mean(tf.stack(gradients), 0), variables[0]))
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())
        return tf.add_n(losses) / len(losses), train_op
