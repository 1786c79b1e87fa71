import numpy as np
import tensorflow.compat.v1 as tf


def after_update(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    shares = [x] * count if 'same batch' in faults else np.array_split(x, count)
    with tf.Graph().as_default(), tf.Session() as session:
        start = tf.constant(w, tf.float64)
        losses = [tf.reduce_sum(tf.square(start - share)) / (len(share) if 'means added' in faults else len(x))
                  for share in shares]
        return session.run(start - rate * tf.gradients(losses, start)[0])
