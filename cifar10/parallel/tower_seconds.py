"""The time that each tower takes in a step, by the clock of its machine."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from cifar10.parallel.turns import Turns


def tower_seconds(turns: Turns, devices: Devices) -> list[tf.Tensor]:
    """Builds the times that the towers take, if their `inputs` are known; call it once all towers are built.

    A tower's time begins when its turn has begun and its inputs have come, so a tower that waits for them is not
    slow; it ends with its turn. If it has several devices, it is the sum of its turns on them, without the time
    in which it waits at gates. Nothing waits for the timestamps, and they wait for no operation that no gate waits
    for: the towers stay as they are, to the bit.

    Args:
      turns: the towers' Turns.
      devices: the Devices of the towers.

    Returns:
      For each tower a float32 scalar, seconds, on the CPU of its machine; 0 if a clock was read too late.
    """
    seconds = []
    for k, inputs in turns.inputs.items():
        begin, *others = turns.moments[k]
        with tf.device(devices.hosts[k]), tf.name_scope('turns/'):
            times = []
            for operations in ([*begin, *inputs], *others):
                with tf.control_dependencies(operations):
                    times.append(tf.timestamp())
            # Where all threads are busy, a timestamp may be taken late, and the one at the begin after the other.
            spans = tf.stack(times[1::2]) - tf.stack(times[::2])
            measured = tf.where(tf.reduce_min(spans) > 0, tf.reduce_sum(spans), 0.0)
            seconds.append(tf.cast(measured, tf.float32))
    return seconds
