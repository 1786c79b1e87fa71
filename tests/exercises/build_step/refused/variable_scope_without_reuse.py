# refused: it raises ValueError in line 10: Variable model/weight already exists
import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    losses, gradients = [], []
    for k, share in enumerate(tf.split(x, len(devices))):
        with tf.device(devices[k]), tf.variable_scope('model'):
            with tf.device('/cpu:0'):
                weight = tf.get_variable('weight', initializer=0.0)
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradients += tf.gradients(losses[k], weight)
    return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
