"""Towers do not depend on devices: same bits on any devices, turns, a run keeps its towers and batch size."""
import os
import time
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.data import records
from cifar10.parallel import devices
from cifar10.parallel.session_config import session_config
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import train_settings
from cifar10.tools.replay import against
from tests.helpers import (
    LINEAR,
    Tasks,
    assert_close,
    assert_same_bits,
    build_training,
    change_record,
    checkpoints,
    division,
    initialise,
    last_variables,
    random_moments,
    read_until,
    rewrite,
    scalars,
    start_script,
    train,
    update_mode,
)


class Shape(NamedTuple):
    """The hardware of a run: devices of each worker; with 0 workers, of a single process."""
    devices: int
    workers: int = 0
    ps: int = 0

    def __str__(self):
        return f'{self.workers}x{self.devices}-{self.ps}' if self.workers else str(self.devices)


PROCESSES = [Shape(count) for count in (1, 2, 3, 4)]
CLUSTERS = [Shape(2, 2), Shape(1, 4), Shape(2, 2, 1), Shape(1, 4, 2)]
MODES = ['parameter_server', 'replicated', 'local']
FAST = dict(preset='fast', epochs=0.02, max_steps=None)
SCALED = LINEAR.replace(':network', ':scaled')


@pytest.fixture
def flags(data_dir):
    """The flags of a small run of four towers."""
    return dict(dataset='shapes', data_dir=data_dir, num_towers=4, batch_size=8, max_steps=12, log_frequency=1,
                summary_steps=5)


def run_on(shape, train_dir, **flags):
    """Trains to the end on the hardware `shape`; returns the last variables."""
    flags.update(train_dir=str(train_dir), num_gpus=shape.devices)
    if not shape.workers:
        with tf.Graph().as_default():
            return train(train_settings(tower_device='cpu', **flags))
    with Tasks(shape.workers, shape.ps, **flags) as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    return last_variables(train_dir)


def assert_bits_of_one_device(shapes, folder, **flags):
    """Asserts that runs on all shapes end with the bits of a run on a single device."""
    expected = run_on(Shape(1), folder / 'one', **flags)
    for shape in shapes:
        assert_same_bits(run_on(shape, folder / str(shape), **flags), expected)


@pytest.mark.stress  # on stand-in GPUs by default: test_standin_gpus.py
@pytest.mark.parametrize('precision, shapes', [('fp32', [Shape(2, 2)]), ('bf16', [Shape(3)])])
def test_any_shape_gives_the_same_bits(precision, shapes, flags, tmp_path):
    assert_bits_of_one_device(shapes, tmp_path, **flags, precision=precision)


@pytest.mark.parametrize('mode, preset', [  # `local` by default: test_local.py
    ('replicated', {}), ('parameter_server', dict(network=SCALED)),
    *[pytest.param(*each, marks=pytest.mark.stress)
      for each in (('local', {}), ('replicated', FAST), ('local', FAST))]])
def test_copies_on_any_number_of_devices_end_with_the_same_bits(preset, mode, flags, tmp_path):
    flags.update(dict(num_towers=3, max_steps=6, summary_steps=0), variable_update=mode, **preset)
    assert_bits_of_one_device([Shape(2)], tmp_path, **flags)


@pytest.mark.stress
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('precision', ['fp32', 'bf16', 'fp16'])
@pytest.mark.parametrize('num_towers, preset', [(4, {}), (8, {}), (4, FAST)], ids=['4', '8', 'fast'])
def test_every_shape_gives_the_same_bits(num_towers, preset, precision, mode, flags, tmp_path):
    flags.update(dict(num_towers=num_towers, precision=precision, max_steps=60, variable_update=mode), **preset)
    clusters = CLUSTERS if mode == 'parameter_server' else CLUSTERS[:2]  # the others have ps tasks
    assert_bits_of_one_device(PROCESSES[1:] + clusters, tmp_path, **flags)


@pytest.mark.stress
@pytest.mark.parametrize('mode', MODES)
def test_any_shape_gives_the_same_bits_after_2000_steps(mode, flags, tmp_path):
    flags.update(max_steps=2000, log_frequency=100, variable_update=mode)
    assert_bits_of_one_device([Shape(4), Shape(3), Shape(2, 2)], tmp_path, **flags)


@pytest.mark.stress  # by default, killed: test_processes.py; moved: test_image_size.py
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
@pytest.mark.parametrize('kills', [1, 20])
def test_killed_and_moved_a_run_ends_with_the_bits_of_an_unbroken_one(kills, mode, flags, tmp_path):
    flags.update(max_steps=12 * (kills + 1), save_steps=3, variable_update=mode)
    clusters = CLUSTERS if mode == 'parameter_server' else CLUSTERS[:2]
    expected = run_on(Shape(1), tmp_path / 'whole', **flags)
    moments = random_moments()
    kept, place = flags, dict(train_dir=str(tmp_path / 'moved'))
    for moved in range(kills):
        shape = moments.choice(PROCESSES + (clusters if kills > 2 else []))
        step = 12 * moved + moments.randrange(4, 12)
        if shape.workers:
            with Tasks(shape.workers, shape.ps, num_gpus=shape.devices, **kept, **place) as tasks:
                read_until(tasks['worker 0'], f'step {step},')
                time.sleep(moments.random() * 0.1)  # then all are killed
        else:
            process = start_script('multi_gpu_train.py', num_gpus=shape.devices, tower_device='cpu', **kept,
                                   **place)
            read_until(process, f'step {step},')
            time.sleep(moments.random() * 0.1)
            process.kill()
            process.communicate()
        kept = {name: value for name, value in flags.items() if name not in ('num_towers', 'batch_size')}
    assert_same_bits(run_on(Shape(2), tmp_path / 'moved', **kept), expected)
    *_, equal, difference = against.compare(*(TrainDir(str(tmp_path / name)) for name in ('moved', 'whole')))
    assert equal.startswith('equal      ')
    assert difference == 'differ     nothing: all checkpoints and losses that both recorded are equal'
    assert scalars(tmp_path / 'moved', 'train/total_loss')[-1] == scalars(tmp_path / 'whole', 'train/total_loss')[-1]


@pytest.mark.classic
@pytest.mark.stress
def test_replicas_with_several_towers_take_the_same_steps(settings):
    shape = dict(num_towers=3, batch_size=8, max_steps=8)
    expected = train(settings(num_gpus=1, train_dir=settings().run.train_dir + '_ps', **shape))
    assert_close(train(settings(num_gpus=2, variable_update='replicated', **shape)), expected)


@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_towers_on_one_device_take_turns(mode):
    events = []

    def tower(k, scope):
        weight = tf.get_variable('weight', [], initializer=tf.zeros_initializer())

        def record(value, what):
            events.append((k, what))
            if what == 'begins':
                time.sleep(0.02)
            return value

        @tf.custom_gradient
        def watched(value):
            seen = tf.py_func(lambda x: record(x, 'begins'), [value], tf.float32)
            return seen, lambda upstream: tf.py_func(lambda x: record(x, 'ends'), [upstream], tf.float32)
        return dict(total_loss=tf.reshape(watched(weight.read_value()), []) * (k + 1))

    cpus = devices.choose(2, 'cpu').with_towers(5)
    step = update_mode(mode, cpus).build(
        tower, lambda: tf.train.GradientDescentOptimizer(1.0), tf.train.get_or_create_global_step())
    with tf.Session(config=session_config(cpus)) as session:
        initialise(session)
        for _ in range(5):
            events.clear()
            session.run(step.train_ops)
            for group in (0, 1):
                expected = [(k, what) for k in range(group, 5, 2) for what in ('begins', 'ends')]
                assert [event for event in events if event[0] % 2 == group] == expected
        value = session.run(step.gradients[0][1])
    np.testing.assert_allclose(value, -5 * np.mean([1, 2, 3, 4, 5]), rtol=1e-6)


@pytest.mark.classic
def test_on_gpus_towers_share_devices_and_every_read_waits_for_its_turn(settings, data_dir):
    gpus = devices.Devices((('/gpu:0',), ('/gpu:1',)), on_gpus=True).with_towers(5)
    build_training(settings(), records.prepare('shapes', data_dir), gpus, update_mode('parameter_server', gpus))
    nodes = tf.get_default_graph().as_graph_def().node
    for k in range(5):
        mine = [node for node in nodes if node.name.startswith(f'tower_{k}/')]
        convolutions = [node for node in mine if node.op.startswith('Conv2D')]
        assert convolutions and {node.device for node in convolutions} == {f'/device:GPU:{k % 2}'}
        waiting = [node for node in mine if node.op in ('ReadVariableOp', 'IteratorGetNext')
                   and not node.name.startswith(f'tower_{k}/gradients/')]
        gate, = {name for node in waiting for name in node.input if name.startswith('^')}
        assert len(waiting) == 11 and gate.startswith('^turns/')
        assert all(gate in node.input for node in waiting)
    assert sum(node.op == 'IteratorV2' for node in nodes) == 2


def test_a_run_keeps_its_towers_and_batch_size(settings, capsys):
    train(settings(num_gpus=2, num_towers=4, batch_size=4, max_steps=1))
    assert 'towers     4 on 2 CPU devices (as requested), 2 each: /cpu:0 /cpu:1\n' in capsys.readouterr().out
    for changes, expected, line in [
            (dict(num_towers=3, batch_size=2), (3, 2),
             'changed    num_towers=4 (now 3), batch_size=4 (now 2)\n'),
            (dict(variable_update='async', num_gpus=2), (2, 2),
             'changed    num_towers=3 (now 2), variable_update=parameter_server (now async)\n')]:
        steps = last_variables(settings().run.train_dir)['global_step'] + 1
        train(settings(**dict(dict(batch_size=None, max_steps=int(steps)), **changes)))
        assert division(settings().run.train_dir) == expected
        assert line in capsys.readouterr().out


def test_a_start_that_takes_no_step_changes_nothing(settings):
    train(settings(num_towers=2, batch_size=4, max_steps=2))
    # As if killed before its first checkpoint, when the settings were already written.
    change_record(settings().run.train_dir, num_towers=64, batch_size=1)
    train(settings(batch_size=None, max_steps=3))
    assert division(settings().run.train_dir) == (2, 4)


@pytest.mark.stress
def test_a_run_of_the_tutorial_gets_one_a_device(settings, capsys):
    train(settings(max_steps=2))
    rewrite(checkpoints(settings().run.train_dir)[-1], without=['examples_seen'], global_step=np.float32(2))
    for name in ('config.json', 'metrics.jsonl'):
        os.remove(os.path.join(settings().run.train_dir, name))
    train(settings(num_gpus=2, batch_size=None, max_steps=3))
    assert division(settings().run.train_dir)[0] == 2
    assert 'warning' not in capsys.readouterr().out


@pytest.mark.parametrize('mode', ['async', 'mirrored'])
def test_modes_with_one_tower_a_device_refuse_another_number(mode, call):
    status, error = call('multi_gpu_train.py', '--num_gpus=2', '--num_towers=4', f'--variable_update={mode}',
                         '--tower_device=cpu')
    assert status == 2
    assert error.endswith(f'--num_towers=4 is incompatible with --variable_update={mode}, which has one tower on each '
                          'of the 2 devices; leave it out\n')
