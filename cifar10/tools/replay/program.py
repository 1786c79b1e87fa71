"""Replays steps of a run, looks into some of them, and prints what happened; or compares the records of two runs."""
import contextlib
from collections.abc import Iterator

from cifar10.base import console
from cifar10.run import failures
from cifar10.run.folder import look
from cifar10.settings.replay import ReplaySettings
from cifar10.settings.training import step_range
from cifar10.tools.replay import report
from cifar10.tools.replay.against import compare_runs
from cifar10.tools.replay.probe import Look, Probe
from cifar10.tools.replay.rerun import Rerun
from cifar10.tools.replay.verify import Verification

_STEPS_BEFORE = 4  # that are shown beside the step: the cause of what happens in it often lies in one of them


def replay(settings: ReplaySettings) -> None:
    """Replays steps of a run, and prints what happened in them; with `against`, compares the records of two runs."""
    folder = look(settings.train_dir)
    if settings.against is not None:
        console.say_all(compare_runs(folder, look(settings.against)))
        return
    if settings.steps:
        first, last = step_range('steps', settings.steps)
        wanted, lead = f'steps {first} to {last}', 0
    else:
        first = last = settings.step
        wanted, lead = f'step {last}', _STEPS_BEFORE
    with failures.plain_errors():
        rerun = Rerun(
            folder, last, first, settings.from_, lead=lead, tower_device=settings.tower_device,
            network=settings.network, optimizer=settings.optimizer, loss=settings.loss, dataset=settings.dataset,
            data_dir=settings.data_dir)
        console.say_all(report.heading(rerun, wanted))
        verification = Verification(rerun)
        looks = []
        with contextlib.closing(_looks(rerun, verification)) as taken:
            for seen in taken:
                looks.append(seen)
                if settings.steps and not (seen.is_finite or seen.was_skipped):
                    break  # a table of steps ends with the first that went wrong
    console.say_all([verification.line(), *report.table_of_steps(looks)])
    if settings.step:
        console.say_all(report.details(looks[-1], rerun.data.classes))
    console.say_all(report.not_finite_lines(looks, rerun.data.classes))


def _looks(rerun: Rerun, verification: Verification) -> Iterator[Look]:
    """Takes and verifies all steps, with a progress bar on a terminal; yields a Look into each that is wanted."""
    with contextlib.ExitStack() as stack:
        steps = stack.enter_context(contextlib.closing(rerun.steps()))
        probe = None
        for taken in console.progress_bar(steps, total=rerun.last - rerun.step, unit='step', leave=False):
            verification.add(taken)
            if taken.before is None:
                continue
            segment = rerun.segment_of(taken.step)
            if probe is None or taken.step == segment.first:
                probe = stack.enter_context(contextlib.closing(Probe(segment.plan)))
            yield probe.look(taken)
