"""The learning rate of the classic recipe: staircase decay that counts examples."""
import tensorflow.compat.v1 as tf

INITIAL_RATE = 0.1
DECAY_FACTOR = 0.1
DECAY_EPOCHS = 350


def learning_rate(examples_seen: tf.Tensor, examples_per_epoch: int) -> tf.Tensor:
    """Returns the rate 0.1 x 0.1^floor(examples_seen / (350 epochs)), a float32 scalar.

    It counts examples, so that its period is 350 epochs whatever the batch size.

    Args:
      examples_seen: int64 scalar.
      examples_per_epoch: examples in the training data.
    """
    # Whole periods, divided as integers: 350 epochs of CIFAR-10 are more examples than float32 counts, and
    # graph optimisation turns a division by a constant into a product that may fall short of the stair.
    with tf.name_scope('learning_rate'):
        stairs = examples_seen // (DECAY_EPOCHS * examples_per_epoch)
        return tf.train.exponential_decay(INITIAL_RATE, stairs, 1, DECAY_FACTOR)


def decay_steps(examples_per_epoch: int, global_batch: int) -> int:
    """Returns the decay's period in steps of a run with this global batch, rounded up."""
    return -(-DECAY_EPOCHS * examples_per_epoch // global_batch)
