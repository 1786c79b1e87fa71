"""Checks the exercises of lesson 2: the clipped mean gradient, and a step of towers for any model and optimizer."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, call_once, counted, graph, mismatch, shown
from lessons.checkers.graph import tf

HINTS = {'clip_mean_gradients': [
    'first take the mean over the towers for each variable, then the norm of all means together.',
    'how large is the norm of a gradient of zeros? Which gradients stay unchanged?'],
    'training_step': [
        ('trainable variable|raises ValueError',
         'all towers must use the variables of the first: open the variable scope with `reuse` for every k above 0.'),
        ('nothing orders',
         'compute the losses before the update: create the update under `tf.control_dependencies` of the losses.'),
        ('the loss that is fetched', 'return the mean of the K losses before the step.'),
        ('builds the losses', 'call loss_of(k) once for each tower.'),
        graph.DEVICE_HINT,
        'average the gradients of each variable first, then call `apply_gradients` once, with the global step.']}

# (tower_gradients, limit): above the limit, below it, exactly on it, all zero; more towers; matrices.
CASES = [([[[2.0], [8.0]], [[4.0], [0.0]]], 1.0),
         ([[[0.3], [0.0]], [[0.3], [0.8]]], 1.0),
         ([[[3.0], [4.0]]], 5.0),
         ([[[0.0, 0.0]], [[0.0, 0.0]]], 1.0),
         ([[[10.0], [0.0]], [[-10.0], [0.0]], [[0.0], [6.0]]], 1.0),
         ([[[[1.0, 2.0], [2.0, 4.0]], [5.0]], [[[1.0, 0.0], [2.0, 0.0]], [1.0]]], 2.0)]


def check_clip_mean_gradients(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for towers, limit in CASES + [_drawn(random) for _ in range(24)]:
        towers = [[np.array(gradient) for gradient in tower] for tower in towers]
        case = f'for {", ".join(_listed(k, tower) for k, tower in enumerate(towers))} and the limit {limit:.4g}'
        right, scale = _right(towers, limit)
        try:
            returned = call(function, towers, limit)
        except Fault as fault:
            return f'{case} {fault}'
        if not isinstance(returned, (list, tuple, np.ndarray)) or len(returned) != len(right):
            return f'{case} it returns {shown(returned)}; a list of {len(right)} arrays is right'
        size = scale * max(np.abs(gradient).max() for tower in towers for gradient in tower)
        for i, (array, expected) in enumerate(zip(returned, right)):
            difference = mismatch(array, expected, size)
            if difference:
                return f'{case}, {difference} for variable {i}'
    return None


def _drawn(random):
    """Draws a case: up to five towers of up to four variables, small or very large, and a limit above or below.

    No gradient is a scalar: `tf.stack` reads some 0-d arrays as float32 and fails.
    """
    shapes = [tuple(random.integers(1, 4, size=random.integers(1, 3))) for _ in range(random.integers(1, 5))]
    scale = 10.0 ** random.choice([-6, 0, 3, 20, 30])
    towers = [[np.asarray(scale * random.normal(size=shape)) for shape in shapes] for _ in range(random.integers(1, 6))]
    return towers, float(scale ** random.integers(0, 2) * random.uniform(0.1, 3))


def _listed(k, tower):
    """Returns a tower's gradients as 'tower 0 with [2] and [8]'."""
    return f'tower {k} with ' + ' and '.join(shown(gradient) for gradient in tower)


def _right(towers, limit):
    """Returns the clipped means and the factor that scales them."""
    means = [np.mean([tower[i] for tower in towers], 0) for i in range(len(towers[0]))]
    norm = np.linalg.norm(np.concatenate([mean.ravel() for mean in means]))
    scale = min(1.0, limit / norm) if norm else 1.0
    return [mean * scale for mean in means], scale


def check_training_step(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for count, momentum in ((2, 0), (1, 0.9), (2, 0.9), (3, 0.9), (4, 0.9)):
        x = random.normal(size=(5, count, int(random.integers(1, 6)), 2)).round(1)
        try:
            with tf.Graph().as_default():
                _take_steps(function, graph.devices_of(count), x, momentum)
        except Fault as fault:
            optimizer = f'MomentumOptimizer(0.1, {momentum})' if momentum else 'GradientDescentOptimizer(0.1)'
            return f'for {counted(count, "tower")} of {counted(x.shape[2], "example")} and {optimizer} {fault}'
    return None


def _take_steps(function, devices, batches, momentum):
    """Takes one step with each batch of `batches`, [steps, K, n, 2]; raises a Fault if a step is wrong.

    The loss of a tower is the mean of (x @ weights - 1)^2 plus the bias; no gradient depends on the value of the bias.
    """
    places = {}
    x = tf.placeholder(tf.float32, batches.shape[1:])

    def loss_of(k):
        places.setdefault(k, tf.constant(0.0))
        with tf.device('/cpu:0'):
            weights = tf.get_variable('weights', [2], initializer=tf.zeros_initializer())
            bias = tf.get_variable('bias', [], initializer=tf.zeros_initializer())
        return tf.reduce_mean(tf.square(tf.linalg.matvec(x[k], weights) - 1)) + bias

    optimizer = tf.train.MomentumOptimizer(0.1, momentum) if momentum else tf.train.GradientDescentOptimizer(0.1)
    returned = call_once(function, list(devices), loss_of, optimizer)
    if not isinstance(returned, (list, tuple)) or len(returned) != 2:
        raise Fault(f'it returns {graph.form(returned)}; a pair (loss, train_op) is right')
    loss, train_op = returned
    graph.operation(loss)
    graph.operation(train_op)
    if sorted(places) != list(range(len(devices))):
        raise Fault(f'it builds the losses {sorted(places)}; {list(range(len(devices)))} is right')
    for k, device in enumerate(devices):
        graph.check_device(places[k], device, f'tower {k}')
    graph.check_variables(2)
    graph.check_order([loss, train_op])
    global_step = tf.train.get_global_step()
    if global_step is None:
        raise Fault('the graph has no global step; create it with tf.train.get_or_create_global_step()')
    variables = sorted(tf.trainable_variables(), key=lambda variable: -len(variable.shape))  # weights, bias
    values, moments = [np.zeros(2), np.zeros(())], [0, 0]
    with graph.session(len(devices)) as run:
        for step, batch in enumerate(batches, 1):
            errors = batch @ values[0] - 1
            right = np.mean(errors ** 2) + values[1]
            gradients = [2 * np.mean(errors[..., None] * batch, (0, 1)), 1.0]
            moments = [momentum * moment + gradient for moment, gradient in zip(moments, gradients)]
            values = [value - 0.1 * moment for value, moment in zip(values, moments)]
            fetched, _ = run([loss, train_op], {x: batch})
            weights, bias, counter = run([*variables, global_step])
            case = f'after {counted(step, "step")}'
            graph.check_value(weights, values[0], 1, f'{case} the variable weights')
            graph.check_value(bias, values[1], 1, f'{case} the variable bias')
            graph.check_value(counter, step, 0, f'{case} the global step')
            graph.check_value(fetched, right, 1, f'the loss that is fetched with step {step}')
