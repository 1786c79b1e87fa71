"""Takes the steps of a run in a loop; between steps, reporters print, evaluate and save."""
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from cifar10.base.console import Output, say
from cifar10.base.errors import reason
from cifar10.base.graphs import LOST
from cifar10.base.signals import Termination
from cifar10.parallel.stepper import Stepper
from cifar10.training.run import Run

if TYPE_CHECKING:
    from cifar10.training.run_files import RunFiles

_MOST_ATTEMPTS = 20  # to reach the next checkpoint, before a lost device counts as permanently lost


def take_steps(run: Run, files: 'RunFiles', termination: Termination | None = None,
               before_session: Callable[[], None] | None = None) -> None:
    """Takes all steps of a run. After the loss of a device, resumes from the newest checkpoint in a new session.

    TensorFlow may report the loss anywhere: while it creates the session, initialises or restores variables, in a step,
    an evaluation or a save, or in another thread. So one `try` encloses everything.
    """
    attempts = 0
    newest = None
    while True:
        try:
            if before_session:
                before_session()
            with run.opened(files.checkpoints.resume()):
                if attempts:
                    say('resumed', f'at step {run.step:,} of {run.plan.last_step:,}')
                if termination:
                    termination.defer()
                _loop(run, files, termination)
            return
        except LOST as error:
            # If a checkpoint was saved since the last loss, the run has made progress.
            attempts = attempts + 1 if files.checkpoints.last == newest else 1
            newest = files.checkpoints.last
            if attempts > _MOST_ATTEMPTS:
                raise
            say('recovering', f'{reason(error)}; making a new session', note=True)


def _loop(run, files, termination):
    with files.begun() as reporters:
        def begin(thread, step):
            if files.ended(step - 1) or Output.current.is_closed or (termination and termination.requested):
                return None
            also = {}
            for reporter in reporters:
                also.update(reporter.also(step, thread))
            return functools.partial(run.run_step, step, also, thread=thread)

        def awaits(step):
            return any([reporter.awaits(step) for reporter in reporters])  # asks every reporter

        with Stepper(len(run.graph.fetches)) as stepper:
            for results in stepper.results(run.step, begin, awaits):
                run.step += 1
                # Before the reporters: they write nothing for a diverged step, and nothing to a replaced folder.
                files.refuse(run.step, results['losses'], results['thread'])
                if run.averages_after(run.step):
                    run.average()
                for reporter in reporters:
                    reporter.after_step(run.step, results)
        if not run.averages_after(run.step):
            run.average(scheduled=False)
        files.refuse(run.step)
        for reporter in reporters:
            reporter.at_end(run.step)
