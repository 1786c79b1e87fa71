"""Clusters under stress, minutes each: tasks killed at random moments, many starts and ends, a slow network."""
import random
import re
import statistics
import subprocess
import sys
import time

import pytest

from tests.helpers import ROOT, Tasks, assert_same_bits, last_variables, patient, read_until

STEPS = 60


@pytest.fixture
def small(data_dir, tmp_path):
    """Flags of a run of some seconds."""
    return dict(dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train', batch_size=8, max_steps=STEPS,
                save_steps=10, log_frequency=1)


@pytest.mark.stress
@pytest.mark.parametrize('victim', ['worker 1', 'ps 0', 'worker 0'])
def test_killed_ten_times_at_random_moments_a_run_ends_with_the_bits_of_an_unbroken_one(victim, small, tmp_path):
    with Tasks(2, 1, **dict(small, train_dir=tmp_path / 'whole')) as tasks:
        tasks.ends()
    whole, moments = last_variables(tmp_path / 'whole'), random.Random(victim)
    for k in range(10):
        flags = dict(small, train_dir=tmp_path / str(k))
        with Tasks(2, 1, **flags) as tasks:
            if k % 3:  # while it trains, or at any time since it was started
                read_until(tasks['worker 0'], f'step {moments.randrange(1, STEPS - 5)},')
            else:
                time.sleep(moments.uniform(0, 3))  # the run takes four seconds
            tasks[victim].kill()
            tasks[victim].communicate()
            time.sleep(moments.uniform(0, 3))
            tasks.start(victim)
            ends = tasks.ends()
        assert {status for status, _ in ends.values()} == {0}, (k, ends)
        assert_same_bits(last_variables(flags['train_dir']), whole)


@pytest.mark.stress
@pytest.mark.parametrize('victim', ['worker 1', 'ps 0', 'worker 0'])
def test_asynchronous_runs_go_on_after_a_kill(victim, small, tmp_path):
    moments = random.Random(victim)
    for k in range(10):
        flags = dict(small, train_dir=tmp_path / str(k), variable_update='async', max_steps=2 * STEPS)
        with Tasks(2, 1, **flags) as tasks:
            read_until(tasks['worker 0'], ': step ')
            time.sleep(moments.uniform(0, 2))
            tasks[victim].kill()
            tasks[victim].communicate()
            tasks.start(victim)
            ends = tasks.ends()
        assert {status for status, _ in ends.values()} == {0}, (k, ends)
        last = last_variables(flags['train_dir'])
        assert (last['global_step'], last['examples_seen']) == (2 * STEPS, 2 * STEPS * 8)


@pytest.mark.stress
def test_twenty_starts_and_ends(small, tmp_path):
    for k in range(20):
        with Tasks(2, 0, **dict(small, train_dir=tmp_path / str(k), max_steps=3)) as tasks:
            ends = tasks.ends()
        assert {status for status, _ in ends.values()} == {0}, (k, ends)
    left = subprocess.run(['pgrep', '-f', str(tmp_path)], capture_output=True, text=True).stdout
    assert left == ''


def network(*arguments):
    subprocess.run(['ip', *arguments], check=True, capture_output=True)


@pytest.fixture
def two_machines():
    """Two network namespaces with a link between them; yields a function that delays and limits it."""
    names = ['towers0', 'towers1']
    try:
        for name in names:
            network('netns', 'add', name)
        network('link', 'add', 'link0', 'netns', names[0], 'type', 'veth', 'peer', 'link1', 'netns', names[1])
        for k, name in enumerate(names):
            network('-n', name, 'addr', 'add', f'10.99.0.{k + 1}/24', 'dev', f'link{k}')
            network('-n', name, 'link', 'set', f'link{k}', 'up')
            network('-n', name, 'link', 'set', 'lo', 'up')

        def slow(rate, delay):
            """Returns what the link is then: not every kernel can delay."""
            kinds = {f'{rate}, {delay}': ['netem', 'delay', delay, 'rate', rate],
                     f'{rate}, no delay': ['tbf', 'rate', rate, 'burst', '256kb', 'latency', '100ms']}
            for kind, words in kinds.items():
                commands = [['ip', 'netns', 'exec', name, 'tc', 'qdisc', 'replace', 'dev', f'link{k}', 'root', *words]
                            for k, name in enumerate(names)]
                if not any(subprocess.run(command, capture_output=True).returncode for command in commands):
                    return kind
            return pytest.skip('the kernel can neither delay nor limit a link')
        yield slow
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', None) or error}")
    finally:
        for name in names:
            subprocess.run(['ip', 'netns', 'delete', name], capture_output=True)


@pytest.mark.timing
def test_modes_over_a_slow_network(two_machines, small, tmp_path):
    hosts = '--worker_hosts=10.99.0.1:2222,10.99.0.2:2222'
    for rate, delay in (('10gbit', '50us'), ('1gbit', '500us'), ('100mbit', '5ms')):
        title = two_machines(rate, delay)
        for mode in ('parameter_server', 'replicated', 'async'):
            steps = 40 if mode == 'async' else 20
            command = [sys.executable, str(ROOT / 'multi_gpu_train.py'), '--tower_device=cpu', '--dataset=shapes',
                       f"--data_dir={small['data_dir']}", f'--train_dir={tmp_path / (rate + mode)}',
                       '--batch_size=64', f'--max_steps={2 * steps}', f'--log_frequency={steps // 4}',
                       '--summary_steps=0', '--variable_update=' + mode, '--job_name=worker', hosts]
            processes = [subprocess.Popen(['ip', 'netns', 'exec', f'towers{k}', *command, f'--task_index={k}'],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                         for k in range(2)]
            outputs = [process.communicate(timeout=patient(300))[0] for process in processes]
            assert [process.returncode for process in processes] == [0, 0], outputs
            rates = [float(each) for each in re.findall(r'\(([\d.]+) examples/sec', outputs[0])][2:]
            print(f'{title}, {mode}: {statistics.median(rates):.0f} images/s')
