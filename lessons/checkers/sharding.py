"""Checks the exercises of lesson 8: shards, an update with shards, and a layer cut by columns and rows."""
from collections.abc import Callable

import numpy as np

from cifar10.base import startup
from lessons.checkers import Fault, call, call_once, compare, counted, mismatch, numeric, shortened
from lessons.checkers.graph import devices_of, session, tf

with startup.quiet_stderr():  # it imports TensorFlow
    from lessons import ring

HINTS = {
    'shards': ['divide the size of the array by D and round up to get the size of a shard. How many zeros are needed?',
               'with one number on four devices, three shards hold only a zero.'],
    'zero_step': [('on (no device|none of the devices)|loss_of is called for', 'create each operation and '
                   'variable inside the `tf.device` block of its device, as `on_each` of lessons.ring does.'),
                  (r'D = 1\b.* after \d', 'with D = 1 nothing is sent. The device keeps all weights and the velocity, '
                   'and the update is the two lines in the docstring.'),
                  ('bytes in an update', 'send each number at most twice: once in `reduce_scatter` and once in '
                   '`all_gather`. Which of the two sends a shard that one device has computed?'),
                  ('numbers in variables', 'keep the velocity in shards in both stages, and the weights only in stage '
                   '3.'),
                  'after `reduce_scatter`, device d has shard d of the sum. Divide it by D, and update only shard d '
                  'of the velocity and of the weights.',
                  'stage 1 gathers the new shards after the update; stage 3 gathers the old shards before the losses.'],
    'tensor_parallel': ['the columns on a device are complete before the ReLU. Which result is incomplete after W2?',
                        'add b2 once, to the sum, and not to each of its D parts.']}


def check_shards(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [([1, 2, 3, 4, 5], 3), ([7], 4), ([1, 2, 3, 4], 2), ([1, 2, 3], 1), ([1, 2, 3, 4, 5], 4)]
    cases += [(random.integers(1, 100, random.integers(1, 40)).tolist(), int(devices))
              for devices in random.integers(1, 13, 30)]
    for numbers, devices in cases:
        size = -(-len(numbers) // devices)
        right = np.zeros([devices, size])
        right.flat[:len(numbers)] = numbers
        wrong = compare(function, (np.array(numbers, np.float32), devices), right,
                        f'{shortened(str(numbers))} on {devices} device{"s" if devices > 1 else ""}')
        if wrong:
            return wrong
    return None


def check_zero_step(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(stage, count, 2, 0.1) for stage in (1, 3) for count in (1, 2, 3, 4)]
    cases += [(int(random.choice([1, 3])), int(random.integers(1, 5)), int(random.integers(1, 6)),
               float(random.uniform(0.01, 0.3))) for _ in range(20)]
    for stage, count, size, rate in cases:
        case = f'for stage {stage}, D = {count}, {counted(count * size, "weight")} and the rate {rate:.3g}, '
        try:
            wrong = _zero_step_of(function, stage, count, size, rate, random)
        except Fault as fault:
            wrong = str(fault)
        if wrong:
            return case + wrong
    return None


def _zero_step_of(function, stage, count, size, rate, random):
    """Builds the update, inspects its variables and the tensors that it sends, and takes two updates."""
    n = count * size
    devices = devices_of(count)
    start, targets = (random.uniform(-2, 2, shape).astype(np.float32) for shape in ([n], [count, n]))
    losses = []

    def loss_of(d, weights):
        loss = tf.reduce_sum(tf.log(tf.cosh(weights - targets[d])))  # its gradient is tanh(weights - targets[d])
        losses.append((d, loss.device))
        return loss

    with tf.Graph().as_default():
        returned = call_once(function, stage, devices, start.copy(), loss_of, rate)
        try:
            variables, update = list(returned[0]), tf.group(returned[1])
            shapes = [variable.shape.as_list() for variable in variables]
        except (TypeError, ValueError, AttributeError, IndexError):
            return f'it returns {shortened(repr(returned))}; a pair (variables, operation) is right'
        places = [(d, f'/device:CPU:{d}') for d in range(count)]
        if sorted(losses) != places:
            return f'loss_of is called for {shortened(str(losses))}; {shortened(str(places))} is right'
        shape = [n if stage == 1 else size]
        if shapes != [shape] * count:
            return f'the variables have the shapes {shapes}; {[shape] * count} is right'
        held = tf.global_variables() + tf.local_variables()
        elsewhere = [variable.op.name for variable in held if variable.device not in dict(places).values()]
        if elsewhere:
            return f'the variable {elsewhere[0]} is on none of the devices'
        for d, device in places:
            numbers = sum(variable.shape.num_elements() for variable in held if variable.device == device)
            if numbers != shape[0] + size:
                return f'device {d} keeps {numbers} numbers in variables; {shape[0] + size} is right'
            if variables[d].device != device:
                return f'the weights of device {d} are on {variables[d].device or "no device"}; {device} is right'
        most = 2 * 4 * (count - 1) * size
        for d in range(count):
            sent = ring.bytes_sent(update, d)
            if sent > most:
                outside = [f'{reader.name}, which is on no device, reads {tensor.name}'
                           for tensor, reader in ring.sent(update, d) if not reader.device]
                why = f'; {min(outside)}' if outside else ''
                return f'device {d} sends {sent} bytes in an update; {most} are enough{why}'
        weights, velocity = start.astype(float), 0
        with session(count) as run:
            for made in range(3):
                wrong = _values_of(run(variables), weights, stage, size, made)
                if wrong:
                    return wrong
                velocity = 0.9 * velocity + np.mean(np.tanh(weights - targets), 0)
                weights = weights - rate * velocity
                run(update)
    return None


def _values_of(values, weights, stage, size, made):
    """Compares the variables of all devices with the weights after a number of updates."""
    for d, value in enumerate(values):
        right = weights if stage == 1 else weights[d * size:(d + 1) * size]
        wrong = mismatch(value, right)
        if wrong:
            case = f'after {counted(made, "update")}, the variable of device {d}: '
            return case + wrong.replace('it returns', 'it has')
    return None


def check_tensor_parallel(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    sizes = [(2, 1, 2, 4, 1), (1, 1, 1, 1, 1), (4, 2, 3, 8, 2), (1, 3, 2, 4, 3), (3, 2, 2, 3, 5)]
    sizes += [(count, *random.integers(1, 8, 2), count * random.integers(1, 4), random.integers(1, 6))
              for count in random.integers(1, 7, 20)]
    for D, B, i, h, o in sizes:
        x, w1, b1, w2, b2 = (random.uniform(-3, 3, shape) for shape in ([B, i], [i, h], [h], [h, o], [o]))
        right = np.maximum(x @ w1 + b1, 0) @ w2 + b2
        calls = []

        def all_reduce(arrays, D=D, calls=calls, shape=right.shape):
            arrays = [numeric(array) for array in arrays]
            if len(arrays) != D or any(array is None or array.shape != shape for array in arrays):
                raise ValueError(f'all_reduce takes {D} arrays of shape {shape}')
            calls.append(shape)
            return [np.sum(arrays, 0) for _ in range(D)]

        case = f'for D = {D}, x of shape ({B}, {i}), {h} columns of W1 and {o} of W2, '
        try:
            returned = call(function, x, np.split(w1, D, 1), np.split(b1, D), np.split(w2, D), b2, all_reduce)
        except Fault as fault:
            return case + str(fault)
        wrong = mismatch(returned, np.array([right] * D))
        if wrong:
            return case + wrong
        if len(calls) != 2:  # `call` calls the function twice
            return f'{case}it calls all_reduce {len(calls) / 2:g} times; once is right'
    return None
