# refused: for a step whose towers are all on one device it returns True; False is right
import numpy as np
import tensorflow.compat.v1 as tf

from lessons import common


def is_right(build):
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], np.float32)
    for K in (1, 2, 3, 4):
        devices = [f'/cpu:{k}' for k in range(K)]
        with tf.Graph().as_default(), common.session(devices) as session:
            losses, update = build(devices, x, 0.1)
            session.run(tf.global_variables_initializer())
            before, _ = session.run([losses, update])
            variables = session.run(tf.trainable_variables())
        if len(variables) != 1:
            return False
        if abs(variables[0] - 0.2 * x.mean()) > 1e-4:
            return False
        if not np.allclose(before, [np.mean(share ** 2) for share in np.split(x, K)]):
            return False
    return True
