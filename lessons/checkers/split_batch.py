"""Checks the exercises of lesson 4: the mean of shares of different sizes, with NumPy and in a graph."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call_once, compare, counted, graph, shown
from lessons.checkers.graph import tf

HINTS = {'weighted_mean': [
    'shares need weights: a share of 3 examples must count three times as much as a share of 1.',
    'the mean of a share times its number of examples is its sum. Which sum do you need, and which number divides it?',
    ('it returns .*nan|ZeroDivisionError',
     'the gradient of an empty share is NaN, and 0 * NaN is NaN: leave out empty shares. Keep a share with examples '
     'even if its gradient is NaN: its tower has diverged, and the caller has to see it.')],
    'weighted_step': [
        ('is nan', 'a share may be empty. The mean of no numbers is NaN, and NaN times 0 is NaN. The sum of no numbers '
         'is 0.'),
        (r'is 0\.9; 1 is right', 'this is the plain mean of the two gradients. Divide the sum over each share by the '
         'size of the batch, then add the gradients.'),
        (r'is 0\.(52|65); 1 is right', '12 is missing: five numbers on two devices leave one over. Put it into one of '
         'the shares.'),
        (r'is 2; 1 is right', 'this is twice the step: is the update applied twice?'),
        ('raises', 'the size of the batch is known only when the step runs. Compute the borders of the shares from '
         'tf.shape(batch)[0].'),
        ('variable', 'create the weight once on /cpu:0, before the loop that builds the towers. All towers share it.'),
        ('is on |computed on', 'create each operation inside the `tf.device` block of its device.'),
        ('nothing orders', 'make one update with all gradients: then every read comes before it.'),
        'divide 1, 3, 4, 5, 12 over two devices by hand. Write down the shares and gradients. Which sum is -10?',
        'let each loss be the sum over its share divided by the size of the batch, and add the gradients.']}

# For each case, the gradients of every share's examples. The checker computes their means.
CASES = [[[1, 3], [4, 8]],
         [[1, 2, 3], [6]],
         [[2], [3, 4, 5], [6, 10]],
         [[7, 8]],
         [[3, 5], [], [10]],
         [[], [4]],
         [[1, np.nan], [3]],
         [[[1, 2], [3, 4]], [[11, 0]]]]


def check_weighted_mean(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for shares in [[np.array(share, float) for share in case] for case in CASES] + [_drawn(random) for _ in range(24)]:
        examples = np.concatenate([share for share in shares if len(share)])
        gradients = [np.mean(share, axis=0) if len(share) else np.full(examples.shape[1:], np.nan) for share in shares]
        sizes = [len(share) for share in shares]
        case = f'shares {_listed(sizes)} with gradients {_listed(map(shown, gradients))}'
        wrong = compare(function, (gradients, sizes), np.mean(examples, axis=0), case, np.nanmax(np.abs(examples)))
        if wrong:
            return wrong
    return None


def check_weighted_step(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for count in (2, 1, 3, 4):
        batches = [[1, 3, 4, 5, 12], [1, 2, 3, 6], [7]]
        batches += [random.normal(2, 3, size=size).round(2) for size in (2, 5, 6, 8, 9, 37)]
        try:
            with tf.Graph().as_default():
                _take_steps(function, graph.devices_of(count), batches, 0.1)
        except Fault as fault:
            return f'for {counted(count, "device")} {fault}'
    return None


def _take_steps(function, devices, batches, rate):
    """Takes a step with each batch; raises a Fault if something is wrong."""
    batch = tf.placeholder(tf.float32, [None], 'batch')
    update = call_once(function, list(devices), batch, rate)
    graph.operation(update)
    graph.check_variables(1)
    weight, = tf.trainable_variables()
    graph.check_device(weight, '/cpu:0', 'the weight')
    graph.check_order(update)
    with graph.session(len(devices)) as run:
        right = 0.0
        for x in batches:
            run(update, {batch: x})
            before, right = right, right - rate * np.mean(2 * (right - np.asarray(x)))
            graph.check_value(run(weight), right, 10, f'and the rate {rate:g}, from a weight of {before:.4g}, the '
                              f'weight after a batch of {shown(x)}')
    graph.check_busy(update, devices)


def _drawn(random):
    """Draws the examples of up to eight shares, some of them empty, with very small to very large numbers."""
    shape = tuple(random.integers(1, 4, size=random.integers(0, 3)))
    sizes = random.integers(0, 30, size=random.integers(1, 9))
    sizes *= random.integers(0, 2, size=len(sizes))
    sizes[random.integers(len(sizes))] = random.integers(1, 30)
    return [10.0 ** random.integers(-12, 12) * (random.normal(size=(size, *shape)) + 1) for size in sizes]


def _listed(values):
    return ' and '.join(map(str, values))
