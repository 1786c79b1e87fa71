import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, build_towers


def build_step(devices, x, rate):
    shares = tf.split(x, len(devices))
    optimizer = tf.train.GradientDescentOptimizer(rate)

    def tower(k, scope):
        with tf.device('/cpu:0'):
            weight = tf.get_variable('weight', initializer=0.0)
        loss = tf.reduce_mean(tf.square(weight - shares[k]))
        return loss, optimizer.compute_gradients(loss)

    losses, gradients = zip(*build_towers(devices, tower))
    return losses, optimizer.apply_gradients(average_gradients(gradients))
