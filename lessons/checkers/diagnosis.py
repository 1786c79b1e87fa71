"""Checks the exercises of lesson 11: a diagnosis of drawn trainings, and a test of right and wrong training steps."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, call_once, shortened
from lessons.checkers.graph import tf

HINTS = {
    'diagnose': [
        ('the fault stopped', 'check for NaN first: the median of numbers with a NaN is NaN.'),
        ('the fault flipped_bit',
         'a flipped bit can change a number by one part in a million: compare copies with ==.'),
        ('the fault not_shared', 'compare copies with ==. A flipped bit changes one tower; here all towers differ.'),
        ('the fault same_batch',
         'check the examples before the length of a step: if all towers have the same batch, any length is possible.'),
        ('the fault (sum|small_rate)',
         'divide `moved` by `right`. K means a sum, 1 / K a small rate and 1 a sound step, up to a thousandth.'),
        ('slow_', 'take the median over the updates: unlike the mean, it ignores a single slow update.'),
        'for each fault, write down the array that shows it. How does this array look in a sound training?',
        'test in the right order: a NaN, or equal examples on all towers, also affects the later tests.'],
    'is_right': [
        ('a step that is right it returns', 'after one update w is rate * 2 * mean(x) up to float32 rounding: compare '
         'with np.allclose instead of ==. Return a bool.'),
        ('it raises', 'build each step in its own graph, `with tf.Graph().as_default()`. Return False for every wrong '
         'step.'),
        ('applies the update twice', 'the losses before the first update do not show that the update is applied '
         'twice: check w after it.'),
        ('all on one device',
         'the numbers do not show the devices that computed them: check `loss.device`.'),
        ('copy of w|tf.Variable for', 'count `tf.trainable_variables()`: the number must not depend on K.'),
        ('after the update', 'before the first update w is 0, so the loss of tower k is mean(x^2) over its share. '
         'Fetch the losses together with the update.'),
        ('by 2 for any K', 'try K = 1, 2, 3 and 4: a step that divides by 2 is right only for K = 2.'),
        'choose different numbers for x, and compute w after one update by hand: rate * 2 * mean(x).',
        'for each kind of wrong step, find the number, device or variable that differs from a right step.']}
STEPS = {'right': 'that is right', 'right_stacked': 'that is right',
         'sum': 'that adds the gradients of the towers',
         'twice': 'that applies the update twice',
         'same_share': 'whose towers all have the same share',
         'off_by_one': 'whose towers leave out the last example of their share',
         'own_variable': 'with a tf.Variable for each tower',
         'copied': 'with a copy of w for each tower',
         'one_device': 'whose towers are all on one device',
         'left_out': 'that leaves out the gradient of a tower',
         'halved': 'that divides the sum of the gradients by 2 for any K',
         'loss_after': 'whose losses are computed after the update',
         'never': 'that changes no variable'}
FAULTS = ('none', 'stopped', 'slow_tower', 'slow_input', 'sum', 'not_shared', 'flipped_bit', 'small_rate', 'same_batch')


def check_diagnose(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for i in range(6 * len(FAULTS)):
        fault = FAULTS[i % len(FAULTS)]
        K, tower = int(random.integers(3, 9)), None
        if fault in ('stopped', 'slow_tower', 'flipped_bit'):
            tower = int(random.integers(K))
        case = f'for a training of {K} towers with ' + (
            'no fault' if fault == 'none' else f'the fault {fault}' + ('' if tower is None else f' in tower {tower}'))
        try:
            returned = call(function, _drawn_run(fault, K, tower, random))
        except Fault as error:
            return f'{case} {error}'
        if not (isinstance(returned, (tuple, list)) and tuple(returned) == (fault, tower)):
            return f'{case} it returns {shortened(repr(returned))}; {(fault, tower)} is right'
    return None


def _drawn_run(fault, K, tower, random):
    """Draws the measurements of a training with a fault, in the form that the exercise describes."""
    U, B, V = (int(random.integers(least, most)) for least, most in ((5, 12), (1, 5), (1, 4)))
    scale = 10 ** random.uniform(-3, 1)
    run = dict(computing=scale * random.uniform(0.95, 1.05, [U, K]),
               input=scale * random.uniform(0.05, 0.5) * random.uniform(0.95, 1.05, [U, K]))
    run['computing'][random.integers(U), random.integers(K)] *= random.uniform(2, 9)  # one slow update is no fault
    if fault == 'slow_tower':
        run['computing'][:, tower] *= random.uniform(2, 6)
    if fault == 'slow_input':
        run['input'] = scale * random.uniform(1.3, 8) * random.uniform(0.95, 1.05, [U, K])
    numbers = np.arange(U * K * B).reshape(U, K, B) + random.integers(1000)
    # Tower k's gradient in update u, and a rate for the batches of all towers.
    gradients, rate = random.uniform(0.5, 2, [U, K, V]) * random.choice([-1, 1], [U, 1, V]), random.uniform(0.01, 0.5)
    run['right'] = -rate * gradients.mean(1)
    moves = np.repeat(run['right'][:, None], K, 1)  # of the variables of each copy
    if fault == 'same_batch':
        numbers, moves = np.repeat(numbers[:, :1], K, 1), -rate * np.repeat(gradients[:, :1], K, 1)
    elif fault == 'sum':
        moves = moves * K
    elif fault == 'small_rate':
        moves = moves / K
    elif fault == 'not_shared':
        moves[:, :, -1] = -rate * gradients[:, :, -1]
    copies = (random.uniform(-1, 1, V) + np.cumsum(moves, 0)).astype(np.float32)
    if fault == 'flipped_bit':
        bits = copies[random.integers(1, U):, tower, random.integers(V):][:, :1].view(np.int32)
        bits ^= np.int32(1 << random.integers(23))
    run.update(examples=numbers, copies=copies, moved=moves[:, 0] * random.uniform(0.9999, 1.0001, [U, V]))
    if fault == 'stopped':
        run['computing'][-1, tower] = np.nan
        for name in ('copies', 'moved', 'right'):
            run[name][-1] = np.nan
    return run


def check_is_right(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    kinds = [*STEPS, *random.choice(list(STEPS), 21 - len(STEPS))]
    for kind in map(str, kinds):
        choice = int(random.integers(1000))

        def build(devices, x, rate, kind=kind, choice=choice):
            return _step(kind, choice, devices, x, rate)

        case = f'for a step {STEPS[kind]}'
        try:
            returned = call_once(function, build)
        except Fault as error:
            return f'{case} {error}'
        right = kind in ('right', 'right_stacked')
        if not isinstance(returned, (bool, np.bool_)):
            return f'{case} it returns {shortened(repr(returned))}; {right} is right'
        if returned != right:
            return f'{case} it returns {bool(returned)}; {right} is right'
    return None


def _step(kind, choice, devices, x, rate):
    """Builds a training step of one of the kinds in STEPS; returns (losses, update)."""
    K = len(devices)
    size = int(x.shape[0]) // K  # x is an array or a tensor
    losses, gradients, variables = [], [], []
    for k, device in enumerate(devices):
        device = devices[choice % K] if kind == 'one_device' else device
        first = (choice % K if kind == 'same_share' else k) * size
        share = x[first:first + size - (kind == 'off_by_one')]
        with tf.variable_scope(tf.get_variable_scope(), reuse=k > 0, auxiliary_name_scope=False):
            with tf.device('/cpu:0'):
                variables.append(tf.Variable(0.0) if kind in ('own_variable', 'copied')
                                 else tf.get_variable('w', initializer=0.0))
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.square(variables[k] - share)))
            gradients += tf.gradients(losses[k], variables[k])
    w = variables[0]
    left_out = choice % K if kind == 'left_out' else None
    with tf.device('/cpu:0'):
        total = tf.add_n([gradient if k != left_out else 0 * gradient for k, gradient in enumerate(gradients)])
        mean = {'sum': total, 'halved': total / 2, 'never': 0 * total,
                'right_stacked': tf.reduce_mean(tf.stack(gradients), 0)}.get(kind, total / K)
        update = w.assign_sub(rate * mean)
        if kind == 'twice':
            with tf.control_dependencies([update]):
                update = w.assign_sub(rate * mean)
    if kind in ('own_variable', 'copied'):
        update = tf.group([own.assign_sub(rate * (gradient if kind == 'own_variable' else mean))
                           for own, gradient in zip(variables, gradients)])
    if kind == 'loss_after':
        with tf.control_dependencies([update]):
            for k, device in enumerate(devices):
                with tf.device(device):
                    losses[k] = tf.reduce_mean(tf.square(w.read_value() - x[k * size:(k + 1) * size]))
    return losses, tf.group(update)
