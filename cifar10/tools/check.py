"""`--check`: prints what a training command would do, or what prevents it; writes nothing.

It runs the stages of `start`, as training does, and some of its own. If a stage fails, the stages that depend on it are
skipped.
"""
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line, say, say_all
from cifar10.base.directories import check_dir, refuse_of_others
from cifar10.base.errors import RunError, UsageError, describe_os_error, reason
from cifar10.base.files import existing, in_bytes
from cifar10.base.registry import DATASETS
from cifar10.base.startup import numerics, versions
from cifar10.run import checkpoint, failures, metrics, takeover
from cifar10.run.train_dir import TrainDir
from cifar10.settings.definition import Of
from cifar10.settings.training import TrainSettings, flags_of
from cifar10.training import api, start, trainer
from cifar10.training.run import Run


def check(settings: TrainSettings) -> None:
    """Prints what a run would do. Raises a UsageError if it could not start, after printing all reasons."""
    checked = _Checked(settings, compares=True)
    say('settings', f"{' '.join(flags_of(settings, Of.RUN, Of.MACHINE)) or 'none'}; all others have their defaults")
    checked.take(_versions)
    checked.take(_cluster)
    passed = []
    if checked.cluster is None or checked.cluster.job == 'worker':
        stages = start.check_network, start.check_optimizer, start.check_loss, _devices, start.expect_data
        passed += [checked.take(stage) for stage in stages]
        if passed[-1]:
            checked.take(_space_for_data)
    if checked.cluster is None or checked.cluster.is_chief:
        passed.append(checked.take(_directory))
        if all(passed) and checked.take(_plan) and not checked.plan.finished:
            checked.take(_first_step)
    checked.end()


@dataclasses.dataclass
class _Checked(start.Start):
    """A start that is checked, and the findings so far.

    Attributes:
      cluster: this process's cluster, or None.
      problems: the problems that prevent the start.
      has_tried: whether the first step was taken.
    """
    cluster: Any = None
    problems: list[str] = dataclasses.field(default_factory=list)
    has_tried: bool = False

    def take(self, stage: Callable[['_Checked'], Iterable[str]]) -> bool:
        """Runs a stage, a function that returns lines, and prints them; returns whether it found no problem."""
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
        """Prints all problems, and raises a UsageError if there are any."""
        say_all(Line('problem', problem) for problem in self.problems)
        if self.problems:
            lines = "line 'problem'" if len(self.problems) == 1 else f"{len(self.problems)} lines 'problem'"
            raise UsageError(f'the run cannot start; see the {lines} above')
        unread = ''
        if self.expected and DATASETS.is_own(self.given.data.dataset):
            count = sum(part.count for part in self.expected.parts.values())
            unread = f'; its {count:,} files are not read yet, and those that are no pictures will be left out'
        if self.plan and self.plan.finished:
            say('ended', 'without --check nothing would be done')
        elif self.has_tried:
            say('ready', 'without --check the run would start')
        else:
            say('so far', f'no problem{unread}')


# The stages of a check, beside those of `start`.

def _versions(checked):
    found = {**versions(on_gpus=bool(tf.config.list_physical_devices('GPU'))), **numerics()}
    return [Line('versions', ', '.join(f'{name} {value}' for name, value in found.items()))]


def _cluster(checked):
    checked.cluster = api.cluster_of(checked.given)
    if checked.cluster:
        yield from checked.cluster.describe()
        checked.cluster.own_addresses(limit=0)


def _devices(checked):
    return [*start.choose_devices(checked), Line('devices', str(checked.devices))]


def _space_for_data(checked):
    """Checks that the data set can be made where it would be."""
    if checked.expected:
        data_dir = checked.expected.data_dir
        refuse_of_others(data_dir, f'--data_dir={data_dir}')
        check_dir(data_dir, '--data_dir')
        yield _free(data_dir, f'the data take {in_bytes(checked.expected.num_bytes)}')
        checked.expected.check_space()


def _directory(checked):
    yield from start.check_directory(checked)
    if takeover.sets_aside(checked.folder, checked.given):
        yield Line('restart', f'the folder {checked.folder.path} would be renamed')


def _plan(checked):
    if checked.cluster:
        checked.devices = checked.devices.spread(len(checked.cluster.workers), len(checked.cluster.ps))
    for stage in trainer.WITH_DATA:
        yield from stage(checked)


def _first_step(checked):
    """Does in memory what the run would do up to its first step, as far as possible here, and reports how far."""
    plan, path = checked.plan, checked.folder.path
    run = Run(plan, is_new=os.path.exists(plan.data.files[0]) and not plan.checkpoint)
    needed = start.space_for_files(checked, run.saved.values())
    yield _free(path, needed[-1])
    yield from start.check_space(needed, path)
    start.refuse_misfit(checked, run.saved)
    with tempfile.TemporaryDirectory() as folder:
        with run.adding():  # it writes nothing, or only to the folder
            checkpoints = checkpoint.Checkpoints(TrainDir(folder), checked.restored, (), 1, metrics.Metrics(folder))
        if checked.problems:
            return
        if checked.cluster or not os.path.exists(plan.data.files[0]):
            why = 'it needs all tasks of the cluster' if checked.cluster else 'the images are not prepared yet'
            yield Line('not tried', f'the first step, because {why}')
            return
        if validation := trainer.validation_of(checked):
            validation.close()
        with run.opened(checkpoints.resume()):
            losses = run.take()['losses']
            failures.refuse_divergence(run.step, losses, path)
            checkpoints.refuse_divergence(run.session, run.step)
        checked.has_tried = True
        yield Line('tried', f'step {plan.step + 1}, loss {np.mean(losses):.4g}, in memory; files and later steps were '
                            'not tried')


def _free(path, what):
    """Returns a line with the free space of the disk of a directory, and what is going to be written there."""
    return Line('disk', f'{in_bytes(shutil.disk_usage(existing(path)).free)} free in {path}; {what}')
