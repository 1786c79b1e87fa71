"""The members of a cluster: the addresses of all tasks, from flags, TF_CONFIG or a Slurm step.
"""
import dataclasses
import json
import os

from cifar10.cluster import slurm
from cifar10.errors import UsageError
from cifar10.settings.training import ClusterSettings


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who is in a cluster, and which of them this process is.

    Attributes:
      workers, ps: the addresses 'host:port' of the tasks of either job; the chief is worker 0.
      job: 'worker' or 'ps', of this process.
      index: its task.
    """
    workers: tuple[str, ...]
    ps: tuple[str, ...]
    job: str
    index: int

    @property
    def is_chief(self) -> bool:
        """Whether this process builds the graph, saves and reports."""
        return (self.job, self.index) == ('worker', 0)

    @property
    def tasks(self) -> dict[tuple[str, int], str]:
        """{(job, index): address} of all."""
        jobs = dict(worker=self.workers, ps=self.ps)
        return {(job, i): address for job, addresses in jobs.items() for i, address in enumerate(addresses)}

    @property
    def address(self) -> str:
        """That of this process."""
        return self.tasks[self.job, self.index]

    def others(self) -> dict[str, str]:
        """Returns {'worker 1': address} of all other tasks."""
        return {f'{job} {index}': address for (job, index), address in self.tasks.items()
                if (job, index) != (self.job, self.index)}


def resolve(settings: ClusterSettings) -> Cluster | None:
    """Returns the Cluster that the settings describe, otherwise TF_CONFIG, otherwise a Slurm step; None on one machine.

    Raises:
      UsageError: the description contradicts itself.
    """
    if settings.worker_hosts or settings.ps_hosts or settings.job_name or settings.task_index:
        if not settings.job_name or not settings.worker_hosts:
            raise UsageError('a cluster needs --job_name, --task_index and --worker_hosts; give all of them, or none')
        jobs = dict(worker=settings.worker_hosts.split(','), ps=(settings.ps_hosts or '').split(','))
        found = jobs, settings.job_name, settings.task_index
    else:
        found = _from_tf_config(os.environ.get('TF_CONFIG')) or slurm.step_tasks()
    if found is None:
        return None
    jobs, job, index = found
    addresses = [tuple(host.strip() for host in jobs.get(name, []) if host.strip()) for name in ('worker', 'ps')]
    cluster = Cluster(*addresses, job, index)
    _check(cluster)
    return cluster


def _from_tf_config(text):
    """Reads TF_CONFIG; a job 'chief' or 'master' goes before the workers.

    Args:
      text: its value, {"cluster": {job: [address]}, "task": {"type": job, "index": number}} as JSON, or None.

    Returns:
      ({job: addresses}, this job, this index), or None if no cluster is described, as on a single machine.
    """
    if not text:
        return None
    try:
        description = json.loads(text)
        jobs = {job: _in_order(addresses) for job, addresses in (description.get('cluster') or {}).items()}
        if not jobs:
            return None
        task = description['task']
        job, index = task['type'], int(task.get('index', 0))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UsageError(f'the environment variable TF_CONFIG does not describe a cluster ({type(error).__name__}: '
                         f'{error}); correct TF_CONFIG, or unset it') from error
    for name in ('chief', 'master'):
        if name in jobs:
            first = jobs.pop(name)
            jobs['worker'] = first + jobs.get('worker', [])
            index = index if job == name else index + len(first) if job == 'worker' else index
            job = 'worker' if job == name else job
    if job not in ('worker', 'ps'):
        raise UsageError(f'TF_CONFIG: the task has the type {job}; possible are chief, worker and ps')
    return jobs, job, index


def _in_order(addresses):
    """Returns a job's addresses as a list; TensorFlow also takes {task: address}, in which no task may be missing."""
    if isinstance(addresses, dict):
        numbered = {int(number): address for number, address in addresses.items()}
        if sorted(numbered) != list(range(len(numbered))):
            numbers = ', '.join(map(str, sorted(numbered)))
            raise ValueError(f'tasks are numbered {numbers}, with gaps')
        addresses = [numbered[number] for number in sorted(numbered)]
    if not all(isinstance(address, str) for address in addresses) or isinstance(addresses, str):
        raise TypeError('addresses are a list of texts')
    return list(addresses)


def split_address(address: str) -> tuple[str, int]:
    """Returns (host without brackets, port) of 'host:port' or '[IPv6 address]:port'."""
    host, _, port = address.rpartition(':')
    return host.strip('[]'), int(port)


def _check(cluster):
    addresses = list(cluster.tasks.values())
    for address in addresses:
        host, _, port = address.rpartition(':')
        if ':' in host and not (host.startswith('[') and host.endswith(']')):
            host = host.strip('[]')
            raise UsageError(f'{address}: an IPv6 address goes in brackets; use [{host}]:{port}')
        if not host.strip('[]') or not port.isdigit() or not 0 < int(port) < 65536 or ' ' in address:
            raise UsageError(f'{address} is not an address of the form host:port')
        if addresses.count(address) > 1:
            raise UsageError(f'{address} is the address of two tasks; give each its own')
    if (cluster.job, cluster.index) not in cluster.tasks:
        raise UsageError(f'--job_name={cluster.job} has no --task_index={cluster.index}; there are '
                         f'{sum((job == cluster.job for job, _ in cluster.tasks))} tasks')
