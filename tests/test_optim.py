"""Loss, learning rates, optimizers and moving averages against plain NumPy, in isolation and in a run."""
import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGE
from cifar10.base.registry import OPTIMIZERS
from cifar10.data import datasets
from cifar10.model import averages, classifier
from cifar10.model.recipe import Recipe
from cifar10.parallel import devices
from cifar10.parallel.session_config import session_config
from cifar10.settings.training import completed
from cifar10.training import graph
from tests.helpers import initialise, plan_of, update_mode


def numpys_loss(logits, labels, smoothing):
    """Returns (the cross entropy of each example [n], its gradient with respect to the logits [n, classes])."""
    n, classes = logits.shape
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    wanted = np.full([n, classes], smoothing / classes)
    wanted[np.arange(n), labels] += 1 - smoothing
    return -(wanted * np.log(shares)).sum(1), shares - wanted


@pytest.mark.parametrize('smoothing', [0.0, 0.2])
def test_cross_entropy_and_accuracy_match_numpy(smoothing):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 2, size=(40, 7)), rng.integers(0, 7, 40)
    labels[:30] = logits[:30].argmax(1)
    inputs = tf.constant(logits, tf.float32), tf.constant(labels, tf.int32)
    losses_of = functools.partial(classifier.cross_entropies, smoothing=smoothing)
    scalars = classifier.add_loss(lambda *_: inputs[0], tf.zeros([40, 8, 8, 3]), inputs[1], losses=losses_of)
    with tf.Session() as session:
        each, actual, losses = session.run([classifier.cross_entropies(*inputs, smoothing), scalars,
                                            tf.get_collection(tf.GraphKeys.LOSSES)])
    expected, _ = numpys_loss(logits, labels, smoothing)
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    np.testing.assert_allclose([actual['cross_entropy'], *losses], [expected.mean()] * 2, rtol=1e-5)
    right = (logits.argmax(1) == labels).mean()
    assert 0.7 < right < 0.9 and actual['accuracy'] == np.float32(right)


@pytest.mark.parametrize('name, decays', [('staircase', lambda fraction: 1), ('linear', lambda fraction: 1 - fraction),
                                          ('cosine', lambda fraction: 0.5 * (1 + np.cos(np.pi * fraction)))])
def test_warm_up_counts_examples_and_the_schedule_ends_with_the_run(name, decays):
    recipe = Recipe(completed(dict(schedule=name, learning_rate=0.4, warmup_epochs=0.5)).recipe, 10, 0, 100, 2.0)
    seen = tf.placeholder(tf.int64, [])
    rate, _ = recipe.learning_rates(seen)
    with tf.Session() as session:
        for examples, expected in ((0, 0), (1, 0.02), (25, 0.5), (49, 0.98), (50, 1), (100, decays(1 / 3)),
                                   (175, decays(5 / 6)), (200, decays(1)), (400, decays(1))):
            np.testing.assert_allclose(session.run(rate, {seen: examples}), 0.4 * expected, rtol=1e-5, atol=1e-7)
    assert recipe.schedule.describe(10, 10 ** 6).startswith('rising from 0 over 50 images, then ')


def test_epochs_are_rounded_to_whole_examples():
    # The floating-point products are 28.999999999999996 and 57.99999999999999.
    assert [Recipe(completed({}).recipe, 10, 0, 100, epochs).total_examples for epochs in (0.29, 0.58)] == [29, 58]


def numpys_steps(name, rate, start, gradients):
    """Returns the variable after an optimizer has applied all gradients in order, starting from `start`."""
    w, m, v = np.array(start, float), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        if name == 'adam':
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g ** 2
            w = w - rate * np.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t) * m / (np.sqrt(v) + 1e-8)
            continue
        m = 0.0 if name == 'sgd' else 0.9 * m
        m = m + g
        w = w - rate * (g + 0.9 * m if name == 'nesterov' else m)
    return w


@pytest.mark.parametrize('name', ['sgd', 'momentum', 'nesterov', 'adam'])
def test_optimizer_steps_match_numpy(name):
    start, *gradients = np.random.default_rng(0).normal(size=(6, 4))
    variable, gradient = tf.get_variable('w', initializer=tf.constant(start, tf.float32)), tf.placeholder(tf.float32, 4)
    step = OPTIMIZERS.load(name)(tf.constant(0.05)).apply_gradients([(gradient, variable)])
    with tf.Session() as session:
        initialise(session)
        for each in gradients:
            session.run(step, {gradient: each})
        np.testing.assert_allclose(session.run(variable), numpys_steps(name, 0.05, start, gradients), atol=1e-5)


@pytest.mark.parametrize('step, decay', [(0, 0.1), (5, 0.4), (80_000, 80_001 / 80_010), (200_000, 0.9999)])
def test_the_decay_of_moving_averages_rises_to_its_limit(step, decay):
    variable, global_step = tf.get_variable('w', initializer=1.0), tf.train.create_global_step()
    moved = averages.MovingAverages([variable], global_step).move()
    average, = [each for each in tf.global_variables() if each.op.name.endswith(AVERAGE)]
    with tf.Session() as session:
        initialise(session)
        global_step.load(step, session)
        variable.load(101.0, session)  # 100 more than its average, so that float32 distinguishes the decays
        session.run(moved)
        np.testing.assert_allclose(session.run(average), 101 - 100 * decay, atol=1e-4)


LINEAR = '''
import tensorflow.compat.v1 as tf
def linear(images, num_classes, training):
    weights = tf.get_variable('weights', [24 * 24 * 3, num_classes], initializer=tf.zeros_initializer())
    return tf.reshape(images, [-1, 24 * 24 * 3]) @ weights
'''


def test_the_steps_of_a_run_match_numpy(settings, data_dir, own):
    # Muon for variables that are not filters, the linear schedule, label smoothing and two towers.
    config = settings(network=own(LINEAR, 'linear'), optimizer='muon', learning_rate=0.05, schedule='linear',
                      epochs=0.064, max_steps=None, label_smoothing=0.3, num_gpus=2)
    data, cpus = datasets.prepare('shapes', data_dir), devices.choose(2, 'cpu')
    plan = plan_of(config.replace(max_steps=4), data, cpus, update_mode('parameter_server', cpus))
    built = graph.build(plan, {})
    weights = np.zeros([1728, 10])
    momentum = 0.0
    with tf.Session(config=session_config(cpus)) as session:
        session.run(tf.global_variables_initializer())
        session.run(built.start_inputs)
        for seen in (0, 16, 32, 48):  # of 64
            values, batches, _ = session.run([built.fetches[0]['figures'], built.batches, built.fetches[0]['update']])
            figures = dict(zip(built.figures, values))
            images, labels = map(np.stack, zip(*[batch for batch, _ in batches]))
            pixels, labels = images.reshape(16, -1).astype(float), labels.reshape(16)
            factor = 1 - seen / 64
            losses, slopes = numpys_loss(pixels @ weights, labels, smoothing=0.3)
            np.testing.assert_allclose([figures['loss'], figures['learning_rate']], [losses.mean(), 0.05 * factor],
                                       rtol=1e-4)
            gradient = pixels.T @ slopes / 16
            momentum = 0.85 * momentum + gradient
            weights -= 0.05 * factor * (gradient + 0.85 * momentum)
            np.testing.assert_allclose(session.run(tf.trainable_variables()[0]), weights, atol=1e-5)
    assert np.abs(weights).max() > 1e-2
