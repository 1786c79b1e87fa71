"""`local_cluster`: starts, watches, restarts and ends the tasks of a cluster on one machine."""
import signal
import subprocess
import sys

import pytest

from tests.helpers import ROOT, mostly_stress, patient, python, read_until

SECONDS = patient(60)  # limit of one run in this file


def local(*arguments):
    """Runs a local cluster to its end; returns the CompletedProcess with text output."""
    return python('-m', 'cifar10', 'local_cluster', *arguments, seconds=60)


def started(script, *arguments):
    """Starts a local cluster whose tasks run a Python script."""
    command = [sys.executable, '-m', 'cifar10', 'local_cluster', *arguments, '--', sys.executable, '-c', script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def test_the_local_cluster_labels_each_line_and_ends_at_the_first_failure(tmp_path):
    # The ps fails last, because its failure ends all tasks.
    script = ('import os, sys, time; folder, own, *flags = sys.argv[1:]; print(own, *flags[:2], flush=True)\n'
              'if "--job_name=ps" not in flags: sys.exit(os.mkdir(folder + "/" + flags[1]))\n'
              'while len(os.listdir(folder)) < 2: time.sleep(0.01)\n'
              'sys.exit(7)')
    result = local('--workers=2', '--ps=1', '--', sys.executable, '-c', script, str(tmp_path), '--no-a-b')
    assert result.returncode == 7, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        'ps 0     | --no-a-b --job_name=ps --task_index=0', 'worker 0 | --no-a-b --job_name=worker --task_index=0',
        'worker 1 | --no-a-b --job_name=worker --task_index=1']


@pytest.mark.parametrize('workers, end, status, said', [
    (3, 'sys.exit(3)', 3, ['worker 1 | ended with status 3; ending the others']),
    (2, 'os.kill(os.getpid(), 9)', 137, ['worker 1 | killed by SIGKILL; ending the others'])])
def test_the_local_cluster_ends_all_tasks_after_a_failure_without_a_restart(workers, end, status, said):
    script = f'import os, sys, time\nif "--task_index=1" in sys.argv: {end}\ntime.sleep({2 * SECONDS})'
    result = local(f'--workers={workers}', '--restarts=3', '--', sys.executable, '-c', script)
    assert (result.returncode, result.stdout.splitlines()) == (status, said), result


TRAINED = (2, 0, ['ended with status 75; starts again (restarts left: 1)',
                  'ended with status 75; starts again (restarts left: 0)', 'trained'])


@pytest.mark.parametrize('restarts, status, said', mostly_stress([
    TRAINED, (1, 75, ['ended with status 75; starts again (restarts left: 0)',
                  'ended with status 75; ending the others']),
    (0, 75, ['ended with status 75; ending the others'])], TRAINED))
def test_the_local_cluster_restarts_a_stuck_task(restarts, status, said, tmp_path):
    # Task 1 ends with status 75 twice; the other task runs as long as task 1.
    script = ('import os, sys, time; folder, name = sys.argv[1], sys.argv[3]\n'
              'if name == "--task_index=0":\n'
              '    while not os.path.exists(folder + "/2"): time.sleep(0.01)\n'
              '    sys.exit()\n'
              'count = len(os.listdir(folder)); os.mkdir(f"{folder}/{count}")\n'
              'sys.exit(75) if count < 2 else print("trained")')
    result = local('--workers=2', f'--restarts={restarts}', '--', sys.executable, '-c', script, str(tmp_path))
    assert result.returncode == status and result.stdout.splitlines() == [f'worker 1 | {line}' for line in said], result


def test_the_local_cluster_ends_when_nobody_reads_its_output():
    process = started('import itertools\nfor i in itertools.count(): print(i, "." * 100, flush=True)', '--workers=2')
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=patient(30)) == 141 and process.stderr.read() == ''
    process.stderr.close()


@pytest.mark.parametrize('number, status', [(signal.SIGINT, 0), (signal.SIGUSR1, 75)])
def test_the_local_cluster_forwards_signals_and_then_restarts_nothing(number, status):
    process = started('import signal, sys, time\n'
                      'def end(*event):\n'
                      '    print("ended", flush=True)\n'
                      f'    sys.exit({status})\n'
                      f'signal.signal({number:d}, end)\n'
                      'print("begun", flush=True)\n'
                      'while True: time.sleep(0.1)',  # a signal that arrives just before a sleep is handled after it
                      '--workers=2', '--restarts=9')
    for _ in range(2):
        read_until(process, 'begun')
    process.send_signal(number)
    output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (status, '')
    assert sorted(output.splitlines()) == ['worker 0 | ended', 'worker 1 | ended']


@pytest.mark.parametrize('arguments, said', [
    ([], 'no command is given'), (['--workers=1', 'python', 'train.py', '--max_steps=3'], 'put it after --'),
    (['--', '/nowhere/command'], '/nowhere/command cannot be run'), (['--', '/tmp'], '/tmp cannot be run'),
    (['--', 'multi_gpu_train.py', '--num_gpus=1'], '; give: -- python multi_gpu_train.py')])
def test_the_local_cluster_reports_invalid_arguments(arguments, said):
    result = local(*arguments)
    line, = result.stderr.splitlines()
    assert result.returncode == 2 and said in line
