"""Each tower's seconds: a slow tower shows in them and is named, slow input does not, and the towers do not change."""
import os
import re
import statistics
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10 import training
from cifar10.data import pipeline, records
from cifar10.parallel import devices
from cifar10.parallel.session_config import session_config
from cifar10.run.metrics import TRAIN, read
from cifar10.run.stragglers import Stragglers, medians_of_others
from tests.helpers import build_training, initialise, update_mode

SLEEPY = '''
import time
import tensorflow.compat.v1 as tf
calls = []
def network(images, num_classes, training):
    sleep = slowly if tf.get_default_graph().get_name_scope().startswith('tower_1') else quickly
    images = tf.reshape(tf.numpy_function(sleep, [images], tf.float32), [-1, 24, 24, 3])
    weights = tf.get_variable('weights', [24 * 24 * 3, num_classes], initializer=tf.zeros_initializer())
    return tf.reshape(images, [-1, 24 * 24 * 3]) @ weights
def quickly(images):
    time.sleep(0.004)
    return images
def slowly(images):
    calls.append(None)
    time.sleep(0.02 if len(calls) <= 101 else 0.004)
    return images
'''


@pytest.fixture
def network(tmp_path):
    """The name of a network whose towers sleep for 4 ms, and tower 1 for 20 ms in each of the first 101 steps."""
    (tmp_path / 'mine.py').write_text(SLEEPY)
    return f"{tmp_path / 'mine.py'}:network"


def with_threads(*arguments, **options):
    """Returns the configuration of a session with a thread for each tower that sleeps, and one for the timestamps."""
    config = session_config(*arguments, **options)
    config.inter_op_parallelism_threads = 8
    config.use_per_session_threads = True
    return config


def test_a_slow_tower_is_in_the_records_and_named_until_it_recovers(settings, network, capsys, monkeypatch):
    monkeypatch.setattr(training, 'session_config', with_threads)
    config = settings(network=network, num_gpus=2, batch_size=1, max_steps=260, log_frequency=10, summary_steps=0,
                      save_steps=1000)
    training.train(config)
    kept = np.array([record['tower_seconds'] for record in read(config.run.train_dir, TRAIN)])
    assert kept.shape == (26, 2) and (kept > 0.003).all() and (kept == kept.round(6)).all()
    assert (kept[:10, 1] > 0.019).all() and np.median(kept[:10, 0]) < 0.015 and np.median(kept[11:]) < 0.015
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(('slow ', 'recovered '))]
    assert len(told) == 2, told
    assert re.match(r'slow       tower 1 on /cpu:1 takes 0\.0(2|19)', told[0])
    assert told[1] == 'recovered  tower 1 on /cpu:1 is no longer slower than the others'


@pytest.mark.stress
def test_slow_input_is_not_a_slow_tower(settings, monkeypatch):
    make = pipeline.train_batch

    def slowly(memory, augmentation, first, step, *rest):
        def wait(position):
            time.sleep(0.05 * (position % 2))  # with a batch of one example, of tower 1
            return position
        return make(memory, augmentation, tf.reshape(tf.numpy_function(wait, [first], tf.int64), []), step, *rest)
    monkeypatch.setattr(pipeline, 'train_batch', slowly)
    begin = time.perf_counter()
    config = settings(num_gpus=2, batch_size=1, max_steps=10, log_frequency=10, summary_steps=0)
    training.train(config)
    assert time.perf_counter() - begin > 10 * 0.05
    record, = read(config.run.train_dir, TRAIN)
    assert max(record['tower_seconds']) < 0.04


@pytest.mark.parametrize('mode, cpus', [('parameter_server', 3), ('parameter_server', 1), ('replicated', 2),
                                        ('async', 3)])
def test_a_towers_time_begins_with_its_turn_and_input_and_ends_before_the_reduction(mode, cpus):
    inputs = {}

    def asleep(seconds, value):
        def sleep(x):
            time.sleep(seconds)
            return x
        return tf.reshape(tf.numpy_function(sleep, [value], tf.float32), [])

    def tower(k, scope):
        weight = tf.get_variable('weight', [], initializer=tf.ones_initializer())
        inputs[k] = asleep(0.2 * (k == 0), tf.placeholder_with_default(1.0, []))
        return dict(total_loss=weight * asleep(0.1 * k, inputs[k]))
    places = devices.choose(cpus, 'cpu').with_towers(3)
    step = update_mode(mode, places).build(
        tower, lambda: tf.train.GradientDescentOptimizer(0.1), tf.train.get_or_create_global_step(),
        tower_inputs=lambda k: [inputs[k]])
    with tf.Session(config=with_threads(places)) as session:
        initialise(session)
        if mode == 'async':  # the thread that reports runs tower 0 itself
            session.run(step.train_ops[1:])
        found, _ = session.run([step.seconds, step.train_ops[0]])
    for k, seconds in enumerate(found):  # a thread may begin to sleep a little before another takes the time
        assert seconds.dtype == np.float32 and 0.1 * k - 0.05 <= seconds < 0.1 * k + 0.1, found


@pytest.mark.parametrize('mode', ['parameter_server', 'async'])
def test_nothing_waits_for_a_timestamp_and_none_for_a_computation(mode, settings, data_dir):
    cpus = devices.choose(2, 'cpu')
    built = build_training(settings(), records.prepare('shapes', data_dir), cpus, update_mode(mode, cpus))
    assert built.tower_seconds.shape == [2]
    operations = tf.get_default_graph().get_operations()
    timestamps = [op for op in operations if op.type == 'Timestamp']
    assert len(timestamps) == 4
    before = {op.type for timestamp in timestamps for op in timestamp.control_inputs}
    assert before == {'AssignAddVariableOp', 'IteratorGetNext'}
    made = set(timestamps)
    for op in operations:  # in the order in which they were made
        if made & ({tensor.op for tensor in op.inputs} | set(op.control_inputs)):
            assert not op.name.startswith(('tower_0', 'tower_1')), op.name
            made.add(op)
    assert mode == 'async' or not made & {built.train_step.op}


def test_where_operations_must_be_deterministic_nothing_is_measured(settings, data_dir, monkeypatch):
    # TensorFlow reads the variable too, but not from here: it would apply to the whole process.
    monkeypatch.setattr(os, 'environ', dict(os.environ, TF_DETERMINISTIC_OPS='1'))
    cpus = devices.choose(2, 'cpu')
    built = build_training(settings(), records.prepare('shapes', data_dir), cpus, update_mode('parameter_server', cpus))
    assert built.tower_seconds.shape == [0]
    assert not any(op.type == 'Timestamp' for op in tf.get_default_graph().get_operations())


def test_a_place_names_the_devices_and_in_a_cluster_the_worker():
    local = devices.Devices((('/gpu:0', '/gpu:1'), ('/gpu:2', '/gpu:3')), on_gpus=True)
    assert local.place(1) == local.with_towers(4).place(3) == '/gpu:2+/gpu:3'
    spread = devices.spread(devices.Devices((('/gpu:0',), ('/gpu:1',)), on_gpus=True), 2, 1, 'grpc://here:1')
    assert spread.place(2) == '/job:worker/task:1/gpu:0 (worker 1)'


# ---------------------------------------------------------------------------------------------------------- the watch

def lines(series, places='abcdefgh'):
    """Returns what is said about a series of towers' seconds, and in which steps."""
    said = []
    watch = Stragglers(places[:len(series[0])], lambda line: said.append((step, line)))
    for step, seconds in enumerate(series, 1):  # noqa: B007 (the lambda reads it)
        watch.report(np.array(seconds, np.float32))
    return said


def test_a_tower_is_named_after_100_steps_once_and_again_when_it_recovered():
    alike, slow = [0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.124, 0.09]
    assert lines([slow] * 94 + [alike] * 200) == []
    line = 'slow       tower 2 on c takes 0.124 s, 24% more than the median of the others, for 100 steps'
    recovered = 'recovered  tower 2 on c is no longer slower than the others'
    assert lines([slow] * 300 + [alike] * 300 + [slow] * 300) == [(100, line), (350, recovered), (695, line)]
    assert lines([[0.1, 0.1, 0.119, 0.1]] * 300) == []
    assert lines([[0.1, 0.2]] * 100)[0][1].startswith('slow       tower 1 on b takes 0.200 s, 100% more')


def test_one_odd_step_in_20_does_not_hide_a_slow_tower():
    slow, odd = [0.1, 0.13, 0.1], [0.3, 0.13, 0.3]
    assert [step for step, _ in lines(([odd] + [slow] * 19) * 20)] == [100]


def test_noise_is_not_slow():
    noise = np.random.default_rng(0).lognormal(0, 0.3, (5000, 4))
    assert np.mean(noise.max(1) / np.median(noise, 1) > 1.2) > 0.7  # in most steps a tower is slow
    assert lines(0.1 * noise) == []


def test_without_others_or_their_times_nothing_is_said():
    assert lines([[0.1]] * 200) == [] == lines([[]] * 200)
    assert lines([[0.1, 0.0, 0.0]] * 200) == []


def test_medians_of_others_equal_those_of_the_standard_library():
    rng = np.random.default_rng(0)
    for count in [2, 3, 4, 5, 8] * 50:
        values = rng.integers(1, 6, count).astype(float)
        expected = [statistics.median(np.delete(values, k)) for k in range(count)]
        assert medians_of_others(values).tolist() == expected
