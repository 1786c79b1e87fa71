"""The all-reduce: the mean of the towers' tensors, with the same bits on any number of devices."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.parallel import devices
from cifar10.parallel.all_reduce import means_over_towers
from cifar10.parallel.session_config import session_config
from tests.helpers import mostly_stress

SHAPES = [(3, 5, 16), (600, 500), (), (7,)]  # the second is large enough to travel alone


def reduced(towers, num_devices):
    """Returns the results of means_over_towers for NumPy arrays, for each device."""
    cpus = devices.choose(num_devices, 'cpu').with_towers(len(towers))
    with tf.Graph().as_default():
        # Fed, because graph optimisation would compute constants in a different order.
        fed, feed = [], {}
        for k, arrays in enumerate(towers):
            with tf.device(cpus.tower_devices[k]):
                fed.append([tf.placeholder(tf.float32, np.shape(array)) for array in arrays])
            feed.update(zip(fed[k], arrays))
        means = means_over_towers(fed, cpus)
        with tf.Session(config=session_config(cpus)) as session:
            return session.run(means, feed)


def drawn(num_towers, spread=3):
    """Returns tensors of towers. Each element has its own magnitude, equal in all towers up to `spread` powers of 2."""
    rng = np.random.default_rng(num_towers)
    shapes = SHAPES if num_towers < 100 else SHAPES[:1]  # many towers would fill the memory
    exponents = [rng.integers(-100, 127 - spread, shape) for shape in shapes]

    def values(exponent):
        sizes = 2.0 ** (exponent + rng.integers(0, spread, exponent.shape, endpoint=True))
        return np.float32(rng.choice([-1, 1], exponent.shape) * rng.uniform(1, 2, exponent.shape) * sizes)
    return [[values(exponent) for exponent in exponents] for _ in range(num_towers)]


def assert_means(means, towers):
    """Asserts that each element of the means is exact up to 2^-20 of its largest value in any tower."""
    for mean, *arrays in zip(means, *towers):
        exact = np.mean(np.array(arrays, np.longdouble), 0)
        assert np.all(np.abs(mean - exact) <= 2.0 ** -20 * np.abs(arrays).max(0))


@pytest.mark.parametrize('num_towers', mostly_stress([1, 2, 5, 500], 2, 5))
@pytest.mark.parametrize('spread', [3, 200])
def test_means_are_accurate_per_element_and_bit_identical_on_any_number_of_devices(num_towers, spread):
    towers = drawn(num_towers, spread)
    expected, = reduced(towers, 1)
    assert_means(expected, towers)
    for num_devices in (2, 3, 4):
        if num_devices <= num_towers:
            for means in reduced(towers, num_devices):
                for mean, right in zip(means, expected):
                    np.testing.assert_array_equal(np.asarray(mean).view(np.int32), np.asarray(right).view(np.int32))


def test_mean_of_equal_values_is_exact():
    tower = drawn(1)[0]
    for means in reduced([tower] * 4, 2):
        for mean, array in zip(means, tower):
            np.testing.assert_array_equal(mean, array)


@pytest.mark.parametrize('num_towers', mostly_stress([2, 33, 512], 2, 33))
def test_sums_of_the_largest_numbers_do_not_overflow(num_towers):
    largest = np.finfo(np.float32).max
    towers = [[np.array([largest, -largest, np.nextafter(np.float32(2), np.float32(0)), 2, 1e30, 0], np.float32)]]
    for means in reduced(towers * num_towers, 2):
        assert_means(means, towers)


@pytest.mark.parametrize('wrong', [np.nan, -np.inf])
def test_a_nonfinite_value_affects_only_its_own_mean(wrong):
    towers = drawn(4)
    expected = reduced(towers, 2)
    towers[-1][1][77, 3] = wrong
    for means, right in zip(reduced(towers, 2), expected):
        assert not np.isfinite(means[1][77, 3])
        right[1][77, 3] = means[1][77, 3]
        for mean, array in zip(means, right):
            np.testing.assert_array_equal(mean, array)
