"""Runs as real processes: kills, interrupts, a full disk, a terminal, the real TensorBoard."""
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.programs import program
from cifar10.run import metrics
from cifar10.run.folder import step_of
from cifar10.settings.training import train_settings
from tests.forked import Forked
from tests.helpers import (
    LINEAR,
    assert_same_bits,
    checkpoints,
    last_variables,
    patient,
    python,
    random_moments,
    read_until,
    rest_of,
    run_script,
    script_command,
    start_script,
    train,
    variables,
)

SCRIPT = 'multi_gpu_train.py'


@pytest.fixture
def small(data_dir, tmp_path, request):
    """The flags of a small run of two towers, with the network of linear.py unless the test is marked `classic`.

    A process that is not forked knows this network only by its file.
    """
    linear = {} if request.node.get_closest_marker('classic') else dict(network='linear')
    return dict(dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train', num_gpus=2, batch_size=8,
                tower_device='cpu', log_frequency=1, save_steps=20, summary_steps=10, max_steps=100, **linear)


def train_here(flags, train_dir):
    """Trains with these flags in this process; returns the last variables."""
    return train(train_settings(**dict(flags, train_dir=str(train_dir))))


@pytest.mark.parametrize('leasts', [
    (11,), pytest.param((1, 11, 21), marks=[pytest.mark.stress, pytest.mark.classic])])
def test_a_run_killed_at_any_moment_ends_with_the_bits_of_an_unbroken_one(leasts, small, tmp_path):
    """Each start has far more steps to take than even a fast machine completes before the kill."""
    moments = random_moments()
    saved = 0
    for least in leasts:
        process = start_script(SCRIPT, **dict(small, max_steps=1_000_000, save_steps=10))
        read_until(process, f'step {saved + least + moments.randrange(15)},')
        time.sleep(moments.random() * 0.05)
        process.kill()
        process.communicate()
        saved = max((step_of(prefix) for prefix in checkpoints(small['train_dir'])), default=0)
        taken = metrics.read(str(small['train_dir']), metrics.TRAIN)[-1]['step']
    last = saved + 29
    small.update(max_steps=last, save_steps=10)
    process = start_script(SCRIPT, **small)
    output = process.communicate(timeout=patient(60))[0]
    assert process.returncode == 0, output
    again = f'; the steps {saved + 1} to {taken} are taken again' if taken > saved else ''
    assert f'resumed at step {saved} of {last}{again}\n' in output
    assert_same_bits(train_here(small, tmp_path / 'whole'), last_variables(small['train_dir']))
    recorded = [record['step'] for record in metrics.read(str(small['train_dir']), metrics.TRAIN)]
    assert recorded == list(range(1, last + 1))


def test_a_signal_ends_the_run_cleanly(small):  # each signal: test_signals.py
    process = start_script(SCRIPT, **dict(small, max_steps=100000, save_steps=100000))
    read_until(process, 'step 5,')
    process.send_signal(signal.SIGUSR1)
    output = process.communicate(timeout=patient(30))[0]
    assert process.returncode == program.STOPPED, output
    step = int(re.findall(r'step (\d+), loss', output)[-1]) if 'loss' in output else 5
    arrays = last_variables(small['train_dir'])
    assert arrays['global_step'] == step and arrays['examples_seen'] == 16 * step
    assert 'stopping   SIGUSR1' in output and 'start again to continue' in output
    assert 'Traceback' not in output


@pytest.mark.stress
@pytest.mark.parametrize('closed, stream', [('>&-', 'stderr'), ('2>&-', 'stdout'), ('>&- 2>&- <&-', None)])
def test_closed_streams_lose_no_errors_and_corrupt_no_files(small, closed, stream):
    os.makedirs(small['train_dir'])
    small['train_dir'].joinpath('config.json').write_text('{}')
    command = ['sh', '-c', f'"$@" {closed}', 'sh', *script_command(SCRIPT, **dict(small, network=LINEAR))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=patient(60))
    assert result.returncode == 2 and 'Traceback' not in result.stdout + result.stderr
    if stream:
        error = 'multi_gpu_train.py: error: '
        lines = getattr(result, stream).splitlines()
        assert [line.startswith(error) for line in lines][-1] and 'was not written by this program' in lines[-1]
    if stream == 'stderr':
        assert lines[0] == 'multi_gpu_train.py: warning: standard output is closed, so only errors are shown'
    assert small['train_dir'].joinpath('config.json').read_text() == '{}'


# A network whose second step sleeps longer than any test.
ENDLESS = '''
import time
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    def wait(x, step):
        if step == 1:  # not where it is tried
            time.sleep(100000)
        return x
    x = tf.reshape(tf.numpy_function(wait, [images, tf.train.get_global_step()], tf.float32), [-1, 24 * 24 * 3])
    return x @ tf.get_variable('weights', [24 * 24 * 3, num_classes])
'''


def test_a_second_signal_ends_the_process_at_once(small, own):
    process = start_script(SCRIPT, **dict(small, num_gpus=1, network=own(ENDLESS)))
    read_until(process, 'step 1,')
    process.send_signal(signal.SIGTERM)
    read_until(process, 'stopping   SIGTERM: after this step; another signal ends the process at once')
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=patient(20))
    assert process.returncode == 128 + signal.SIGTERM and output == ''


def test_a_signal_before_the_first_step_leaves_no_partial_files(small, tmp_path):
    process = subprocess.Popen(script_command(SCRIPT, **dict(small, network=LINEAR, data_dir=tmp_path / 'fresh')),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    maps = pathlib.Path(f'/proc/{process.pid}/maps')
    while process.poll() is None and 'tensorflow' not in maps.read_text():  # during its import
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=patient(30))[0]
    assert process.returncode == 128 + signal.SIGINT and 'interrupted before' in output and 'Traceback' not in output
    assert not os.path.exists(tmp_path / 'fresh') or os.listdir(tmp_path / 'fresh') in ([], ['shapes-bin'])


@pytest.mark.stress
def test_deterministic_runs_give_the_same_bits(small, tmp_path):
    # In its own process, because deterministic operations affect the whole process and round differently.
    code = ('import json, sys; from cifar10.base import startup; startup.start_tensorflow()\n'
            'from cifar10.training import trainer; from cifar10.settings.training import train_settings\n'
            'for name in sys.argv[2:]:\n'
            '    trainer.train(train_settings(**json.loads(sys.argv[1]), train_dir=name))')
    flags = dict(small, network=LINEAR, max_steps=3, deterministic=True)
    del flags['train_dir']
    directories = [str(tmp_path / 'one'), str(tmp_path / 'two')]
    result = python('-c', code, json.dumps(flags), *directories)
    assert result.returncode == 0, result.stderr
    assert_same_bits(last_variables(tmp_path / 'one'), last_variables(tmp_path / 'two'))


def test_a_terminal_shows_a_progress_bar_and_lines(small):
    reading, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('4H', 24, 80, 0, 0))
    process = Forked(script_command(SCRIPT, **dict(small, max_steps=12, log_frequency=5)), errors=terminal,
                     output=os.dup(terminal))
    shown = rest_of(reading)
    assert process.wait(timeout=patient(30)) == 0
    # Terminal lines are 10 s apart, so only the first and the last of these steps have lines.
    step = r'step (\d+), loss = \d+\.\d\d \(\d+\.\d examples/sec; \d\.\d{3} sec/batch\)'
    assert re.findall(step, shown) == ['5', '12'] and shown.index('step 12,') < shown.index('saved')
    bars = re.findall(r'\r *(\d+%\|([^|]*)\| (\d+)/12 \[[^]]*\])', shown)
    assert int(bars[-1][2]) == 12 and re.search(r'<00:0\d, loss \d\.\d\d, [\d,]+ images/s\]$', bars[-1][0])
    assert all(len(bar) <= 77 and len(blocks) >= 10 for bar, blocks, _ in bars)  # leaves room for ^C
    lines = [re.sub('\x1b.*?m', '', line).rpartition('\r')[2] for line in shown.replace('\r\n', '\n').splitlines()]
    assert all(len(line) <= 80 or ' ' not in line.strip() for line in lines)


def test_a_closed_output_pipe_ends_the_run_cleanly(small):
    process = start_script(SCRIPT, **dict(small, max_steps=100000, save_steps=100000))
    read_until(process, 'step 3,')
    process.stdout.close()
    assert process.wait(timeout=patient(30)) == program.UNREAD
    assert last_variables(small['train_dir'])['global_step'] >= 3


@pytest.mark.stress  # the values of a step are tested by default: test_updates.py
@pytest.mark.classic
def test_summaries_show_numpys_values(small):
    # The histogram of step s shows the variables at its start, which are in checkpoint s - 1.
    result = run_script(SCRIPT, **dict(small, max_steps=5, save_steps=1, summary_steps=1, max_to_keep=0))
    assert result.returncode == 0
    events, = [str(path) for path in pathlib.Path(small['train_dir'], 'train').iterdir()]
    histograms, values, start = {}, {}, None
    for event in tf.train.summary_iterator(events):
        if event.session_log.status == event.session_log.START:
            start = event.step
        for value in event.summary.value:
            if value.HasField('histo'):
                histograms[event.step, value.tag] = value.histo
            else:
                values[event.step, value.tag] = value.simple_value
    assert start == 1
    for step in range(2, 6):
        before, after = (variables(os.path.join(small['train_dir'], f'model.ckpt-{k}')) for k in (step - 1, step))
        for name in ('conv1/weights', 'local4/biases', 'softmax_linear/weights'):
            array = before[name].astype(np.float64)
            shown, gradient = (histograms[step, f'variables/{name}{suffix}'] for suffix in ('', '/gradients'))
            np.testing.assert_allclose([shown.num, shown.min, shown.max, shown.sum_squares],
                                       [array.size, array.min(), array.max(), (array ** 2).sum()], rtol=1e-6)
            # The applied change: rate x gradient.
            change = (before[name].astype(np.float64) - after[name]) / 0.1
            np.testing.assert_allclose([gradient.min, gradient.max], [change.min(), change.max()], atol=2e-6)
        towers = [values[step, f'details/towers/tower_{k}'] for k in (0, 1)]
        np.testing.assert_allclose(values[step, 'loss'], np.mean(towers), rtol=1e-6)
        assert towers[0] != towers[1]
        decay = sum(0.004 * (before[name].astype(np.float64) ** 2).sum() / 2
                    for name in ('local3/weights', 'local4/weights'))
        np.testing.assert_allclose(values[step, 'details/weight_loss'], decay, rtol=1e-5)
        np.testing.assert_allclose(values[step, 'cross_entropy'] + decay, values[step, 'loss'], rtol=1e-5)
        assert values[step, 'accuracy'] * 16 % 1 == 0
        np.testing.assert_allclose(values[step, 'details/learning_rate'], 0.1)
        assert values[step, 'details/images_per_sec'] > 0
