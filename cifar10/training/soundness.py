"""Checks invariants at each save. A violation means a wrong computation."""
import collections
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError, listed
from cifar10.base.graphs import AVERAGE
from cifar10.run.failures import diverged
from cifar10.training.run import Run

_INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}  # of as many bytes
_REMEDY = 'check the device, and start again to continue from the newest checkpoint'


class Soundness:
    """Checks the invariants of a run. Create it before the first session.

    - Copies of a variable have the same bits, in modes with copies.
    - Each step counts one global batch of examples.
    - All variables, their averages and slots are finite.
    """

    def __init__(self, run: Run):
        self._run = run
        with run.adding(), tf.device('/cpu:0'), tf.name_scope('soundness'):
            copied = run.plan.mode.copied()
            self._names = [[variable.op.name for variable in copies[0]] for copies in copied]
            self._state = dict(step=run.graph.global_step.read_value(), examples=run.graph.examples_seen.read_value(),
                               copied=[[checksums(copy) for copy in copies] for copies in copied],
                               finite={name: tf.reduce_all(tf.is_finite(variable.read_value()))
                                       for name, variable in run.saved.items() if variable.dtype.is_floating})

    def begin(self) -> None:
        """Records a session's initial state."""
        self._first = self._read()
        self._saved = self._first['step']

    def _read(self):
        return self._run.session.run(self._state)

    def check(self) -> None:
        """Raises a RunError if the state is wrong. Call between steps, and in `local` right after an average."""
        state, first = self._read(), self._first
        step = state['step']
        if step == self._saved:
            return
        self._compare_copies(step, state['copied'])
        steps, examples = step - first['step'], state['examples'] - first['examples']
        expected = steps * self._run.plan.examples_per_step
        if examples != expected:
            raise RunError(f'step {step}: {steps:,} steps counted {examples:,} examples instead of {expected:,} '
                           f'because a device computed wrongly; {_REMEDY}')
        self._refuse_divergence(step, [name for name, is_finite in state['finite'].items() if not is_finite])
        self._saved = step

    def _refuse_divergence(self, step, wrong):
        if wrong:
            found, remedy = listed(wrong), 'try a lower learning rate'
            if all(name.endswith(AVERAGE) for name in wrong):
                found += ', although the averaged variables are finite: a device computed wrongly'
                remedy = ''
            what = f'a variable is not finite, so no checkpoint is written ({found})'
            raise diverged(self._run.plan.settings.run.train_dir, step, what, remedy)

    def _compare_copies(self, step, copied):
        found = [each for names, copies in zip(self._names, copied) for each in zip(names, zip(*copies))]
        for name, sums in found:
            if len(set(sums)) > 1:
                usual, _ = collections.Counter(sums).most_common(1)[0]
                places = [self._run.plan.devices.place(k) for k, each in enumerate(sums) if each != usual]
                raise RunError(
                    f'step {step}: the copy of {name} on {listed(places)} has differed from the other copies since '
                    f'step {self._saved}; {_REMEDY}, or use --variable_update=parameter_server if the devices have '
                    'different types')


def checksums(variables: Sequence[tf.Variable | tf.Tensor]) -> tf.Tensor:
    """Returns the checksums of variables or tensors, int64 [n]: the sum of each one's bits as integers.

    A flipped bit always changes the sum; the order of elements does not matter. The variable's device computes the sum
    and sends only 8 bytes.
    """
    sums = []
    for variable in variables:
        with tf.device(variable.device):
            value = variable.read_value() if isinstance(variable, tf.Variable) else variable
            if value.dtype.is_floating:
                value = tf.bitcast(value, _INTEGERS[value.dtype.size])
            sums.append(tf.reduce_sum(tf.cast(value, tf.int64)))
    return tf.stack(sums) if sums else tf.zeros([0], tf.int64)
