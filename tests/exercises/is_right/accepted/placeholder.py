import numpy as np
import tensorflow.compat.v1 as tf


def is_right(build):
    for count in (1, 2, 3, 4):
        devices = [f'/cpu:{k}' for k in range(count)]
        numbers = np.arange(1, 2 * count + 1, dtype=np.float32)
        config = tf.ConfigProto(device_count={'CPU': count})
        with tf.Graph().as_default(), tf.Session(config=config) as session:
            x = tf.placeholder(tf.float32, [len(numbers)])
            losses, update = build(devices, x, 0.1)
            if len(tf.trainable_variables()) != 1:
                return False
            session.run(tf.global_variables_initializer())
            before, _ = session.run([losses, update], {x: numbers})
            after = session.run(tf.trainable_variables()[0])
        if not np.allclose(before, (numbers ** 2).reshape(count, -1).mean(1)):
            return False
        if not np.allclose(after, 0.2 * numbers.mean()):
            return False
        if len({loss.device for loss in losses}) != count:
            return False
    return True
