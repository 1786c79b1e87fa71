# refused: nothing is computed on /cpu:1
import tensorflow.compat.v1 as tf


def weighted_step(devices, batch, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
        return weight.assign_sub(rate * tf.gradients(tf.reduce_mean(tf.square(weight - batch)), weight)[0])
