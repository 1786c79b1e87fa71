"""Optimizations of speed do not change results: normalisation, pooling first, precisions, packing."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.base.graphs import LOSS_SCALE
from cifar10.base.registry import UPDATE_MODES
from cifar10.data import augment, datasets
from cifar10.data.images import ImageSource
from cifar10.data.pipeline import tower_batches
from cifar10.model import classic, precision
from cifar10.model.layers import local_response_normalisation
from cifar10.parallel import devices, gpus
from cifar10.parallel.session_config import session_config
from cifar10.training.start import claimed
from tests.helpers import (
    build_training,
    initialise,
    mostly_stress,
    stepping,
    train,
    update_mode,
    value_of,
    values_by_name,
)

pytestmark = pytest.mark.classic


@pytest.mark.parametrize('alpha, radius', [(0.001 / 9, 4), (0.5, 0), (0.5, 4), (0.5, 100)])  # the classic one first
def test_normalisation_has_the_exact_value_and_gradient(alpha, radius):
    random = np.random.default_rng(0)
    x = tf.constant(random.standard_normal([3, 5, 4, 64]) * 3, tf.float32)
    dy = tf.constant(random.standard_normal([3, 5, 4, 64]), tf.float32)
    ours = local_response_normalisation(x, radius, alpha, 'norm')
    stock = tf.nn.lrn(x, radius, bias=1.0, alpha=alpha, beta=0.75)
    actual, expected = value_of([[y, tf.gradients(y, x, dy)[0]] for y in (ours, stock)])
    for one, other in zip(actual, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('half, bits', [(tf.bfloat16, 8), (tf.float16, 11)])
def test_normalisation_in_half_precision_rounds_only_its_result(half, bits):
    x = tf.cast(tf.constant(np.random.default_rng(0).standard_normal([2, 3, 3, 64]) * 3, tf.float32), half)
    dy = tf.cast(tf.constant(np.random.default_rng(1).standard_normal([2, 3, 3, 64]), tf.float32), half)
    wide = tf.cast(x, tf.float32)
    ours = local_response_normalisation(x, 4, 0.01, 'norm')
    exact = local_response_normalisation(wide, 4, 0.01, 'norm')
    actual = [ours, tf.gradients(ours, x, dy)[0]]
    assert [tensor.dtype for tensor in actual] == [half, half]
    expected = [exact, tf.gradients(exact, wide, tf.cast(dy, tf.float32))[0]]
    for one, other in zip(*value_of([[tf.cast(tensor, tf.float32) for tensor in actual], expected])):
        np.testing.assert_allclose(one, other, rtol=2.0 ** -bits, atol=1e-6)


def test_the_network_matches_the_tutorials():
    # The tutorial's network from stock operations in their classic order: ReLU before pooling, and `tf.nn.lrn`.
    images = tf.constant(np.random.default_rng(0).standard_normal([4, 24, 24, 3]), tf.float32)
    logits = classic.inference(images)
    by_name = {variable.op.name: variable for variable in tf.trainable_variables()}

    def layer(name, y):
        return tf.nn.relu(tf.nn.bias_add(y, by_name[name + '/biases']))
    x = images
    for name in ('conv1', 'conv2'):
        x = layer(name, tf.nn.conv2d(x, by_name[name + '/weights'], 1, 'SAME'))
        steps = [lambda x: tf.nn.max_pool2d(x, 3, 2, 'SAME'), lambda x: tf.nn.lrn(x, 4, 1.0, 0.001 / 9, 0.75)]
        for step in steps if name == 'conv1' else steps[::-1]:
            x = step(x)
    x = tf.reshape(x, [4, -1])
    for name in ('local3', 'local4'):
        x = layer(name, x @ by_name[name + '/weights'])
    stock = x @ by_name['softmax_linear/weights'] + by_name['softmax_linear/biases']
    weights = tf.constant(np.random.default_rng(1).standard_normal([4, 10]), tf.float32)
    actual, expected = value_of([[y] + tf.gradients(tf.reduce_sum(y * weights), list(by_name.values()))
                                for y in (logits, stock)])
    for one, other in zip(actual, expected):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


def test_gradients_of_biases_in_bfloat16_are_the_sums_of_those_of_parts_of_the_batch():
    random = np.random.default_rng(0)
    images = tf.cast(random.standard_normal([32, 24, 24, 3]), tf.bfloat16)
    weights = tf.constant(random.standard_normal([32, 10]), tf.float32)

    def gradients(part):
        with tf.variable_scope('network', reuse=tf.AUTO_REUSE):
            loss = tf.reduce_sum(classic.inference(images[part]) * weights[part])
            return tf.gradients(loss, [tf.get_variable(f'{name}/biases') for name in ('conv1', 'conv2')])
    whole, *parts = value_of([gradients(slice(k, k + n)) for k, n in ((0, 32), (0, 8), (8, 8), (16, 8), (24, 8))])
    for expected, *of_parts in zip(whole, *parts, strict=True):
        assert np.linalg.norm(np.sum(of_parts, 0) - expected) < 0.01 * np.linalg.norm(expected)


def test_only_the_first_two_dense_layers_have_an_l2_loss():
    classic.inference(tf.zeros([2, 24, 24, 3]))
    names = ['local3/weights', 'local4/weights']
    losses, *weights = value_of([tf.get_collection(tf.GraphKeys.LOSSES), *[
        variable for name in names for variable in tf.trainable_variables() if variable.op.name == name]])
    np.testing.assert_allclose(losses, [0.004 * (each.astype(float) ** 2).sum() / 2 for each in weights], rtol=1e-5)


def test_activations_are_taken_before_pooling():
    classic.inference(tf.zeros([2, 24, 24, 3]))
    shapes = [tensor.shape.as_list() for tensor in tf.get_collection(tf.GraphKeys.ACTIVATIONS)]
    assert shapes == [[2, 24, 24, 64], [2, 12, 12, 64], [2, 384], [2, 192], [2, 10]]


@pytest.mark.parametrize('name, operation', mostly_stress(
    [('bf16', tf.bfloat16), ('fp16', tf.float16)], ('bf16', tf.bfloat16)))
def test_towers_compute_in_the_precision_but_variables_and_losses_stay_float32(name, operation, settings, data_dir):
    two_cpus = devices.choose(2, 'cpu')
    built = build_training(settings(num_gpus=2, precision=name), datasets.prepare('shapes', data_dir), two_cpus,
                           update_mode('parameter_server', two_cpus))
    graph = tf.get_default_graph()
    types = {op.name: op.outputs[0].dtype for op in graph.get_operations() if op.type in ('Conv2D', 'MatMul')}
    for k in range(2):
        assert types[f'tower_{k}/conv1/Conv2D'] == types[f'tower_{k}/local3/matmul'] == operation
        assert types[f'tower_{k}/softmax_linear/matmul'] == tf.float32
    assert built.fetches[0]['losses'].dtype == tf.float32
    assert {variable.dtype.base_dtype for variable in tf.trainable_variables()} == {tf.float32}
    assert all(labels.dtype == tf.int32 for (_, labels), _ in built.batches)


@pytest.mark.stress
@pytest.mark.parametrize('name', ['bf16', 'fp16'])
def test_half_precision_takes_nearly_the_same_steps(name, settings, tmp_path):
    exact, half = [train(settings(train_dir=str(tmp_path / each), precision=each, max_steps=5, summary_steps=1))
                   for each in ('fp32', name)]
    extras = set(LOSS_SCALE) if name == 'fp16' else set()
    assert half.keys() - exact.keys() == extras
    for key in ('conv1/weights', 'local3/weights', 'softmax_linear/weights'):
        assert half[key].dtype == np.float32
        np.testing.assert_allclose(half[key], exact[key], atol=3e-3)
        assert not np.array_equal(half[key], exact[key])


@pytest.mark.stress
def test_checkpoints_work_across_precisions(settings, capsys):
    counts = []
    for steps, (name, mode) in enumerate([('fp16', 'parameter_server'), ('fp32', 'replicated'), ('bf16', 'async'),
                                          ('fp16', 'replicated'), ('fp16', 'mirrored')], 1):
        last = train(settings(precision=name, variable_update=mode, num_gpus=2, max_steps=steps, summary_steps=0))
        counts.append((int(last['global_step']), int(last['examples_seen']), len(last)))
    assert counts == [(1, 16, 24), (2, 32, 22), (3, 40, 22), (4, 56, 24), (5, 72, 24)]
    changes = [line for line in capsys.readouterr().out.splitlines() if line.startswith('changed')]
    assert changes[1] == 'changed    variable_update=replicated (now async), precision=fp32 (now bf16)'


@pytest.mark.parametrize('mode', list(UPDATE_MODES))
def test_an_overflow_skips_the_update_halves_the_scale_and_counts_the_step(mode):
    factor = tf.placeholder_with_default(1.0, [])

    def tower_fn(k, scope):
        a = tf.get_variable('a', [], initializer=tf.constant_initializer(2.0))
        # With the initial scale of 32,768, the factor 1e4 overflows in float16, and 1 does not.
        return dict(total_loss=tf.cast(tf.cast(a, tf.float16) * tf.cast(factor, tf.float16), tf.float32))

    def state():
        return [session.run(values[name]) for name in ('a', 'current_loss_scale', 'global_step')]
    make = precision.FP16.optimizer(lambda: tf.train.GradientDescentOptimizer(0.5))
    with stepping(mode, ['/cpu:0', '/cpu:1'], tower_fn, make) as (session, step):
        values = values_by_name()
        for count in range(1, 4):
            session.run(step.train_ops[0], {factor: 10000.0})
            assert state() == [2.0, 2.0 ** (15 - count), count]
        session.run(step.train_ops[0], {factor: 1.0})
        assert state() == [1.5, 2.0 ** 12, 4]


def test_the_loss_scale_doubles_after_2000_good_steps():
    variable = tf.get_variable('w', initializer=tf.constant(3.0))
    optimizer = precision.FP16.optimizer(lambda: tf.train.GradientDescentOptimizer(0.5))()
    step = optimizer.apply_gradients(optimizer.compute_gradients(variable * 2.0), tf.train.create_global_step())
    named = {each.op.name: each for each in tf.global_variables()}
    with tf.Session() as session:
        initialise(session)
        named['good_steps'].load(1998, session)
        for scale, value in ((2.0 ** 15, 2.0), (2.0 ** 16, 1.0), (2.0 ** 16, 0.0)):
            session.run(step)
            assert session.run([named['current_loss_scale'], variable]) == [scale, value]


@pytest.mark.parametrize('kind, vendor, flags, is_slow', [
    (precision.BF16, 'AuthenticAMD', 'avx2 avx512f', True), (precision.BF16, 'AuthenticAMD', 'avx512_bf16', False),
    (precision.BF16, 'GenuineIntel', 'avx512_bf16', True), (precision.BF16, 'GenuineIntel', 'amx_bf16', False),
    (precision.FP16, 'AuthenticAMD', 'avx512_bf16', True), (precision.FP32, 'AuthenticAMD', '', False)])
def test_the_processor_decides_which_types_are_slow(kind, vendor, flags, is_slow):
    assert kind.is_slow(f'vendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n') == is_slow


def test_gpu_gradients_are_packed_and_batches_are_copied_ahead(settings, data_dir):
    gpus = devices.Devices((('/gpu:0',), ('/gpu:1',)), on_gpus=True)
    build_training(settings(num_gpus=2), datasets.prepare('shapes', data_dir), gpus,
                   update_mode('parameter_server', gpus))
    nodes = {node.name: node for node in tf.get_default_graph().as_graph_def().node}
    stacks = [node for node in nodes.values() if node.op == 'Pack' and node.name.startswith('update/stack')]
    sources = [nodes[name.split(':')[0]].device for node in stacks for name in node.input]
    assert sources == ['/device:GPU:0', '/device:GPU:1'] * 2  # local3's weights, and all other gradients packed
    ahead = [node.device for node in nodes.values() if node.op == 'IteratorV2']
    assert ahead == ['/device:GPU:0', '/device:GPU:1']


def test_batches_copied_ahead_are_unchanged(data_dir):
    data = datasets.prepare('shapes', data_dir)
    first, last = tf.constant(8, tf.int64), tf.constant(80, tf.int64)
    source = ImageSource(data, augment.Classic(None, None, 0), 8, 0)
    streams = [tower_batches(source, first, last, ['/cpu:0'], devices=ahead) for ahead in (None, ['/cpu:1'])]
    following = [next_batch(0) for next_batch, _ in streams]
    with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
        session.run([starts for _, starts in streams])
        for _ in range(9):
            plain, ahead = session.run(following)
            for one, other in zip(plain, ahead):
                np.testing.assert_array_equal(one, other)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(following[1])


@pytest.mark.parametrize('capabilities, is_refused', [
    ([(9, 0)], False), ([(9, 0), (10, 3)], False), ([(9, 0), (12, 0)], True), ([(12, 1)], True), ([(0, 0)], False)])
def test_xla_is_refused_on_gpus_where_tensorflow_would_abort(capabilities, is_refused, settings, monkeypatch):
    monkeypatch.setattr(gpus, 'capabilities', lambda: capabilities)
    given = settings(xla=True).towers, devices.Devices((('/gpu:0',),), on_gpus=True)
    if is_refused:
        with pytest.raises(UsageError, match='cannot compile for GPUs of compute capability 12 .Blackwell.'):
            claimed(*given)
    else:
        claimed(*given)


def test_xla_is_enabled_on_gpus_and_rejected_on_cpus(settings):
    gpus = devices.Devices((('/gpu:0',),), on_gpus=True)
    levels = [session_config(gpus, xla=on).graph_options.optimizer_options.global_jit_level for on in (0, 1)]
    assert levels == [tf.OptimizerOptions.DEFAULT, tf.OptimizerOptions.ON_1]
    with pytest.raises(UsageError, match='--xla'):
        train(settings(xla=True))
