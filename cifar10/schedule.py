"""The learning rate and the moving averages of the classic recipe. Knows no network and no tower."""
import tensorflow.compat.v1 as tf

INITIAL_RATE = 0.1
DECAY_FACTOR = 0.1
DECAY_EPOCHS = 350
MOVING_AVERAGE_DECAY = 0.9999


def learning_rate(examples_seen, examples_per_epoch):
    """Staircase decay that counts examples, so that its period is 350 epochs whatever the batch.

    Args:
      examples_seen: int64 tensor.
      examples_per_epoch: int.

    Returns:
      float32 scalar: 0.1 x 0.1^floor(examples_seen / (350 epochs)).
    """
    # Whole periods, divided as integers: 350 epochs of CIFAR-10 are more examples than float32 counts, and
    # graph optimisation turns a division by a constant into a product that may fall short of the stair.
    with tf.name_scope('learning_rate'):
        stairs = examples_seen // (DECAY_EPOCHS * examples_per_epoch)
        return tf.train.exponential_decay(INITIAL_RATE, stairs, 1, DECAY_FACTOR)


def decay_steps(examples_per_epoch, global_batch):
    """Returns the decay's period in steps of a run with this global batch, rounded up."""
    return -(-DECAY_EPOCHS * examples_per_epoch // global_batch)


def moving_averages(step=None):
    """Returns the `tf.train.ExponentialMovingAverage` of the variables.

    Args:
      step: global_step, which makes the averages follow faster in the beginning; decay is
        min(0.9999, (1 + step) / (10 + step)). None where averages are only restored.
    """
    return tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY, step)
