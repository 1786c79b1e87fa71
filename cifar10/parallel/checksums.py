"""Checksums of variables and tensors: the sum of their bits as integers.

The order of the elements does not matter. A flipped bit always changes it. It is computed on the device of the
variable, so only 8 bytes travel.
"""
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

_INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}  # of as many bytes


def checksums(variables: Sequence[tf.Variable | tf.Tensor]) -> tf.Tensor:
    """Returns the checksums of variables or tensors, int64 [n]."""
    sums = []
    for variable in variables:
        with tf.device(variable.device):
            value = variable.read_value() if isinstance(variable, tf.Variable) else variable
            if value.dtype.is_floating:
                value = tf.bitcast(value, _INTEGERS[value.dtype.size])
            sums.append(tf.reduce_sum(tf.cast(value, tf.int64)))
    return tf.stack(sums) if sums else tf.zeros([0], tf.int64)
