"""Answers to is_right."""
import numpy as np
import tensorflow.compat.v1 as tf

from lessons import common


def accepted_plain(build):
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], np.float32)
    for K in (1, 2, 3, 4):
        devices = [f'/cpu:{k}' for k in range(K)]
        with tf.Graph().as_default(), common.session(devices) as session:
            losses, update = build(devices, x, 0.1)
            session.run(tf.global_variables_initializer())
            before, _ = session.run([losses, update])
            variables = session.run(tf.trainable_variables())
        if len(variables) != 1:
            return False
        if abs(variables[0] - 0.2 * x.mean()) > 1e-4:
            return False
        if len({loss.device for loss in losses}) != K:
            return False
        if not np.allclose(before, [np.mean(share ** 2) for share in np.split(x, K)]):
            return False
    return True


mistakes_in_plain = {
    'first_variable_only': (
        'for a step with a copy of w for each tower it returns True; False is right',
        'if len(variables) != 1:\n'
        '    return False\n'
        'if abs',
        'if abs'),
    'no_devices': (
        'for a step whose towers are all on one device it returns True; False is right',
        'if len({loss.device for loss in losses}) != K:\n'
        '    return False\n'
        'if not',
        'if not'),
    'no_losses': (
        'for a step whose losses are computed after the update it returns True; False is right',
        'before, _ = session.run', 'session.run',
        'if len({loss.device for loss in losses}) != K:\n'
        '    return False\n'
        'if not np.allclose(before, [np.mean(share ** 2) for share in np.split(x, K)]):\n'
        '    return False',
        'if len({loss.device for loss in losses}) != K:\n'
        '    return False'),
    'raises': (
        'for a step that adds the gradients of the towers it raises AssertionError',
        'if abs(variables[0] - 0.2 * x.mean()) > 1e-4:\n'
        '    return False',
        'assert abs(variables[0] - 0.2 * x.mean()) < 1e-4'),
    'too_exact': (
        'for a step that is right it returns False; True is right',
        'abs(variables[0] - 0.2 * x.mean()) > 1e-4', 'float(variables[0]) != 0.2 * float(x.mean())'),
    'two_towers': (
        'for a step that divides the sum of the gradients by 2 for any K it returns True',
        '1, 2, 3, 4', '2,'),
}


def one(K, build, x, rate):
    """Returns (variables after two updates, losses of the first, devices of the losses)."""
    devices = [f'/cpu:{k}' for k in range(K)]
    with tf.Graph().as_default(), common.session(devices) as session:
        losses, update = build(devices, x, rate)
        session.run(tf.global_variables_initializer())
        found, _ = session.run([losses, update])
        session.run(update)
        return session.run(tf.trainable_variables()), found, [loss.device[-1] for loss in losses]


def accepted_two_updates(build):
    x = np.arange(12, dtype=np.float32) ** 2
    w = 0.0
    for _ in range(2):
        w -= 0.25 * 2 * (w - x.mean())
    right = True
    for K in (3, 4):
        variables, losses, places = one(K, build, x, 0.25)
        right &= len(variables) == 1 and bool(np.isclose(variables[0], w)) and places == list('0123')[:K]
        right &= bool(np.allclose(losses, [(share ** 2).mean() for share in np.split(x, K)]))
    return right


def mean_losses(build, K):
    """Checks that an update that is applied twice is the same for all K."""
    devices = [f'/cpu:{k}' for k in range(K)]
    with tf.Graph().as_default(), common.session(devices) as session:
        losses, update = build(devices, np.array([1, 2, 4, 8, 16, 32], np.float32), 0.1)
        session.run(tf.global_variables_initializer())
        first, _ = session.run([losses, update])
        second = session.run(losses)
        return np.mean([first, second], 1)


def refused_equal_losses(build):
    """for a step that applies the update twice it returns True; False is right"""
    alone = mean_losses(build, 1)
    return all(np.allclose(mean_losses(build, K), alone) for K in (2, 3))
