"""Lesson 8, sharding: all stages train to NumPy's weights, and memory and messages match the formulas."""
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lessons import common, ring, sharding, tensor_parallel
from tests.helpers import mostly_stress
from tests.learn_pages import assert_on_page

ROUNDING = r'\de-\d\d'  # differences that depend on the processor


def in_numpy():
    """Returns the weights, [4 * 64], after each update on one device, in float64."""
    weights = [sharding.whole_numbers(layer, 64).reshape(8, 8).astype(float) for layer in range(4)]
    x, y = (sharding.whole_numbers(seed, 16, 8) for seed in (8, 9))
    first, second, found = np.zeros([4, 8, 8]), np.zeros([4, 8, 8]), []
    for _ in range(sharding.UPDATES):
        outputs = [x]
        for each in weights:
            outputs.append(np.maximum(outputs[-1] @ each, 0))
        back = (outputs[-1] - y) / 16
        gradients = [None] * 4
        for layer in (3, 2, 1, 0):
            back = back * (outputs[layer + 1] > 0)
            gradients[layer] = outputs[layer].T @ back
            back = back @ weights[layer].T
        first = 0.9 * first + 0.1 * np.array(gradients)
        second = 0.999 * second + 0.001 * np.square(gradients)
        weights = weights - 0.01 * first / (np.sqrt(second) + 1e-8)
        found.append(weights.ravel())
    return found


@pytest.mark.parametrize('stage, count', mostly_stress(
    [(stage, count) for stage in range(4) for count in (1, 2, 4)], (0, 4), (1, 2), (3, 4)))
def test_every_stage_takes_numpys_updates(stage, count, monkeypatch):
    # With integers, some sums before a ReLU are 0 up to rounding, so the order of addition would change the step.
    monkeypatch.setattr(sharding, 'whole_numbers', lambda seed, *shape: (
        np.random.default_rng(seed).normal(size=shape).astype(np.float32)))
    weights, held, sent, most = sharding.train(stage, [f'/cpu:{d}' for d in range(count)])
    np.testing.assert_allclose(weights, in_numpy(), atol=1e-4)
    assert np.abs(weights[2] - weights[0]).max() > 0.01, 'it is trained'
    n = 4 * 4 * 64
    assert sum(held.values()) == n * (4, 2 + 2 / count, 1 + 3 / count, 4 / count)[stage]
    assert sent == n * (3 if stage == 3 else 2) * (count - 1) / count
    assert most[1] == 1


@pytest.mark.parametrize('stage', [1, 2])
def test_all_copies_of_the_weights_are_updated(stage):
    devices = ['/cpu:0', '/cpu:1']
    with tf.Graph().as_default(), common.session(devices) as session:
        held = sharding.variables(stage, devices)
        update, *_ = sharding.build(stage, devices, held)
        session.run(tf.global_variables_initializer())
        before = session.run(held['weights', 0])
        session.run(update)
        for layer in range(4):
            one, other = session.run(held['weights', layer])
            np.testing.assert_array_equal(one, other)
        assert (session.run(held['weights', 0])[0] != before[0]).any()


def test_prefetching_holds_all_whole_weights_at_the_same_time():
    devices = ['/cpu:0', '/cpu:1']
    for prefetch, expected in ((False, 1), (True, 8)):
        with tf.Graph().as_default():
            _, gathered, _ = sharding.build(3, devices, sharding.variables(3, devices), prefetch)
            assert ring.most_at_once(gathered) == expected


@pytest.mark.parametrize('count', [1, 2, 3, 5])
def test_the_two_halves_of_the_ring_add_and_gather(count):
    devices = [f'/cpu:{d}' for d in range(count)]
    arrays = np.random.default_rng(count).integers(-9, 9, [count, 2 * count]).astype(np.float32)
    with tf.Graph().as_default(), common.session(devices) as session:
        given = ring.on_each(devices, tf.constant, arrays)
        sums = ring.reduce_scatter(given, devices)
        whole = ring.all_gather(sums, devices)
        matrices = ring.all_reduce(ring.on_each(devices, lambda each: tf.reshape(each, [2, count]), given), devices)
        assert [tensor.device for tensor in whole] == [f'/device:CPU:{d}' for d in range(count)]
        values = session.run([sums, whole, matrices])
        for operations, halves in ((sums, 1), (whole, 2)):
            sent = [ring.bytes_sent(tf.group(operations), d) for d in range(count)]
            assert sent == [halves * 8 * (count - 1)] * count
    np.testing.assert_array_equal(np.concatenate(values[0]), arrays.sum(0))
    np.testing.assert_array_equal(values[1], [arrays.sum(0)] * count)
    np.testing.assert_array_equal(values[2], [arrays.sum(0).reshape(2, count)] * count)


def test_sent_bytes_include_variables_that_another_device_reads():
    with tf.Graph().as_default():
        with tf.device('/cpu:0'):
            variable = tf.get_variable('v', initializer=np.zeros(6, np.float32))
        with tf.device('/cpu:1'):
            read, twice = variable.read_value(), variable * 2
            elsewhere = tf.negative(read)
        assert ring.bytes_sent(elsewhere.op) == ring.bytes_sent(twice.op) == 24
        assert ring.bytes_sent(twice.op, 1) == 0


@pytest.mark.stress
def test_the_pages_show_the_output(output_of):
    text = output_of('sharding.py', '--device=cpu')
    assert_on_page('python lessons/sharding.py', text, ROUNDING)
    differences = re.findall(r'^(?:replicated|ZeRO \d) +0 +0 +0 +0 +(\S+) +(\S+)$', text, re.M)
    assert len(differences) == 4, 'equal to the bit, and to one device after the first update'
    assert all(float(each) < 1e-5 for row in differences for each in row)
    text = output_of('tensor_parallel.py', '--device=cpu')
    assert_on_page('python lessons/tensor_parallel.py', text)


def test_split_layers_compute_the_result_of_one_device():
    arrays = [np.random.default_rng(seed).normal(size=shape).astype(np.float32) for seed, shape in enumerate(
        [(16, 8), (16, 8), (8, 16), (16, 8)])]
    for count in (1, 2, 4):
        devices = [f'/cpu:{d}' for d in range(count)]
        with tf.Graph().as_default(), common.session(devices) as session:
            built = tensor_parallel.build(devices, *arrays)
            outputs, back, of_columns, of_rows = session.run(built)
        right = tensor_parallel.in_numpy(*(array.astype(float) for array in arrays))
        for d in range(count):
            np.testing.assert_allclose(outputs[d], right[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(back[d], right[1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.concatenate(of_columns, 1), right[2], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(np.concatenate(of_rows, 0), right[3], rtol=1e-4, atol=1e-5)
