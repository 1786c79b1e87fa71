"""The loop: takes the steps of a run one after the other; between them reporters print, evaluate and save."""
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from cifar10.base.console import Output, say
from cifar10.base.errors import reason
from cifar10.base.graphs import LOST
from cifar10.base.signals import Termination
from cifar10.parallel.asynchronous import Stepper
from cifar10.training.run import Run

if TYPE_CHECKING:
    from cifar10.training.run_files import RunFiles

_MOST_ATTEMPTS = 20  # to come from one checkpoint to the next, before a lost device counts as gone for good


def take_steps(run: Run, files: 'RunFiles', termination: Termination | None = None,
               before_session: Callable[[], None] | None = None) -> None:
    """Takes all steps of a run. When a device is lost, it continues in a new session, from the newest checkpoint.

    TensorFlow may report the loss wherever it is used: when the session is made, variables are initialised or
    restored, in a step, an evaluation or a save, or in another thread. So all of that is within one `try`.
    """
    attempts = 0
    newest = None
    while True:
        try:
            if before_session:
                before_session()
            with run.opened(files.checkpoints.resume()):
                if attempts:
                    say('resumed', f'at step {run.step} of {run.plan.last_step}')
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
            traced = any(reporter.traces(step) for reporter in reporters)
            return functools.partial(run.run_step, step, also, thread=thread, traced=traced)

        def awaits(step):
            return any([reporter.awaits(step) for reporter in reporters])  # each of them is asked

        with Stepper(len(run.graph.fetches)) as stepper:
            for results in stepper.results(run.step, begin, awaits):
                run.step += 1
                # Before the reporters: nothing of a diverged step is written, and nothing into another folder.
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
