"""`--check`: what a training command would do, or what prevents it; nothing is written.

It calls the functions that training calls, and continues after an error.
"""
import collections
import contextlib
import dataclasses
import io
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
from cifar10.directories import check_dir
from cifar10.errors import UsageError, describe_os_error
from cifar10.files import existing
from cifar10.parallel import devices, gpus
from cifar10.registry import DATASETS
from cifar10.run.train_dir import TrainDir

_WIDTH = 110


def check(config: TrainConfig) -> None:
    """Prints what a run would do.

    Raises:
      UsageError: it could not start; the lines that were printed have every reason.
    """
    checks = _Checks()
    _versions()
    cluster, local, data, plan = None, None, None, None
    with checks.gathered():
        cluster = membership.resolve(config)
    _cluster(cluster, checks)
    is_chief = cluster is None or cluster.is_chief
    if cluster is None or cluster.job == 'worker':
        with checks.gathered():
            preparation.check_network(config)
        with checks.gathered():
            local = _devices(config)
        with checks.gathered():
            data = _data(config, checks)
    if is_chief:
        with checks.gathered():
            if preparation.check_directory(config, TrainDir(config.train_dir)):
                print(f'restart    the run in {config.train_dir} would be deleted')
            elif loss := TrainDir(config.train_dir).describe_loss():
                print(f'warning: {loss}; give the flags of the run')
        if data:
            with checks.gathered():
                plan = _plan(config, data, local, cluster, checks)
    settings = dataclasses.asdict(plan.config if plan and local else config)
    settings = ' '.join(f'{name}={value}' for name, value in settings.items() if value is not None)
    print(textwrap.fill(f'settings   {settings}', _WIDTH, subsequent_indent=' ' * 11, break_long_words=False,
                        break_on_hyphens=False))
    checks.end()


class _Checks:
    """Collects what is wrong."""

    def __init__(self):
        self._problems, self.outlook = [], 'without --check the run would start'
        self._taken = collections.Counter()  # bytes of each disk that the run would fill

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

    def room(self, size, why, flag, path):
        """Prints the free space of a disk; raises a UsageError if `size` more bytes of the run do not fit on it."""
        folder = existing(path)
        free, disk = shutil.disk_usage(folder).free, os.stat(folder).st_dev
        print(f'disk       {free / 1e9:.1f} GB free in {path}; {why}')
        self._taken[disk] += size
        if self._taken[disk] > free:
            before = self._taken[disk] - size
            beside = f' in addition to {before / 1e6:.1f} MB' if before else ''
            raise UsageError(f'{flag}={path} has no room for {size / 1e6:.1f} MB ({why}){beside}; free some space, or '
                             f'use another {flag}')

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
    print(f"GPUs       {', '.join(gpus) if gpus else gpus.why_no_gpu() or 'none that TensorFlow can use'}")


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


def _devices(config):
    """Returns the towers' devices of this machine, having told them."""
    local = devices.choose(config.num_gpus, config.tower_device, config.gpus_per_tower)
    gpus.claim(local.num_gpus)
    print(f'devices    {local}')
    return preparation.claim_devices(config, local)


def _data(config, checks):
    """Returns the training data; if they are not there yet, what they will be."""
    where = config.dataset, config.data_dir
    parts = records.expected(*where, config.test_fraction)
    if parts is None:
        if config.eval_steps:
            records.prepare(*where, records.TEST, config.test_fraction)
        return records.prepare(*where, test_fraction=config.test_fraction)
    data = parts[records.TRAIN]
    download, parent = records.download_bytes(*where), os.path.dirname(data.folder)
    flag, state, how = '--data_dir', 'there', 'unpacking' if DATASETS.load(config.dataset).archive else 'making'
    if DATASETS.is_own(config.dataset):
        flag, state, how = '--dataset', 'converted', 'converting'
    how = f'downloading {download / 1e6:.0f} MB' if download else f'{how} it'
    print(f'data       {config.dataset} is not {state} yet; the run would begin by {how}, into {data.folder}')
    size = download + sum(each.count * each.record_bytes for each in parts.values())
    with checks.gathered():
        check_dir(parent, flag)
        checks.room(size, f'the data take {size / 1e6:.1f} MB', flag, parent)
    return data


def _plan(config, data, local, cluster, checks):
    """Returns the Plan, told, of a run whose graph is built: its variables say what a checkpoint takes.

    Where the devices are missing, it is checked as far as CPU devices can stand in for them, and not told.
    """
    directory, used = TrainDir(config.train_dir), local
    if not local:
        used = devices.choose(config.num_gpus, 'cpu', config.gpus_per_tower)
        gpus.claim(used.num_gpus)
    if cluster:
        used = devices.spread(used, len(cluster.workers), len(cluster.ps), '')
    with contextlib.nullcontext() if local else contextlib.redirect_stdout(io.StringIO()):
        plan = preparation.decide(config, directory, data, used)
    if os.path.isdir(data.folder):
        preparation.refuse_other_images(plan, directory)
    if local:
        preparation.describe(plan)
    with tf.Graph().as_default(), tf.device(plan.towers.home):
        tf.set_random_seed(config.seed)
        training.Training(plan)
        size = sum(variable.shape.num_elements() * variable.dtype.size for variable in tf.global_variables())
    # While one more is written, the oldest is still there.
    count = plan.config.max_to_keep + 1 if plan.config.max_to_keep else 1
    count = max(count - len(directory.checkpoints()), 1)  # those that are there have their place
    kept = f'--max_to_keep={plan.config.max_to_keep}' if plan.config.max_to_keep else 'all are kept'
    if plan.finished:
        checks.outlook = 'the run has ended; nothing would be done'
    with checks.gathered():
        checks.room(size * count, f'a checkpoint takes {size / 1e6:.1f} MB, {kept}', '--train_dir', config.train_dir)
    return plan
