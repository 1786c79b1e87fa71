"""Each tower's seconds: a slow tower shows in them and is named, slow input does not, and the towers do not change."""
import os
import random
import re
import statistics
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.data import records
from cifar10.parallel import devices, turns
from cifar10.parallel.session_config import session_config
from cifar10.run import stragglers
from cifar10.run.metrics import TOWERS, read
from cifar10.run.stragglers import Stragglers, medians_of_others
from cifar10.training import graph, run, trainer
from cifar10.training.reports import tower_seconds
from tests.helpers import ROOT, initialise, mostly_stress, plan_of, slow_input, slow_towers, update_mode

RECORDED = np.load(ROOT / 'tests' / 'tower_seconds.npz')  # {a run: float16 [steps, towers]}


def planned(settings, data_dir, mode):
    """Returns (the Plan of a run in an update mode, its graph, built in the default graph)."""
    plan = plan_of(settings(), records.prepare('shapes', data_dir), mode.devices, mode)
    return plan, graph.build(plan, graph.learnt(plan))


def with_threads(*arguments, **options):
    """Returns the configuration of a session with a thread for each tower that sleeps, and one for the timestamps."""
    config = session_config(*arguments, **options)
    config.inter_op_parallelism_threads = 8
    config.use_per_session_threads = True
    return config


@pytest.mark.stress
def test_a_slow_tower_is_in_the_records_and_named(settings, capsys, monkeypatch):
    slow_towers(monkeypatch, lambda k: 0.02 if k else 0.004)
    monkeypatch.setattr(run, 'session_config', with_threads)
    monkeypatch.setattr(stragglers, '_STEPS', 5)
    config = settings(network='linear', num_gpus=2, batch_size=1, max_steps=100, log_frequency=10, summary_steps=0,
                      save_steps=1000)
    trainer.train(config)
    kept = np.array([record['tower_seconds'] for record in read(config.run.train_dir, TOWERS)])
    assert kept.shape == (10, 2) and (kept > 0.003).all() and (kept == kept.round(6)).all()
    usual = np.median(kept, 0)
    assert usual[1] > 0.015 and usual[1] > 1.5 * usual[0]
    told, = [line for line in capsys.readouterr().out.splitlines() if line.startswith(('slow ', 'recovered '))]
    assert re.match(r'slow       tower 1 on /cpu:1 takes 0\.\d+ s', told)
    assert told.endswith('--explain looks closer, other devices, or --variable_update=async, may help')


@pytest.mark.timing
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'async', 'local'])
def test_in_every_mode_a_tower_that_sleeps_30_percent_of_its_time_is_named_within_20_windows(
        mode, settings, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, 'session_config', with_threads)
    slow_towers(monkeypatch, lambda k: (0.02 if k else 0.014) * random.lognormvariate(0, 0.05))
    for seed in range(10):
        trainer.train(settings(network='linear', num_gpus=2, batch_size=1, summary_steps=0, seed=seed, save_steps=10000,
                                max_steps=1500 if mode == 'async' else 510,  # those of all towers, and of each
                                variable_update=mode, train_dir=str(tmp_path / f'{mode}-{seed}')))
        told = re.findall(r'^slow       tower (\d)', capsys.readouterr().out, re.M)
        assert told == ['1'], seed


@pytest.mark.timing
def test_slow_input_is_not_a_slow_tower(settings, monkeypatch):
    slow_input(monkeypatch, lambda first: 0.05 * (first % 2))  # with a batch of one example, of tower 1
    begin = time.perf_counter()
    config = settings(num_gpus=2, batch_size=1, max_steps=10, log_frequency=10, summary_steps=0)
    trainer.train(config)
    assert time.perf_counter() - begin > 10 * 0.05
    record, = read(config.run.train_dir, TOWERS)
    assert max(record['tower_seconds']) < 0.04


@pytest.mark.parametrize('mode, cpus', mostly_stress(
    [('parameter_server', 3), ('parameter_server', 1), ('replicated', 2), ('async', 3)], ('replicated', 2),
    ('async', 3)))
def test_a_towers_time_begins_with_its_turn_and_input_and_ends_before_the_reduction(mode, cpus):
    inputs, slept = {}, {}

    def asleep(k, seconds, value):
        def sleep(x):
            begin = time.perf_counter()
            time.sleep(seconds)
            slept[k] = time.perf_counter() - begin
            return x
        return tf.reshape(tf.numpy_function(sleep, [value], tf.float32), [])

    def tower(k, scope):
        weight = tf.get_variable('weight', [], initializer=tf.ones_initializer())
        inputs[k] = asleep('input', 0.2 * (k == 0), tf.placeholder_with_default(1.0, []))
        return dict(total_loss=weight * asleep(k, 0.1 * k, inputs[k]))
    places = devices.choose(cpus, 'cpu').with_towers(3)
    updating = update_mode(mode, places)
    step = updating.build(
        tower, lambda: tf.train.GradientDescentOptimizer(0.1), tf.train.get_or_create_global_step())
    seconds = turns.tower_seconds(step.turns, places, [[inputs[k]] for k in range(3)])
    with tf.Session(config=with_threads(places)) as session:
        initialise(session)
        for _ in range(5):  # a busy machine may hold up one step, but not each
            found, _ = session.run([seconds, step.train_ops])
            assert all(each.dtype == np.float32 for each in found)
            # A thread may begin to sleep a little before another takes the time.
            expected = [(0.2 * (k == 0), slept[k]) for k in range(3)]
            if (np.abs(np.subtract(found, expected) - 0.025) < 0.075).all():
                return
    raise AssertionError((found, slept))


@pytest.mark.parametrize('mode', ['parameter_server', 'async'])
def test_nothing_waits_for_a_timestamp_and_none_for_a_computation(mode, settings, data_dir):
    cpus = devices.choose(2, 'cpu')
    plan, built = planned(settings, data_dir, update_mode(mode, cpus))
    shapes = [each.shape for each in tower_seconds(plan, built)]
    assert shapes == ([[1, 2]] * 2 if mode == 'async' else [[2, 2]])
    operations = tf.get_default_graph().get_operations()
    timestamps = [op for op in operations if op.type == 'Timestamp']
    assert len(timestamps) == 8
    before = {op.type for timestamp in timestamps for op in timestamp.control_inputs}
    assert before == {'AssignAddVariableOp', 'IteratorGetNext'}
    made = set(timestamps)
    for op in operations:  # in the order in which they were made
        if made & ({tensor.op for tensor in op.inputs} | set(op.control_inputs)):
            assert not op.name.startswith(('tower_0', 'tower_1')), op.name
            made.add(op)
    assert not made & {each['update'] for each in built.fetches}


def test_where_operations_must_be_deterministic_nothing_is_measured(settings, data_dir, monkeypatch):
    # TensorFlow reads the variable too, but not from here: it would apply to the whole process.
    monkeypatch.setattr(os, 'environ', dict(os.environ, TF_DETERMINISTIC_OPS='1'))
    cpus = devices.choose(2, 'cpu')
    assert tower_seconds(*planned(settings, data_dir, update_mode('parameter_server', cpus))) == []
    assert not any(op.type == 'Timestamp' for op in tf.get_default_graph().get_operations())


def test_a_place_names_the_devices_and_in_a_cluster_the_worker():
    local = devices.Devices((('/gpu:0', '/gpu:1'), ('/gpu:2', '/gpu:3')), on_gpus=True)
    assert local.place(1) == local.with_towers(4).place(3) == '/gpu:2+/gpu:3'
    spread = devices.Devices((('/gpu:0',), ('/gpu:1',)), on_gpus=True).spread(2, 1, 'grpc://here:1')
    assert spread.place(2) == '/job:worker/task:1/gpu:0 (worker 1)'


# ---------------------------------------------------------------------------------------------------------- the watch

def lines(series, places='abcdefgh', towers=()):
    """Returns what is said about a series of towers' seconds, and in which steps."""
    said = []
    watch = Stragglers(places[:len(series[0])], towers, 0, None, lambda *line: said.append((step, Line(*line))))
    for step, seconds in enumerate(series, 1):  # noqa: B007 (the lambda reads it)
        watch.after_step(step, dict(
            thread=0, seconds=np.array([[0, each] for each in seconds], np.float32).reshape(-1, 2)))
    return said


def test_a_tower_is_named_after_15_windows_once_and_again_when_it_recovered():
    alike, slow = [0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.124, 0.09]
    assert lines([slow] * 14 * 25 + [alike] * 600) == []
    line = ('slow       tower 2 on c takes 0.124 s, 1.2 times as long as the others, in {} of the last {} windows of '
            '25 steps; each step waits 0.024 s for it; the device is slower, or other programs use it: --explain looks '
            'closer, other devices, or --variable_update=async, may help')
    recovered = 'recovered  tower 2 on c is no longer slower than the others'
    better = [0.1, 0.1, 0.11, 0.1]
    assert lines([slow] * 600 + [better] * 600 + [slow] * 600) == [
        (375, line.format(15, 15)), (600 + 375, recovered), (1200 + 375, line.format(15, 20))]
    assert lines([[0.1, 0.1, 0.119, 0.1]] * 600) == []
    assert lines([[0.1, 0.2]] * 400)[0][1].startswith('slow       tower 1 on b takes 0.200 s, 2.0 times as long')
    assert ' takes 2.100 s, 21 times as long as the others,' in lines([[0.1, 2.1]] * 400)[0][1]
    alone = [None, None]  # in `async`, each tower takes steps of its own, and none waits
    assert lines([[0.1, 0.2]] * 400, towers=alone)[0][1].endswith('--explain looks closer, other devices may help')


def test_odd_steps_and_odd_windows_do_not_hide_a_slow_tower():
    slow, odd = [0.1, 0.13, 0.1], [0.3, 0.13, 0.3]
    assert [step for step, _ in lines(([odd] * 12 + [slow] * 13) * 20)] == [375]
    assert [step for step, _ in lines([[0.1, 0.1, 0.1]] * 25 + [slow] * 25 * 19)] == [400]


def test_without_others_or_their_times_nothing_is_said():
    assert lines([[0.1]] * 800) == [] == lines([[]] * 800)
    assert lines([[0.1, 0.0, 0.0]] * 800) == []


def test_a_time_of_0_is_no_measurement():
    rng = np.random.default_rng(0)
    for series in (np.full((800, 4), 0.1), np.full((800, 4), 0.1) * [1, 1.3, 1, 1]):
        measured = lines(series)
        some = np.where(rng.random(series.shape) < 0.7, 0, series)
        some[100:125] = 0  # a whole window
        assert [line[:25] for _, line in lines(some)] == [line[:25] for _, line in measured]


def noisy(rng, steps, towers, deviation, window=25):
    """Returns seconds of equal towers, with noise that stays about as long as a window: [steps, towers]."""
    noise, kept = rng.normal(size=(steps, towers)), np.exp(-1 / window)
    for last, each in zip(noise, noise[1:]):
        each *= np.sqrt(1 - kept ** 2)
        each += kept * last
    return 0.1 * np.exp(deviation * noise)


@pytest.mark.parametrize('runs', mostly_stress([2, 100], 2))
@pytest.mark.parametrize('towers', [2, 8])
def test_noise_is_not_slow(towers, runs):
    rng = np.random.default_rng(towers)
    series = [noisy(rng, 10000, towers, 0.2) for _ in range(runs)]
    assert np.mean([each.max(1) / np.median(each, 1) > 1.1 for each in series]) > 0.4
    assert sum(bool(lines(each)) for each in series) <= 0.05 * runs


@pytest.mark.parametrize('towers', [2, 8])
def test_a_tower_that_sleeps_30_percent_of_its_time_is_named_within_20_windows(towers):
    rng = np.random.default_rng(towers)
    sleeps = np.where(np.arange(towers) == 1, 1 / 0.7, 1)
    for _ in range(4):
        (step, line), = lines(noisy(rng, 500, towers, 0.05) * sleeps)
        assert step <= 500 and line.startswith('slow       tower 1 ')


@pytest.mark.parametrize('name', RECORDED)
def test_recorded_towers_of_a_busy_machine(name):
    # Equal towers on CPU devices that shared two cores with other programs; some times are 0.
    seconds = RECORDED[name]
    assert lines(seconds) == []
    medians = np.median(seconds, 0)
    for k in range(seconds.shape[1]):
        slower = seconds.astype(np.float32)
        slower[:, k] *= 2 * medians_of_others(medians)[k] / medians[k]
        assert {line[:19] for _, line in lines(slower)} == {f'slow       tower {k} '}


def test_medians_of_others_equal_those_of_the_standard_library():
    rng = np.random.default_rng(0)
    for count in [2, 3, 4, 5, 8] * 50:
        values = rng.integers(1, 6, count).astype(float)
        expected = [statistics.median(np.delete(values, k)) for k in range(count)]
        assert medians_of_others(values).tolist() == expected
