import tensorflow.compat.v1 as tf


def training_step(devices, loss_of, optimizer):
    losses = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.variable_scope('model', reuse=k > 0):
            losses.append(loss_of(k))
    with tf.device('/cpu:0'):
        loss = tf.reduce_mean(losses)
        with tf.control_dependencies([loss]):
            return loss, optimizer.minimize(loss, tf.train.get_or_create_global_step())
