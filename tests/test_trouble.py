"""docs/trouble.md: what it shows is what the programs print, and it has a word of each error in the middle of a run."""
import ast
import errno
import os
import re
import subprocess
import time

import pytest

from cifar10.base.errors import RunError
from cifar10.run import cost
from tests import test_tower_seconds
from tests.features import flags_of
from tests.helpers import LINEAR, ROOT, Tasks, patient, read_until, run_script, small_disk
from tests.test_errors_of_files import ERRORS
from tests.test_soundness import opened  # noqa: F401 (a fixture)
from tests.test_stuck import HANGING, run

DIVIDING = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.reshape(images, [-1, 24 * 24 * 3])
    x = x / (4 - tf.cast(tf.train.get_or_create_global_step(), tf.float32))
    x = tf.debugging.check_numerics(x, 'after the division')
    return tf.matmul(x, tf.get_variable('w', [24 * 24 * 3, num_classes]))
'''
SECTIONS = dict(re.findall(r'^## (.*)\n([^#]*(?:#[^#\n]+\n[^#]*)*)', (ROOT / 'docs' / 'trouble.md').read_text(), re.M))


def lines_of(section):
    """Returns the lines of output in the blocks of a section, without commands."""
    blocks = re.findall(r'^```\n(.*?)^```$', SECTIONS[section], re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if not line.startswith('$')]


def form(line):
    """Returns a line without what differs from run to run: numbers, paths, addresses."""
    line = re.sub(r'/[\w.][\w./-]*', 'PATH', line)
    line = re.sub(r'(?<=recovering ).*(?=; making)', 'CAUSE', line)
    return re.sub(r'-?\d[\d,.]*(e[+-]?\d+)?', '0', line)


def assert_shown(section, printed):
    """Asserts that all lines of a section are among what programs have printed."""
    forms = set(map(form, printed.splitlines()))
    shown = lines_of(section)
    assert shown and not [line for line in shown if form(line) not in forms], printed


@pytest.fixture
def flags(data_dir):
    """The flags of a small run of the classic network."""
    return dict(dataset='shapes', data_dir=data_dir, batch_size=8, max_steps=20, save_steps=10, log_frequency=5,
                summary_steps=0, tower_device='cpu')


def test_it_does_not_start(flags, free_addresses, tmp_path):
    with Tasks(2, 0, started=['worker 0'], **flags, train_dir=tmp_path / 'run', cluster_timeout_secs=5) as tasks:
        assert_shown('It does not start', read_until(tasks['worker 0'], 'task ') + read_until(
            tasks['worker 0'], 'waiting '))


@pytest.mark.stress
def test_stuck(own, data_dir, tmp_path):
    stuck = run(dict(HANG_AT='51'), **dict(
        flags_of('linear', 'parameter_server'), dataset='shapes', data_dir=data_dir, network=own(HANGING), num_gpus=2,
        max_steps=40, tower_device='cpu', train_dir=tmp_path / 'run', stuck_secs=4))
    assert_shown('Stuck', stuck.stdout + stuck.stderr)


def test_slower():
    costs = cost.Cost(time.perf_counter(), 0, 128, 1, on_gpus=False, seconds=[])
    costs._seconds.update({cost.STEPS: 1012.0, cost.INPUT: 55.0, cost.EVALUATION: 31.4, cost.STARTING: 9.2})
    costs.at_end(9999)
    assert_shown('Slower', f'cost       {costs.summary()}')


def test_slow_towers():
    slow, alike = [0.1, 0.1, 0.124, 0.09], [0.1, 0.1, 0.1, 0.1]
    said = test_tower_seconds.lines([slow] * 375 + [alike] * 375, ['/gpu:0', '/gpu:1', '/gpu:2', '/gpu:3'])
    assert_shown('Slow towers', '\n'.join(line for _, line in said))


def test_nan(flags, tmp_path):
    failed = run_script('multi_gpu_train.py', **dict(flags, learning_rate=1e30), train_dir=tmp_path / 'run')
    assert failed.returncode == 1
    assert_shown('NaN', failed.stderr)


def test_a_value_that_is_not_finite_is_named_by_a_check_in_the_network(flags, own, tmp_path):
    assert 'x = tf.debugging.check_numerics(x, ' in SECTIONS['NaN']
    failed = run_script('multi_gpu_train.py', **flags, train_dir=tmp_path / 'run', network=own(DIVIDING))
    assert failed.returncode == 1
    assert f'after the division : Tensor had Inf values (line 6 of {tmp_path}/mine.py); ' in failed.stderr


@pytest.mark.stress
def test_two_runs_differ(flags, tmp_path):
    for name, rate in (('run', None), ('other', 0.05)):
        assert run_script('multi_gpu_train.py', train_dir=tmp_path / name, learning_rate=rate, **flags).returncode == 0
    command, = re.findall(r'^\$ (.*)', SECTIONS['Two runs differ'], re.M)
    compared = subprocess.run(command.replace('/tmp', str(tmp_path)), shell=True, capture_output=True, text=True)
    assert_shown('Two runs differ', compared.stdout)


@pytest.mark.stress
def test_out_of_memory(flags, tmp_path):
    checked = run_script('multi_gpu_train.py', train_dir=tmp_path / 'run', check=True, **dict(flags, batch_size=200000))
    assert_shown('Out of memory', checked.stdout)


@pytest.mark.stress  # by default: test_api.py
def test_the_disk(flags, tmp_path):
    with small_disk(tmp_path / 'disk', 20) as disk:
        failed = run_script('multi_gpu_train.py', train_dir=disk / 'run', **dict(flags, max_steps=40))
    assert failed.returncode == 1
    assert_shown('The disk', failed.stderr)


def test_computed_wrongly(opened):  # noqa: F811
    one, soundness, primary, spoil = opened('replicated', 'weights')
    for _ in range(8):
        one.take()
    spoil()
    with pytest.raises(RunError) as error:
        soundness.check()
    shown, = lines_of('Computed wrongly')
    shown = shown.replace('conv1/weights', primary.op.name)
    assert form(shown) == form(f'multi_gpu_train.py: error: {error.value}')


@pytest.mark.stress
def test_a_machine_or_a_device_is_gone(data_dir, tmp_path):
    with Tasks(2, 0, network=LINEAR, dataset='shapes', data_dir=data_dir, train_dir=tmp_path, batch_size=4,
               max_steps=3000, save_steps=50, log_frequency=100, summary_steps=0) as tasks:
        read_until(tasks['worker 0'], 'step 100,')
        tasks['worker 1'].kill()
        tasks.start('worker 1')
        output, _ = tasks['worker 0'].communicate(timeout=patient(60))
    assert_shown('A machine or a device is gone', output)


def test_the_page_has_a_word_of_each_error_in_the_middle_of_a_run():
    page = (ROOT / 'docs' / 'trouble.md').read_text()
    words = [re.compile(re.escape(word).replace(r'\.\.\.', '.*')) for word in re.findall(r'\*\*(.*?)\*\*', page)]
    found = set()
    rooms = [ROOT / 'cifar10' / room for room in ('run', 'training', 'cluster', 'evaluation', 'data')]
    for path in [path for room in rooms for path in room.rglob('*.py')]:
        # What a task finds when another one comes back is a UsageError at first.
        of_task = ('UsageError', 'error') if path.name == 'member.py' else ()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    'RunError', 'TemporaryError', 'diverged', 'end_process', 'tf.debugging.assert_equal',
                    'tf.strings.join', *of_task):
                message = ''.join(part.value for part in ast.walk(node)
                                  if isinstance(part, ast.Constant) and isinstance(part.value, str))
                if len(message) > 15:  # else it has only what other functions say
                    found.add(message)
                    assert any(word.search(message) for word in words), (path, message)
    assert len(found) >= 15
    # What the operating system says of a file; who is interrupted tries again.
    causes = {os.strerror(error) for error in set().union(*ERRORS.values()) - {0, errno.EINTR}}
    assert 'Input/output error' in causes
    assert not [cause for cause in causes if not any(word.search(cause) for word in words)]
