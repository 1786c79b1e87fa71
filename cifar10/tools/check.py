"""`--check`: prints what a training command would do, or what prevents it; writes nothing.

It takes the stages of `start`, as training does, and some of its own. Where one finds a problem, those that need it are
left out.
"""
import dataclasses
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import say, say_all
from cifar10.base.directories import check_dir, refuse_of_others
from cifar10.base.errors import RunError, UsageError, describe_os_error, reason
from cifar10.base.files import existing
from cifar10.base.registry import DATASETS
from cifar10.base.startup import versions
from cifar10.run import checkpoint, decisions, failures, metrics
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import TrainSettings
from cifar10.training import api, memory, start, trainer
from cifar10.training.run import Run

_WIDTH = 110


def check(settings: TrainSettings) -> None:
    """Prints what a run would do. Raises a UsageError if it could not start, after printing all reasons."""
    look = _Look(settings)
    look.take(_versions)
    look.take(_cluster)
    passed = []
    if look.cluster is None or look.cluster.job == 'worker':
        stages = start.check_network, start.check_optimizer, _devices, start.expect_data
        passed += [look.take(stage) for stage in stages]
        if passed[-1]:
            look.take(_space_for_data)
    if look.cluster is None or look.cluster.is_chief:
        passed.append(look.take(_directory))
        if all(passed) and look.take(_plan) and not look.plan.finished:
            look.take(memory.compare)
            look.take(_first_step)
    look.end()


@dataclasses.dataclass
class _Look(start.Start):
    """A start that is checked, and the findings so far.

    Attributes:
      cluster: this process's cluster, or None.
      problems: the problems that prevent the start.
      for_data: (bytes of the data set that the run would write, number of the disk).
    """
    cluster: Any = None
    problems: list[str] = dataclasses.field(default_factory=list)
    for_data: tuple[int, int | None] = 0, None

    def take(self, stage: Callable[['_Look'], Iterable[str]]) -> bool:
        """Takes a stage, a function that returns lines, and prints them; returns whether it found no problem."""
        try:
            with failures.plain_errors():
                say_all(stage(self))
            return True
        except (UsageError, RunError) as error:
            problem = str(error)
        except OSError as error:
            problem = describe_os_error(error)
        except Exception as error:  # with which the run would end too
            problem = f'{type(error).__name__}: {reason(error)}'
        self.problems.append(problem)
        return False

    def end(self) -> None:
        """Prints the settings and all problems; raises a UsageError if there are any."""
        settings = self.plan.settings if self.plan else self.settings
        text = ' '.join(f'{name}={value}' for name, value in settings.flat().items() if value is not None)
        say_all(textwrap.wrap(f'settings   {text}', _WIDTH, subsequent_indent=' ' * 11, break_long_words=False,
                              break_on_hyphens=False))
        say_all(f'problem    {problem}' for problem in self.problems)
        if self.problems:
            lines = "line 'problem'" if len(self.problems) == 1 else f"{len(self.problems)} lines 'problem'"
            raise UsageError(f'the run cannot start; see the {lines} above')
        is_ended = self.plan and self.plan.finished
        unread = ''
        if self.expected and DATASETS.is_own(self.settings.data.dataset):
            unread = f', if its {sum(part.count for part in self.expected.parts.values()):,} files can be read'
        say('ended      without --check nothing would be done' if is_ended else
            f'ready      without --check the run would start{unread}')


# The stages of a check, beside those of `plan`.

def _versions(look):
    found = versions(on_gpus=bool(tf.config.list_physical_devices('GPU')))
    return [f"versions   {', '.join(f'{name} {version}' for name, version in found.items())}"]


def _cluster(look):
    look.cluster = api.cluster_of(look.settings)
    if look.cluster:
        yield from look.cluster.describe()
        look.cluster.own_addresses(limit=0)


def _devices(look):
    return [*start.choose_devices(look), f'devices    {look.devices}']


def _space_for_data(look):
    """Checks that the data set can be made where it would be."""
    if look.expected:
        parent, flag = look.expected.parent, look.expected.flag
        refuse_of_others(parent, f'{flag}={parent}')
        check_dir(parent, flag)
        yield _free(parent, look.expected.what)
        look.for_data = look.expected.num_bytes, _disk(parent)
        look.expected.check_space()


def _directory(look):
    yield from start.check_directory(look)
    if decisions.replaces(look.folder, look.settings):
        yield (f'restart    the run in {look.folder.path} would be deleted' if look.settings.run.restart
               else decisions.replaced(look.folder))


def _plan(look):
    if look.cluster:
        look.devices = look.devices.spread(len(look.cluster.workers), len(look.cluster.ps))
    for stage in trainer.WITH_DATA:
        yield from stage(look)


def _first_step(look):
    """Does in memory what the start would do up to its first step, as far as it can here, and says how far."""
    plan = look.plan
    run = Run(plan, is_new=os.path.exists(plan.data.files[0]) and not plan.checkpoint)
    yield from _space_for_checkpoints(look, run.saved.values())
    with tempfile.TemporaryDirectory() as folder:
        with run.adding():  # compares the variables; it writes nothing, or only to the folder
            checkpoints = checkpoint.Checkpoints(
                TrainDir(folder), look.restored, 1, metrics.Metrics(folder), repeatable=False)
        if look.problems:
            return
        if look.cluster or not os.path.exists(plan.data.files[0]):
            why = 'it takes all tasks of the cluster' if look.cluster else 'the images are not there yet'
            yield f'not tried  the first step, because {why}'
            return
        if validation := trainer.validation_of(plan):
            validation.close()
        with run.opened(checkpoints.resume()):
            losses = run.take()['losses']
            failures.refuse_divergence(run.step, losses, look.folder.path, repeatable=False)
            checkpoints.refuse_divergence(run.session, run.step)
        yield (f'tried      step {plan.step + 1}, loss {np.mean(losses):.4g}, in memory; files and later steps were '
               'not tried')


def _space_for_checkpoints(look, variables):
    """Checks that there is space for checkpoints of some variables, beside the data set."""
    needed = start.space_for_checkpoints(look, variables)
    yield _free(look.folder.path, needed.what)
    num_bytes, disk = look.for_data
    yield from start.check_space(needed, look.folder.path, num_bytes if disk == _disk(look.folder.path) else 0)


def _free(path, what):
    """Returns a line with the free space of the disk of a directory, and what is going to be written there."""
    free = shutil.disk_usage(existing(path)).free
    return f"disk       {f'{free / 1e9:.1f} GB' if free > 1e9 else f'{free / 1e6:.1f} MB'} free in {path}; {what}"


def _disk(path):
    """Returns the number of the disk of a directory, which need not exist."""
    return os.stat(existing(path)).st_dev
