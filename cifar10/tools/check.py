"""`--check`: prints what a training command would do, or what prevents it; writes nothing.

It takes the stages of `plan` that training takes, and continues after one that fails.
"""
import collections
import contextlib
import os
import platform
import shutil
import tempfile
import textwrap

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base import own
from cifar10.base.console import say
from cifar10.base.directories import check_dir, refuse_of_others
from cifar10.base.errors import RunError, UsageError, describe_os_error, reason
from cifar10.base.files import existing
from cifar10.base.registry import DATASETS, PRECISIONS
from cifar10.cluster import watch
from cifar10.cluster.address import own_addresses
from cifar10.data import pipeline, records
from cifar10.data.photos import Photos
from cifar10.parallel import determinism, gpus
from cifar10.parallel.devices import choose, spread
from cifar10.run import checkpoint, failures, metrics
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import TrainSettings
from cifar10.tools.explain.variant import SAME_BATCH, Variant
from cifar10.training import api, loop, plan
from cifar10.training.plan import mode_of

_WIDTH = 110
_PHOTOS = 100  # that are decoded to measure how long it takes


def check(settings: TrainSettings) -> None:
    """Prints what a run would do. Raises a UsageError if it could not start, after printing all reasons."""
    checks = _Checks()
    start = plan.Start(settings)
    cluster = None
    if settings.towers.deterministic:
        determinism.turn_on()
    _print_versions()
    if settings.run.explain:
        with checks.collected():
            loop.refuse_without_clock(settings.towers)
    with checks.collected():
        cluster = api.cluster_of(settings)
    if cluster:
        _print_cluster(cluster)
        with checks.collected():
            own_addresses(cluster, limit=0)
    if cluster is None or cluster.job == 'worker':
        checks.decide(start, [plan.check_network])
        checks.decide(start, [plan.check_optimizer])
        checks.decide(start, [plan.choose_devices])
        has_devices = start.devices is not None
        if has_devices:
            say(f'devices    {start.devices}')
        else:  # CPU devices stand in for the missing ones, so that the rest can be checked
            start.devices = choose(settings.towers.num_gpus, 'cpu', settings.towers.gpus_per_tower)
        gpus.claim(start.devices.num_gpus)
        with checks.collected():
            start.data = _expected_data(settings, checks)
    if cluster is None or cluster.is_chief:
        checks.decide(start, [plan.check_directory])
        with checks.collected():
            if start.replaces:
                say(f'restart    the run in {start.directory.path} would be deleted')
        if start.data:
            if cluster:
                start.devices = spread(start.devices, len(cluster.workers), len(cluster.ps), '')
            checks.decide(start, plan.WITH_DATA, prints=has_devices)
        if start.plan:
            each = ', in each process with towers' if len(set(start.plan.devices.hosts)) > 1 else ''
            say(f'memory     {_size(start.plan.data.memory_bytes)} for the training images{each}')
            with checks.collected(), failures.plain_errors():
                _print_decoding(start.plan, has_devices and not cluster)
            with checks.collected():
                _print_parts(start.plan)
            with checks.collected(), failures.plain_errors():
                _try(start, checks, cluster)
    if start.plan and has_devices:
        settings = start.plan.settings
    _print_settings(settings)
    checks.end()


class _Checks:
    """Collects the problems that the checks find.

    Attributes:
      outlook: the line that says what the run would do if there are no problems.
    """

    def __init__(self):
        self.outlook = 'ready      without --check the run would start'
        self._problems = []
        self._needed = collections.Counter()  # bytes that the run would write, by the number of the disk

    def decide(self, start, stages, prints=True):
        """Takes stages until one fails, and collects its problem.

        Args:
          start: a `plan.Start`.
          stages: functions of `plan`, each of which needs those before it.
          prints: whether to print the lines that they return.
        """
        with self.collected():
            for stage in stages:
                for line in stage(start):
                    if prints:
                        say(line)

    @contextlib.contextmanager
    def collected(self):
        """Context that an error ends early; the error is collected as a problem, unless it was already."""
        try:
            yield
        except (UsageError, RunError) as error:
            problem = str(error)
        except OSError as error:
            problem = describe_os_error(error)
        except Exception as error:  # with which the run would end too
            problem = f'{type(error).__name__}: {reason(error)}'
        else:
            return
        if problem not in self._problems:
            self._problems.append(problem)

    def require_space(self, size, what, flag, path):
        """Prints the free space of a disk; raises a UsageError if it is too little for the run.

        Args:
          size: bytes that the run would write there, beyond those of earlier calls.
          what: a phrase that says what they are.
          flag: the flag that names the path.
          path: where they would be written; need not exist.
        """
        folder = existing(path)
        free = shutil.disk_usage(folder).free
        disk = os.stat(folder).st_dev
        say(f'disk       {free / 1e9:.1f} GB free in {path}; {what}')
        earlier = self._needed[disk]
        self._needed[disk] += size
        if self._needed[disk] > free:
            addition = f' in addition to {earlier / 1e6:.1f} MB' if earlier else ''
            raise UsageError(f'{flag}={path} has no room for {size / 1e6:.1f} MB ({what}){addition}; free some space, '
                             f'or use another {flag}')

    @property
    def found_none(self):
        """Whether there are no problems so far."""
        return not self._problems

    def end(self):
        """Prints all problems and raises a UsageError if there are any; otherwise prints the outlook."""
        for problem in self._problems:
            say(f'problem    {problem}')
        if len(self._problems) == 1:
            raise UsageError("the run cannot start; see the line 'problem' above")
        if self._problems:
            raise UsageError(f"the run cannot start; see the {len(self._problems)} lines 'problem' above")
        say(self.outlook)


def _print_versions():
    build = tf2.sysconfig.get_build_info()
    cuda = f"for CUDA {build['cuda_version']}" if build.get('cuda_version') else 'without CUDA'
    say(f'versions   Python {platform.python_version()}, TensorFlow {tf.__version__} {cuda}, NumPy {np.__version__}')
    names = [tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name)
             for gpu in tf.config.list_physical_devices('GPU')]
    say(f"GPUs       {', '.join(names) or gpus.why_no_gpu() or 'none that TensorFlow can use'}")


def _print_cluster(cluster):
    """Prints what this process is in a cluster, and which peers answer already."""
    chief = ', the chief' if cluster.is_chief else ''
    say(f'cluster    {cluster.job} {cluster.index} at {cluster.address}{chief}')
    for name, address in cluster.others().items():
        answer = 'answers' if watch.reachable(address) else 'does not answer yet'
        say(f'peer       {name} at {address} {answer}')


def _print_decoding(plan, can_compute):
    """Prints how fast photos are decoded here, for how many towers that is enough, and what batches take in memory."""
    if not isinstance(plan.data, Photos):
        return
    images = (1 + pipeline.batches_ahead(False)) * plan.settings.towers.batch_size
    ahead = f'the batches ahead of each device take {_size(4 * images * 3 * plan.recipe.image_size ** 2)}'
    data = plan.settings.data
    with tempfile.TemporaryDirectory() as folder:
        photos = plan.data
        if not os.path.exists(photos.files[0]):
            dataset = DATASETS.load(data.dataset).configured(data.test_fraction, data.image_size)
            photos = dataset.sample(folder, _PHOTOS, data.image_size)
        if not photos.count:
            raise UsageError(f'--dataset={data.dataset}: none of the files that were tried can be decoded; mend them')
        rate = pipeline.decoding_rate(photos, plan.recipe.augmentation, _PHOTOS)
        feeds = f', enough for {rate / _images_taken(plan, photos, folder):.1f} towers' if can_compute else ''
    say(f'decoding   {rate:,.0f} photos/s on {len(os.sched_getaffinity(0))} cores{feeds}; {ahead}')


def _images_taken(plan, photos, folder):
    """Returns how many images a second a tower takes that never waits for its input, and is alone."""
    devices = plan.devices.with_towers(1)
    tower = Variant(plan._replace(settings=plan.settings.replace(eval_steps=0), data=photos, devices=devices,
                                  mode=mode_of(plan.settings.towers, devices), checkpoint=None), folder)
    with contextlib.closing(tower):
        tower.take(1, SAME_BATCH)  # optimises the graph
        return plan.settings.towers.batch_size / min(tower.take(2, SAME_BATCH))


def _print_parts(plan):
    """Prints for each part of the network the memory that its variables and a tower's activations take."""
    towers = plan.settings.towers
    sizes = plan.recipe.part_sizes(towers.batch_size, PRECISIONS.load(towers.precision).dtype)
    for number, size in enumerate(sizes):
        say(f'part {number:<5} {_size(size.variables)} of variables, {_size(size.activations)} of activations in a '
              'tower')


def _size(count):
    """Returns a number of bytes for people to read."""
    return f'{count / 1e6:.2f} MB' if count >= 1e5 else f'{count / 1e3:.2f} kB'


def _print_settings(settings):
    text = ' '.join(f'{name}={value}' for name, value in settings.flat().items() if value is not None)
    for line in textwrap.wrap(f'settings   {text}', _WIDTH, subsequent_indent=' ' * 11, break_long_words=False,
                              break_on_hyphens=False):
        say(line)


def _expected_data(settings, checks):
    """Returns the Records of the training images; if they do not exist yet, prints how the run would make them."""
    dataset = settings.data.dataset
    data_dir = settings.data.data_dir
    parts = records.expected(dataset, data_dir, settings.data.test_fraction, settings.data.image_size)
    if parts is None:
        if settings.reports.eval_steps:
            records.of(settings.data, records.TEST)
        return records.of(settings.data)
    data = parts[records.TRAIN]
    parent = os.path.dirname(data.folder)
    download = records.download_bytes(dataset, data_dir)
    flag = '--data_dir'
    state = 'there'
    if DATASETS.is_own(dataset):
        flag = '--dataset'
        state = 'examined' if isinstance(data, Photos) else 'converted'
        action = 'decoding each file once for a manifest' if isinstance(data, Photos) else 'converting it'
    elif download:
        action = f'downloading {download / 1e6:.0f} MB'
    elif DATASETS.load(dataset).archive:
        action = 'unpacking it'
    else:
        action = 'making it'
    say(f'data       {dataset} is not {state} yet; the run would begin by {action}, into {data.folder}')
    size = download + sum(part.count * part.record_bytes for part in parts.values())
    with checks.collected():
        refuse_of_others(parent, f'{flag}={parent}')
        check_dir(parent, flag)
        checks.require_space(size, f'the data take {size / 1e6:.1f} MB', flag, parent)
    return data


def _try(start, checks, cluster):
    """Does in memory what the start would do up to its first step, as far as it can here, and says how far."""
    plan = start.plan
    has_data = os.path.exists(plan.data.files[0])
    learnt = plan.recipe.learn(plan.data) if has_data and not plan.checkpoint else {}
    seed = plan.settings.run.seed
    with tempfile.TemporaryDirectory() as folder, own.graph(seed), tf.device(plan.devices.home):
        graph = loop.build(plan, learnt)
        with checks.collected():
            _check_space(start, checks)
        # Compares the variables. It writes nothing, or only to the folder.
        checkpoints = checkpoint.Checkpoints(TrainDir(folder), plan.checkpoint, graph.global_step, graph.examples_seen,
                                             1, metrics.Metrics(folder), repeatable=False)
        if plan.finished or not checks.found_none:
            return
        if cluster or not has_data:
            why = 'it takes all tasks of the cluster' if cluster else 'the images are not there yet'
            say(f'not tried  the first step, because {why}')
            return
        if validation := loop.validation_of(plan):
            validation.close()
        with plan.mode.scope(), loop.begun(plan, graph, checkpoints) as session:
            losses = session.run(graph.fetches)['losses']
            loop.refuse_divergence(plan.step + 1, losses, start.directory, repeatable=False)
            checkpoints.refuse_divergence(session, plan.step + 1)
        say(f'tried      step {plan.step + 1}, loss {np.mean(losses):.4g}, in memory; files and later steps are not')


def _check_space(start, checks):
    """Checks that there is space for the checkpoints of the run, whose variables are those of the current graph."""
    settings = start.plan.settings
    size = sum(variable.shape.num_elements() * variable.dtype.size for variable in tf.global_variables())
    reports = settings.reports
    keep = reports.max_to_keep
    if keep:
        # One more than are kept: the oldest is removed only after the newest is written. Existing ones need no more.
        count = max(keep + 1 - len(start.directory.checkpoints()), 1)
        limit = f'--max_to_keep={keep}'
        if every := reports.keep_every:
            count += start.plan.last_step // every - start.plan.step // every
            limit += f', --keep_every={every}'
    else:
        count = start.plan.last_step // reports.save_steps - start.plan.step // reports.save_steps + 1
        limit = f'all are kept, --save_steps={reports.save_steps}'
    if reports.keep_best:
        count += 2  # the best so far, and one that may be better
        limit += ', --keep_best'
    if start.plan.finished:
        checks.outlook = 'ended      without --check nothing would be done'
    checks.require_space(
        size * count, f'a checkpoint takes {size / 1e6:.1f} MB, {limit}', '--train_dir', start.directory.path)
