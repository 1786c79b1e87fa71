"""What makes steps slow, on purpose: networks for --network=, and a trainer whose input is slow.

Towers that sleep stand in for devices that do not share the cores of this machine. `benchmarks/explain.py` and the
tests use these.
"""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import tensorflow.compat.v1 as tf  # noqa: E402

# Half of the seconds that a tower sleeps for each image: the data set sleeps before its element and before its end.
_SECONDS = 0.00125
_SLOWLY = 0.00375  # the same for a slow tower; a slow input sleeps for twice this too


def sleeping(images, num_classes, training):
    """A network with as many variables as the classic one has, whose towers sleep instead of computing."""
    del training
    return _linear(images, num_classes, _SECONDS)


def slow_tower(images, num_classes, training):
    """As `sleeping`, but tower 1 sleeps longer."""
    del training
    slow = tf.get_default_graph().get_name_scope().startswith('tower_1')
    return _linear(images, num_classes, _SLOWLY if slow else _SECONDS)


def large_filters(images, num_classes, training):
    """A network that computes little and has filters whose update is heavy with muon."""
    del training
    images = tf.cast(images, tf.float32)
    first = tf.get_variable('first', [3, num_classes], initializer=tf.zeros_initializer())
    logits = tf.reduce_mean(images, [1, 2]) @ first
    for i in range(8):
        filters = tf.get_variable(f'filters_{i}', [3, 3, 64, 128], initializer=tf.truncated_normal_initializer(
            stddev=0.1, seed=i))
        logits += 1e-3 * tf.reduce_mean(filters[..., :num_classes], [0, 1, 2])
    return logits


def _asleep(images, seconds):
    """Returns images after some seconds for each. Unlike a Python function, this runs on other machines too."""
    form = dict(output_types=[images.dtype], output_shapes=[[]])
    dataset = tf.raw_ops.SleepDataset(
        input_dataset=tf.raw_ops.TensorDataset(components=[images[0, 0, 0, 0]], output_shapes=[[]]),
        sleep_microseconds=tf.shape(images, out_type=tf.int64)[0] * round(1e6 * seconds), **form)
    corner, = tf.raw_ops.DatasetToSingleElement(dataset=dataset, **form)
    return images + 0 * tf.stop_gradient(corner)


def _linear(images, num_classes, seconds):
    """Returns logits of a network that sleeps for each image and has 1.07 million variables."""
    weights, first = (tf.convert_to_tensor(tf.get_variable(name, shape, initializer=tf.zeros_initializer()))
                      for name, shape in (('weights', [600, 1779]), ('first', [3, num_classes])))
    with tf.control_dependencies([weights, first]):  # a network cannot compute before its variables have come
        images = tf.cast(_asleep(images, seconds), tf.float32)
    return tf.reduce_mean(images, [1, 2]) @ first + tf.reduce_sum(weights[:, :num_classes], 0) * 1e-3


def with_slow_input():
    """Runs multi_gpu_train.py, with the flags of this command, on input that sleeps before each batch."""
    from cifar10.base import startup
    from cifar10.programs.train import run
    startup.start_tensorflow()
    from cifar10.data.images import Images
    make = Images.batch

    def slowly(images, augmentation, examples, positions):
        def sleep(examples):
            time.sleep(2 * len(examples) * _SLOWLY)
            return examples
        slow = tf.ensure_shape(tf.numpy_function(sleep, [examples], tf.int64), examples.shape)
        return make(images, augmentation, slow, positions)
    Images.batch = slowly
    return run()


if __name__ == '__main__':
    sys.exit(with_slow_input())
