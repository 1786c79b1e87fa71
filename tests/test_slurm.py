"""Slurm steps as clusters: addresses from Slurm's variables, their runs, and a real Slurm if it is installed."""
import json
import os
import shutil
import subprocess

import pytest

from cifar10.base.errors import UsageError
from cifar10.cluster import membership
from cifar10.settings.training import train_settings
from tests.helpers import ROOT, patient, script_command


@pytest.fixture
def step(monkeypatch):
    """A function that sets the variables of one task of a step."""
    for name in list(os.environ):
        if name.startswith('SLURM') or name == 'TF_CONFIG':
            monkeypatch.delenv(name)

    def set_variables(nodes, tasks_per_node, rank, node, local, tasks):
        values = dict(SLURM_STEP_NODELIST=nodes, SLURM_STEP_TASKS_PER_NODE=tasks_per_node, SLURM_PROCID=rank,
                      SLURMD_NODENAME=node, SLURM_LOCALID=local, SLURM_STEP_NUM_TASKS=tasks, SLURM_JOB_ID=41,
                      SLURM_STEP_ID=0)
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
    return set_variables


BASE = membership.port_base(41, 0)


@pytest.mark.parametrize('nodes, tasks_per_node, expected', [
    ('n1', '4', [('n1', k) for k in range(4)]),
    ('n[2,10]', '1(x2)', [('n2', 0), ('n10', 0)]),
    ('n[2,10]', '2(x2)', [('n2', 0), ('n2', 1), ('n10', 0), ('n10', 1)]),
    pytest.param('n[2,10-11],m1', '2,1(x2),3', [('m1', 0), ('m1', 1), ('m1', 2), ('n2', 0), ('n2', 1), ('n10', 0),
                                                ('n11', 0)], marks=pytest.mark.stress)])  # name lookups
def test_tasks_get_the_addresses_and_numbers_of_their_ranks(nodes, tasks_per_node, expected, step):
    for rank, (node, local) in enumerate(expected):
        step(nodes, tasks_per_node, rank, node, local, len(expected))
        cluster = membership.resolve(train_settings().cluster)
        assert (cluster.job, cluster.index) == ('worker', rank) and cluster.ps == ()
        assert cluster.describe()[0].text.endswith(
            '; unset SLURM_PROCID, which describes this cluster, to train without it')
        assert cluster.workers == tuple(f'{host}:{BASE + k}' for host, k in expected)
    assert 'CUDA_VISIBLE_DEVICES' not in os.environ or os.environ['CUDA_VISIBLE_DEVICES'] == '-1'


def test_ranks_that_alternate_between_nodes_are_rejected(step):
    step('n[1-2]', '2(x2)', 1, 'n2', 0, 4)
    with pytest.raises(UsageError, match='srun --distribution=block'):
        membership.resolve(train_settings().cluster)


def test_a_step_of_a_single_task_is_no_cluster(step, monkeypatch):
    assert membership.resolve(train_settings().cluster) is None
    step('n1', '1', 0, 'n1', 0, 1)
    assert membership.resolve(train_settings().cluster) is None
    monkeypatch.delenv('SLURM_STEP_NUM_TASKS')  # as in an sbatch script itself
    assert membership.resolve(train_settings().cluster) is None


def test_missing_variables_are_reported(step, monkeypatch):
    step('n1', '2', 0, 'n1', 0, 2)
    monkeypatch.delenv('SLURM_STEP_NODELIST')
    with pytest.raises(UsageError, match="Slurm's variables do not describe this step .*STEP_NODELIST"):
        membership.resolve(train_settings().cluster)


@pytest.mark.parametrize('name', ['SLURM_PROCID', 'SLURM_LOCALID', 'SLURMD_NODENAME', 'SLURM_STEP_NUM_TASKS',
                                  'SLURM_STEP_NODELIST', 'SLURM_STEP_TASKS_PER_NODE', 'SLURM_JOB_ID', 'SLURM_STEP_ID'])
@pytest.mark.parametrize('value', ['', 'n[1-'])
def test_invalid_variables_are_reported(name, value, step, monkeypatch):
    step('n1', '2', 0, 'n1', 0, 2)
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match='(?i)slurm.* give --'):
        membership.resolve(train_settings().cluster)


def test_flags_and_tf_config_take_precedence_over_slurm(step, monkeypatch):
    step('n1', '2', 0, 'n1', 0, 2)
    assert membership.resolve(train_settings(job_name='worker', worker_hosts='a:1').cluster).workers == ('a:1',)
    monkeypatch.setenv('TF_CONFIG', json.dumps(dict(cluster=dict(worker=['b:1']), task=dict(type='worker', index=0))))
    assert membership.resolve(train_settings().cluster).workers == ('b:1',)


def test_each_job_and_step_has_its_own_port():
    bases = {membership.port_base(job, step) for job in range(1000, 1010) for step in range(5)}
    assert len(bases) == 50 and min(bases) >= 20000 and max(bases) < 32768 - 32


@pytest.mark.stress
def test_two_tasks_train_together(step, data_dir, tmp_path):
    command = script_command('multi_gpu_train.py', dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train',
                             batch_size=8, max_steps=5, tower_device='cpu')
    processes = []
    for rank in (0, 1):
        step('localhost', '2', rank, 'localhost', rank, 2)
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                          env=dict(os.environ, SLURM_JOB_ID=str(os.getpid()))))
    outputs = [process.communicate(timeout=patient(60))[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert 'towers     2 on 2 CPU devices' in outputs[0] and 'done       the training has ended' in outputs[1]


@pytest.mark.stress
def test_a_real_step_trains(data_dir, tmp_path):
    if not shutil.which('srun') or subprocess.run(['sinfo'], capture_output=True, timeout=patient(20)).returncode:
        pytest.skip('there is no Slurm here')
    command = script_command('multi_gpu_train.py', dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train',
                             batch_size=8, max_steps=5, tower_device='cpu')
    result = subprocess.run(['srun', '--ntasks=2', '--overcommit', *command], capture_output=True, text=True,
                            timeout=patient(120), cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert 'task       worker 1 at ' in result.stdout and 'saved ' in result.stdout
