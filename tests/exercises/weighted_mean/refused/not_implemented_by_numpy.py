# refused: for shares 2 and 2 with gradients 2 and 6 it raises NotImplementedError in line 9
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()


def weighted_mean(gradients, sizes):
    return np.square(tf.constant(gradients))
