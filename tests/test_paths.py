"""Paths: one rule for all settings, on the command line and in Python."""
import json
import os
import pathlib
import shlex

import pytest

from cifar10 import train
from cifar10.base.errors import UsageError
from cifar10.programs import flags
from cifar10.run.folder import look
from cifar10.settings import evaluation
from cifar10.settings.definition import checked, fields, flag_of
from cifar10.settings.training import GROUPS
from tests.helpers import as_given

ALL = {'train': GROUPS, 'eval': evaluation.GROUPS}
PATHS = [(program, name) for program, name in [
    *[('train', name) for name in ('train_dir', 'warm_start', 'data_dir', 'dataset', 'network', 'optimizer')],
    *[('eval', name) for name in ('checkpoint_dir', 'train_dir', 'checkpoint', 'eval_dir', 'export_dir', 'csv',
                                  'data_dir', 'dataset', 'network')]]]
ENDS = {'network': '/a b.py:f', 'optimizer': '/a b.py:f'}


def value_of(program, name, given):
    return checked(ALL[program], {name: given})[name]


def test_all_path_settings_are_covered_here():
    found = {(program, field.name) for program, groups in ALL.items() for field in fields(*groups)
             if field.metadata['is_path'] or field.name in ('dataset', 'network', 'optimizer')}
    assert found == set(PATHS)


@pytest.mark.parametrize('program, name', PATHS)
def test_a_tilde_means_the_home_as_in_a_shell(program, name, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    end = ENDS.get(name, '/a b')
    flag = next(flag_of(field) for field in fields(*ALL[program]) if field.name == name)
    on_command_line = flags.parse(ALL[program], 'x', [f'{flag}=~{end}'])
    assert value_of(program, name, on_command_line[name]) == f'{tmp_path}{end}'
    assert value_of(program, name, pathlib.Path(f'~{end}')) == f'{tmp_path}{end}'
    monkeypatch.chdir(tmp_path)
    assert os.path.abspath(value_of(program, name, f'./~{end}')) == f'{tmp_path}/~{end}'  # shells do not expand this


@pytest.mark.parametrize('program, name', PATHS)
def test_an_unusable_path_is_refused_with_a_remedy(program, name, tmp_path, monkeypatch):
    end = ENDS.get(name, '/x')
    with pytest.raises(UsageError, match=f'~no-such-user{end}: there is no home directory ~no-such-user; give'):
        value_of(program, name, f'~no-such-user{end}')
    for scheme in ('gs', 's3', 'hdfs', 'file', 'https'):
        with pytest.raises(UsageError, match=f'={scheme}://bucket{end} is a URL, but files must be on this mach'):
            value_of(program, name, f'{scheme}://bucket{end}')
    (tmp_path / 'gone').mkdir()
    monkeypatch.chdir(tmp_path / 'gone')
    (tmp_path / 'gone').rmdir()
    with pytest.raises(UsageError, match=f'=rel{end} is in the working directory, which was removed; change'):
        value_of(program, name, f'rel{end}')
    assert value_of(program, name, f'/x{end}') == f'/x{end}'


def test_images_to_classify_may_be_in_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    # An address gets its error later, on its own line; the other images are classified.
    assert value_of('eval', 'image', ('~/a.png', 'b.png', 'https://x/c.png')) == (
        f'{tmp_path}/a.png', 'b.png', 'https://x/c.png')


def test_a_run_in_the_home_is_written_and_resumed_there(settings, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    values = as_given(settings(max_steps=1), train_dir='~/run')
    assert train(**values).checkpoint == f'{tmp_path}/run/model.ckpt-1'
    assert train(train_dir='~/run', max_steps=2).step == 2  # it uses the settings of the run
    assert os.listdir(tmp_path) == ['run']


def test_the_working_directory_may_contain_wildcards(settings, tmp_path, monkeypatch):
    folder = "in[1] a*? b\\c d'e"
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    values, lines = as_given(settings(max_steps=1), train_dir='out'), []
    train(**values, say=lines.append)
    watch, = [shlex.split(line) for line in lines if line.startswith('watch ')]
    assert watch == ['watch', 'tensorboard', '--logdir', str(tmp_path / folder / 'out')]
    assert train(**{**values, 'train_dir': 'new', 'warm_start': 'out'}).step == 1
    record = json.loads((tmp_path / folder / 'new' / 'config.json').read_text())
    assert record['settings']['warm_start'] == str(tmp_path / folder / 'out' / 'model.ckpt-1')
    *_, train_dir = [flag for flag in shlex.split(record['command']) if flag.startswith('--train_dir')]
    monkeypatch.chdir('/')
    assert train(**flags.parse(GROUPS, 'x', [train_dir, '--max_steps=2'])).step == 2
    assert look(train_dir.partition('=')[2]).record.settings.run.warm_start == record['settings']['warm_start']
