"""--save_minutes: timed checkpoints change no bit, replace each other and limit the loss of a kill."""

import pytest
import tensorflow.compat.v1 as tf

from cifar10.base import console
from cifar10.run import metrics
from cifar10.run.folder import step_of
from cifar10.training import trainer
from tests.helpers import (
    as_given,
    assert_same_bits,
    checkpoints,
    last_variables,
    patient,
    random_moments,
    read_until,
    start_script,
    train,
    update_mode,
)

AT_ONCE = 1e-9


def in_mode(mode):
    """Returns the settings of a run of two towers in a mode."""
    return dict(variable_update=mode, num_gpus=2, **dict(local_steps=4) if mode == 'local' else {})


def saved_steps(train_dir):
    """Returns (the steps of all checkpoints that a run has written, the steps of the existing ones)."""
    written = [record['step'] for record in metrics.read(str(train_dir), metrics.CHECKPOINT)]
    return written, [step_of(prefix) for prefix in checkpoints(train_dir)]


@pytest.mark.stress
@pytest.mark.parametrize('mode', ['replicated', 'local'])
def test_timed_checkpoints_change_no_bit_and_follow_averages(mode, settings, tmp_path):
    flags = dict(in_mode(mode), max_steps=42, save_steps=20, max_to_keep=0)
    without = train(settings(**flags, save_minutes=0, train_dir=str(tmp_path / 'without')))
    assert saved_steps(tmp_path / 'without') == ([20, 40, 42], [20, 40, 42])
    assert_same_bits(train(settings(**flags, save_minutes=AT_ONCE)), without)
    written, kept = saved_steps(settings().run.train_dir)
    every = update_mode(mode, ['/cpu:0'], 4).averages_after if mode == 'local' else lambda step: True
    assert written == [step for step in range(1, 43) if every(step) or step == 42] and kept == [20, 40, 42]
    assert mode != 'local' or 30 in written and not {17, 31, 34, 38} & set(written)


@pytest.mark.stress
def test_async_writes_timed_checkpoints_while_no_tower_is_inside_a_step(settings):
    # Each save checks for steps whose examples have not been counted yet.
    last = train(settings(variable_update='async', num_gpus=3, max_steps=60, save_steps=1000, save_minutes=AT_ONCE))
    written, kept = saved_steps(settings().run.train_dir)
    assert len(written) > 5 and kept == [60] and last['examples_seen'] == 60 * 8


def test_the_next_checkpoint_replaces_a_timed_one(settings):
    found, listed = [], []
    folder = settings().run.train_dir

    def note(record):
        if record['kind'] == metrics.CHECKPOINT:
            found.append([step_of(prefix) for prefix in checkpoints(folder)])
            listed.append([step_of(prefix) for prefix in
                           tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths])
    with console.Output(on_record=note).used():
        trainer.train(settings(max_steps=10, save_steps=4, save_minutes=AT_ONCE, max_to_keep=2, eval_steps=2))
    assert found == listed == [[1], [2], [3], [4], [4, 5], [4, 6], [4, 7], [4, 8], [8, 9], [8, 10]]
    with console.Output(on_record=note).used():  # a start does not know why the last checkpoint was written
        trainer.train(settings(max_steps=13, save_steps=100, save_minutes=AT_ONCE, max_to_keep=2))
    assert found[10:] == listed[10:] == [[10, 11], [10, 12], [10, 13]]


@pytest.mark.stress
@pytest.mark.parametrize('mode', ['parameter_server', 'local'])
def test_a_kill_loses_no_more_than_the_interval(mode, settings, tmp_path):
    seconds = 0.06
    given = settings(**in_mode(mode), max_steps=1_000_000, save_steps=1_000_000, save_minutes=seconds / 60,
                     log_frequency=1)
    process = start_script('multi_gpu_train.py', **as_given(given))
    read_until(process, f'step {150 + random_moments().randrange(20)},')
    process.kill()
    process.communicate()
    folder = given.run.train_dir
    windows = [[]]  # for each checkpoint, the end times of the following steps
    for record in metrics.read(folder, metrics.TRAIN, metrics.CHECKPOINT):
        if record['kind'] == metrics.CHECKPOINT:
            windows.append([])
        else:
            windows[-1].append(record['time'])
    # The step during which the interval ends, and one more; in `local`, up to the next average.
    most = 2 + (4 if mode == 'local' else 0)
    assert len(windows) > 2
    for times in windows:
        assert len([time for time in times if time > times[0] + seconds + 0.01]) <= most
    saved = step_of(checkpoints(folder)[-1])
    length = saved + 20
    process = start_script('multi_gpu_train.py', **as_given(given, max_steps=length))
    output = process.communicate(timeout=patient(60))[0]
    assert process.returncode == 0 and f'resumed at step {saved} of {length}' in output, output
    whole = train(given.replace(max_steps=length, save_minutes=0, train_dir=str(tmp_path / 'whole')))
    assert_same_bits(last_variables(folder), whole)
