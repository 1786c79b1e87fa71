"""Training runs in this process: equivalence of tower counts, resuming, results and output."""
import itertools
import os
import pathlib
import re
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError
from cifar10.data import datasets
from cifar10.model import Network, schedule
from cifar10.parallel import devices
from cifar10.parallel.towers import collected_losses
from cifar10.run import metrics
from cifar10.training import summaries, trainer
from tests import linear
from tests.helpers import build_training, checkpoints, last_variables, rewrite, scalars, train, update_mode, variables


def test_variables_have_the_classic_names_and_shapes(first_step):
    found = last_variables(first_step('classic'))
    shapes = {'conv1/weights': (5, 5, 3, 64), 'conv1/biases': (64,), 'conv2/weights': (5, 5, 64, 64),
              'conv2/biases': (64,), 'local3/weights': (2304, 384), 'local3/biases': (384,),
              'local4/weights': (384, 192), 'local4/biases': (192,), 'softmax_linear/weights': (192, 10),
              'softmax_linear/biases': (10,)}
    shapes.update({name + '/ExponentialMovingAverage': shape for name, shape in shapes.items()})
    assert {name: array.shape for name, array in found.items()} == dict(shapes, global_step=(), examples_seen=())
    assert found['global_step'].dtype == found['examples_seen'].dtype == np.int64
    assert found['global_step'] == 1 and found['examples_seen'] == 8


@pytest.mark.classic
def test_initial_values_are_truncated_normal_and_independent_of_the_graph(settings, data_dir):
    drawn = []
    for seed, extra in ((0, False), (0, True), (1, False)):
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            if extra:
                tf.random_normal([3])
            cpus = devices.choose(1, 'cpu')
            build_training(settings(), datasets.prepare('shapes', data_dir), cpus,
                              update_mode('parameter_server', cpus))
            with tf.Session() as session:
                names = {v.op.name: v for v in tf.trainable_variables()}
                session.run([v.initializer for v in names.values()])
                drawn.append(session.run(names))
    for name, stddev in (('conv1/weights', 0.05), ('conv2/weights', 0.05), ('local3/weights', 0.04),
                         ('local4/weights', 0.04), ('softmax_linear/weights', 1 / 192)):
        values = drawn[0][name]
        np.testing.assert_array_equal(values, drawn[1][name])
        assert not np.allclose(values, drawn[2][name], atol=stddev / 5)
        assert np.abs(values).max() <= 2 * stddev * (1 + 1e-6)
        # A normal distribution cut at two standard deviations has 0.8796 of its standard deviation.
        np.testing.assert_allclose(values.std(), 0.8796 * stddev, rtol=0.05)
    for name, value in (('conv1', 0), ('conv2', 0.1), ('local3', 0.1), ('local4', 0.1), ('softmax_linear', 0)):
        np.testing.assert_array_equal(drawn[0][name + '/biases'], np.float32(value))
    assert not np.array_equal(drawn[0]['conv1/weights'].ravel()[:10], drawn[0]['conv2/weights'].ravel()[:10])


def test_moving_averages_follow_each_update(settings):
    config = settings(max_steps=6, save_steps=1, max_to_keep=0)
    trainer.train(config)
    steps = [variables(prefix) for prefix in checkpoints(config.run.train_dir)]
    assert [int(each['global_step']) for each in steps] == [1, 2, 3, 4, 5, 6]
    name = 'linear/weights'
    for before, after in zip(steps, steps[1:]):
        k = float(after['global_step'])
        decay = min(0.9999, (1 + k) / (10 + k))
        expected = decay * before[name + '/ExponentialMovingAverage'] + (1 - decay) * after[name]
        np.testing.assert_allclose(after[name + '/ExponentialMovingAverage'], expected, atol=1e-6)


def test_the_rate_decays_by_examples_for_any_batch_size():
    seen = tf.placeholder(tf.int64, [])
    staircase, period = schedule.Staircase(50000), 350 * 50000
    rate = 0.1 * staircase.factor(seen)
    with tf.Session() as session:
        for examples, expected in ((0, 0.1), (period - 1, 0.1), (period, 0.01), (2 * period - 1, 0.01),
                                   (2 * period, 0.001)):
            np.testing.assert_allclose(session.run(rate, {seen: examples}), expected, rtol=1e-6)
    assert rate.dtype == tf.float32
    assert staircase.describe(128, period + 1) == 'x0.1 every 350 epochs (136,719 steps)'
    assert staircase.describe(512, period) == 'constant; in a longer run x0.1 every 350 epochs (34,180 steps)'


def test_a_finished_run_says_so(one_step, settings, capsys):
    before = sorted(os.listdir(settings().run.train_dir))
    trainer.train(settings(max_steps=1))
    done = capsys.readouterr().out.splitlines()[-1]
    assert 'nothing to train: the run ended at step 1 by --max_steps=1; a larger' in done and '--restart' in done
    assert sorted(os.listdir(settings().run.train_dir)) == before
    trainer.train(settings(max_steps=3))
    trainer.train(settings(max_steps=2))
    assert 'the run is at step 3 already, past --max_steps=2; a larger' in capsys.readouterr().out


def test_a_diverged_run_ends_before_it_writes(one_step, settings):
    config = settings()
    good = checkpoints(config.run.train_dir)[-1]
    weights = variables(good)['linear/weights']
    rewrite(good, **{'linear/weights': np.full_like(weights, np.nan)})
    with pytest.raises(RunError, match=r'step 2: the loss of tower 0 is nan; the newest checkpoint is .*model.ckpt-1'):
        trainer.train(settings(max_steps=9, save_steps=1, summary_steps=1))
    assert checkpoints(config.run.train_dir) == [good]
    assert scalars(config.run.train_dir, 'loss') == []


def test_a_tower_that_diverges_alone_is_named(settings, monkeypatch):
    def broken(images, training, num_classes):
        in_first = tf.get_default_graph().get_name_scope().startswith('tower_0')
        return linear.inference(images) * (np.nan if in_first else 1.0)
    monkeypatch.setattr(linear, 'NETWORK', Network(broken))
    with pytest.raises(RunError, match='step 1: the loss of tower 0 is nan; there is no checkpoint yet; '
                       'try a lower learning rate'):
        trainer.train(settings(num_gpus=2, max_steps=3, save_steps=1))


@pytest.mark.stress
@pytest.mark.classic
@pytest.mark.parametrize('mode', ['parameter_server', 'async'])
def test_each_loss_has_a_curve_and_a_moving_average_that_restarts(settings, mode):
    for max_steps in (2, 8):
        config = settings(num_gpus=2, variable_update=mode, max_steps=max_steps, log_frequency=1)
        train(config)

    def curve(name):
        return np.array([value for _, value in scalars(config.run.train_dir, name)])
    names = ['losses/cross_entropy', 'losses/local3/weight_loss', 'losses/local4/weight_loss']
    curves = {name: curve('details/' + name) for name in names}
    np.testing.assert_allclose(sum(curves.values()), curve('loss'), rtol=1e-5)
    np.testing.assert_allclose(curve('details/weight_loss'), curves[names[1]] + curves[names[2]], rtol=1e-5)
    np.testing.assert_array_equal(curve('cross_entropy'), curves[names[0]])
    for name, values in dict(curves, loss=curve('loss')).items():
        weights = [0.9 ** np.arange(k, -1, -1) for k in range(len(values))]
        expected = [np.average(values[:k + 1], weights=weights[k]) for k in range(len(values))]
        np.testing.assert_allclose(curve('details/averaged/' + name), expected, rtol=1e-5)


def test_losses_with_the_same_name_are_all_kept():
    with tf.name_scope('tower_0') as scope:
        halves = tf.split(tf.placeholder_with_default([1.0, 2.0], [2]), 2, name='halves')
        for loss in [tf.reshape(half, []) for half in halves] + [halves[0][0]] * 2:
            tf.add_to_collection(tf.GraphKeys.LOSSES, loss)
        tf.add_to_collection(tf.GraphKeys.LOSSES, tf.constant(3.0, name='local3/weight_loss'))
        found = summaries.losses(collected_losses(scope))
    with tf.Session() as session:
        assert session.run(found) == {'losses/Reshape': 1, 'losses/Reshape_1': 2, 'losses/strided_slice': 1,
                                      'losses/strided_slice_': 1, 'losses/local3/weight_loss': 3, 'weight_loss': 3}
    with tf.name_scope('tower_1') as scope:
        tf.add_to_collection(tf.GraphKeys.LOSSES, tf.constant(1.0))
        assert summaries.losses(collected_losses(scope))['weight_loss'].shape == []


def test_an_update_that_overflows_is_not_saved(one_step, settings):
    # The loss of the step is still finite, but its update is not.
    config = settings()
    good = checkpoints(config.run.train_dir)[-1]
    average = variables(good)['linear/biases/ExponentialMovingAverage']
    rewrite(good, **{'linear/biases/ExponentialMovingAverage': np.full_like(average, np.inf)})
    with pytest.raises(RunError, match=r'not finite, so no checkpoint is written \(linear/biases/Exponential'
                       'MovingAverage, although the averaged variables are finite: a device computed wrongly'):
        trainer.train(settings(max_steps=2))
    assert checkpoints(config.run.train_dir) == [good]


def test_lines_parse_like_the_classic_scripts_and_count_all_towers(settings, capsys, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(time, 'perf_counter', lambda: 0.01 * next(ticks))
    config = settings(num_gpus=2, max_steps=6, log_frequency=2, summary_steps=2)
    train(config)
    pattern = re.compile(r'^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: step (\d+), loss = (\d+\.\d\d) '
                         r'\((\d+\.\d) examples/sec; (\d+\.\d{3}) sec/batch\)$', re.M)
    lines = pattern.findall(capsys.readouterr().out)
    assert [int(step) for step, *_ in lines] == [2, 4, 6]
    towers = [[value for _, value in scalars(config.run.train_dir, f'details/towers/tower_{k}')] for k in (0, 1)]
    np.testing.assert_allclose([float(loss) for _, loss, _, _ in lines], np.mean(towers, 0), atol=0.0051)
    for _, _, rate, seconds in lines:
        assert abs(float(rate) * float(seconds) - 16) < 0.0006 * float(rate) + 0.06 * float(seconds)  # both are rounded
    recorded = [record['images_per_sec'] for record in metrics.read(config.run.train_dir, metrics.TRAIN)]
    np.testing.assert_allclose(recorded, [float(rate) for _, _, rate, _ in lines], atol=0.051)
    shown = [rate for _, rate in scalars(config.run.train_dir, 'details/images_per_sec')]
    assert [step for step, _ in scalars(config.run.train_dir, 'loss')] == [2, 4, 6]
    assert len(shown) == 3 and 0.6 < np.sum(np.reciprocal(shown)) / np.sum(np.reciprocal(recorded)) < 1.7
    assert all('staleness' not in record for record in metrics.read(config.run.train_dir, metrics.TRAIN))


@pytest.mark.parametrize('mode', ['parameter_server', 'async'])
def test_each_line_of_the_log_is_a_point_of_each_curve(settings, mode):
    config = settings(num_gpus=2, variable_update=mode, max_steps=7, log_frequency=2, summary_steps=3)
    train(config)
    recorded = {record['step']: record for record in metrics.read(config.run.train_dir, metrics.TRAIN)}
    assert list(recorded) == [2, 4, 6, 7]
    for tag in ('loss', 'accuracy', 'cross_entropy', 'details/learning_rate'):
        shown = dict(scalars(config.run.train_dir, tag))
        assert list(shown) == list(recorded)
        np.testing.assert_allclose([shown[step] for step in recorded], [
            record[tag.removeprefix('details/')] for record in recorded.values()], rtol=1e-4)
    assert [step for step, _ in scalars(config.run.train_dir, 'details/images_per_sec')] == [2, 4, 6, 7]
    if mode != 'async':  # async summarises the first tower's next step
        events, = [str(path) for path in pathlib.Path(config.run.train_dir, 'train').iterdir()]
        assert [event.step for event in tf.train.summary_iterator(events) for value in event.summary.value
                if value.tag == 'variables/linear/biases'] == [3, 6]
