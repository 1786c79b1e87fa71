"""The update modes in complete runs: the same steps with every feature, shared checkpoints, towers of two devices."""
import itertools
import re
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError
from cifar10.base.registry import UPDATE_MODES
from cifar10.data import datasets
from cifar10.parallel import devices, towers
from cifar10.run import metrics
from cifar10.run.folder import step_of
from cifar10.training import graph
from tests.features import EACH_TOWER_ITS_OWN, FEATURES, PARTS, SYNCHRONOUS, all_with, flags_of
from tests.helpers import (
    build_training,
    checkpoints,
    evaluated,
    go_back,
    last_variables,
    mostly_stress,
    patient,
    read_until,
    scalars,
    start_script,
    train,
    update_mode,
    variables,
)

pytestmark = pytest.mark.classic


@pytest.mark.parametrize('feature, mode', [
    *all_with([mode for mode in UPDATE_MODES if mode not in SYNCHRONOUS]), ('summaries and evaluations', 'replicated')])
def test_every_mode_trains_resumes_and_evaluates(feature, mode, train_with, tmp_path, capsys):
    """Each mode with each line of features.py. Synchronous modes are compared with `parameter_server` below."""
    steps = 4
    train_with('run', feature, mode, steps=steps, eval_steps=0, keep_best=False)
    before = go_back(tmp_path / 'run', 'resumed')
    after = train_with('resumed', feature, mode, steps=steps, eval_steps=steps, keep_best=True)
    assert 'warning: --network' not in capsys.readouterr().out
    step = int(after['global_step'])
    in_epochs = flags_of(feature)['max_steps'] is None
    assert step == steps * (2 if in_epochs and mode == 'async' else 1)
    assert after['examples_seen'] == step * 4 * (1 if mode == 'async' else 2)
    for name, value in after.items():
        assert np.isfinite(value).all(), name
        if 'moving_' in name and mode != 'async':
            assert not np.array_equal(value, before[name]), name
    beside = evaluated(tmp_path / 'resumed', tmp_path / 'eval', checkpoint='best', test_time_averaging=False)
    within, = [record for record in metrics.read(str(tmp_path / 'resumed'), metrics.EVAL)
               if record['step'] == beside['step']]
    assert within['correct'] == beside['correct']
    assert beside['step'] == step or mode == 'async'  # its best step varies
    assert within['cross_entropy'] == pytest.approx(beside['cross_entropy'], rel=1e-4)


def assert_same_steps(found, expected, before):
    """Asserts that two runs have taken the same steps, up to rounding.

    Rounding occasionally flips a maximum or the sign of an update, so only medians are compared.
    """
    assert found.keys() == expected.keys()
    movements = {}
    for name in expected:
        moved, apart = (np.abs(each.astype(np.float64) - expected[name]) for each in (before[name], found[name]))
        assert np.median(apart) <= 0.02 * moved.max() + 1e-7, (name, np.median(apart), moved.max())
        movements[name] = moved.max()
    counters = ('global_step', 'examples_seen')
    assert any(movement > 1e-5 for name, movement in movements.items() if name not in counters), 'steps were taken'


@pytest.mark.stress  # by default in small graphs: test_updates.py
@pytest.mark.parametrize('feature, mode', all_with(SYNCHRONOUS))
def test_synchronous_modes_resume_each_other_and_take_the_same_steps(feature, mode, train_with, tmp_path):
    towers, parts = (2, PARTS.get(feature, 1)) if mode == 'mirrored' else (3, 1)
    unclipped = dict(clip_norm=0.0) if mode == 'mirrored' else {}  # which cannot clip
    expected = train_with('run', feature, num_towers=towers, **unclipped)
    before = go_back(tmp_path / 'run', 'taken over')
    found = train_with('taken over', feature, mode, num_towers=towers, num_gpus=2 * parts, gpus_per_tower=parts,
                       **unclipped)
    assert_same_steps(found, expected, before)


@pytest.mark.parametrize('feature', mostly_stress(
    [each for each in FEATURES if each not in EACH_TOWER_ITS_OWN], 'momentum'))
def test_towers_take_the_steps_of_one_tower_with_the_whole_batch(feature, train_with, tmp_path):
    expected = train_with('one', feature, num_towers=1, batch_size=16)
    before = go_back(tmp_path / 'one', 'before')
    assert_same_steps(train_with('four', feature, num_towers=4, batch_size=4), expected, before)


def test_the_parts_of_a_tower_are_on_their_devices(settings, data_dir):
    gpus = devices.Devices((('/gpu:0', '/gpu:1'), ('/gpu:2', '/gpu:3')), on_gpus=True)
    build_training(settings(num_gpus=4, gpus_per_tower=2), datasets.prepare('shapes', data_dir), gpus,
                   update_mode('parameter_server', gpus))
    seen = set()
    for node in tf.get_default_graph().as_graph_def().node:
        part = re.match(r'tower_(\d)/(?:gradients/tower_\d/)?(conv|pool|norm|local|softmax_linear)', node.name)
        if part and node.op in ('Conv2D', 'Conv2DBackpropFilter', 'Conv2DBackpropInput', 'MatMul', 'Rsqrt', 'RealDiv',
                                'MaxPool', 'MaxPoolGrad', 'BiasAddGrad', 'ReluGrad', 'L2Loss'):
            device = 2 * int(part.group(1)) + (part.group(2) in ('local', 'softmax_linear'))
            assert node.device == f'/device:GPU:{device}', node.name
            seen.add((node.op, device))
        if node.op == 'SparseSoftmaxCrossEntropyWithLogits':  # the loss is on the device of the last part
            seen.add((node.op, int(node.device[-1])))
    for device in range(4):
        assert ({('MatMul', device), ('SparseSoftmaxCrossEntropyWithLogits', device)} if device % 2 else
                {('Conv2DBackpropFilter', device)}) <= seen


@pytest.mark.parametrize('mode', mostly_stress(['replicated', 'mirrored'], 'replicated'))
def test_replicas_compute_and_update_on_their_own_device(mode, settings, data_dir):
    # On CPU devices, because the strategy accepts only existing devices.
    cpus = devices.choose(2, 'cpu')
    config = settings(num_gpus=2, variable_update=mode, network='linear')
    build_training(config, datasets.prepare('shapes', data_dir), cpus, update_mode(mode, cpus))
    updated, reduced = set(), set()
    for node in tf.get_default_graph().as_graph_def().node:
        if node.op == 'ResourceApplyGradientDescent':
            updated.add(node.device.rsplit('device:', 1)[1])
        if node.op == 'CollectiveReduce':
            reduced.add(node.device.rsplit('device:', 1)[1])
    assert updated == {'CPU:0', 'CPU:1'}
    assert reduced == ({'CPU:0', 'CPU:1'} if mode == 'replicated' else set())


def test_gpu_collectives_are_few_nccl_reductions_in_a_fixed_order(settings, data_dir):
    gpus = devices.Devices((('/gpu:0',), ('/gpu:1',)), on_gpus=True).with_towers(4)
    build_training(settings(num_gpus=2, num_towers=4), datasets.prepare('shapes', data_dir), gpus,
                   update_mode('replicated', gpus))
    nodes = [node for node in tf.get_default_graph().as_graph_def().node if node.op == 'CollectiveReduce']
    assert [node.device for node in nodes] == [f'/device:GPU:{k}' for k in (0, 0, 0, 0, 1, 1, 1, 1)]
    assert {node.attr['communication_hint'].s for node in nodes} == {b'nccl'}
    # TensorFlow refuses to reduce bfloat16 and int32 between GPUs; stand-ins do not.
    assert [node.attr['T'].type for node in nodes] == [tf.float32.as_datatype_enum, tf.float64.as_datatype_enum] * 4
    for first, second in (nodes[:2], nodes[1:3], nodes[2:4], nodes[4:6], nodes[5:7], nodes[6:]):
        assert '^' + first.name in second.input
    keys = [node.attr['instance_key'].i for node in nodes]
    assert keys[:4] == keys[4:] and len(set(keys)) == 4


@pytest.mark.stress  # by default in a small graph: test_updates.py
def test_checkpoints_work_across_modes_and_tower_counts(settings):
    modes = list(UPDATE_MODES)  # five modes, a prime number: going 1 to 4 places around them visits all ordered pairs
    walk = [modes[places * i % len(modes)] for places in range(1, len(modes)) for i in range(len(modes))] + modes[:1]
    assert set(zip(walk, walk[1:])) == set(itertools.permutations(modes, 2))
    steps = examples = 0
    for mode, num_gpus in zip(walk, itertools.cycle((1, 2, 4, 3))):
        steps += 2
        last = train(settings(variable_update=mode, num_gpus=num_gpus, num_towers=num_gpus, max_steps=steps,
                              summary_steps=1))
        examples += 2 * 8 * (1 if mode == 'async' else num_gpus)
        assert (last['global_step'], last['examples_seen']) == (steps, examples)
        # In addition to these 22, `local` has two values for each of ten variables, and the step of its last average.
        assert len(last) == (43 if mode == 'local' else 22)


def test_asynchronous_training_uses_every_batch_once_and_stops_at_the_step(settings, capsys):
    config = settings(network='linear', variable_update='async', num_gpus=3, max_steps=100, save_steps=25,
                      summary_steps=5)
    last = train(config)
    assert (last['global_step'], last['examples_seen']) == (100, 100 * 8)
    for prefix in checkpoints(config.run.train_dir):  # saved while no tower is inside an update
        saved = variables(prefix)
        assert saved['examples_seen'] == 8 * saved['global_step'] == 8 * step_of(prefix)
    staleness = scalars(config.run.train_dir, 'details/staleness')
    values = [value for _, value in staleness]
    assert len(values) > 3 and min(values) >= 0 and max(values) > 0
    of_last_tower = [step for step, _ in scalars(config.run.train_dir, 'details/towers/tower_2')]
    # A tower shows nothing before its first step, which may come late on a busy machine.
    assert of_last_tower == [step for step, _ in staleness if step >= min(of_last_tower, default=101)]
    output = capsys.readouterr().out
    assert 'batch      8 a step' in output
    shown = [float(value) for value in re.findall(r'sec/batch\), staleness = (\d+\.\d)$', output, re.M)]
    recorded = [record['staleness'] for record in metrics.read(config.run.train_dir, metrics.TRAIN)]
    assert len(shown) == output.count('loss = ') > 3 and shown == [float(f'{value:.1f}') for value in recorded]


@pytest.mark.stress
def test_a_signal_ends_an_asynchronous_run_cleanly(data_dir, tmp_path):
    process = start_script('multi_gpu_train.py', dataset='shapes', data_dir=data_dir, train_dir=tmp_path, num_gpus=3,
                           batch_size=8, variable_update='async', tower_device='cpu', log_frequency=1)
    read_until(process, 'loss = ')
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=patient(30))[0]
    assert process.returncode == 3, output
    saved = last_variables(tmp_path)
    assert saved['examples_seen'] == 8 * saved['global_step'] > 0


def test_a_diverging_tower_of_an_asynchronous_run_is_named(settings, monkeypatch):
    def tower_loss(scope, add_loss):
        total_loss, scalars = towers.tower_loss(scope, add_loss)
        return total_loss * (np.inf if scope == 'tower_1/' else 1.0), scalars
    monkeypatch.setattr(graph, 'tower_loss', tower_loss)
    # Before tower 1's step has ended, tower 0 may take a step with the diverged variables.
    with pytest.raises(RunError, match='the loss of tower (1 is inf|0 is nan)'):
        train(settings(variable_update='async', num_gpus=2, network='linear', batch_size=4, max_steps=1000))
