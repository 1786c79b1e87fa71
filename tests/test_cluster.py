"""Clusters as real processes on loopback addresses: same steps, one end for all, lost peers are named."""
import os
import pathlib
import re
import shutil
import signal
import socket
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.settings.training import train_settings
from tests.helpers import (
    Tasks,
    assert_same_bits,
    last_variables,
    patient,
    random_moments,
    read_until,
    run_script,
    scalars,
    start_script,
    train,
)

pytestmark = pytest.mark.classic
SECONDS = patient(60)  # limit of one run in this file


@pytest.fixture
def small(data_dir, tmp_path, monkeypatch):
    """Flags of a small, quick run. The environment has a dead proxy, so tasks must connect directly."""
    monkeypatch.setenv('https_proxy', 'http://127.0.0.1:9')
    return dict(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path / 'train'), batch_size=8, max_steps=30,
                log_frequency=5)


def two_towers(flags, train_dir):
    """Trains with two towers in this process; two workers must produce the same bits."""
    return train(train_settings(**dict(flags, train_dir=str(train_dir), num_gpus=2, tower_device='cpu')))


def session_starts(train_dir):
    """Returns the steps of the session starts in the event files."""
    events, = [str(path) for path in pathlib.Path(train_dir, 'train').iterdir()]
    return [event.step for event in tf.train.summary_iterator(events)
            if event.session_log.status == event.session_log.START]


# Kills of other tasks at random moments: test_cluster_stress.py.
def test_a_killed_worker_rejoins_and_the_run_ends_with_the_same_bits(small, tmp_path):
    flags = dict(small, network='linear', save_steps=10, log_frequency=1, summary_steps=6)
    whole = two_towers(flags, tmp_path / 'whole')
    with Tasks(2, 0, **flags) as tasks:
        read_until(tasks['worker 0'], 'step 15,')
        tasks['worker 1'].kill()
        tasks['worker 1'].communicate()
        tasks.start('worker 1')
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    assert_same_bits(last_variables(flags['train_dir']), whole)
    steps = [int(step) for step in re.findall(r'step (\d+), loss', ends['worker 0'][1])]
    repeated = [b for a, b in zip(steps, steps[1:]) if b <= a]
    assert len(repeated) <= 1 and all(b % 10 == 1 for b in repeated)  # since the newest checkpoint
    assert min(rate for _, rate in scalars(flags['train_dir'], 'details/images_per_sec')) > 0
    begin, again = session_starts(flags['train_dir'])  # TensorBoard drops the events after these steps
    assert begin == 1 and again in (11, 21)


@pytest.mark.stress
def test_a_lost_worker_is_named_and_the_wait_is_limited(small):
    with Tasks(2, 0, **dict(small, max_steps=100000, cluster_timeout_secs=4)) as tasks:
        read_until(tasks['worker 0'], 'step 10,')
        address = tasks.commands['worker 0'][-1].split(',')[1]
        tasks['worker 1'].kill()
        output, _ = tasks['worker 0'].communicate(timeout=SECONDS)
    assert tasks['worker 0'].returncode == 75
    assert f'lost       worker 1 at {address}; waiting up to 4 s for it' in output
    assert f'error: worker 1 at {address} cannot be reached after 4 s' in output


@pytest.mark.stress
@pytest.mark.parametrize('mode, ps, victim', [('replicated', 1, 'worker 1'), ('local', 0, 'worker 0')])
def test_a_lost_peer_ends_all_processes_of_an_all_reduce_and_a_new_start_resumes(mode, ps, victim, small, tmp_path):
    flags = dict(small, variable_update=mode, max_steps=60, save_steps=10, log_frequency=1)
    whole = two_towers(flags, tmp_path / 'whole')
    with Tasks(2, ps, **flags) as tasks:
        read_until(tasks['worker 0'], f'step {random_moments().randrange(1, 30)},')
        tasks[victim].kill()
        ends = tasks.ends()
    left = [end for name, end in ends.items() if name != victim]
    assert {status for status, _ in left} == {75}, ends
    assert not any('waiting up to' in output for _, output in left)  # nobody can rejoin, so all end at once
    assert victim == 'worker 0' or 'worker 1 at ' in ends['worker 0'][1]
    with Tasks(2, ps, **flags) as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    assert_same_bits(last_variables(flags['train_dir']), whole)


@pytest.mark.stress
def test_a_stopped_worker_changes_no_variable(small, tmp_path):
    flags = dict(small, max_steps=40, log_frequency=1)
    whole = two_towers(flags, tmp_path / 'whole')
    with Tasks(2, 0, **flags) as tasks:
        read_until(tasks['worker 0'], 'step 10,')
        tasks['worker 1'].send_signal(signal.SIGSTOP)
        time.sleep(4)
        tasks['worker 1'].send_signal(signal.SIGCONT)
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    assert 'lost' not in ends['worker 0'][1]
    assert_same_bits(last_variables(flags['train_dir']), whole)


@pytest.mark.stress
def test_a_signal_to_all_tasks_ends_them_cleanly(small):
    with Tasks(2, 1, **dict(small, max_steps=100000)) as tasks:
        read_until(tasks['worker 0'], 'step 10,')
        for process in tasks.processes.values():
            process.send_signal(signal.SIGTERM)
        ends = tasks.ends()
    assert {name: status for name, (status, _) in ends.items()} == {'worker 0': 3, 'worker 1': 0, 'ps 0': 0}, ends
    assert 'saved' in ends['worker 0'][1]


@pytest.mark.stress
def test_an_error_of_the_chief_ends_all_tasks(small, settings):
    small['network'] = 'linear'
    train(settings(train_dir=small['train_dir'], seed=7, network='linear'))
    with Tasks(2, 0, seed=0, **small) as tasks:
        ends = tasks.ends()
    for status, output in ends.values():  # each finds the run of the chief in the shared folder
        assert status == 2 and 'run of --seed=7. For --seed=0 use' in output


@pytest.mark.stress
@pytest.mark.parametrize('worker_has', ["the run's images", 'other bytes', 'only its own'])
def test_workers_without_the_train_dir_need_the_runs_own_images(worker_has, tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ('chief', 'worker')]
    for folder in folders:
        folder.mkdir()
    images = tmp_path / 'images.npz'

    def save_images(seed):
        draws = np.random.default_rng(seed)
        np.savez(images, x_train=draws.integers(0, 256, [40, 32, 32, 3], np.uint8), y_train=np.arange(40) % 4)
        os.utime(images, (seed, seed))
    save_images(1)
    flags = dict(network='linear', dataset=images, data_dir='data', train_dir='train', batch_size=4, summary_steps=0)
    monkeypatch.chdir(folders[0])
    assert run_script('multi_gpu_train.py', tower_device='cpu', num_towers=2, max_steps=2, **flags).returncode == 0
    first, = pathlib.Path('data', 'images.npz-32px').iterdir()
    path = next(iter(sorted(first.glob('data_batch_*.bin'))))
    if worker_has != 'only its own':
        shutil.copytree('data', folders[1] / 'data')
        content = path.read_bytes()
        (folders[1] / path).write_bytes(content[::-1] if worker_has == 'other bytes' else content)
    save_images(2)
    with Tasks(2, 0, started=['worker 0'], max_steps=4, **flags) as tasks:
        monkeypatch.chdir(folders[1])
        tasks.start('worker 1')
        ends = tasks.ends()
    status, output = ends['worker 0']
    assert status == (0 if worker_has == "the run's images" else 2), ends
    assert ends['worker 1'][0] == (1 if status else 0)
    *_, last = output.splitlines()
    assert not status or ('error: worker 1 at ' in last and str(path) in last and '; copy the chief' in last), output


@pytest.mark.stress
@pytest.mark.parametrize('flag', ['--deterministic', '--variable_update=replicated'])
def test_a_task_with_a_conflicting_flag_is_refused_by_name(flag, small):
    with Tasks(2, 0, started=[], **small) as tasks:
        tasks.commands['worker 1'].append(flag)
        tasks.start('worker 0')
        tasks.start('worker 1')
        ends = tasks.ends()
    name, _, value = flag.removeprefix('--').partition('=')
    address = tasks.commands['worker 0'][-1].split(',')[1]
    status, output = ends['worker 0']
    assert status == 2 and f"error: worker 1 at {address} has --{name}={value or 'true'}, but this task has" in output
    assert ends['worker 1'][0] in (1, 2)


@pytest.mark.stress
def test_a_chief_of_another_cluster_is_refused_while_the_first_continues(small, tmp_path, free_addresses):
    with Tasks(2, 0, **dict(small, max_steps=400, log_frequency=1)) as tasks:
        read_until(tasks['worker 0'], 'step 10,')
        chief, worker = tasks.commands['worker 0'][-1].split('=')[1].split(',')
        own, = free_addresses(1)
        stranger = run_script('multi_gpu_train.py', **dict(
            small, train_dir=tmp_path / 'other', job_name='worker', worker_hosts=f'{own},{worker}', tower_device='cpu'))
        assert stranger.returncode == 2
        assert f'worker 1 at {worker} belongs to another cluster, with the workers {chief},{worker}' in stranger.stderr
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    assert 'recovering' not in ends['worker 0'][1]


@pytest.mark.stress
def test_a_second_signal_ends_a_chief_that_waits_for_an_answer(small, free_addresses):
    with socket.create_server(('127.0.0.1', 0)) as silent:  # it never answers
        hosts = f'{free_addresses(1)[0]},127.0.0.1:{silent.getsockname()[1]}'
        # Its own limit is longer than this test.
        process = start_script('multi_gpu_train.py', tower_device='cpu', job_name='worker', worker_hosts=hosts,
                               cluster_timeout_secs=100000, **small)
        read_until(process, 'waiting ')
        while process.poll() is None:  # the second signal, or a later one: two at once may arrive as one
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
    assert process.returncode == 128 + signal.SIGTERM
    process.stdout.close()


@pytest.mark.stress
def test_a_worker_that_does_not_answer_at_the_start_is_named(small):
    with Tasks(2, 0, started=['worker 1'], **dict(small, cluster_timeout_secs=1)) as tasks:
        worker = tasks.commands['worker 0'][-1].split(',')[1]
        read_until(tasks['worker 1'], 'waiting ')
        tasks['worker 1'].send_signal(signal.SIGSTOP)
        tasks.start('worker 0')
        output, _ = tasks['worker 0'].communicate(timeout=SECONDS)
    assert tasks['worker 0'].returncode == 1
    assert f'at {worker} does not answer as worker 1 of this cluster' in output
