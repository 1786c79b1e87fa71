"""The network of TensorFlow's CIFAR-10 tutorial: two convolutions, two dense layers, a softmax layer.

Its variables have the tutorial's names, so the tutorial's checkpoints can be restored.
"""
import tensorflow.compat.v1 as tf

from cifar10.model import NUM_CLASSES, Network
from cifar10.model.layers import add_l2_loss, local_response_normalisation, read, seed_of
from cifar10.model.parts import next_part


def inference(images: tf.Tensor, training: bool = False, num_classes: int = NUM_CLASSES) -> tf.Tensor:
    """Builds the network in the current variable scope, in two parts: the convolutional and the dense layers.

    Args:
      images: [n, 24, 24, 3], standardised. The network computes in their type: float32, bfloat16 or float16.
        Variables, L2 losses and the last layer are always float32.
      training: ignored; the network is the same in training and evaluation.
      num_classes: number of logits of each image.

    Returns:
      Logits, float32 [n, num_classes]. The outputs of the layers are added to the collection ACTIVATIONS, and the L2
      losses of local3 and local4 to LOSSES.
    """
    del training
    pool1 = _convolution('conv1', images, 64, bias=0.0, pool=True)
    norm1 = _normalise(pool1, 'norm1')
    conv2 = _convolution('conv2', norm1, 64, bias=0.1)
    pool2 = _pool(_normalise(conv2, 'norm2'), 'pool2')
    flat = next_part(tf.reshape(pool2, [-1, pool2.shape[1] * pool2.shape[2] * pool2.shape[3]]))
    local3 = _dense('local3', flat, 384, bias=0.1, stddev=0.04, l2=0.004)
    local4 = _dense('local4', local3, 192, bias=0.1, stddev=0.04, l2=0.004)
    features = tf.cast(local4, tf.float32)
    return _dense('softmax_linear', features, num_classes, bias=0.0, stddev=1 / 192, activation=None)


def _convolution(name, x, channels, bias, pool=False):
    with tf.variable_scope(name):
        weights = _weights([5, 5, x.shape[-1], channels], stddev=0.05)
        y = tf.nn.conv2d(x, tf.cast(weights, x.dtype), 1, 'SAME')
        biases = tf.cast(_biases(channels, bias), x.dtype)
        # The gradient of bias_add sums bfloat16 in bfloat16, with errors of a tenth.
        add = tf.add if x.dtype == tf.bfloat16 else tf.nn.bias_add
        activation = _activation(add(y, biases))
        if not pool:
            return activation
        # Bias and ReLU commute with the maximum, and pooling leaves a quarter of the values to add, clip and
        # differentiate. So `activation` is only for TensorBoard, and only computed when it is fetched.
        return tf.nn.relu(add(_pool(y, 'pool'), biases))


def _dense(name, x, units, bias, stddev, l2=0.0, activation=tf.nn.relu):
    with tf.variable_scope(name):
        weights = _weights([x.shape[-1], units], stddev)
        if l2:
            add_l2_loss(weights, l2)
        y = x @ tf.cast(weights, x.dtype) + tf.cast(_biases(units, bias), x.dtype)
        return _activation(y, activation)


def _activation(x, function=tf.nn.relu):
    y = function(x) if function else x
    tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, y)
    return y


def _pool(x, name):
    return tf.nn.max_pool2d(x, 3, 2, 'SAME', name=name)


def _normalise(x, name):
    return local_response_normalisation(x, depth_radius=4, alpha=0.001 / 9, name=name)


def _biases(size, value):
    return read('biases', [size], tf.constant_initializer(value))


def _weights(shape, stddev):
    def initial_value(shape, dtype, partition_info=None):
        del partition_info
        return tf.random.stateless_truncated_normal(shape, seed_of('weights'), stddev=stddev, dtype=dtype)

    return read('weights', shape, initial_value)


# The weights of local3 depend on the image size: pooling reduces 24 x 24 pixels to 6 x 6.
NETWORK = Network(inference, image_sizes=range(24, 25))
