"""The all-reduce: the mean of the towers' tensors, with the same bits on any number of devices."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.parallel import devices
from cifar10.parallel.all_reduce import means_over_towers
from cifar10.parallel.session_config import session_config
from tests.helpers import mostly_stress

SHAPES = [(3, 5, 16), (600, 500), (), (7,)]  # the second is large enough to travel alone


def reduced(towers, num_devices, **options):
    """Returns what means_over_towers makes of NumPy arrays, for each device."""
    cpus = devices.choose(num_devices, 'cpu').with_towers(len(towers))
    with tf.Graph().as_default():
        # Fed, because graph optimisation would compute constants in an order of its own.
        fed, feed = [], {}
        for k, arrays in enumerate(towers):
            with tf.device(cpus.tower_devices[k]):
                fed.append([tf.placeholder(tf.float32, np.shape(array)) for array in arrays])
            feed.update(zip(fed[k], arrays))
        means = means_over_towers(fed, cpus, **options)
        with tf.Session(config=session_config(cpus)) as session:
            return session.run(means, feed)


def drawn(num_towers, scale=1.0):
    """Returns tensors of towers: of all sizes of numbers, as gradients are."""
    rng = np.random.default_rng(num_towers)
    return [[(scale * rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 0, shape)).astype(np.float32)
             for shape in SHAPES] for _ in range(num_towers)]


@pytest.mark.parametrize('num_towers', mostly_stress([1, 4, 5, 33], 1, 4, 5))
def test_the_means_are_numpys_and_have_the_same_bits_on_any_number_of_devices(num_towers):
    towers = drawn(num_towers)
    expected, = reduced(towers, 1)
    for mean, *arrays in zip(expected, *towers):
        unit = np.abs(arrays).max() * num_towers * 2.0 ** -29
        np.testing.assert_allclose(mean, np.mean(np.float64(arrays), 0), rtol=2e-7, atol=unit)
    for num_devices in (2, 3, 4):
        if num_devices <= num_towers:
            for means in reduced(towers, num_devices):
                for mean, right in zip(means, expected):
                    np.testing.assert_array_equal(np.asarray(mean).view(np.int32), np.asarray(right).view(np.int32))


@pytest.mark.parametrize('scale', mostly_stress([1e-30, 1e-20, 1e10, 1e30, 3e37], 1e-20, 3e37))
def test_the_unit_follows_the_size_of_the_numbers(scale):
    towers = drawn(4, scale)
    for means in reduced(towers, 2):
        for mean, *arrays in zip(means, *towers):
            atol = max(np.abs(arrays).max() * 2.0 ** -27, 2.0 ** -117)
            np.testing.assert_allclose(mean, np.mean(np.float64(arrays), 0), rtol=2e-7, atol=atol)


def test_what_is_equal_in_all_towers_stays_as_it_is():
    array = np.random.default_rng(0).uniform(-1, 1, 1000).astype(np.float32)
    array[np.abs(array) < 1 / 16] = 0  # a float32 has four bits fewer than the integers of four towers
    for means in reduced([[array]] * 4, 4):
        np.testing.assert_array_equal(means[0], array)


def test_sums_of_the_largest_numbers_do_not_overflow():
    below_two = np.nextafter(np.float32(2), np.float32(0))
    for num_towers, largest in ((2, 1.0), (3, below_two), (4, below_two), (4, 1e30), (33, below_two), (256, below_two)):
        towers = [[np.array([largest, -largest, 0], np.float32)]] * num_towers
        np.testing.assert_allclose(reduced(towers, 2)[0][0], towers[0][0], rtol=2e-7)


@pytest.mark.parametrize('wrong', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('tower', mostly_stress([0, 3], 3))
def test_a_value_that_is_not_finite_makes_the_mean_of_its_tensor_nan_and_leaves_the_others(wrong, tower):
    towers = drawn(4)
    towers[tower][1][77, 3] = wrong
    for means in reduced(towers, 2):
        assert np.isnan(means[1]).all()
        assert all(np.isfinite(mean).all() for mean in (means[0], *means[2:]))


@pytest.mark.parametrize('num_devices', [1, 2, 4])
def test_precise_means_keep_small_values_beside_large_ones(num_devices):
    towers = [[np.array([1, 1e-12 * (k + 1), -1e-12, 0], np.float32)] for k in range(4)]
    mean = np.mean(np.float64(towers), 0)[0]
    for means in reduced(towers, num_devices, precise=[0]):
        np.testing.assert_allclose(means[0], mean, rtol=1e-3)
    assert not reduced(towers, num_devices)[0][0][1:].any()
    for means in reduced(drawn(4), num_devices, precise=range(4)):
        for mean, *arrays in zip(means, *drawn(4)):
            np.testing.assert_allclose(mean, np.mean(np.float64(arrays), 0), rtol=1e-5, atol=1e-12)


def test_zeros_stay_zeros():
    assert not np.any(reduced([[np.zeros(9, np.float32)]] * 4, 2)[0][0])
