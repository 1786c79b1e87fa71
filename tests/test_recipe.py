"""Recipes: presets and their flags, complete runs of the fast preset, refusals."""
import functools
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.base.registry import OPTIMIZERS
from cifar10.model.precision import BF16
from cifar10.settings.presets import PRESETS, RATES
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from cifar10.training.description import advise, describe
from tests.helpers import (
    change_record,
    checkpoints,
    evaluated,
    last_variables,
    planned,
    rewrite,
    run_script,
    train,
    variables,
)

pytestmark = pytest.mark.classic


@pytest.fixture
def fast(data_dir, tmp_path):
    """The flags of a small run of the fast preset: 20 steps of two towers of 16, with a size that changes after ten."""
    return dict(preset='fast', dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path / 'train'), num_gpus=2,
                batch_size=16, epochs=0.64, sizes='16:0.5,20', tower_device='cpu', log_frequency=1,
                summary_steps=0, precision='fp32')


def settings_of(train_dir):
    return json.loads((pathlib.Path(train_dir) / 'config.json').read_text())['settings']


def test_flags_override_the_preset():
    config = train_settings(preset='fast', network='photos', learning_rate=0.5, epochs=7)
    values = config.flat()
    assert [values[name] for name in ('network', 'learning_rate', 'epochs', 'max_steps')] == [
        'photos', 0.5, 7, None]
    assert [values[name] for name in ('optimizer', 'schedule')] == [
        PRESETS['fast'][name] for name in ('optimizer', 'schedule')]
    assert set(PRESETS['classic']) == set(PRESETS['fast']) < set(PRESETS['photos']) <= set(values)
    # Left to `plan`, because a resumed run may have other values.
    undecided = dict(batch_size=None, learning_rate=None)
    assert train_settings() == train_settings(**{**PRESETS['classic'], **undecided})
    assert train_settings(epochs=2.0).run.max_steps is None
    shifted = train_settings(preset='fast', augmentation='classic')
    assert shifted.recipe.sizes is None


@pytest.mark.stress
def test_a_run_in_epochs_ends_by_itself_and_is_evaluated_as_trained(fast, tmp_path, capsys):
    result = run_script('multi_gpu_train.py', **fast)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith('recipe     fast with sizes=16:0.5,20, fp32\n')
    assert 'rate       0.2, linearly to 0 after 640 images\n' in result.stdout
    assert result.stdout.splitlines()[-2].endswith('model.ckpt-20')
    trainer.train(train_settings(**fast))
    done = 'the run ended at step 20 by --epochs=0.64; in another --train_dir, --warm_start='
    assert f'done       nothing to train: {done}' in capsys.readouterr().out
    # Without the training images, because the checkpoint holds all values computed from them.
    shutil.copytree(os.path.join(fast['data_dir'], 'shapes-bin'), tmp_path / 'data' / 'shapes-bin',
                    ignore=shutil.ignore_patterns('data_batch*'))
    result = run_script('cifar10_eval.py', checkpoint_dir=fast['train_dir'], eval_dir=tmp_path / 'eval',
                        data_dir=tmp_path / 'data', run_once=True, tower_device='cpu')
    assert result.returncode == 0, result.stderr
    line = result.stdout.splitlines()[-1]
    assert line.split(': ', 1)[1].startswith('precision @ 1 = 0.') and ' with test-time averaging, step 20' in line
    train_variables = last_variables(fast['train_dir'])
    assert not any(name.endswith('ExponentialMovingAverage') for name in train_variables)
    assert train_variables['whiten/weights'].any()


@pytest.mark.stress
def test_a_resumed_run_uses_the_stored_whitening_and_a_new_rate(fast, capsys):
    train(train_settings(**fast, save_steps=10))
    first, last = checkpoints(fast['train_dir'])[-2:]
    for path in pathlib.Path(fast['train_dir']).glob(os.path.basename(last) + '.*'):
        path.unlink()
    marked = variables(first)['whiten/weights'] + 1
    rewrite(first, **{'whiten/weights': marked})
    with tf.Graph().as_default():
        resumed = train(train_settings(**fast, save_steps=10, learning_rate=0.1))
    np.testing.assert_array_equal(resumed['whiten/weights'], marked)
    assert 'changed    learning_rate=0.2 (now 0.1)\n' in capsys.readouterr().out


@pytest.mark.stress
def test_the_default_precision_follows_the_hardware_and_a_run_keeps_its_own(fast, capsys):
    expected = 'fp32' if BF16.is_slow() else 'bf16'
    train(train_settings(**dict(fast, precision=None)))
    assert f', {expected}\n' in capsys.readouterr().out and settings_of(fast['train_dir'])['precision'] == expected
    for stored in ('bf16', 'fp32'):
        change_record(fast['train_dir'], precision=stored)
        (pathlib.Path(fast['train_dir']) / 'metrics.jsonl').unlink(missing_ok=True)  # it records the start too
        with tf.Graph().as_default():
            train(train_settings(**dict(fast, precision=None)))
        assert f', {stored}\n' in capsys.readouterr().out


@pytest.mark.stress
def test_test_time_averaging_can_be_turned_on_or_off(fast, settings, data_dir, tmp_path, capsys):
    train(train_settings(**fast))
    with tf.Graph().as_default():
        train(settings(train_dir=str(tmp_path / 'classic')))
    for train_dir, asked, shown in ((fast['train_dir'], None, True), (fast['train_dir'], False, False),
                                    (str(tmp_path / 'classic'), None, False), (str(tmp_path / 'classic'), True, True)):
        evaluated(train_dir, tmp_path / 'eval', test_time_averaging=asked, num_examples=100)
        assert (' with test-time averaging, ' in capsys.readouterr().out) is shown
    with pytest.raises(UsageError, match='has no .*ExponentialMovingAverage; use --use_ema=false'):
        evaluated(fast['train_dir'], tmp_path / 'eval', use_ema=True)


def lines_of(config):
    """Returns {first word: rest} of the lines that a start with these settings prints before training."""
    plan, lines = planned(config)
    return dict(line.split(maxsplit=1) for line in map(str, (*lines, *describe(plan), *advise(plan, config))))


def test_every_optimizer_has_its_own_default_rate(settings):
    assert set(RATES) == set(OPTIMIZERS)
    for name in OPTIMIZERS:
        rate = float(lines_of(settings(optimizer=name))['rate'].split()[0].rstrip(','))
        assert rate == (0.1 if name == 'sgd' else RATES[name].learning_rate)
    assert lines_of(settings(preset='fast', max_steps=None))['rate'].startswith('0.2, ')
    assert lines_of(settings(preset='fast', max_steps=None, optimizer='adam'))['rate'].startswith('0.001, ')
    assert lines_of(settings(optimizer='adam', learning_rate=0.3))['rate'].startswith('0.3, ')


@pytest.mark.parametrize('changes, advice', [
    (dict(batch_size=128), None),
    (dict(batch_size=32, num_gpus=4), None),
    (dict(batch_size=128, num_gpus=8, max_steps=10), 'try --learning_rate=0.8 --warmup_epochs=1.02'),
    (dict(batch_size=128, num_gpus=8, warmup_epochs=1.0), 'with 1,024 try --learning_rate=0.8'),
    (dict(batch_size=32), 'with 32 try --learning_rate=0.025'),
    (dict(batch_size=128, num_gpus=4, learning_rate=0.1), None),
    (dict(batch_size=128, num_gpus=4, optimizer='adam'),
     "adam's default rate is for 128 examples a step; with 512 try --learning_rate=0.002"),
    (dict(preset='fast', batch_size=128, max_steps=None), 'with 128 try --learning_rate=0.1'),
    (dict(batch_size=128, num_gpus=4, variable_update='async'), None),
    (dict(batch_size=64, num_gpus=2, variable_update='local'), 'with 64 of each tower try --learning_rate=0.05')])
def test_a_new_run_with_an_unusual_global_batch_gets_advice_on_its_rate(settings, changes, advice):
    found = lines_of(settings(**changes)).get('advice')
    assert found.endswith(advice) if advice else found is None


def test_a_resumed_run_keeps_its_rate_and_gets_no_advice(settings):
    settings = functools.partial(settings, network='linear', optimizer='adam')
    train(settings(max_steps=1, learning_rate=0.02))
    lines = lines_of(settings(max_steps=2, num_gpus=4, num_towers=4))
    assert lines['rate'].startswith('0.02, ') and 'advice' not in lines
    assert lines['changed'] == 'num_towers=1 (now 4)'
    lines = lines_of(settings(max_steps=2, clip_norm=1.0))
    assert lines['changed'] == 'clip_norm=0.0 (now 1.0)'
    lines = lines_of(settings(max_steps=2, learning_rate=0.01))
    assert lines['rate'].startswith('0.01, ') and lines['changed'] == 'learning_rate=0.02 (now 0.01)'
