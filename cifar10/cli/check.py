"""`--check`: what a training command would do, or what prevents it; nothing is written.

It goes through the stages that training goes through, and continues after one that fails.
"""
import collections
import contextlib
import os
import platform
import shutil
import textwrap

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10 import plan, training
from cifar10.cluster import membership, watch
from cifar10.cluster.address import own_addresses
from cifar10.data import records
from cifar10.directories import check_dir
from cifar10.errors import UsageError, describe_os_error
from cifar10.files import existing
from cifar10.parallel import gpus
from cifar10.parallel.devices import choose, spread
from cifar10.registry import DATASETS
from cifar10.settings.training import TrainSettings

_WIDTH = 110


def check(settings: TrainSettings) -> None:
    """Prints what a run would do.

    Raises:
      UsageError: it could not start; the lines that were printed have every reason.
    """
    checks = _Checks()
    start = plan.Start(settings)
    cluster = None
    _print_versions()
    with checks.collected():
        cluster = membership.resolve(settings.cluster)
        plan.check_cluster(cluster, settings.towers)
    if cluster:
        _print_cluster(cluster)
        with checks.collected():
            own_addresses(cluster, limit=0)
    if cluster is None or cluster.job == 'worker':
        checks.decide(start, [plan.check_network])
        checks.decide(start, [plan.choose_devices])
        has_devices = start.devices is not None
        if has_devices:
            print(f'devices    {start.devices}')
        else:  # the rest is checked as far as CPU devices can stand in for those that are missing
            start.devices = choose(settings.towers.num_gpus, 'cpu', settings.towers.gpus_per_tower)
        gpus.claim(start.devices.num_gpus)
        with checks.collected():
            start.data = _expected_data(settings, checks)
    if cluster is None or cluster.is_chief:
        checks.decide(start, [plan.check_directory])
        _print_directory(start)
        if start.data:
            if cluster:
                start.devices = spread(start.devices, len(cluster.workers), len(cluster.ps), '')
            checks.decide(start, plan.WITH_DATA, is_told=has_devices)
        if start.plan:
            with checks.collected():
                _check_room(start, checks)
    if start.plan and has_devices:
        settings = start.plan.settings
    text = ' '.join(f'{name}={value}' for name, value in settings.flat().items() if value is not None)
    print(textwrap.fill(f'settings   {text}', _WIDTH, subsequent_indent=' ' * 11, break_long_words=False,
                        break_on_hyphens=False))
    checks.end()


class _Checks:
    """Collects what is wrong."""

    def __init__(self):
        self._problems = []
        self.outlook = 'without --check the run would start'
        self._taken = collections.Counter()  # bytes of each disk that the run would fill

    def decide(self, start, stages, is_told=True):
        """Decides as training does; collects what stops it, and goes on behind these stages.

        Args:
          start: a `plan.Start`.
          stages: each needs those before it.
          is_told: whether to print what they return.
        """
        with self.collected():
            for stage in stages:
                for line in stage(start):
                    if is_told:
                        print(line)

    @contextlib.contextmanager
    def collected(self):
        """Context that collects what is wrong, once, and goes on behind it."""
        try:
            yield
        except UsageError as error:
            problem = str(error)
        except OSError as error:
            problem = describe_os_error(error)
        else:
            return
        if problem not in self._problems:
            self._problems.append(problem)

    def room(self, size, why, flag, path):
        """Prints the free space of a disk; raises a UsageError if `size` more bytes of the run do not fit on it."""
        folder = existing(path)
        free = shutil.disk_usage(folder).free
        disk = os.stat(folder).st_dev
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
            reasons = 'a reason' if count == 1 else f'{count} reasons'
            raise UsageError(f"the run cannot start, for {reasons}; see the lines 'problem' above")
        print(f'ready      {self.outlook}')


def _print_versions():
    built = tf2.sysconfig.get_build_info()
    cuda = f"for CUDA {built['cuda_version']}" if built.get('cuda_version') else 'without CUDA'
    print(f'versions   Python {platform.python_version()}, TensorFlow {tf.__version__} {cuda}, NumPy {np.__version__}')
    names = [tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name)
             for gpu in tf.config.list_physical_devices('GPU')]
    print(f"GPUs       {', '.join(names) or gpus.why_no_gpu() or 'none that TensorFlow can use'}")


def _print_cluster(cluster):
    """Prints this process's part in a cluster, and which peers answer already."""
    chief = ', the chief' if cluster.is_chief else ''
    print(f'cluster    {cluster.job} {cluster.index} at {cluster.address}{chief}')
    for name, address in cluster.others().items():
        print(f"peer       {name} at {address} {'answers' if watch.reachable(address) else 'does not answer yet'}")


def _print_directory(start):
    """Prints what the run would do with a run that is in its directory, beyond resuming it."""
    if start.replaces:
        print(f'restart    the run in {start.directory.path} would be deleted')
    elif loss := start.directory.describe_lost_settings():
        print(f'warning: {loss}; give the flags of the run')


def _expected_data(settings, checks):
    """Returns the training data; if they are not there yet, what they will be."""
    dataset, data_dir, fraction = settings.data.dataset, settings.data.data_dir, settings.data.test_fraction
    parts = records.expected(dataset, data_dir, fraction)
    if parts is None:
        if settings.reports.eval_steps:
            records.prepare(dataset, data_dir, records.TEST, fraction)
        return records.prepare(dataset, data_dir, records.TRAIN, fraction)
    data = parts[records.TRAIN]
    parent = os.path.dirname(data.folder)
    download = records.download_bytes(dataset, data_dir)
    if DATASETS.is_own(dataset):
        flag, state, how = '--dataset', 'converted', 'converting it'
    elif download:
        flag, state, how = '--data_dir', 'there', f'downloading {download / 1e6:.0f} MB'
    else:
        flag, state, how = '--data_dir', 'there', 'unpacking it' if DATASETS.load(dataset).archive else 'making it'
    print(f'data       {dataset} is not {state} yet; the run would begin by {how}, into {data.folder}')
    size = download + sum(part.count * part.record_bytes for part in parts.values())
    with checks.collected():
        check_dir(parent, flag)
        checks.room(size, f'the data take {size / 1e6:.1f} MB', flag, parent)
    return data


def _check_room(start, checks):
    """Looks whether there is room for the checkpoints: the graph is built, whose variables say what one takes."""
    decided = start.plan
    with tf.Graph().as_default(), tf.device(decided.devices.home):
        tf.set_random_seed(decided.settings.run.seed)
        training.build(decided, {})
        size = sum(variable.shape.num_elements() * variable.dtype.size for variable in tf.global_variables())
    keep = decided.settings.reports.max_to_keep
    # While one more is written, the oldest is still there; those that are there have their place.
    count = max((keep + 1 if keep else 1) - len(start.directory.checkpoints()), 1)
    kept = f'--max_to_keep={keep}' if keep else 'all are kept'
    if decided.finished:
        checks.outlook = 'the run has ended; nothing would be done'
    checks.room(size * count, f'a checkpoint takes {size / 1e6:.1f} MB, {kept}', '--train_dir', start.directory.path)
