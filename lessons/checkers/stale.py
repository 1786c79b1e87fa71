"""Checks the exercises of lesson 6: a learning rate that accounts for staleness, and a step with a late tower."""
import time
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call_once, compare, counted, graph, shown
from lessons.checkers.graph import tf

HINTS = {'staleness_aware_rate': [
    'how many updates were made between the read and the update? Begin with the example in the docstring.',
    'gradients with the staleness 0 or 1 get the whole rate.'],
    'step_with_losses': [
        ('nothing orders|losses fetched',
         'the gradient of a linear loss is a constant, so the update does not wait for the read of its tower.'),
        ('the weight afterwards is', 'subtract the rate times the mean of the K gradients, and only once.'),
        graph.DEVICE_HINT,
        'which operations must run before the update? Let `tf.control_dependencies` run them before it.',
        'a control dependency applies only to operations that are created inside the `with` block.']}

# (rate, started, applied), with staleness 7, 2, 1, 0, 12, and 0 at the first update.
CASES = [(0.7, 1342, 1349), (0.1, 8, 10), (0.1, 4, 5), (0.1, 3, 3), (0.025, 0, 12), (0.5, 0, 0)]


def check_staleness_aware_rate(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = list(CASES)
    for _ in range(24):
        started, staleness = (int(10 ** random.uniform(0, 6)) - 1 for _ in range(2))
        cases.append((float(10 ** random.uniform(-12, 2)), started, started + staleness))
    for rate, started, applied in cases:
        case = f'rate {rate:.4g}, started at {started} and applied at {applied},'
        wrong = compare(function, (rate, started, applied), rate / np.maximum(1, applied - started), case)
        if wrong:
            return wrong
    return None


def check_step_with_losses(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for count in (1, 2, 3, 4):
        slopes = np.array([[3.0, 1.0, 2.0, -5.0][:count], *random.normal(size=(6, count)).round(2)])
        try:
            with tf.Graph().as_default():
                _take_steps(function, graph.devices_of(count), slopes)
        except Fault as fault:
            return (f'for a weight of 1, {counted(count, "tower")} with the losses slope * weight and the rate 0.1 '
                    f'{fault}')
    return None


def _take_steps(function, devices, slopes):
    """Takes one step with each row of slopes, [n, K], from a weight of 1; raises a Fault if a step is wrong."""
    late = [0.0]  # seconds that a tower waits before it reads
    readers = []
    slope = tf.placeholder(tf.float32, len(devices), 'slope')

    def sleep():
        time.sleep(late[0])
        return np.float32(late[0])

    def read(k):
        readers.append(k)
        with tf.control_dependencies([tf.numpy_function(sleep, [], tf.float32, name=f'tower_{k}_is_late')]):
            return weight.read_value()

    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=1.0)
    losses, update = graph.losses_and_update(
        call_once(function, list(devices), weight, read, lambda k, value: slope[k] * value, 0.1), len(devices))
    for k in range(len(devices)):
        if k not in readers:
            raise Fault(f'tower {k} does not read the weight with read({k})')
    graph.check_variables(1)
    with graph.session(len(devices)) as run:
        try:
            graph.check_order([losses, update])
        except Fault as fault:
            late[0] = 0.2
            values, _ = run([losses, update], {slope: slopes[0]})
            raise Fault(f'{fault}; with the slopes {shown(slopes[0])} and towers that read 0.2 s late, the losses '
                        f'fetched with the update are {shown(values)}; {shown(slopes[0])} is right') from fault
        right = 1.0
        for step, values in enumerate(slopes, 1):
            case = f'and the slopes {shown(values)} in step {step}'
            fetched, _ = run([losses, update], {slope: values})
            graph.check_value(fetched, values * right, 10, f'{case}, the list of losses fetched with the update')
            right -= 0.1 * np.mean(values)
            graph.check_value(run(weight), right, 10, f'{case}, the weight afterwards')
    for k, (loss, device) in enumerate(zip(losses, devices)):
        graph.check_device(loss, device, f'the loss of tower {k}')
