"""The time that each tower waits and computes in a step, by the clock of its machine."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.parallel.turns import Turns


def tower_seconds(turns: Turns, devices: Devices) -> list[tf.Tensor]:
    """Builds the times that the towers wait and compute, if their `inputs` are known; call it once all are built.

    A tower's time begins when its turn has begun and its inputs have come, so a tower that waits for them is not
    slow; it ends with its turn. If it has several devices, it is the sum of its turns on them, without the time
    in which it waits at gates. It waits for its inputs from the begin of its turn on. Nothing waits for the timestamps,
    and they wait for no operation that no gate waits for: the towers stay as they are, to the bit.

    Args:
      turns: the towers' Turns.
      devices: the Devices of the towers.

    Returns:
      For each tower float32 [2] on the CPU of its machine: the seconds that it waited for its inputs, and those that it
      took; 0 if a clock was read too late.
    """
    seconds = []
    for k, inputs in turns.inputs.items():
        begin, *others = turns.moments[k]
        with tf.device(devices.hosts[k]), tf.name_scope('turns/'):
            times = []
            for operations in (begin, inputs, [*begin, *inputs], *others):
                with tf.control_dependencies(operations):
                    times.append(tf.timestamp())
            # Where all threads are busy, a timestamp may be taken late, and the one at the begin after the other.
            spans = tf.stack(times[1::2]) - tf.stack(times[::2])
            taken = tf.where(tf.reduce_min(spans[1:]) > 0, tf.reduce_sum(spans[1:]), 0.0)
            seconds.append(tf.cast(tf.stack([tf.maximum(spans[0], 0.0), taken]), tf.float32))
    return seconds
