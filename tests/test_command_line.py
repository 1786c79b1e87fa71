"""Flags and bad input: one line, the right status, no traceback."""
import os
import re
import subprocess
import sys

import pytest

from cifar10.base.errors import UsageError
from cifar10.programs import flags
from cifar10.settings import evaluation, training
from cifar10.settings.definition import fields
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.presets import PRESETS
from cifar10.settings.training import train_settings
from tests.helpers import ROOT, run_script


@pytest.mark.parametrize('arguments, parts', [
    (['--dataset=mnist'], ['--dataset=mnist', 'cifar10, cifar100, cifar100-coarse, shapes, FOLDER/']),
    (['--variable_update=magic'], ['--variable_update=magic', 'parameter_server']),
    (['--tower_device=tpu'], ['--tower_device=tpu', 'auto, gpu, cpu']),
    (['--bach_size=8'], ['unknown flag --bach_size', 'did you mean --batch_size?']),
    (['--tf_xla'], ['unknown flag --tf_xla', '--help']),
    (['stray'], ['unknown argument stray']),
    (['--num_gpus=four'], ['--num_gpus', "'four' is not a whole number"]),
    (['--batch_size=1.5'], ['--batch_size', "'1.5' is not a whole number"]),
    (['--max_steps='], ['--max_steps', 'not a whole number']),
    (['--max_steps'], ['--max_steps']),
    (['--restart=maybe'], ['--restart', "'maybe' is neither true nor false"]),
    (['--num_gpus=0'], ['--num_gpus=0 is too small', 'the minimum is 1']),
    (['--gpus_per_tower=3', '--num_gpus=6'], ['--gpus_per_tower=3', '--network=classic has 2 parts']),
    (['--deterministic', '--variable_update=async'], ['--deterministic', 'another update mode']),
    (['--local_steps=4'], ['--local_steps is for --variable_update=local', 'has --variable_update=parameter_server']),
    (['--local_steps=0', '--variable_update=local'], ['--local_steps=0 is too small', 'the minimum is 1']),
    (['--use_fp16', '--precision=fp32'], ['--use_fp16 contradicts --precision=fp32; leave one']),
    (['--batch_size=0'], ['--batch_size=0']),
    (['--max_steps=-5'], ['--max_steps=-5']),
    (['--save_steps=0'], ['--save_steps=0']),
    (['--log_frequency=-1'], ['--log_frequency=-1']),
    (['--summary_steps=-1'], ['--summary_steps=-1']),
    (['--seed=99999999999'], ['--seed=99999999999', 'the maximum is']),
    (['--clip_norm=1e39'], ['--clip_norm=1e+39 is no float32; give 0, or a number from 1.18e-38 to 3.4e+38']),
    (['--learning_rate=1e-50'], ['--learning_rate=1e-50 is no float32']),
    (['--profile_steps=1:99999999999999999999'], ['--profile_steps=1:9999', 'is too large; the maximum is 2147483647']),
    (['--train_dir='], ['--train_dir is empty']),
    (['--train_dir=%(file)s'], ['--train_dir=%(file)s', 'is not a directory', 'another directory']),
    (['--train_dir=/proc/train'], ['--train_dir=/proc/train']),
    (['--train_dir=/tmp/a[1]'], ['--train_dir=/tmp/a[1]', 'wildcards', 'another directory']),
    (['--data_dir=%(file)s'], ['--data_dir=%(file)s']),
    (['--data_dir=/proc/data'], ['--data_dir=/proc/data']),
    (['--tower_device=gpu'], ['--tower_device=gpu', '--tower_device=cpu']),
])
def test_a_mistake_of_the_user_ends_with_2_and_one_line(call, arguments, parts, tmp_path):
    names = dict(file=str(tmp_path / 'file'))
    (tmp_path / 'file').write_text('')
    status, error = call('multi_gpu_train.py', *[argument % names for argument in arguments])
    assert status == 2
    line, = error.strip().splitlines()
    assert line.startswith('multi_gpu_train.py: error: ')
    for part in parts:
        assert part % names in line
    assert not os.path.exists(tmp_path / 'train' / 'config.json')


@pytest.mark.parametrize('arguments, part', [
    (['--eval_data=all'], '--eval_data=all is unknown; choose from: test, train_eval'),
    (['--eval_interval_secs=0'], '--eval_interval_secs=0'),
    (['--num_examples=x'], "'x' is not a whole number"),
    (['--eval_dir=%(file)s'], 'is not a directory'),
    (['--eval_dir=%(checkpoints)s'], 'holds checkpoints'),
    (['--tower_device=gpu'], '--tower_device=cpu'),
])
def test_a_mistake_in_the_flags_of_the_evaluator_does_too(call, arguments, part, tmp_path):
    (tmp_path / 'file').write_text('')
    (tmp_path / 'other').mkdir()
    for directory in (tmp_path, tmp_path / 'other'):
        (directory / 'model.ckpt-1.index').write_text('')
    names = dict(file=str(tmp_path / 'file'), checkpoints=str(tmp_path / 'other'))
    status, error = call('cifar10_eval.py', *[argument % names for argument in arguments])
    line, = error.strip().splitlines()
    assert status == 2 and line.startswith('cifar10_eval.py: error: ') and part in line


def test_as_a_process_the_status_and_the_stream_are_the_same():
    result = run_script('multi_gpu_train.py', num_gpus='many')
    assert (result.returncode, result.stdout) == (2, '')
    assert result.stderr == "multi_gpu_train.py: error: argument --num_gpus: 'many' is not a whole number; see --help\n"


@pytest.mark.parametrize('script, groups', [
    ('multi_gpu_train.py', training.GROUPS), ('cifar10_eval.py', evaluation.GROUPS)])
def test_help_shows_our_flags_in_groups_and_needs_no_tensorflow(script, groups):
    command = [sys.executable, '-X', 'importtime', str(ROOT / script), '--help']
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0
    assert 'tensorflow' not in result.stderr
    shown = set(re.findall(r'^  --(\w+)', result.stdout, re.M))
    assert shown == {field.name for field in fields(*groups)}
    assert {group.TITLE + ':' for group in groups} <= set(result.stdout.splitlines())


@pytest.mark.parametrize('written, value', [
    ('--restart', True), ('--restart=true', True), ('--restart=False', False), ('--norestart', False), ('', False)])
def test_boolean_flags_have_four_forms(written, value):
    assert flags.parse(training.GROUPS, '', written.split()).get('restart', False) is value


def test_flags_become_values_of_settings():
    parsed = flags.parse(training.GROUPS, '', ['--num_gpus=4', '--batch_size', '32', '--train_dir=/x y'])
    assert parsed == dict(num_gpus=4, batch_size=32, train_dir='/x y')


def test_classic_defaults_are_kept():
    config = train_settings().flat()
    assert [config[name] for name in ('train_dir', 'data_dir', 'max_steps', 'num_gpus', 'log_device_placement',
                                      'log_frequency')] == [
        '/tmp/cifar10_train', '/tmp/cifar10_data', 1000000, 1, False, 10]
    assert PRESETS[config['preset']]['batch_size'] == 128
    settings = eval_settings()
    assert (settings.checkpoint_dir, settings.eval_dir, settings.eval_interval_secs, settings.eval_data) == (
        '/tmp/cifar10_train', '/tmp/cifar10_eval', 300, 'test')


@pytest.mark.parametrize('wrong', [dict(restart='False'), dict(num_gpus=2.0), dict(seed=True), dict(train_dir=3)])
def test_settings_check_types(wrong):
    with pytest.raises(UsageError, match=f'--{next(iter(wrong))}='):
        train_settings(**wrong)


@pytest.mark.parametrize('arguments, status, part', [
    ([], 0, 'usage: python -m cifar10 COMMAND'), (['--help'], 0, '  local_cluster  starts a cluster'),
    (['nowhere'], 2, 'cifar10: error: there is no command nowhere; give one of replay, show_inputs, local_cluster'),
    (['replay', '--help'], 0, 'usage: replay '), (['replay', '--nostep'], 2, 'replay: error: '),
    (['show_inputs', '--step=1'], 2, 'show_inputs: error: '), (['local_cluster'], 2, 'local_cluster: error: ')])
def test_the_programs_beside_the_scripts_are_commands_of_one(arguments, status, part):
    result = subprocess.run([sys.executable, '-m', 'cifar10', *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == status and part in result.stdout + result.stderr
