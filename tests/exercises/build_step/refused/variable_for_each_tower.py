# refused: the graph has 2 trainable variables (tower_0/weight, tower_1/weight); 1 is right
import tensorflow.compat.v1 as tf


def build_step(devices, x, rate):
    losses, updates = [], []
    for k, share in enumerate(tf.split(x, len(devices))):
        with tf.name_scope(f'tower_{k}'):
            with tf.device('/cpu:0'):
                weight = tf.Variable(0.0, name='weight')
            with tf.device(devices[k]):
                losses.append(tf.reduce_mean(tf.square(weight - share)))
                updates.append(weight.assign_sub(rate * tf.gradients(losses[k], weight)[0]))
    return losses, tf.group(updates)
