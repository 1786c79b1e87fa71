# refused: for a step that applies the update twice it returns True; False is right
import numpy as np
import tensorflow.compat.v1 as tf

from lessons import common


def mean_losses(build, K):
    """An update that is applied twice is the same for all K."""
    devices = [f'/cpu:{k}' for k in range(K)]
    with tf.Graph().as_default(), common.session(devices) as session:
        losses, update = build(devices, np.array([1, 2, 4, 8, 16, 32], np.float32), 0.1)
        session.run(tf.global_variables_initializer())
        first, _ = session.run([losses, update])
        second = session.run(losses)
        return np.mean([first, second], 1)


def is_right(build):
    alone = mean_losses(build, 1)
    return all(np.allclose(mean_losses(build, K), alone) for K in (2, 3))
