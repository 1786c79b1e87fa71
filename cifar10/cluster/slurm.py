"""A Slurm step as a cluster: `srun python multi_gpu_train.py` with several tasks needs no flags for it.

TensorFlow's resolver reads Slurm's variables. Around it stands what it would do otherwise: guess the GPUs with
nvidia-smi and divide them, always use port 8888, and sort hosts as text (n10 before n2), which Slurm's ranks
do not follow.
"""
import itertools
import os
import re

from cifar10 import console
from cifar10.errors import UsageError

_PORTS = 20000  # below the ports that Linux hands out by itself
_BLOCK, _BLOCKS = 32, 300  # a step's tasks on a node have neighbouring ports, two steps different blocks


def step_tasks() -> tuple[dict, str, int] | None:
    """Returns ({'worker': addresses}, 'worker', this task), or None outside a Slurm step of several tasks.

    Every task is a worker; rank 0 is the chief. Each checks that its own address is at its rank.

    Raises:
      UsageError: the ranks are not dealt out node by node, or Slurm's variables cannot be read.
    """
    environment = os.environ
    if 'SLURM_PROCID' not in environment or int(environment.get('SLURM_STEP_NUM_TASKS', 1)) < 2:
        return None
    try:
        rank, local = int(environment['SLURM_PROCID']), int(environment['SLURM_LOCALID'])
        node = environment['SLURMD_NODENAME']
        count = int(environment['SLURM_STEP_NUM_TASKS'])
        base = port_base(int(environment['SLURM_JOB_ID']), int(environment['SLURM_STEP_ID']))
        console.start_tensorflow()  # here, so that a mistyped flag is reported before TensorFlow is imported
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
    if rank >= len(addresses) or addresses[rank] != f'{node}:{base + local}':
        raise UsageError(f'task {rank} of this Slurm step is not where ranks that fill node after node put it; '
                         'start the step with srun --distribution=block, or give --worker_hosts')
    return dict(worker=addresses), 'worker', rank


def port_base(job: int, step: int) -> int:
    """Returns the first port of a step's tasks on a node, from the numbers of its job and step."""
    return _PORTS + _BLOCK * ((job + 17 * step) % _BLOCKS)


def _natural(host):
    """Returns a sorting key by which n2 comes before n10, as in Slurm's own lists."""
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', host)]
