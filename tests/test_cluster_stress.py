"""Stress tests of clusters, minutes each: tasks killed at random moments, many starts and ends."""
import contextlib
import random
import signal
import subprocess
import time

import pytest

from benchmarks import harness
from benchmarks.local import machines
from tests.helpers import Tasks, assert_same_bits, last_variables, patient, read_until, script_command

STEPS = 90
STARTING = ('task ', 'towers ', 'watch ', 'step 1,')  # lines of a chief


@pytest.fixture
def small(data_dir, tmp_path):
    """Flags of a run that takes some seconds."""
    return dict(dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train', batch_size=8, max_steps=STEPS,
                save_steps=10, log_frequency=1)


@pytest.mark.stress
@pytest.mark.parametrize('mode, victim', [
    ('parameter_server', 'worker 1'), ('parameter_server', 'ps 0'), ('parameter_server', 'worker 0'),
    ('async', 'worker 1')])
def test_a_run_killed_at_random_moments_ends_as_an_unbroken_one(mode, victim, small, tmp_path):
    small['variable_update'] = mode
    with Tasks(2, 1, **dict(small, train_dir=tmp_path / 'whole')) as tasks:
        tasks.ends()
    whole, moments = last_variables(tmp_path / 'whole'), random.Random(victim)
    for k in range(6):
        flags = dict(small, train_dir=tmp_path / str(k))
        with Tasks(2, 1, **flags) as tasks:
            # During the start or the training, and long before the end: a busy machine kills late.
            line = STARTING[k] if k < len(STARTING) else f'step {moments.randrange(1, STEPS // 2)},'
            read_until(tasks['worker 0'], ': step ' if mode == 'async' and 'step' in line else line)
            time.sleep(moments.uniform(0, 0.2))
            tasks[victim].kill()
            tasks[victim].communicate()
            time.sleep(moments.uniform(0, 3))
            tasks.start(victim)
            ends = tasks.ends()
        assert {status for status, _ in ends.values()} == {0}, (k, ends)
        last = last_variables(flags['train_dir'])
        if mode == 'async':
            assert (last['global_step'], last['examples_seen']) == (STEPS, STEPS * 8)
        else:
            assert_same_bits(last, whole)


@pytest.mark.stress
@pytest.mark.parametrize('mode, ps, victim', [
    ('parameter_server', 1, 'worker 0'), ('parameter_server', 1, 'ps 0'), ('replicated', 0, 'worker 1'),
    ('async', 1, 'worker 1')])
def test_a_run_whose_process_is_stopped_near_the_end_exits_with_0(mode, ps, victim, small, tmp_path):
    flags = dict(small, max_steps=8, variable_update=mode, network='linear', summary_steps=0)
    with Tasks(2, ps, **dict(flags, train_dir=tmp_path / 'whole')) as tasks:
        lines = tasks.ends()['worker 0'][1].splitlines()
    for k in range(len(lines) - 10, len(lines), 3):
        with Tasks(2, ps, **dict(flags, train_dir=tmp_path / str(k))) as tasks:
            for _ in range(k):
                tasks['worker 0'].stdout.readline()
            line = tasks['worker 0'].stdout.readline()
            tasks[victim].send_signal(signal.SIGSTOP)
            time.sleep(25)  # longer than any limit for one answer
            tasks[victim].send_signal(signal.SIGCONT)
            ends = tasks.ends()
        assert {status for status, _ in ends.values()} == {0}, (line, ends)


@contextlib.contextmanager
def two_machines(**flags):
    """Context with (a function that starts worker k on its own machine, a function that sets worker 1's link)."""
    tasks = []
    try:
        with machines(2, 0) as (names, addresses):
            hosts = ','.join(f'{address}:2222' for address in addresses)

            def start(k):
                command = script_command(
                    'multi_gpu_train.py', job_name='worker', task_index=k, worker_hosts=hosts, tower_device='cpu',
                    **flags)
                tasks.append(subprocess.Popen(['ip', 'netns', 'exec', names[k], *command], text=True,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
                return tasks[-1]

            def link(state):
                subprocess.run(['ip', '-n', names[1], 'link', 'set', 'port', state], check=True)
            try:
                yield start, link
            finally:
                for task in tasks:
                    task.kill()
                    task.wait()
                    task.stdout.close()
    except harness.Failed as error:
        pytest.skip(str(error))


@pytest.mark.stress
@pytest.mark.parametrize('lost', ['power', 'network'])
def test_a_worker_that_loses_power_or_its_network_rejoins(lost, small, tmp_path):
    with Tasks(2, 0, **dict(small, train_dir=tmp_path / 'whole')) as tasks:
        tasks.ends()
    whole = last_variables(tmp_path / 'whole')
    with two_machines(**small, cluster_timeout_secs=patient(20)) as (start, link):
        chief, worker = start(0), start(1)
        read_until(chief, 'step 25,')
        if lost == 'power':
            # Its kernel drops the connections, so no packet reports the loss to the chief.
            worker.send_signal(signal.SIGSTOP)
            time.sleep(1)  # a step is under way by now
            link('down')
            worker.kill()
            worker.communicate()
        else:
            link('down')
        read_until(chief, 'lost ')
        link('up')
        if lost == 'power':
            start(1)
        output, _ = chief.communicate(timeout=patient(120))
    assert chief.returncode == 0 and 'back       worker 1' in output and 'recovering ' in output, output
    assert_same_bits(last_variables(small['train_dir']), whole)


@pytest.mark.stress
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_a_link_that_drops_all_packets_ends_both_sides(mode, small):
    with two_machines(**dict(small, max_steps=10 ** 6, variable_update=mode, cluster_timeout_secs=5)) as (start, link):
        tasks = start(0), start(1)
        read_until(tasks[0], ': step 20,')
        link('down')
        outputs = [task.communicate(timeout=patient(60))[0] for task in tasks]
    for task, output, other in zip(tasks, outputs, (1, 0)):
        assert task.returncode == 75, output
        assert f'error: worker {other} at ' in output and 'cannot be reached' in output, output
