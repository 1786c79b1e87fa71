"""Muon against plain NumPy; in every update mode: test_own_optimizer.py."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.model.optimizers import Muon, orthogonalise
from cifar10.model.recipe import Recipe
from cifar10.settings.training import completed
from tests.helpers import initialise

RATE, AUXILIARY = 0.1, 0.05


def orthogonalised(matrix, iterations=3):
    """Returns the expected result of `orthogonalise`, from the singular value decomposition."""
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values /= np.linalg.norm(values)
    a, b, c = 3.4445, -4.7750, 2.0315  # https://kellerjordan.github.io/posts/muon/
    for _ in range(iterations):
        values = a * values + b * values ** 3 + c * values ** 5
    return (left * values) @ right


@pytest.mark.parametrize('shape', [(54, 8), (8, 54), (16, 16)])
@pytest.mark.parametrize('iterations', [3, 5])
def test_singular_values_move_towards_one_and_vectors_stay(shape, iterations):
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with tf.Session() as session:
        actual = session.run(orthogonalise(tf.constant(matrix), iterations))
    np.testing.assert_allclose(actual, orthogonalised(matrix, iterations), atol=2e-5)
    if iterations == 5:
        values = np.linalg.svd(actual, compute_uv=False)
        assert 0.6 < values.min() and values.max() < 1.25


def numpys_steps(filters, others, gradients, rates):
    """Returns filters [height, width, in, out] and another variable after steps with (gradients, rates) pairs."""
    channels = filters.shape[-1]
    momentum, velocity = np.zeros_like(filters), np.zeros_like(others)
    for (of_filters, of_others), (rate, auxiliary) in zip(gradients, rates):
        momentum = 0.6 * momentum + of_filters
        update = orthogonalised((of_filters + 0.6 * momentum).reshape(-1, channels)).reshape(filters.shape)
        filters = filters * channels ** 0.5 / np.linalg.norm(filters) - rate * update
        velocity = 0.85 * velocity + of_others
        others = others - auxiliary * (of_others + 0.85 * velocity)
    return filters, others


@pytest.mark.parametrize('preset, ratio', [('fast', 3.75), ('classic', 1), ('photos', 1)])
def test_each_kind_of_variable_has_its_own_rate_and_both_decay(preset, ratio):
    rng, shapes = np.random.default_rng(2), ((3, 3, 2, 4), (5,))
    initial, *gradients = [[rng.normal(size=shape) for shape in shapes] for _ in range(4)]
    recipe = Recipe(completed(dict(preset=preset, network='fast', augmentation='shift', optimizer='muon',
                                   learning_rate=0.2, schedule='linear')).recipe, 10, 0, 1000, 2)
    variables = [tf.get_variable(f'v{i}', initializer=tf.constant(each, tf.float32)) for i, each in enumerate(initial)]
    slopes, seen = [tf.placeholder(tf.float32, shape) for shape in shapes], tf.placeholder(tf.int64, [])
    step = recipe.optimizer(*recipe.learning_rates(seen))().apply_gradients(zip(slopes, variables))
    factors = {0: 1.0, 500: 0.75, 1500: 0.25}  # factors of the learning rates after this number of 2000 examples
    with tf.Session() as session:
        initialise(session)
        for examples, gradient in zip(factors, gradients):
            session.run(step, {seen: examples, **dict(zip(slopes, gradient))})
        actual = session.run(variables)
    rates = [(0.2 * factor, 0.2 * ratio * factor) for factor in factors.values()]
    for one, other in zip(actual, numpys_steps(*initial, gradients, rates)):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_filters_of_zeros_take_the_step():
    filters = tf.get_variable('filters', [3, 3, 2, 4], initializer=tf.zeros_initializer())
    slopes = np.random.default_rng(2).normal(size=(3, 3, 2, 4)).astype(np.float32)
    step = Muon(RATE, AUXILIARY).apply_gradients([(tf.constant(slopes), filters)])
    with tf.Session() as session:
        initialise(session)
        session.run(step)
        actual = session.run(filters)
    expected = -RATE * orthogonalised((1.6 * slopes).reshape(-1, 4)).reshape(slopes.shape)
    np.testing.assert_allclose(actual, expected, atol=2e-5)
