"""A training without progress reports it and ends with status 75 and stack traces; a slow training continues."""
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from cifar10.base import activity, files
from cifar10.training import run as run_module
from cifar10.training import run_files, trainer
from tests import fixtures
from tests.features import flags_of
from tests.helpers import (
    ROOT,
    Tasks,
    assert_same_bits,
    last_variables,
    patient,
    read_until,
    run_forked,
    script_command,
)

SECONDS = patient(120)
WATCHED = """
import os, signal, subprocess, sys, threading, time
from cifar10.base import activity
from cifar10.base.activity import doing, moved
from cifar10.base.console import say
from cifar10.base.stuck import StuckWatch, asking
with StuckWatch({limit}), doing('at work'):
{body}
print('ended by itself', flush=True)
"""


def watched(body, limit=1):
    """Starts a process that runs lines of Python under a watch."""
    code = WATCHED.format(limit=limit, body=''.join(f'    {line}\n' for line in body.splitlines()))
    return subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            cwd=ROOT)


def ended(process):
    """Waits for the end of a process; returns (status, standard output, standard error)."""
    output, errors = process.communicate(timeout=SECONDS)
    return process.returncode, output, errors


NOT_STUCK = {
    'moves': 'for _ in range(30): time.sleep(0.1); moved()',
    'begins and ends parts': 'for _ in range(3):\n    with doing("in a part"): time.sleep(0.7)',
    'has patience': 'with doing("in the first step", 5): time.sleep(3)',
    # Progress of a thread counts for the thread that waits for it.
    'other threads move':
        'def move():\n    for _ in range(30): time.sleep(0.1); moved()\n'
        'thread = threading.Thread(target=move); thread.start(); thread.join()',
    # A terminal may be stopped, and a pager may wait for a person.
    'nobody reads':
        'reading, writing = os.pipe(); os.dup2(writing, 1); sys.stdout = open(1, "w", closefd=False)\n'
        'def read():\n    time.sleep(3)\n    while os.read(reading, 2 ** 16): pass\n'
        'threading.Thread(target=read, daemon=True).start()\n'
        'before = os.dup(2); say("", "x" * 2 ** 18); os.dup2(before, 1)',
    # The time of a caller's function does not count: it may upload a file, or ask a person.
    'a caller takes a record':
        'from cifar10.base.console import Output\nOutput(on_record=lambda record: time.sleep(3)).record({})',
    'another process holds a lock':
        'import tempfile\nfrom cifar10.base import files\n'
        'path = tempfile.mkdtemp() + "/images"\nheld = threading.Event()\n'
        'def hold():\n    with files.making(path): held.set(); time.sleep(3)\n'
        'threading.Thread(target=hold).start(); held.wait()\n'
        'with files.making(path): pass',
    # A stopped process waits for the person who stopped it.
    'stopped':
        'subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -STOP {os.getpid()}; sleep 3; kill -CONT {os.getpid()}"])\n'
        'time.sleep(0.8); time.sleep(0.1)',
}


@pytest.mark.stress
def test_slow_or_interrupted_processes_are_not_ended():
    processes = {name: watched(body) for name, body in NOT_STUCK.items()}
    for name, process in processes.items():
        status, output, errors = ended(process)
        assert status == 0, (name, output, errors)


def test_waiting_for_a_lock_names_the_lock_and_its_holder(tmp_path):
    with files.making(str(tmp_path / 'images')):
        process = watched(f'from cifar10.base import files\nwith files.making("{tmp_path}/images"): pass')
        line = read_until(process, 'waiting ')
    assert line == (f'waiting    for another process that makes {tmp_path}/images, which holds the lock '
                    f'{tmp_path}/.images.lock (process {os.getpid()} on {socket.gethostname()})\n')
    assert ended(process)[0] == 0 and os.listdir(tmp_path) == []


def test_a_stuck_process_is_reported_and_ended():
    status, output, errors = ended(watched("""
def hang(): time.sleep(1000)
with doing('step 1'): time.sleep(0.5)
with asking(lambda: 1 / 0), asking(lambda: ''), asking(lambda: 'worker 1 does not answer'):
    with doing('evaluation'): hang()
"""))
    assert status == 75 and 'ended by itself' not in output
    stacks, line = errors.rstrip('\n').rsplit('\n', 1)
    assert line == ('-c: error: no progress for 1 s (evaluation); worker 1 does not answer; start again to continue '
                    'from the newest checkpoint')
    assert 'in hang\n' in stacks and stacks.count('most recent call first') > 1


def test_progress_while_others_are_asked_prevents_the_end():
    status, _, _ = ended(watched("""
moving = threading.Event()
def ask():
    moving.set(); time.sleep(1)
with doing('save'), asking(ask):
    moving.wait()
"""))
    assert status == 0


@pytest.mark.stress
def test_a_stuck_process_ends_even_if_nobody_reads_its_output():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b'x' * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writing, True)
    code = WATCHED.format(limit=1, body='    time.sleep(1000)\n')
    process = subprocess.Popen([sys.executable, '-c', code], stdout=writing, stderr=writing, cwd=ROOT)
    begin = time.monotonic()
    assert process.wait(timeout=SECONDS) == 75
    assert time.monotonic() - begin < patient(20)
    os.close(reading)
    os.close(writing)


def test_the_first_step_of_each_graph_gets_more_time(settings, monkeypatch):
    # TensorFlow prepares separate graphs for steps with a summary, steps without, and evaluations.
    given = []

    def doing(what, patience=1):
        given.append((what, patience))
        return activity.doing(what, patience)
    for module in (run_module, run_files):
        monkeypatch.setattr(module, 'doing', doing)
    trainer.train(settings(max_steps=5, summary_steps=2, eval_steps=3))
    steps = [patience for what, patience in given if what.startswith('step ')]
    assert steps == [5, 5, 1, 1, 1]  # the second step has the first summary
    assert [patience for what, patience in given if what == 'evaluation'] == [5, 1]


HANGING = """
import os, sys, time, traceback
import tensorflow.compat.v1 as tf

calls = []

def is_counted():  # each tower's call in a step of the training
    return any(frame.f_code.co_name == 'run_step' for top in list(sys._current_frames().values())
               for frame, _ in traceback.walk_stack(top))

def late(x):
    if not is_counted():
        return x
    calls.append(1)
    if len(calls) >= int(os.environ.get('HANG_AT', 10 ** 9)):
        time.sleep(10 ** 6)
    return x

def network(images, num_classes, training):
    flat = tf.reshape(images, [-1, images.shape[1] * images.shape[2] * 3])
    shape = flat.shape
    flat = tf.numpy_function(late, [flat], flat.dtype)
    flat.set_shape(shape)
    w = tf.get_variable('w', [flat.shape[1], num_classes], initializer=tf.zeros_initializer())
    return tf.matmul(flat, w)
"""


def run(environment=None, **flags):
    """Trains in its own process to the end; returns the CompletedProcess."""
    return run_forked(script_command('multi_gpu_train.py', **flags), {**os.environ, **(environment or {})})


@pytest.mark.stress
def test_a_hanging_import_is_reported(tmp_path):
    (tmp_path / 'tensorflow.py').write_text('import time\ntime.sleep(10 ** 6)\n')
    environment = {**os.environ, 'PYTHONPATH': str(tmp_path)}
    stuck = subprocess.run(script_command('multi_gpu_train.py', train_dir=tmp_path / 'run', stuck_secs=1), text=True,
                           capture_output=True, timeout=SECONDS, env=environment)
    assert stuck.returncode == 75 and f'File "{tmp_path}/tensorflow.py", line 2' in stuck.stderr, stuck
    assert 'error: no progress for 5 s (start); start again' in stuck.stderr


@pytest.mark.stress  # its end is tested above, and resuming a killed run in test_processes.py
@pytest.mark.parametrize('mode', ['replicated', 'async'])
def test_a_run_with_a_hanging_tower_resumes_to_the_same_bits(mode, own, data_dir, tmp_path):
    flags = dict(flags_of('linear', mode), dataset='shapes', data_dir=data_dir, network=own(HANGING), num_gpus=2,
                 max_steps=40, save_steps=10, log_frequency=10, tower_device='cpu')
    stuck = run(dict(HANG_AT='5' if mode == 'async' else '51'), train_dir=tmp_path / 'stuck', stuck_secs=4, **flags)
    assert stuck.returncode == 75, stuck.stderr
    assert re.search(r'error: no progress for 4 s \(step \d+\); start again', stuck.stderr)
    assert 'in late' in stuck.stderr
    resumed = run(train_dir=tmp_path / 'stuck', **flags)
    assert resumed.returncode == 0, resumed
    if mode != 'async':  # async hangs before its first checkpoint, and its bits vary
        assert f'{tmp_path}/stuck, resumed at step ' in resumed.stdout
        assert run(train_dir=tmp_path / 'whole', **flags).returncode == 0
        assert_same_bits(last_variables(tmp_path / 'stuck'), last_variables(tmp_path / 'whole'))


@pytest.fixture
def small(data_dir, tmp_path):
    """The flags of a small run that does not end by itself."""
    return dict(fixtures.small(data_dir, tmp_path), max_steps=10 ** 6, log_frequency=1, learning_rate=0.001)


@pytest.mark.stress
@pytest.mark.parametrize('mode, who', [
    ('replicated', 'worker 0'), ('async', 'worker 1'), ('parameter_server', 'ps 0')])
def test_a_stopped_task_is_named_by_its_peers(mode, who, small):
    with Tasks(2, int(who == 'ps 0'), **dict(small, variable_update=mode, stuck_secs=6)) as tasks:
        read_until(tasks['worker 0'], 'step 10,')
        tasks[who].send_signal(signal.SIGSTOP)
        other = 'worker 1' if who == 'worker 0' else 'worker 0'
        output, _ = tasks[other].communicate(timeout=SECONDS)
    assert tasks[other].returncode == 75
    # In async, the task may be in its first step, which may take five times as long.
    assert re.search(rf'no progress for (6|30) s .*; {who} at \S+ does not answer; start again', output), output


@pytest.mark.stress
def test_a_hanging_file_system_ends_the_process(small, tmp_path):
    library = tmp_path / 'hanging.so'
    subprocess.run(['cc', '-shared', '-fPIC', '-o', library, ROOT / 'tests' / 'hanging.c', '-ldl'], check=True)
    train_dir = tmp_path / 'run'
    flags = dict(small, train_dir=train_dir, stuck_secs=10, save_steps=100, log_frequency=10 ** 6)
    process = subprocess.Popen(script_command('multi_gpu_train.py', **flags), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
                                   **os.environ, 'LD_PRELOAD': str(library), 'HANG_BELOW': str(train_dir),
                                   'HANG_IF': str(tmp_path / 'now')})
    while not (train_dir / 'model.ckpt-100.index').exists():
        time.sleep(0.05)
    (tmp_path / 'now').touch()
    output = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 75 and 'error: no progress for 10 s (save); start again' in output, output
    assert 'File "' in output
