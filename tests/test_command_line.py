"""Flags and bad input: one line, the right status, no traceback."""
import importlib
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import venv

import pytest
import tensorflow.compat.v1 as tf

import cifar10
from cifar10.__main__ import COMMANDS
from cifar10.base.errors import RunError, TemporaryError, UsageError
from cifar10.programs import flags, program
from cifar10.settings import evaluation, training
from cifar10.settings.definition import fields, flag_of
from cifar10.settings.training import train_settings
from tests.helpers import LINEAR, ROOT, mostly_stress, python, run_script

# (script, flags, parts of the error). %(file)s is an existing file, %(none)s a missing one, %(checkpoints)s a folder
# with a checkpoint, and %(taken)s an address in use.
REFUSED = [
    *(('multi_gpu_train.py', *row) for row in (
        ('--dataset=mnist', 'cifar10, cifar100, shapes, FILE.py:FUNCTION, FOLDER/'),
        ('--bach_size=8', 'unknown flag --bach_size', 'did you mean --batch_size?'),
        ('--lr 0.1 --bach_size=8 --lr=1', 'unknown flag --lr; here it is --learning_rate; unknown flag --bach_size'),
        ('stray', 'unknown argument stray; flags are written --flag=value; see --help=all'),
        ('--num_gpus=four', '--num_gpus', "'four' is not a whole number"),
        ('--max_steps', '--max_steps'),
        ('--restart=maybe', '--restart', "'maybe' is not a boolean; use true or false"),
        ('--image_size=15', '--image_size=15 is too small; the minimum is 16'),
        ('--deterministic --variable_update=async', 'another update mode'),
        ('--local_steps=4', '--local_steps is for --variable_update=local', 'has --variable_update=parameter_server'),
        ('--use_fp16 --precision=fp32', '--use_fp16 contradicts --precision=fp32; leave one'),
        ('--seed=99999999999', 'the maximum is'),
        ('--clip_norm=1e39', '--clip_norm=1e+39 is not valid; give 0, or a number from 1.18e-38 to 3.4e+38'),
        ('--train_dir=', '--train_dir is empty'),
        ('--train_dir=%(file)s', 'is not a directory', 'another directory'),
        ('--train_dir=%(link)s/below', '%(link)s is a link to gone, which does not exist; '),
        ('--data_dir=%(file)s', '--data_dir=%(file)s'),
        ('--tower_device=gpu', '--tower_device=cpu'),
        ('--epochs=1 --max_steps=5', '--max_steps=5 and --epochs=1 both set the length of the run; leave one of them'),
        ('--schedule=linear', '--schedule=linear plans the learning rate', ' give --epochs'),
        ('--epochs=2 --warmup_epochs=2', '--warmup_epochs=2 must be less than --epochs=2; reduce'),
        ('--preset=photos --dataset=photos', 'is unknown (no folder here has this name; give your own by its'),
        ('--image=a.png', 'unknown flag --image, which is a flag of cifar10_eval.py; see --help=all'),
        ('--clip_norm=1 --variable_update=mirrored', '--clip_norm=1 is incompatible',
         'which takes the same steps, or --clip_norm=0'),
        ('--weight_decay=0.1', '--weight_decay is for --optimizer=adamw, but this run has --optimizer=sgd; leave'),
        ('--weight_decay=1000 --optimizer=adamw', '--weight_decay=1000 is too large for the learning rate of 0.001'),
        ('--epochs=0', '--epochs=0 trains nothing'),
        ('--epochs=-1', '--epochs=-1 is not valid; give 0, or a number'),
        ('--label_smoothing=1', '--label_smoothing=1 leaves no probability for the label itself; give a number'),
        ('--learning_rate=nan', '--learning_rate=nan is not valid'),
        ('--preset=fast --sizes=20:0.5,99',
         '--sizes=20:0.5,99 has images of 99 pixels, more than --image_size=32; use smaller --sizes, or --image_size='),
        ('--preset=fast --sizes=20:0.5,24:0.5,32', '--sizes=20:0.5,24:0.5,32: the fractions add up to 1 or more'),
        ('--image_size=64 --data_dir=%(none)s',
         '--network=classic needs images of 24 pixels, but gets 48 from --augmentation=classic --image_size=64; use '
         '--network=fast or '),
        ('--num_gpus=2 --num_towers=4 --variable_update=mirrored --tower_device=cpu',
         '--num_towers=4 is incompatible with --variable_update=mirrored, which has one tower on each device, 2 in '
         'all; leave it out'),
        ('--keep_best', '--keep_best needs evaluations', 'add --eval_steps=79 ', 'use --keep_best=false'),
        ('--patience=5 --num_gpus=4 --dataset=mine/', '--patience=5 needs evaluations',
         'add --eval_steps=N (an epoch has training images / 512 steps)', 'use --patience=0'),
        ('--xla --tower_device=cpu', '--xla'))),
    *(('multi_gpu_train.py', f'--tower_device=cpu {line}', said) for line, said in (  # clusters
        ('--job_name=worker', 'a cluster needs --job_name'),
        ('--job_name=worker --worker_hosts=127.0.0.1:2222,10.0.0.2:2222', 'which no other machine can reach'),
        ('--job_name=worker --worker_hosts=::1:2222', 'not an address; give host:port, or [IPv6 address]:port'),
        ('--job_name=worker --worker_hosts=a:1,a:01', 'a:1 is the address of two tasks'),
        ('--job_name=worker --worker_hosts=0.0.0.0:2222,10.0.0.2:2222', '0.0.0.0:2222 is not the address of a single'),
        ('--job_name=worker --worker_hosts=a:1,b..c:2', 'b..c:2 is not an address; give host:port'),
        ('--job_name=ps --worker_hosts=, --ps_hosts=a:1', 'the cluster has no worker; give --worker_hosts'),
        ('--job_name=worker --worker_hosts=a:1,b:2 --task_index=2', 'worker 2 is not in the cluster'),
        ('--job_name=worker --worker_hosts=192.0.2.77:2222', '2222: that is not an address of this machine'),
        ('--job_name=worker --worker_hosts=%(taken)s', 'or correct --task_index'),
        ('--job_name=worker --worker_hosts=127.0.0.1:2222 --variable_update=mirrored', 'one machine only'))),
    *(('cifar10_eval.py', *row) for row in (
        ('--eval_data=all', '--eval_data=all is unknown; choose from: test, train_eval'),
        ('--max_steps=3', 'unknown flag --max_steps, which is a flag of multi_gpu_train.py; see --help=all'),
        ('--eval_dir=%(file)s', 'is not a directory'),
        ('--eval_dir=%(checkpoints)s', 'holds checkpoints'),
        ('--tower_device=gpu', '--tower_device=cpu'),
        ('--image=a.png --export_dir=x', 'leave it out, or leave out --image and --json'),
        ('--csv=x.csv --image=a.png --json', 'leave one of them out'),
        ('--csv=%(file)s --image=a.png', '--csv=%(file)s exists; remove it, or give the name of a new file'),
        ('--csv=%(file)s.csv --image=%(checkpoints)s', '--image=%(checkpoints)s has no pictures'),
        ('--image', 'expected at least one argument'),
        ('--checkpoint_dir=/nowhere', '--checkpoint_dir=/nowhere does not exist; give the train_dir of a run')))]


@pytest.mark.parametrize('script, line, parts', [(script, line, parts) for script, line, *parts in REFUSED])
def test_user_errors_exit_with_status_2_and_one_line_and_write_nothing(call, script, line, parts, tmp_path):
    (tmp_path / 'file').write_text('')
    for directory in (tmp_path, tmp_path / 'other'):
        directory.mkdir(exist_ok=True)
        (directory / 'model.ckpt-1.index').write_text('')
    os.symlink('gone', tmp_path / 'link')
    names = {name: str(tmp_path / path) for name, path in (
        ('file', 'file'), ('none', 'none'), ('checkpoints', 'other'), ('link', 'link'))}
    before = sorted(tmp_path.rglob('*'))
    with socket.create_server(('127.0.0.1', 0)) as taken:
        names['taken'] = f'127.0.0.1:{taken.getsockname()[1]}'
        flags = (line % names).split()
        status, text = call(script, *flags)
    error, = text.strip().splitlines()
    assert status == 2 and error.startswith(f'{script}: error: ')
    assert '_hosts=' in line or any(flag.partition('=')[0] in error for flag in flags)  # or the error names the address
    for part in parts:
        assert part % names in error
    assert sorted(tmp_path.rglob('*')) == before


def test_a_process_uses_the_same_status_and_stream():
    result = run_script('multi_gpu_train.py', num_gpus='many')
    assert (result.returncode, result.stdout) == (2, '')
    assert result.stderr == "multi_gpu_train.py: error: --num_gpus: 'many' is not a whole number; see --help=all\n"


GROUPS = {'train': training.GROUPS, 'eval': evaluation.GROUPS, 'local_cluster': []}
METAVARS = 'N|X|true.false|FILE|DIR|CHECKPOINT|PREFIX|FILE.png|REGEX|FROM:TO|N,N,N|N:X,N|NAME=X,...|HOST:PORT,...'


def help_of(program, flag, columns, monkeypatch, capsys):
    """Returns the lines that a program prints for a help flag, and the lines of each of its flags."""
    monkeypatch.setenv('COLUMNS', str(columns))
    monkeypatch.setattr(sys, 'argv', [f"cifar10-{program.replace('_', '-')}", flag])
    with pytest.raises(SystemExit):
        importlib.import_module(f'cifar10.programs.{program}').main()
    text = capsys.readouterr().out
    flags = re.findall(r'^  --(\w+)(.*(?:\n {5,}.*)*)', text, re.M)
    return text.splitlines(), {name: ' '.join(words.split()) for name, words in flags}


@pytest.mark.parametrize('program', GROUPS)
def test_help_fits_a_screen_and_help_all_lists_every_default(program, monkeypatch, capsys):
    lines, shown = help_of(program, '--help', 80, monkeypatch, capsys)
    assert len(lines) <= 40 and max(map(len, lines)) <= 84
    assert any(line.startswith(f"  cifar10-{program.replace('_', '-')} ") for line in lines)
    assert len(shown) <= 12 and 'version' in shown
    if GROUPS[program]:
        assert list(shown)[:2] == ['version', 'train_dir'] and lines[-1].endswith('docs/README.md in the repository.')
    every, whole = help_of(program, '--help=all', 120, monkeypatch, capsys)
    by_flag = {flag_of(field)[2:]: field for field in fields(*GROUPS[program])}
    assert by_flag.keys() <= whole.keys() and {group.TITLE + ':' for group in GROUPS[program]} <= set(every)
    for name, field in by_flag.items():
        assert '(default: ' in whole[name]
        assert field.metadata['choices'] or re.match(rf'\[?({METAVARS})[\] ]', whole[name]), whole[name]


HINTS = [
    ('--train-dirr=x', 'did you mean --train_dir?'), ('-num_gpus=2', 'did you mean --num_gpus?'),
    ('--data=x', 'did you mean --data_dir or --dataset?'), ('--no-restrat', 'did you mean --norestart?'),
    ('--zzz', 'unknown flag --zzz; see --help'),
    *((f'--{word}=1', f'here it is {flag}; see') for word, flag in (
        ('lr', '--learning_rate'), ('momentum', '--optimizer=momentum'),
        ('resume', '--train_dir, because a run that is there is resumed'))),
    ('--preset=Fast', 'did you mean fast?'), ('--optimizer=adm', 'did you mean adam?'),
    ('--dataset=cifar', 'did you mean cifar10 or cifar100?'),
    *((f'--{flag}={given}', f'--{flag}={given} is unknown (did you mean {meant}?)') for flag, given, meant in (
        ('network', 'mine.py', 'mine.py:FUNCTION'), ('augmentation', 'none,a.py', 'none,a.py:FUNCTION')))]


@pytest.mark.parametrize('written, hint', HINTS)
def test_mistyped_flags_get_a_hint_but_never_their_opposite(written, hint):
    with pytest.raises(UsageError) as refused:
        train_settings(**flags.parse(training.GROUPS, '.', [written]))
    assert hint in str(refused.value)
    assert ('mean --no' in str(refused.value)) == written.startswith('--no')


@pytest.mark.parametrize('written, name, value', [
    *((form, 'restart', True) for form in ('--restart', '--restart=true', '--restart=yes', '--restart=On')),
    *((form, 'restart', False) for form in ('--restart=False', '--restart=no', '--norestart', '--no-restart')),
    ('--max-steps=1e3', 'max_steps', 1000), ('--max_steps=1_000', 'max_steps', 1000), ('--num_gpus=4', 'num_gpus', 4),
    ('--batch_size 32', 'batch_size', 32), ('--train-dir=/a-b=c', 'train_dir', '/a-b=c')])
def test_flags_set_the_values_of_settings(written, name, value):
    assert flags.parse(training.GROUPS, '.', written.split()) == {name: value}


@pytest.mark.parametrize('wrong', [dict(restart='False'), dict(num_gpus=2.0), dict(seed=True), dict(train_dir=3)])
def test_settings_check_types(wrong):
    with pytest.raises(UsageError, match=f'--{next(iter(wrong))}='):
        train_settings(**wrong)


PROGRAMS = 'train', 'eval', 'local_cluster'


@pytest.mark.parametrize('arguments, status, part', [
    (['--help'], 0, '  local_cluster  starts a cluster'),
    (['evl'], 2, 'python -m cifar10: error: there is no program evl (did you mean eval?); choose from: train, eval'),
    (['eval', '--stepp=1'], 2, 'python -m cifar10 eval: error: unknown flag --stepp'),
    (['local-cluster', '--version'], 0, f'cifar10 {cifar10.__version__}, TensorFlow {tf.__version__}, Python ')])
def test_one_command_starts_all_programs_and_answers_without_tensorflow(arguments, status, part):
    result = python('-X', 'importtime', '-m', 'cifar10', *arguments)
    lines = [line for line in result.stderr.splitlines() if not line.startswith('import time:')]
    assert result.returncode == status and part in result.stdout + '\n'.join(lines)
    assert 'tensorflow' not in result.stderr.replace('TensorFlow', '')


def test_each_program_has_its_own_command_in_the_package():
    commands = {point.name: point.value for point in importlib.metadata.distribution('cifar10-towers').entry_points}
    assert commands == {f"cifar10-{name.replace('_', '-')}": f'cifar10.programs.{name}:run' for name in PROGRAMS}
    assert set(COMMANDS) == set(PROGRAMS)


def test_the_page_lists_every_exit_status():
    table = (ROOT / 'docs' / 'records.md').read_text().split('## Exit status')[1].split('\n## ')[0]
    assert re.findall(r'^\| (\d+)', table, re.M) == [str(int(status)) for status in sorted([
        program.FINISHED, program.STOPPED, program.UNREAD, UsageError.status, RunError.status, TemporaryError.status,
        128, 128 + signal.SIGKILL])]


@pytest.mark.parametrize('script, command', [
    ('multi_gpu_train.py', 'cifar10-train'), ('cifar10_eval.py', 'cifar10-eval')])
def test_a_script_copied_next_to_the_tutorials_file_is_refused_in_one_line(script, command, tmp_path):
    (tmp_path / 'cifar10.py').write_text('raise AttributeError("executed")')
    shutil.copy(ROOT / script, tmp_path)
    ended = subprocess.run([sys.executable, tmp_path / script], capture_output=True, text=True)
    line, = ended.stderr.splitlines()
    assert ended.returncode == 2 and ended.stdout == ''
    assert line.startswith(f'{script}: error: {tmp_path}/cifar10.py hides the package') and f'run {command} ' in line


@pytest.mark.parametrize('kind', mostly_stress(['clone', 'package', 'installed', 'activated'], 'activated'))
def test_printed_and_recorded_commands_exist_in_the_installation(kind, tmp_path):
    environment, executable, here = dict(os.environ), sys.executable, ROOT
    if kind != 'clone':
        shutil.copytree(ROOT / 'cifar10', tmp_path / 'site' / 'cifar10', ignore=shutil.ignore_patterns('__pycache__'))
        venv.create(tmp_path / 'venv', symlinks=True)
        executable, here = str(tmp_path / 'venv' / 'bin' / 'python'), tmp_path
        environment['PYTHONPATH'] = os.pathsep.join([str(tmp_path / 'site'), sysconfig.get_path('purelib')])
    programs = ('train', 'eval')
    if kind in ('installed', 'activated'):
        for name in programs:
            script = tmp_path / 'venv' / 'bin' / f'cifar10-{name}'
            script.write_text(f'#!{executable}\nimport sys\nfrom cifar10.programs.{name} import run\nsys.exit(run())\n')
            script.chmod(0o755)
    if kind == 'activated':
        environment['PATH'] = os.pathsep.join([os.path.dirname(executable), environment['PATH']])
    code = """if True:
        from cifar10.base.installed import command
        for program in ('train', 'eval'):
            print(command(program))
            print(command(program, anywhere=True))
    """
    found = subprocess.run([executable, '-c', code], cwd=here, env=environment, check=True, capture_output=True,
                           text=True).stdout.splitlines()
    for number, command in enumerate(found):
        ended = subprocess.run(f'{command} --help', shell=True, cwd='/' if number % 2 else here, env=environment,
                               capture_output=True, text=True)
        assert ended.returncode == 0 and ('--max_steps' in ended.stdout) == (number < 2), (command, ended.stderr)
    if kind == 'activated':
        assert found == ['cifar10-train'] * 2 + ['cifar10-eval'] * 2


def test_missing_tensorflow_is_reported_with_a_hint_to_activate_the_environment(tmp_path):
    code = "import sys; sys.modules['tensorflow'] = None; from cifar10.programs import train; sys.exit(train.run())"
    result = python('-c', code, f'--train_dir={tmp_path}')
    assert (result.returncode, result.stderr.count('\n')) == (2, 1)
    assert 'has no TensorFlow; activate the environment' in result.stderr


@pytest.mark.parametrize('flag, character', [
    ('--batch_size=8', '\r'), ('x', '\r'), ('--train_dir=x', '\r'), ('--train_dir=x', '\n'), ('--train_dir=x', '\x9b')])
def test_control_characters_are_shown_escaped(flag, character, call, tmp_path):
    status, text = call('multi_gpu_train.py', flag + character)
    error, = text.splitlines()
    assert status == 2 and f'contains the control character {character!r}; leave it out' in error.replace('\\\\', '\\')
    assert ('sed -i' in error) == (character == '\r') and flag in error


@pytest.mark.stress
def test_training_works_with_any_option_of_the_interpreter(data_dir, tmp_path):
    arguments = [f'--data_dir={data_dir}', f'--train_dir={tmp_path}', f'--network={LINEAR}', '--dataset=shapes',
                 '--max_steps=1', '--batch_size=4', '--tower_device=cpu']
    code = f'import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom cifar10.programs import train\nsys.exit(train.run())'
    result = python('-OO', '-bb', '-W', 'error', '-I', '-c', code, *arguments)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert 'step 1, loss' in result.stdout


def test_values_that_turn_a_setting_off_are_accepted_with_any_other_setting():
    for field in fields(*training.GROUPS):
        if field.metadata['only_with'] and field.type is float:
            settings = train_settings(**{field.name: 0.0}, network='fast', loss='mine.py:loss')
            assert getattr(settings.recipe, field.name) is None
