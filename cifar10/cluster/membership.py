"""The members of a cluster: the addresses of all tasks, read from flags, TF_CONFIG or a Slurm step."""
import dataclasses
import json
import os
import re

from cifar10.base import startup
from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.cluster.address import is_loopback, own_addresses, reachable, split_address
from cifar10.cluster.watch import wait_for
from cifar10.settings.training import ClusterSettings

# The parts of host names have 1 to 63 characters.
_ADDRESS = re.compile(r'([^][\s:.]{1,63}(\.[^][\s:.]{1,63})*\.?|\[[^][\s]+\]):(?P<port>[0-9]{1,5})')
# The ports of the tasks of a Slurm step.
_FIRST_PORT = 20000  # all blocks end below Linux's ephemeral ports
_BLOCK_SIZE = 32
_BLOCKS = 300


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks of a cluster, and this process's task.

    Attributes:
      workers: the addresses of the workers, each 'host:port'; worker 0 is the chief.
      ps: the addresses of the parameter servers.
      job: this process's job, 'worker' or 'ps'.
      index: this process's task index in its job.
      variable: the environment variable that describes the cluster; '' if flags describe it.
    """
    workers: tuple[str, ...]
    ps: tuple[str, ...]
    job: str
    index: int
    variable: str = ''

    @property
    def is_chief(self) -> bool:
        """Whether this process builds the graph, saves and reports."""
        return (self.job, self.index) == ('worker', 0)

    @property
    def name(self) -> str:
        """The name of this process's task, such as 'worker 1'."""
        return f'{self.job} {self.index}'

    @property
    def tasks(self) -> dict[str, str]:
        """The addresses of all tasks, by name."""
        jobs = dict(worker=self.workers, ps=self.ps)
        return {f'{job} {i}': address for job, addresses in jobs.items() for i, address in enumerate(addresses)}

    @property
    def address(self) -> str:
        return self.tasks[self.name]

    @property
    def way_out(self) -> str:
        """A remedy for messages: how to train without the cluster; '' if flags describe the cluster."""
        return f'unset {self.variable}, which describes this cluster, to train without it' if self.variable else ''

    def others(self) -> dict[str, str]:
        """Returns the addresses of the other tasks, by name."""
        return {name: address for name, address in self.tasks.items() if name != self.name}

    def own_addresses(self, limit: float) -> list[str]:
        """Returns the IP addresses at which this task can listen, after checking its port and address.

        Args:
          limit: seconds to wait until the task's host name resolves.
        """
        local = own_addresses(self.name, self.address, limit)
        host, _ = split_address(self.address)
        other_hosts = {split_address(peer)[0] for peer in self.others().values()} - {host}
        if all(map(is_loopback, local)) and not all(map(is_loopback, other_hosts)):
            raise UsageError(f'{host} is {local[0]} here, which no other machine can reach; give its network address')
        return local

    def describe(self) -> list[Line]:
        """Returns lines about this process's task, and about processes at the addresses of other tasks."""
        chief = ', the chief' if self.is_chief else ''
        others = self.others()
        missing = wait_for(others, 0, lambda name, address: reachable(address), announce=False)
        way_out = f'; {self.way_out}' if self.way_out else ''
        return [Line('cluster', f'{self.name} at {self.address}{chief}{way_out}'),
                *(Line('peer', f"{name} at {address}: {'not listening yet' if name in missing else 'listening'}")
                  for name, address in others.items())]


def resolve(settings: ClusterSettings) -> Cluster | None:
    """Returns this process's Cluster, or None on a single machine.

    Flags take precedence over TF_CONFIG, and TF_CONFIG over Slurm's variables.
    """
    if settings.worker_hosts or settings.ps_hosts or settings.job_name or settings.task_index:
        if not settings.job_name or not settings.worker_hosts:
            raise UsageError('a cluster needs --job_name, --task_index and --worker_hosts; give all of them, or none')
        jobs = dict(worker=settings.worker_hosts.split(','), ps=(settings.ps_hosts or '').split(','))
        tasks, variable = (jobs, settings.job_name, settings.task_index), ''
    elif tasks := _from_tf_config(os.environ.get('TF_CONFIG')):
        variable = 'TF_CONFIG'
    elif tasks := _step_tasks():
        variable = 'SLURM_PROCID'
    else:
        return None
    jobs, job, index = tasks
    cluster = Cluster(_stripped(jobs.get('worker', [])), _stripped(jobs.get('ps', [])), job, index, variable)
    _check(cluster)
    return cluster


def _stripped(addresses):
    return tuple(_normalised(address.strip()) for address in addresses if address.strip())


def _normalised(address):
    form = _ADDRESS.fullmatch(address)
    if not form or not 0 < int(form['port']) < 65536:
        raise UsageError(f'{address} is not an address; give host:port, or [IPv6 address]:port')
    host, port = split_address(address)
    if host in ('0.0.0.0', '::'):
        raise UsageError(f"{address} is not the address of a single machine; give the task's network address")
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def _from_tf_config(text):
    """Reads TF_CONFIG, {"cluster": {job: [address]}, "task": {"type": job, "index": number}} as JSON.

    Returns:
      (addresses by job, this process's job, its index), or None if there is no cluster. The tasks of a job 'chief' or
      'master' become the first workers.
    """
    if not text:
        return None
    try:
        description = json.loads(text)
        jobs = description.get('cluster')
        if not jobs:
            return None
        if not all(isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)
                   for addresses in jobs.values()):
            raise TypeError('the addresses of a job must be a list of strings')
        task = description['task']
        job, index = task['type'], int(task.get('index', 0))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UsageError(f'the environment variable TF_CONFIG does not describe a cluster ({type(error).__name__}: '
                         f'{error}); correct TF_CONFIG, or unset it') from error
    if unknown := sorted(set(jobs) - {'chief', 'master', 'worker', 'ps', 'evaluator'}):
        raise UsageError(f'TF_CONFIG: the job {unknown[0]} is not supported; use chief, worker or ps')
    for name in ('chief', 'master'):
        if name in jobs:
            first = jobs.pop(name)
            jobs['worker'] = first + jobs.get('worker', [])
            if job == name:
                job = 'worker'
            elif job == 'worker':
                index += len(first)
    if job not in ('worker', 'ps'):
        raise UsageError(f'TF_CONFIG: the task type {job} is not supported; use chief, worker or ps')
    return jobs, job, index


def _check(cluster):
    addresses = list(cluster.tasks.values())
    if not cluster.workers:
        raise UsageError('the cluster has no worker; give --worker_hosts')
    for address in addresses:
        if addresses.count(address) > 1:
            raise UsageError(f'{address} is the address of two tasks; give each task its own address')
    if cluster.name not in cluster.tasks:
        count = len(cluster.workers if cluster.job == 'worker' else cluster.ps)
        raise UsageError(f'{cluster.name} is not in the cluster: the job {cluster.job} has {count} '
                         f"task{'' if count == 1 else 's'}; correct --task_index, or TF_CONFIG")


def _step_tasks():
    """Returns ({'worker': addresses}, 'worker', rank), or None outside a Slurm step of several tasks.

    Every task is a worker, and rank 0 is the chief. The tasks on a node have consecutive ports, in a block that depends
    on the job and the step. The addresses assume block distribution of ranks, so each task checks the address at its
    rank.
    """
    environment = os.environ
    if 'SLURM_PROCID' not in environment or environment.get('SLURM_STEP_NUM_TASKS', '1') == '1':
        return None
    try:
        rank = int(environment['SLURM_PROCID'])
        local_rank = int(environment['SLURM_LOCALID'])
        node = environment['SLURMD_NODENAME']
        count = int(environment['SLURM_STEP_NUM_TASKS'])
        base = port_base(int(environment['SLURM_JOB_ID']), int(environment['SLURM_STEP_ID']))
        with startup.tensorflow_started():  # not at the top: mistyped flags are reported before the import
            import tensorflow.compat.v1 as tf
            resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
                port_base=base, gpus_per_node=count, gpus_per_task=1, auto_set_gpu=False)
            addresses = resolver.cluster_spec().as_dict()['worker']
    except (KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"Slurm's variables do not describe this step ({type(error).__name__}: {error}); give "
                         '--job_name, --task_index and --worker_hosts') from error
    addresses.sort(key=lambda address: _natural(split_address(address)[0]))
    if rank >= len(addresses) or addresses[rank] != f'{node}:{base + local_rank}':
        raise UsageError(f'this Slurm step does not have block distribution (task {rank} is on {node}); start it with '
                         'srun --distribution=block, or give --worker_hosts')
    return dict(worker=addresses), 'worker', rank


def port_base(job: int, step: int) -> int:
    """Returns the first port of a Slurm step's tasks on a node, given the IDs of the job and the step."""
    return _FIRST_PORT + _BLOCK_SIZE * ((job + 17 * step) % _BLOCKS)


def _natural(host):
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', host)]
