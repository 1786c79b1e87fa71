"""Loss and accuracy of an image classifier, for training and evaluation."""
from collections.abc import Callable

import tensorflow.compat.v1 as tf


def cross_entropies(logits: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Returns the softmax cross entropy of each example, float32 [n].

    Args:
      logits: float32 [n, classes].
      labels: int32 [n], or the fractions of the classes, float32 [n, classes].
      smoothing: label smoothing, a probability to spread evenly over all classes (Szegedy et al. 2016, section 7).
    """
    classes = int(logits.shape[-1])
    if smoothing or labels.dtype.is_floating:
        targets = labels if labels.dtype.is_floating else tf.one_hot(labels, classes)
        if smoothing:
            targets = (1 - smoothing) * targets + smoothing / classes
        return tf.nn.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def predicted(logits: tf.Tensor) -> tf.Tensor:
    """Returns the most likely class of each example, int64 [n].

    If probabilities are not finite, the result is the number of classes, which is not a label.

    Args:
      logits: float32 [n, classes].
    """
    is_finite = tf.reduce_all(tf.is_finite(tf.nn.softmax(logits)), 1)
    return tf.where_v2(is_finite, tf.argmax(logits, 1), tf.constant(int(logits.shape[-1]), tf.int64))


def correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns whether each example of a training batch is classified correctly, bool [n].

    Unlike `predicted`, it does not check for NaN, because a loss of NaN ends the run.

    Args:
      logits: float32 [n, classes].
      labels: int32 [n], or the fractions of the classes, float32 [n, classes]; the largest counts.
    """
    labels = tf.argmax(labels, 1) if labels.dtype.is_floating else labels
    # As int64, because GPUs compare int32 on the host: three small copies for each batch.
    return tf.equal(tf.argmax(logits, 1), tf.cast(labels, tf.int64))


def add_loss(inference: Callable, images: tf.Tensor, labels: tf.Tensor, dtype: tf.DType = tf.float32,
             losses: Callable = cross_entropies, name: str = 'cross_entropy') -> dict:
    """Builds a network on a training batch and adds the mean loss of the examples to the collection LOSSES.

    Args:
      inference: the network's `inference`, with its options bound.
      images: float32 [n, height, width, 3].
      labels: as for `cross_entropies`.
      dtype: the type that the network computes in.
      losses: function (logits, labels) -> the loss of each example, float32 [n].
      name: name of the mean loss.

    Returns:
      Float32 scalars by name: the loss and 'accuracy', each the mean over the batch.
    """
    logits = inference(tf.cast(images, dtype), True)
    loss = tf.reduce_mean(losses(logits, labels), name=name)
    tf.add_to_collection(tf.GraphKeys.LOSSES, loss)
    accuracy = tf.reduce_mean(tf.cast(correct(logits, labels), tf.float32))
    return {name: loss, 'accuracy': accuracy}
