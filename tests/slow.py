"""Networks whose towers sleep instead of computing, to simulate devices that share no cores."""
import tensorflow.compat.v1 as tf

# Half of a tower's sleep for each image: the data set sleeps before its element and before its end.
_SECONDS = 0.00125


def sleeping(images, num_classes, training):
    """A network with as many variables as the classic one, whose towers sleep instead of computing."""
    del training
    return _linear(images, num_classes, _SECONDS)


def _asleep(images, seconds):
    """Returns images after a delay for each image. Unlike a Python function, this runs on other machines too."""
    form = dict(output_types=[images.dtype], output_shapes=[[]])
    dataset = tf.raw_ops.SleepDataset(
        input_dataset=tf.raw_ops.TensorDataset(components=[images[0, 0, 0, 0]], output_shapes=[[]]),
        sleep_microseconds=tf.shape(images, out_type=tf.int64)[0] * round(1e6 * seconds), **form)
    corner, = tf.raw_ops.DatasetToSingleElement(dataset=dataset, **form)
    return images + 0 * tf.stop_gradient(corner)


def _linear(images, num_classes, seconds):
    """Returns the logits of a network that sleeps for each image and has 1.07 million variables."""
    weights, first = (tf.convert_to_tensor(tf.get_variable(name, shape, initializer=tf.zeros_initializer()))
                      for name, shape in (('weights', [600, 1779]), ('first', [3, num_classes])))
    with tf.control_dependencies([weights, first]):  # a network cannot compute before its variables arrive
        images = tf.cast(_asleep(images, seconds), tf.float32)
    return tf.reduce_mean(images, [1, 2]) @ first + tf.reduce_sum(weights[:, :num_classes], 0) * 1e-3
