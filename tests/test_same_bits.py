"""The bits of a run depend on neither stops nor kills nor devices, with any feature of features.py."""
import functools
import time
from typing import NamedTuple

import pytest

from cifar10.base.graphs import LOSS_SCALE
from cifar10.run import metrics
from cifar10.settings.training import train_settings
from tests.features import PARTS, all_with, flags_of
from tests.helpers import (
    Tasks,
    assert_same_bits,
    go_back,
    last_variables,
    random_moments,
    read_until,
    scalars,
    start_script,
    tf,
    train,
)

MODES = ['parameter_server', 'replicated', 'local']  # their towers do not depend on devices


# `local` saves the most state. Features change the computation of towers, but not the other modes themselves.
@pytest.mark.parametrize('feature, mode', all_with(['parameter_server', 'local'], [('linear', 'local')]) + all_with(
    ['replicated', 'mirrored'], features=['linear', 'adam', 'fp16', 'fast', 'random numbers']))
def test_a_run_resumed_on_other_devices_ends_with_the_same_bits(feature, mode, train_with, tmp_path):
    devices, towers = (2, 2) if mode == 'mirrored' else (1, 3)
    whole = train_with('whole', feature, mode, num_towers=towers)
    go_back(tmp_path / 'whole', 'moved')
    reports = dict(summary_steps=0, eval_steps=0, keep_best=False)  # these settings do not affect training
    assert_same_bits(train_with('moved', feature, mode, num_towers=towers, num_gpus=devices, **reports), whole)


@pytest.mark.parametrize('feature, mode', all_with(MODES, [], PARTS))
def test_towers_over_several_devices_have_the_bits_of_one_device(feature, mode, train_with):
    parts = PARTS[feature]
    divided = train_with('divided', feature, mode, num_towers=3, num_gpus=2 * parts, gpus_per_tower=parts)
    assert_same_bits(divided, train_with('whole', feature, mode, num_towers=3, num_gpus=1))
    if feature == 'fp16':
        scale, good_steps = (divided[name] for name in LOSS_SCALE)
        assert scale < 2.0 ** 15 and good_steps > 0  # one step overflowed and was skipped, the last did not


# ----------------------------------------------------------------------------- any hardware, which changes during a run

class Shape(NamedTuple):
    """The hardware of a run: devices of each worker; 0 workers mean a single process."""
    devices: int
    workers: int = 0
    ps: int = 0

    def __str__(self):
        return f'{self.workers}x{self.devices}-{self.ps}' if self.workers else str(self.devices)


PROCESSES = [Shape(count) for count in (1, 2, 3, 4)]
CLUSTERS = [Shape(2, 2), Shape(1, 4), Shape(2, 2, 1), Shape(1, 4, 2)]


@pytest.fixture
def flags(data_dir):
    """A function that returns the flags of a small run of four towers with a feature; for arguments see `flags_of`."""
    return functools.partial(flags_of, dataset='shapes', data_dir=data_dir, num_towers=4, batch_size=8, log_frequency=1)


def run_on(shape, train_dir, **flags):
    """Trains to the end on the hardware `shape`; returns the last variables."""
    flags.update(train_dir=str(train_dir), num_gpus=shape.devices)
    if not shape.workers:
        with tf.Graph().as_default():
            return train(train_settings(**flags))
    with Tasks(shape.workers, shape.ps, **flags) as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    for name, (_, output) in ends.items():
        if name != 'worker 0':  # only the chief reports and saves
            assert output.splitlines()[-1] == 'done       the training has ended'
            assert 'loss' not in output and 'saved' not in output
    return last_variables(train_dir)


def clusters_of(mode):
    """Returns the shapes of clusters for a mode: only `parameter_server` has ps tasks."""
    return [shape for shape in CLUSTERS if not shape.ps or mode == 'parameter_server']


@pytest.mark.stress
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('num_towers, feature, precision', [
    (4, 'classic', 'fp32'), (8, 'classic', 'bf16'), (4, 'fast', 'fp32'),
    (4, 'fp16', 'fp16')])  # emulated, so with a small network
def test_every_shape_gives_the_same_bits(num_towers, feature, precision, mode, flags, tmp_path):
    given = flags(feature, mode, steps=20, num_towers=num_towers, precision=precision)
    expected = run_on(Shape(1), tmp_path / 'one', **given)
    for shape in PROCESSES[1:] + clusters_of(mode):
        assert_same_bits(run_on(shape, tmp_path / str(shape), **given), expected)


@pytest.mark.stress
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('kills', [1, 20])
def test_a_killed_and_moved_run_ends_with_the_bits_of_an_unbroken_one(kills, mode, flags, tmp_path):
    given = flags('classic', mode, steps=12 * (kills + 1), save_steps=3, summary_steps=5)
    expected = run_on(Shape(1), tmp_path / 'whole', **given)
    moments = random_moments()
    kept, place = given, dict(train_dir=str(tmp_path / 'moved'))
    for moved in range(kills):
        shape = moments.choice(PROCESSES + (clusters_of(mode) if kills > 2 else []))
        step = 12 * moved + moments.randrange(4, 12)
        if shape.workers:
            with Tasks(shape.workers, shape.ps, **{**kept, **place, 'num_gpus': shape.devices}) as tasks:
                read_until(tasks['worker 0'], f'step {step},')
                time.sleep(moments.random() * 0.1)  # then all tasks are killed
        else:
            process = start_script('multi_gpu_train.py', **{**kept, **place, 'num_gpus': shape.devices})
            read_until(process, f'step {step},')
            time.sleep(moments.random() * 0.1)
            process.kill()
            process.communicate()
        kept = {name: value for name, value in given.items() if name not in ('num_towers', 'batch_size')}
    assert_same_bits(run_on(Shape(2), tmp_path / 'moved', **kept), expected)
    moved, whole = ({(record['kind'], record['step']): record.get('sha256', record.get('loss'))
                     for record in metrics.read(str(tmp_path / name), metrics.CHECKPOINT, metrics.TRAIN)}
                    for name in ('moved', 'whole'))
    common = moved.keys() & whole.keys()  # the steps of log lines follow each start
    assert (metrics.CHECKPOINT, 12 * (kills + 1)) in common and any(kind == metrics.TRAIN for kind, _ in common)
    assert {key: moved[key] for key in common} == {key: whole[key] for key in common}
    assert scalars(tmp_path / 'moved', 'loss')[-1] == scalars(tmp_path / 'whole', 'loss')[-1]
