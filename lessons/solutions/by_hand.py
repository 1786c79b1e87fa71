"""Solutions of the exercises of lesson 2."""
import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, build_towers


def clip_mean_gradients(tower_gradients, limit):
    """The mean over the towers first, then one norm over all variables."""
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]


def training_step(devices, loss_of, optimizer):
    """Towers over shared variables, the mean of their gradients, and one update that waits for the losses."""
    def tower(k, scope):
        loss = loss_of(k)
        return loss, optimizer.compute_gradients(loss)

    losses, tower_grads = zip(*build_towers(devices, tower))
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        train_op = optimizer.apply_gradients(average_gradients(tower_grads), tf.train.get_or_create_global_step())
        return tf.add_n(losses) / len(losses), train_op
