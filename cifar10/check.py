"""`--check`: what a training command would do, or what prevents it; nothing is written.

It calls the functions that training calls, and continues after an error.
"""
import contextlib
import dataclasses
import os
import platform
import shutil
import textwrap

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10 import preparation, training
from cifar10.cluster import membership, watch
from cifar10.cluster.address import own_addresses
from cifar10.config import TrainConfig
from cifar10.data import records
from cifar10.errors import UsageError, describe_os_error
from cifar10.parallel import devices
from cifar10.registry import DATASETS
from cifar10.run import checkpoint
from cifar10.run.train_dir import TrainDir

_WIDTH = 110


def check(config: TrainConfig) -> None:
    """Prints what a run would do.

    Raises:
      UsageError: it could not start; the lines that were printed have every reason.
    """
    checks = _Checks()
    _versions()
    cluster, local, data = None, None, None
    with checks.gathered():
        cluster = membership.resolve(config)
    _cluster(cluster, checks)
    is_chief = cluster is None or cluster.is_chief
    if cluster is None or cluster.job == 'worker':
        with checks.gathered():
            local = preparation.claim_devices(config)
            print(f'devices    {local}')
        with checks.gathered():
            data = _data(config)
        if not data:
            checks.outlook = 'as far as it was checked; the data would be fetched or made first'
    if is_chief:
        directory = TrainDir(config.train_dir)
        with checks.gathered():
            _train_dir(directory, config)
        if local and data:
            if cluster:
                local = devices.spread(local, len(cluster.workers), len(cluster.ps), '')
            with checks.gathered():
                _plan(config, directory, data, local, checks)
    settings = ' '.join(f'{name}={value}' for name, value in dataclasses.asdict(config).items() if value is not None)
    print(textwrap.fill(f'settings   {settings}', _WIDTH, subsequent_indent=' ' * 11, break_long_words=False,
                        break_on_hyphens=False))
    checks.end()


class _Checks:
    """Collects what is wrong."""

    def __init__(self):
        self._problems, self.outlook = [], 'without --check the run would start'

    @contextlib.contextmanager
    def gathered(self):
        """Context that notes a refusal and goes on behind it."""
        try:
            yield
        except UsageError as error:
            self.add(str(error))
        except OSError as error:
            self.add(describe_os_error(error))

    def add(self, problem):
        """Notes what is wrong, once."""
        if problem not in self._problems:
            self._problems.append(problem)

    def end(self):
        """Prints all that is wrong; raises a UsageError if there is anything."""
        for problem in self._problems:
            print(f'problem    {problem}')
        if self._problems:
            count = len(self._problems)
            raise UsageError(f"the run could not start, for {count} reason{'s' * (count > 1)}; see the lines 'problem' "
                             'above')
        print(f'ready      {self.outlook}')


def _versions():
    built = tf2.sysconfig.get_build_info()
    cuda = f"for CUDA {built['cuda_version']}" if built.get('cuda_version') else 'without CUDA'
    print(f'versions   Python {platform.python_version()}, TensorFlow {tf.__version__} {cuda}, NumPy {np.__version__}')
    gpus = [tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name)
            for gpu in tf.config.list_physical_devices('GPU')]
    print(f"GPUs       {', '.join(gpus) if gpus else devices.why_no_gpu() or 'none that TensorFlow can use'}")


def _cluster(cluster, checks):
    """Tells this process's part in a cluster, and which peers answer already."""
    if cluster is None:
        return
    print(f'cluster    {cluster.job} {cluster.index} at {cluster.address}'
          f"{', the chief' if cluster.is_chief else ''}")
    with checks.gathered():
        own_addresses(cluster, limit=0)
    for name, address in cluster.others().items():
        print(f"peer       {name} at {address} {'answers' if watch.reachable(address) else 'does not answer yet'}")


def _data(config):
    """Returns the training data if they are there; what a run would have to fetch or make first is said."""
    folder = records.missing(config.dataset, config.data_dir, config.test_fraction)
    if folder:
        print(f'data       {config.dataset} is not in {folder} yet; what depends on it is not checked')
        _writable(os.path.dirname(folder), '--dataset' if DATASETS.is_own(config.dataset) else '--data_dir')
        return None
    if config.eval_steps:
        records.find(config.dataset, config.data_dir, records.TEST, config.test_fraction)
    return records.find(config.dataset, config.data_dir, test_fraction=config.test_fraction)


def _train_dir(directory, config):
    _writable(config.train_dir, '--train_dir')
    if directory.in_use():
        raise UsageError(f'another process is training in --train_dir={config.train_dir}; wait for it, or use another '
                         '--train_dir')
    if not config.restart:
        directory.refuse_another_run(dataclasses.asdict(config))
    elif directory.check_restart(checkpoint.is_ours):
        print(f'restart    the run in {config.train_dir} would be deleted')


def _plan(config, directory, data, local, checks):
    """Tells the whole of the run, and builds its graph, whose variables say what a checkpoint takes."""
    plan = preparation.decide(config, directory, data, local)
    preparation.describe(plan)
    with tf.Graph().as_default(), tf.device(plan.towers.home):
        tf.set_random_seed(config.seed)
        training.Training(plan)
        size = sum(variable.shape.num_elements() * variable.dtype.size for variable in tf.global_variables())
    # While one more is written, the oldest is still there.
    count = plan.config.max_to_keep + 1 if plan.config.max_to_keep else 1
    count = max(count - len(directory.checkpoints()), 1)  # those that are there have their place
    free = shutil.disk_usage(_existing(config.train_dir)).free
    print(f"disk       {free / 1e9:.1f} GB free in {config.train_dir}; a checkpoint takes {size / 1e6:.1f} MB, "
          f"{f'--max_to_keep={plan.config.max_to_keep}' if plan.config.max_to_keep else 'all are kept'}")
    if plan.finished:
        checks.outlook = 'the run has ended; nothing would be done'
    if size * count > free:
        raise UsageError(f'{size * count / 1e6:.1f} MB of checkpoints do not fit into --train_dir={config.train_dir}; '
                         'free some space, or lower --max_to_keep')


def _existing(path):
    """Returns a path, or the nearest folder above it that exists."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _writable(path, flag):
    found = _existing(path)
    if not os.path.isdir(found):
        raise UsageError(f'{flag}={path} cannot be used: {found} is not a directory; use another directory')
    if not os.access(found, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(f'{flag}={path} cannot be used: {found} cannot be written; use another directory')
