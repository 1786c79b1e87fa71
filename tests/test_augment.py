"""The random choices of augmentation and their limits: shifts, mirroring, the minimum standard deviation."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.data import augment, draws, shift
from cifar10.settings.presets import parse_sizes
from tests.helpers import value_of


def first_epoch(count, order=None, first=0):
    """Returns the Positions of the first epoch of `count` examples."""
    order = tf.range(count, dtype=tf.int64) if order is None else order
    return augment.Positions(tf.constant(first, tf.int64), tf.constant(first, tf.int64), order, tf.zeros_like(order),
                             count)


@pytest.mark.parametrize('size, reach', [(20, 1), (27, 1), (28, 2), (32, 2)])
def test_shifts_are_uniform_and_their_range_follows_the_size(size, reach):
    # A pixel's red is its row and its green its column; resizing by area nearly keeps such ramps.
    n = 2000
    ramp = np.broadcast_to(np.arange(32, dtype=np.uint8), [32, 32])
    pixels = np.broadcast_to(np.stack([ramp.T, ramp, 0 * ramp], -1), [n, 32, 32, 3])
    images = shift.Shift([(0.0, size)], None, 3).pixels(tf.constant(pixels), first_epoch(n, first=7))
    middle, beside = value_of([images[:, size // 2, size // 2, :2], images[:, size // 2, size // 2 + 1, 1]])
    # The source of the middle pixel; in an unshifted mirrored image of even size, the pixel to its left.
    came = (middle + 0.5) * size / 32 - 0.5 - size // 2
    came[:, 1] += (beside < middle[:, 1]) * (1 - size % 2)
    shifts = np.rint(came).astype(int)
    np.testing.assert_allclose(came, shifts, atol=0.1)
    counts = np.zeros([2 * reach + 1] * 2, int)
    np.add.at(counts, tuple(shifts.T + reach), 1)  # a shift that is too far raises an IndexError
    assert ((counts - n / counts.size) ** 2 / (n / counts.size)).sum() < {1: 26.1, 2: 51.2}[reach]  # p = 0.001


def test_the_half_that_is_mirrored_first_is_random():
    n = 2000
    # A pixel's value is its column.
    columns = tf.constant(np.broadcast_to(np.arange(32, dtype=np.uint8)[:, None], [n, 32, 32, 3]))
    examples = draws.shuffled(tf.range(n, dtype=tf.int64), n, 5)
    both = [shift.Shift([(0.0, 20)], None, seed)(columns, first_epoch(n, examples)) for seed in (5, 6)]
    order, *pairs = value_of([examples, *[images[:, 10, 8:13:4, 0] for images in both]])
    mirrored, of_another_seed = [left > right for left, right in (pair.T for pair in pairs)]
    assert mirrored.sum() == n // 2
    for other in (np.arange(n), np.arange(n) % 2, order, order % 2, of_another_seed):
        assert abs(np.corrcoef(mirrored, other)[0, 1]) < 5 / n ** 0.5


def test_evaluation_uses_the_last_size():
    pixels = tf.constant(np.random.default_rng(0).integers(0, 256, [2, 32, 32, 3], dtype=np.uint8))
    grown, alone = [shift.Shift(sizes, 1000, 0)(pixels) for sizes in (
        parse_sizes('16:0.3,24:0.3,28'), [(0.0, 28)])]
    np.testing.assert_array_equal(*value_of([grown, alone]))


def test_each_size_begins_where_the_previous_one_ends():
    assert parse_sizes('32') == [(0.0, 32)]
    assert parse_sizes('16:0.25,24:.5,28') == [(0.0, 16), (0.25, 24), (0.75, 28)]


def test_nearly_flat_images_are_not_amplified():
    # Its standard deviation of 0.002 counts as 1/sqrt(1728), which is 0.024.
    images = 100 + 0.004 * np.random.default_rng(0).integers(0, 2, [2, 24, 24, 3])
    standardised = value_of(augment.standardise(tf.constant(images, tf.float32)))
    expected = (images - images.mean((1, 2, 3), keepdims=True)) * 1728 ** 0.5
    np.testing.assert_allclose(standardised, expected, atol=2e-3)
    assert 0.05 < np.abs(standardised).max() < 0.2
