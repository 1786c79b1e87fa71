import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, build_towers


def training_step(devices, loss_of, optimizer):
    losses = build_towers(devices, lambda k, scope: loss_of(k))
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies(losses):
        pairs = average_gradients([optimizer.compute_gradients(loss) for loss in losses])
        return tf.add_n(losses) / len(losses), optimizer.apply_gradients(pairs, global_step=step)
