"""Replays a step of a run, in memory, and shows what happened in it: losses, gradients, updates, examples.

    cifar10-replay --train_dir=DIR --step=7020
    cifar10-replay --train_dir=DIR --against=DIR2

It starts from the newest checkpoint before the step. Nothing in the train_dir is changed. With --against it says where
two runs part: the first step that differs, the tower and the variable.
"""
import contextlib
import dataclasses
import functools
import sys

from cifar10.base import console, startup
from cifar10.base.directories import TRAIN_DIR, warn_of_others
from cifar10.base.errors import UsageError
from cifar10.base.registry import DATASETS, NETWORKS, OPTIMIZERS
from cifar10.programs import flags, program
from cifar10.settings.definition import checked, setting
from cifar10.settings.training import TOWER_DEVICES, step_range

_STEPS_BEFORE = 4  # that are shown beside the step: the cause of what happens in it often lies in one of them


@dataclasses.dataclass(frozen=True)
class ReplaySettings:
    """What is replayed, and what is shown of it."""
    TITLE = 'Replay'
    train_dir: str = setting(TRAIN_DIR, 'train_dir of the run', is_path=True)
    step: int = setting(None, 'step to look into', minimum=1)
    steps: str = setting(None, 'FROM:TO, steps to show in a table', checks=[step_range])
    against: str = setting(
        None, 'train_dir of another run: shows the first step at which the two differ, and what differs in it',
        is_path=True)
    from_: str = setting(
        None, 'prefix of the checkpoint to start from (default: the newest one before the step, or the initial values)',
        is_path=True)
    tower_device: str = setting(
        'auto', 'device of the towers; auto: as the run had, where this machine has it', choices=TOWER_DEVICES)
    data_dir: str = setting(
        None, "directory of the data set (default: the run's)", is_path=True)
    dataset: str = setting(
        None, "new location of the run's own images, if they were moved (default: the run's)", choices=DATASETS)
    network: str = setting(
        None, "new location of the run's own network, if its file was moved (default: the run's)", choices=NETWORKS)
    optimizer: str = setting(
        None, "new location of the run's own optimizer, if its file was moved (default: the run's)",
        choices=OPTIMIZERS)


def replay_settings(**given: object) -> ReplaySettings:
    """Returns the settings of a replay; raises a UsageError if a value is not valid, or settings contradict."""
    settings = ReplaySettings(**checked([ReplaySettings], given))
    if [settings.step, settings.steps, settings.against].count(None) != 2:
        raise UsageError('give exactly one of --step=N (a step to look into), --steps=FROM:TO (a table of steps) and '
                         '--against=DIR (a run to compare with)')
    if settings.against is not None and settings.from_:
        raise UsageError('--from contradicts --against; leave one of them out')
    return settings


def main() -> None:
    """Reads the flags and replays."""
    settings = replay_settings(**flags.parse([ReplaySettings], __doc__, sys.argv[1:]))
    warn_of_others(settings.train_dir, f'--train_dir={settings.train_dir}')
    if settings.against is not None:
        warn_of_others(settings.against, f'--against={settings.against}')
    startup.start_tensorflow()
    if settings.against is not None:
        compare(settings)
    else:
        replay(settings)


def replay(settings: ReplaySettings) -> None:
    """Takes the steps again and prints what happened in them."""
    # After the flags: TensorFlow takes seconds to import.
    from cifar10.run import failures
    from cifar10.run.train_dir import TrainDir
    from cifar10.tools.replay import report
    from cifar10.tools.replay.probe import Probe
    from cifar10.tools.replay.rerun import Rerun
    from cifar10.tools.replay.verify import Verification
    directory = TrainDir(settings.train_dir)
    first, last = step_range('steps', settings.steps) if settings.steps else (settings.step, settings.step)
    with failures.plain_errors(), contextlib.ExitStack() as stack:
        rerun = Rerun(directory, last, first, settings.from_, **_places(settings))
        if settings.step:
            rerun.first = max(rerun.step + 1, last - _STEPS_BEFORE)
        wanted = f'steps {first} to {last}' if settings.steps else f'step {last}'
        console.say_all(report.heading(directory, rerun, wanted))
        verification = Verification(directory, rerun)
        steps = []
        probe, origin = None, None
        for taken in _with_bar(stack.enter_context(contextlib.closing(rerun.steps())), last - rerun.step):
            verification.compare(taken)
            if taken.before is None:
                continue
            segment = rerun.segment_of(taken.step)
            if probe is None or taken.step == segment.first:
                probe = stack.enter_context(contextlib.closing(Probe(segment.plan)))
            steps.append(probe.at(taken))
            bad_tower = steps[-1].bad_tower
            origin = None if bad_tower is None else probe.origin(taken, bad_tower)
            if settings.steps and not (steps[-1].is_finite or steps[-1].was_skipped):
                break
        console.say_all([verification.line(), *report.unrecorded(rerun, steps[-1]), *report.table_of_steps(steps)])
        if settings.step:
            console.say_all(report.details(steps[-1], rerun.data.classes))
        console.say_all(report.not_finite_lines(steps, rerun.data.classes, origin))


def compare(settings: ReplaySettings) -> None:
    """Prints where two runs part."""
    from cifar10.run import failures
    from cifar10.run.train_dir import TrainDir
    from cifar10.tools.replay import against
    with failures.plain_errors():
        console.say_all(against.compare(
            TrainDir(settings.train_dir), TrainDir(settings.against), _with_bar, **_places(settings)))


def _places(settings):
    """Returns where the steps are taken and where their files are, as options of `Rerun`."""
    return {name: getattr(settings, name) for name in ('tower_device', 'network', 'optimizer', 'dataset', 'data_dir')}


def _with_bar(steps, count):
    """Yields the steps, with a progress bar on a terminal."""
    return console.progress_bar(steps, total=count, unit='step', leave=False)


run = functools.partial(program.run, main)
