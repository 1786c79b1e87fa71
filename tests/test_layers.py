"""Building blocks of users' networks against NumPy: batch normalisation, dropout and random numbers by position."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base import startup
from cifar10.base.graphs import MOVING_STATISTICS
from cifar10.model import batch_normalisation, dropout, uniform_like
from cifar10.model.layers import mended_gradients
from cifar10.model.network_draws import at_position
from tests.helpers import value_of

SEED = 7


@pytest.mark.parametrize('shape', [[4, 5, 5, 8], [60, 8], [6, 9, 8]])
def test_batch_normalisation_with_its_defaults_matches_numpy(shape):
    x = np.random.default_rng(0).normal(3, 2, size=shape).astype(np.float32)
    with tf.variable_scope('norm'):
        y = batch_normalisation(tf.constant(x), True)
    with tf.variable_scope('norm', reuse=True):
        plain = batch_normalisation(tf.constant(x), False)
    assert [v.op.name for v in tf.global_variables()] == [
        f'norm/{name}' for name in ('gamma', 'beta', 'moving_mean', 'moving_variance')]
    gamma, beta = tf.trainable_variables()
    statistics = tf.get_collection(MOVING_STATISTICS)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        gamma.load(np.arange(8, dtype=np.float32), session)
        beta.load(np.full(8, 0.25, np.float32), session)
        trained, moved, evaluated = session.run([y, [each.value for each in statistics], plain])
    mean, variance = x.reshape(-1, 8).mean(0), x.reshape(-1, 8).var(0)
    np.testing.assert_allclose(trained, (x - mean) / np.sqrt(variance + 1e-3) * np.arange(8) + 0.25, atol=1e-4)
    np.testing.assert_allclose(evaluated, x / np.sqrt(1 + 1e-3) * np.arange(8) + 0.25, atol=1e-4)
    np.testing.assert_allclose(moved[0], mean, rtol=1e-4)
    np.testing.assert_allclose(moved[1], value_of(variance_of_tensorflow_1(x)), rtol=1e-4)
    assert [each.keep for each in statistics] == [0.99, 0.99]


def variance_of_tensorflow_1(x):
    """Returns the batch variance as `tf.layers.batch_normalization` feeds it to its moving variance."""
    ones = tf.ones([x.shape[-1]])
    return tf.nn.fused_batch_norm(x, ones, ones)[2] if x.ndim == 4 else tf.nn.moments(x, list(range(x.ndim - 1)))[1]


def test_scale_and_offset_of_batch_normalisation_are_optional():
    x = np.random.default_rng(0).normal(3, 2, size=[50, 4]).astype(np.float32)
    y = batch_normalisation(tf.constant(x), True, momentum=0.9, epsilon=0.5, scale=False, offset=False)
    assert not tf.trainable_variables()
    np.testing.assert_allclose(value_of(y), (x - x.mean(0)) / np.sqrt(x.var(0) + 0.5), atol=1e-4)


def drawn(position, n, shape, calls=1, seed=SEED):
    """Returns the draws of the last of `calls` calls for n examples, beginning at a position."""
    with at_position(seed, tf.constant(position, tf.int64)):
        for _ in range(calls):
            numbers = uniform_like(tf.zeros([n, *shape]))
    return value_of(numbers)


@pytest.mark.parametrize('shape', [[], [7], [4, 4, 8], [5, 3]])
def test_draws_for_an_example_depend_on_its_position_but_not_on_its_batch(shape):
    whole = drawn(40, 24, shape)
    np.testing.assert_array_equal(whole, np.concatenate([drawn(40, 8, shape), drawn(48, 16, shape)]))
    assert len(np.unique(whole, axis=0)) == 24
    # Also with shapes that are unknown in the graph.
    x = tf.placeholder_with_default(np.zeros([24, *shape], np.float32), [None] * (1 + len(shape)))
    with at_position(SEED, tf.constant(40, tf.int64)):
        np.testing.assert_array_equal(value_of(uniform_like(x)), whole)


@pytest.mark.parametrize('dtype', [tf.float32, tf.bfloat16])
def test_dropout_zeroes_a_fraction_and_scales_the_rest_in_training_only(dtype):
    x = tf.cast(tf.fill([64, 10, 10], 3.0), dtype)
    with at_position(SEED, tf.constant(0, tf.int64)):
        y = dropout(x, 0.25, True)
    assert y.dtype == dtype and dropout(x, 0.25, False) is x
    values, gradient = value_of([tf.cast(each, tf.float32) for each in (y, tf.gradients(y, x)[0])])
    assert set(np.unique(values)) == {0.0, 4.0}
    np.testing.assert_allclose(np.mean(values == 0), 0.25, atol=0.02)
    np.testing.assert_allclose(gradient, values / 3, rtol=1e-2)


@pytest.mark.parametrize('data_format', ['NHWC', 'NCHW'])
@pytest.mark.parametrize('padding', ['SAME', 'VALID'])
@pytest.mark.parametrize('channels', [1, 7, 8])
def test_gradients_of_strided_filters_match_filters_over_the_selected_pixels(channels, padding, data_format, graph):
    shape = [4, channels, 16, 15] if data_format == 'NCHW' else [4, 16, 15, channels]
    x, filters = (tf.constant(np.random.default_rng(0).standard_normal(each, np.float32))
                  for each in (shape, [1, 1, channels, 5]))
    seen = x[:, :, ::2, ::2] if data_format == 'NCHW' else x[:, ::2, ::2]

    def gradients(x, stride):
        y = tf.nn.conv2d(x, filters, stride, padding, data_format=data_format)
        return tf.gradients(tf.reduce_sum(y * y), [filters])[0]
    with mended_gradients():
        found = gradients(x, 2)
    expected = gradients(seen, 1)
    if data_format == 'NCHW' and startup.numerics()['oneDNN'] == 'off':
        return  # TensorFlow without oneDNN has no such kernel
    with tf.Session() as session:
        np.testing.assert_array_equal(*session.run([found, expected]))
