"""The fast network and its parts against NumPy: whitening, convolution, moving statistics."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS
from cifar10.model import fast
from cifar10.model.fast import whitening_filters
from cifar10.model.layers import convolution
from tests.helpers import value_of


@pytest.mark.parametrize('size', [2, 5, 6])
def test_gradients_of_the_convolution_match_stock_ones(size):
    rng = np.random.default_rng(size)
    x = tf.placeholder_with_default(rng.normal(size=(3, size, size, 4)).astype(np.float32), [None, None, None, 4])
    filters = tf.constant(rng.normal(size=(3, 3, 4, 6)), tf.float32)
    slopes = tf.constant(rng.normal(size=(3, size, size, 6)), tf.float32)
    actual, expected = [[y, *tf.gradients(tf.reduce_sum(y * slopes), [x, filters])] for y in (
        convolution(x, filters), tf.nn.conv2d(x, filters, 1, 'SAME'))]
    for one, other in zip(*value_of([actual, expected])):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_whitened_patches_are_uncorrelated():
    rng = np.random.default_rng(0)
    smooth = rng.normal(size=(200, 9, 9, 3)).astype(np.float32)
    images = smooth[:, 1:] + smooth[:, :-1]  # neighbours are correlated
    filters = whitening_filters(images)
    assert filters.shape == (2, 2, 3, 24)
    outputs = value_of(tf.nn.conv2d(images, filters, 1, 'VALID')).reshape(-1, 24)
    np.testing.assert_allclose(outputs.T @ outputs / len(outputs),
                               np.block([[np.eye(12), -np.eye(12)], [-np.eye(12), np.eye(12)]]), atol=5e-3)


def numpys_convolution(x, filters, around):
    """Convolves [n, height, width, in] with [rows, columns, in, out], padded with `around` zeros on each side."""
    rows, columns = filters.shape[:2]
    x = np.pad(x, [(0, 0), (around, around), (around, around), (0, 0)])
    height, width = x.shape[1] - rows + 1, x.shape[2] - columns + 1
    return sum(x[:, i:i + height, j:j + width] @ filters[i, j] for i in range(rows) for j in range(columns))


def numpys_network(images, values, training):
    """Returns (logits, L2 losses, statistics of the batch) of the fast network with groups of two layers."""
    losses, batch = [1.33e-3 * (values['head/weights'] ** 2).sum() / 2], []

    def normalised(x, name):
        offset, *statistics = (values[f'{name}/{each}'] for each in ('offset', 'moving_mean', 'moving_variance'))
        if training:
            count = x[..., 0].size
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            batch.extend((mean, variance * count / (count - 1)))
            losses.append(1.33e-3 * (offset ** 2).sum() / 2)
            statistics = mean, variance
        return np.maximum((x - statistics[0]) / np.sqrt(statistics[1] + 1e-5) + 8 * offset, 0)

    x = np.maximum(numpys_convolution(images, values['whiten/weights'], 0), 0)
    for group in ('group1', 'group2', 'group3'):
        x = numpys_convolution(x, values[group + '/conv1/weights'], 1)
        n, side, _, channels = x.shape
        x = x[:, :side // 2 * 2, :side // 2 * 2].reshape(n, side // 2, 2, side // 2, 2, channels).max((2, 4))
        x = normalised(x, group + '/norm1')
        x = normalised(numpys_convolution(x, values[group + '/conv2/weights'], 1), group + '/norm2')
    return x.max((1, 2)) @ values['head/weights'] / 9, sum(losses), batch


@pytest.mark.parametrize('training', [True, False])
def test_the_network_matches_numpy(training):
    rng = np.random.default_rng(0)
    images, whitening = rng.normal(size=(3, 20, 20, 3)), rng.normal(size=(2, 2, 3, 24))
    logits = fast.inference(tf.constant(images, tf.float32), training, 10, (5, 6, 7), whitening)
    statistics = tf.get_collection(MOVING_STATISTICS)
    assert all(statistic.keep == 0.6 for statistic in statistics)
    actual = [logits, tf.add_n(tf.get_collection(tf.GraphKeys.LOSSES)), [statistic.value for statistic in statistics]]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for variable in tf.global_variables():
            if variable.op.name != 'whiten/weights':  # whitening weights are set by the argument
                low = 0.5 if variable.op.name.endswith('variance') else -0.3
                variable.load(rng.uniform(low, 0.6, variable.shape.as_list()), session)
        values = {variable.op.name: session.run(variable).astype(float) for variable in tf.global_variables()}
        actual = session.run(actual)
    np.testing.assert_allclose(values['whiten/weights'], whitening, rtol=1e-6)
    expected = numpys_network(images, values, training)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5)
    assert len(actual[2]) == len(expected[2]) == (12 if training else 0)
    for one, other in zip(actual[2], expected[2]):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_the_first_filters_pass_one_channel_each():
    images = tf.placeholder_with_default(np.zeros([2, 20, 20, 3], np.float32), [2, 20, 20, 3])
    fast.inference(images, widths=(32, 16, 16))
    weights = {variable.op.name: value for variable, value in zip(tf.trainable_variables(),
                                                                 value_of(tf.trainable_variables()))}
    first = weights['group1/conv1/weights']
    np.testing.assert_array_equal(first[1, 1, :, :24], np.eye(24))
    assert np.abs(first[0, :, :, :24]).max() == 0 < np.abs(first[..., 24:]).max() <= (9 * 24) ** -0.5


def test_other_filters_and_the_head_are_uniform_within_pytorchs_bounds():
    fast.inference(tf.zeros([2, 20, 20, 3]), widths=(64, 16, 256))
    weights = {variable.op.name: value for variable, value in zip(tf.trainable_variables(),
                                                                 value_of(tf.trainable_variables()))}
    for values, inputs in ((weights['group1/conv1/weights'][..., 24:], 9 * 24),
                           (weights['group3/conv1/weights'][..., 16:], 9 * 16), (weights['head/weights'], 256)):
        bound = inputs ** -0.5
        assert 0.99 * bound < np.abs(values).max() <= bound
        np.testing.assert_allclose([values.mean(), values.std()], [0, bound / 3 ** 0.5], atol=0.03 * bound)


def test_whitening_filters_start_with_the_largest_eigenvalue_and_stay_finite():
    # The red of a patch's first pixel has variance 4; all else is 0.
    images = np.zeros([2000, 2, 2, 3], np.float32)
    images[:, 0, 0, 0] = np.resize([2, -2], 2000)
    filters = whitening_filters(images).reshape(12, 24)
    np.testing.assert_allclose(np.abs(filters[:, 0]), np.eye(12)[0] / np.sqrt(4 + 5e-4), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(filters[:, 1:12], axis=0), 5e-4 ** -0.5, rtol=1e-5)
    np.testing.assert_array_equal(filters[:, 12:], -filters[:, :12])
