"""Invariants checked at each save. If one is violated, something was computed wrongly."""
import collections
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import say
from cifar10.base.errors import RunError, listed
from cifar10.run.reporter import Reporter
from cifar10.training.run import Run

_INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}  # of as many bytes
_MANY = 20  # steps, of which fp16 may skip the first in search of its loss scale
_REMEDY = 'nothing is written; start again to continue from the newest checkpoint'


class Soundness(Reporter):
    """Checks the invariants of a run. Create it before the first session.

    - Copies of a variable have the same bits, in a mode that has copies.
    - Each step has counted one global batch of examples, and the last one had the learning rate of the schedule.
    - Steps at a learning rate above 0 have changed a variable that is trained (a warning: it may be intended).
    """

    def __init__(self, run: Run):
        self._run = run
        with run.adding(), tf.device('/cpu:0'), tf.name_scope('soundness'):
            copied = run.plan.mode.copied()
            self._names = [[variable.op.name for variable in copies[0]] for copies in copied]
            self._state = dict(step=run.graph.global_step.read_value(), examples=run.graph.examples_seen.read_value(),
                               copied=[[checksums(copy) for copy in copies] for copies in copied],
                               trained=checksums([variable for _, variable in run.graph.step.gradients]))
            self._place = tf.placeholder(tf.int64, [])
            self._rate, *_ = run.plan.recipe.learning_rates(self._place)

    def begin(self) -> None:
        """Notes the state from which a session takes steps."""
        self._first = self._read()
        self._saved = self._first['step']
        self._effective_steps = 0
        self._has_looked = False

    def _read(self):
        return self._run.session.run(self._state)

    def after_step(self, step, results):
        self._rate_of_step = results['figures']['learning_rate']
        self._effective_steps += self._rate_of_step > 0

    def check(self) -> None:
        """Checks the state that is to be saved, or was saved; between two steps, and in `local` right after an average.

        Raises:
          RunError: the run has computed something wrongly.
        """
        state, first = self._read(), self._first
        step = state['step']
        if step == self._saved:
            return
        self._compare_copies(step, state['copied'])
        steps, examples = step - first['step'], state['examples'] - first['examples']
        expected = steps * self._run.plan.examples_per_step
        if examples != expected:
            raise RunError(f'step {step}: {steps:,} steps counted {examples:,} examples instead of {expected:,}; a '
                           f'device has computed wrongly, so {_REMEDY}')
        if self._run.plan.mode.synchronous:
            place = state['examples'] - self._run.plan.examples_per_step
            rate = self._run.session.run(self._rate, {self._place: place})
            if not np.isclose(rate, self._rate_of_step, rtol=1e-6, atol=0):
                raise RunError(f'step {step}: the learning rate was {self._rate_of_step:g}, but the schedule says '
                               f'{rate:g}; {_REMEDY}')
        if not self._has_looked and self._effective_steps >= _MANY:
            self._has_looked = True
            if (state['trained'] == first['trained']).all():
                say('warning', f'no variable has changed in {steps:,} steps; are all gradients 0?')
        self._saved = step

    def _compare_copies(self, step, copied):
        found = [each for names, copies in zip(self._names, copied) for each in zip(names, zip(*copies))]
        for name, sums in found:
            if len(set(sums)) > 1:
                usual, _ = collections.Counter(sums).most_common(1)[0]
                places = [self._run.plan.devices.place(k) for k, each in enumerate(sums) if each != usual]
                raise RunError(
                    f'step {step}: the copies of {name} are no longer the same; {listed(places)} has differed from the '
                    f'others since step {self._saved}. A device has computed wrongly, or devices of different types '
                    f'round differently (then use --variable_update=parameter_server); {_REMEDY}')


def checksums(variables: Sequence[tf.Variable | tf.Tensor]) -> tf.Tensor:
    """Returns the checksums of variables or tensors, int64 [n]: of each the sum of its bits as integers.

    A flipped bit always changes it; the order of the elements does not matter. It is computed on the device of the
    variable, so only 8 bytes travel.
    """
    sums = []
    for variable in variables:
        with tf.device(variable.device):
            value = variable.read_value() if isinstance(variable, tf.Variable) else variable
            if value.dtype.is_floating:
                value = tf.bitcast(value, _INTEGERS[value.dtype.size])
            sums.append(tf.reduce_sum(tf.cast(value, tf.int64)))
    return tf.stack(sums) if sums else tf.zeros([0], tf.int64)
