"""The witness: the gradients of a tower, computed once more from the same variables and batch, on another device.

A device that computes wrongly without an error is found by nothing else: its gradients reach all copies of the
variables alike. The step's batches are drawn first and fed, so that both towers get the same images; the second one is
also told the position of the first, from which a network draws its random numbers.
"""
import time
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.base.console import say
from cifar10.base.errors import RunError
from cifar10.parallel.checksums import checksums
from cifar10.run import saved
from cifar10.run.async_workers import AsyncWorkers
from cifar10.run.names import step_of
from cifar10.run.reporter import Reporter
from cifar10.training.run import Run

_WITNESS = 'witness'
_DOUBT_SECS = 600  # in which the steps since the newest checkpoint are taken again


class Witness(Reporter):
    """Compares, every so many steps, the bits of one tower's gradients with those of a second one; towers take turns.

    The second one is on another device of the same machine, because other machines may have other processors; on the
    same device if there is none. Where towers update on their own, there is no common step whose batches could be fed:
    between two steps of all of them, the two get the same noise as their batch. To be made before the first session.

    Args:
      run: the run, in a mode whose towers have `Turns`.
      every: steps from one comparison to the next. In a mode that drifts, it is the first step after an average.
    """

    def __init__(self, run: Run, every: int):
        self._run = run
        self._every = every
        self._tower = -1
        with run.adding(), tf.name_scope(_WITNESS):
            self._checksums = [checksums(tensors) for tensors in run.graph.step.turns.computed]
            self._no_seconds = tf.zeros(run.graph.tower_seconds.shape)

    def begin(self, workers: AsyncWorkers) -> None:
        """Begins with a session, in which `workers` take steps as well."""
        self._workers = workers
        self._last = self._run.step  # the step of the last comparison, or the one before the first step
        self._fed = {}  # in the next step

    def also(self, step):
        run = self._run
        self._fed = {}
        is_due = step // self._every > self._last // self._every
        if not is_due or run.graph.average and not run.averages_after(step - 1):
            return {}
        self._last = step
        self._tower = (self._tower + 1) % len(self._checksums)
        with doing(f'while a witness computes for step {step:,}', OF_FIRST_STEP):
            if not run.plan.mode.synchronous:
                with self._workers.paused():
                    self._batches = self._noise(step)
                    self._compare(step, self._computed(self._tower), self._computed(self._second_tower()))
                return {}
            run.go_on()
            self._before = run.variables()
            self._batches = run.session.run(run.graph.batches)
            self._second = self._computed(self._second_tower())
            self._fed = dict(feed=self._feed(self._tower))
        # The towers' times would wait for the inputs themselves, and so draw the next batches.
        return {_WITNESS: self._checksums, 'seconds': self._no_seconds}

    def tracing(self, step):
        return self._fed

    def after_step(self, step, results):
        if _WITNESS not in results:
            return
        first = results[_WITNESS][self._tower]
        if (first != self._second).any():
            # The run takes no more steps, so its variables may be those of before.
            run = self._run
            run.load({name: value for name, value in self._before.items() if name in run.saved})
            run.session.run(run.graph.start_inputs)
            self._compare(step, first, self._second)

    def _compare(self, step, first, second):
        """Raises a RunError unless the checksums of the tower and of its witness are equal."""
        if (first == second).all():
            return
        k, j = self._tower, self._second_tower()
        places = [self._run.plan.devices.place(tower) for tower in (k, j)]
        again = [self._computed(tower) for tower in (k, j)]
        contradicting = [place for place, one, other in zip(places, (first, second), again) if (one != other).any()]
        if contradicting or k == j:
            found = f'{(contradicting or places)[0]} gave two results for the same input'
            excluded = 'that device'
        else:
            found = (f'{places[0]} and {places[1]} always give different results for the same input; one of them '
                     'computes wrongly, or they are of different types')
            excluded = 'one of them'
        raise RunError(f'step {step}: the gradients of tower {k} are not those of its witness: {found}. Nothing of the '
                       f'step is saved; start again to continue from the newest checkpoint, without {excluded}')

    def doubt(self, step: int, losses: Sequence[float], prefix: str | None) -> None:
        """Takes the steps since a checkpoint again, after a step with a loss that is not finite.

        The run takes no more steps afterwards. In a mode whose steps do not repeat, it does nothing.

        Args:
          step: the number of the step.
          losses: of its towers.
          prefix: of the newest checkpoint; without one, there is nothing to begin with.

        Raises:
          RunError: the losses are finite then, so a device has computed wrongly.
        """
        run = self._run
        wrong = [k for k, loss in enumerate(losses) if not np.isfinite(loss)]
        if not wrong or not run.plan.mode.synchronous or prefix is None:
            return
        limit = time.monotonic() + _DOUBT_SECS
        say(f'doubted    the loss of step {step} is {losses[wrong[0]]}; taking the steps after {prefix} again')
        run.begin(saved.read(prefix))
        while run.step < step:
            if time.monotonic() > limit:
                say(f'doubted    step {run.step} was reached in {_DOUBT_SECS} s; the rest is not taken again')
                return
            again = run.take()['losses']
            if run.averages_after(run.step):
                run.average()
        if np.isfinite(again).all():
            k = wrong[0]
            raise RunError(
                f'step {step}: the loss of tower {k} on {run.plan.devices.place(k)} was {losses[k]}, and is '
                f'{again[k]:g} when the steps after step {step_of(prefix)} are taken again: that device or another one '
                'has computed wrongly since then. Nothing of these steps is saved; start again to continue from the '
                'newest checkpoint')
        say(f'doubted    the loss of step {step} is {again[wrong[0]]} again, so no passing error of a device is its '
            'cause')

    def _second_tower(self):
        """Returns the number of the tower that computes for the present one."""
        devices, k = self._run.plan.devices, self._tower
        others = [j for j in range(len(devices.groups)) if devices.hosts[j] == devices.hosts[k]
                  and j != devices.group_of(k)]
        return others[k % len(others)] if others else devices.group_of(k)

    def _noise(self, step):
        """Returns batches of noise that follow from the step, the same for all towers."""
        images, labels, _ = self._run.graph.batches[0]
        random = np.random.default_rng(step)
        side = self._run.plan.recipe.augmentation.image_sizes()[0]  # where images grow, their shape does not have it
        shape = [size or side for size in images.shape.as_list()]
        batch = (random.standard_normal(shape).astype(images.dtype.as_numpy_dtype),
                 random.integers(len(self._run.plan.data.classes), size=labels.shape.as_list()), 0)
        return [batch] * len(self._checksums)

    def _feed(self, j):
        """Returns what makes tower j compute what the present tower computes; the others get their own batches."""
        batches = list(self._batches)
        batches[j] = self._batches[self._tower]
        return {tensor: value for tensors, values in zip(self._run.graph.batches, batches)
                for tensor, value in zip(tensors, values)}

    def _computed(self, j):
        return self._run.session.run(self._checksums[j], self._feed(j))
