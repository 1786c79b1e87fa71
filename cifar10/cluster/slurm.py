"""A Slurm step as a cluster: `srun python multi_gpu_train.py` with several tasks needs no cluster flags.

TensorFlow's resolver reads Slurm's variables. This module corrects three of its defaults: it divides the GPUs
that nvidia-smi lists, always uses port 8888, and sorts hosts as text (n10 before n2), unlike Slurm's ranks.
"""
import itertools
import os
import re

from cifar10.base import startup
from cifar10.base.errors import UsageError

# The tasks of a step on one node have neighbouring ports, in a block that depends on the job and the step.
_FIRST_PORT = 20000  # all blocks end below the ports that Linux hands out by itself
_BLOCK_SIZE = 32
_BLOCKS = 300


def step_tasks() -> tuple[dict, str, int] | None:
    """Returns ({'worker': addresses}, 'worker', rank), or None outside a Slurm step of several tasks.

    Every task is a worker, and rank 0 is the chief. The addresses assume that ranks fill one node after the
    other, so each task checks that its own address is at its rank.
    """
    environment = os.environ
    if 'SLURM_PROCID' not in environment or int(environment.get('SLURM_STEP_NUM_TASKS', 1)) < 2:
        return None
    try:
        rank = int(environment['SLURM_PROCID'])
        local_rank = int(environment['SLURM_LOCALID'])
        node = environment['SLURMD_NODENAME']
        count = int(environment['SLURM_STEP_NUM_TASKS'])
        base = port_base(int(environment['SLURM_JOB_ID']), int(environment['SLURM_STEP_ID']))
        with startup.tensorflow_started():  # not at the top: a mistyped flag is reported before it is imported
            import tensorflow.compat.v1 as tf
            resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
                port_base=base, gpus_per_node=count, gpus_per_task=1, auto_set_gpu=False)
            addresses = resolver.cluster_spec().as_dict()['worker']
    except (KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"Slurm's variables do not describe this step ({type(error).__name__}: {error}); give "
                         '--job_name, --task_index and --worker_hosts') from error
    by_host = itertools.groupby(addresses, lambda address: address.rsplit(':', 1)[0])
    groups = sorted((_natural(host), list(group)) for host, group in by_host)
    addresses = [address for _, group in groups for address in group]
    if rank >= len(addresses) or addresses[rank] != f'{node}:{base + local_rank}':
        raise UsageError(f'the ranks of this Slurm step do not fill one node after the other (task {rank} is on '
                         f'{node}); start the step with srun --distribution=block, or give --worker_hosts')
    return dict(worker=addresses), 'worker', rank


def port_base(job: int, step: int) -> int:
    """Returns the first port of a step's tasks on a node, given the numbers of its job and step."""
    return _FIRST_PORT + _BLOCK_SIZE * ((job + 17 * step) % _BLOCKS)


def _natural(host):
    """Returns a sort key that puts n2 before n10, as in Slurm's own lists."""
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', host)]
