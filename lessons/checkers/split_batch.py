"""Checks the exercises of lesson 4: the mean of shares of different sizes, with NumPy and in a graph."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call_once, compare, counted, graph, shown
from lessons.checkers.graph import tf

HINTS = {'weighted_mean': [
    'a share of 3 examples has three times as much to say as a share of 1.',
    'the mean of a share times its number of examples is its sum. Which sum do you need, and what divides it?',
    ('it returns .*nan|ZeroDivisionError',
     'an empty share has a mean over no examples, NaN, and 0 * NaN is NaN: leave it out. A share with examples whose '
     'gradient is NaN counts: that tower has diverged, and whoever called has to see it.')],
    'weighted_step': [
        ('is nan', 'a share may be empty: the mean over no numbers is NaN, and NaN times 0 is NaN; the sum over none '
         'is 0.'),
        (r'is 0\.9; 1 is right', 'this is the plain mean of the two gradients. With the sum over a share, divided by '
         'the size of the batch, the gradients only have to be added.'),
        (r'is 0\.(52|65); 1 is right', '12 is missing: five numbers on two devices leave one over, which belongs to '
         'one of the shares, too.'),
        (r'is 2; 1 is right', 'this is twice the step: is the update applied twice?'),
        ('raises', 'the size of the batch is known when the step runs: tf.shape(batch)[0]. The borders of the shares '
         'follow.'),
        ('variable', 'make the weight once, before the loop that builds the towers, on /cpu:0: they all share it.'),
        ('is on |computed on', 'an operation is on the device whose `tf.device` block it is made in.'),
        ('nothing orders', 'there has to be one update, with all gradients: then every read is before it.'),
        'divide 1, 3, 4, 5, 12 over two devices by hand: which shares, which gradients, and which sum is -10?',
        'the sum over a share, divided by the size of the whole batch, needs no weights: the gradients are added.']}

# For each case the gradients of every share's examples, which the checker itself takes the means of.
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
    """Returns the examples of up to eight shares, some empty, of very small to very large numbers."""
    shape = tuple(random.integers(1, 4, size=random.integers(0, 3)))
    sizes = random.integers(0, 30, size=random.integers(1, 9))
    sizes *= random.integers(0, 2, size=len(sizes))
    sizes[random.integers(len(sizes))] = random.integers(1, 30)
    return [10.0 ** random.integers(-12, 12) * (random.normal(size=(size, *shape)) + 1) for size in sizes]


def _listed(values):
    return ' and '.join(map(str, values))
