"""Real threads that step beside the loop, and the hooks that read the variables between two steps."""
import sys
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.run import checkpoint, hooks, loop, metrics, summaries
from cifar10.run.async_workers import AsyncWorkersHook
from cifar10.run.train_dir import TrainDir, step_of
from cifar10.trained.evaluator import Result
from cifar10.trained.validation import ValidationHook
from tests.helpers import checkpoints, variables

LAST_STEP = 40


class Reads:
    """What a ValidationHook evaluates, here kept: the values of both variables that every step changes."""

    def __init__(self, pair):
        self._pair, self.found = pair, []

    def reads(self):
        return {variable.op.name: variable.read_value() for variable in self._pair}

    def __call__(self, values):
        self.found.append(values)
        return Result(np.eye(2, dtype=np.int64), 0.0)

    def close(self):
        pass


def slow_update(k, counters, begun):
    """Returns an update that notes its number in `begun` and adds 1 to the counters, to all but the first 10 ms later.

    A thread is nearly always between the two, so whoever reads while one steps finds counters that differ.
    """
    def wait():
        begun.append(k)
        time.sleep(0.01)
        return np.int64(1)
    first, *others = counters
    with tf.control_dependencies([first.assign_add(1)]):
        one = tf.py_func(wait, [], tf.int64)
    one.set_shape([])
    return tf.group(*[variable.assign_add(one) for variable in others])


@pytest.mark.parametrize('validated', [True, False])
def test_no_thread_is_within_a_step_while_variables_are_read_or_saved(validated, tmp_path):
    global_step, begun = tf.train.create_global_step(), []
    pair = [tf.get_variable(name, [], tf.int64, tf.zeros_initializer()) for name in ('weights', 'examples_seen')]
    updates = [slow_update(k, [*pair, global_step], begun) for k in range(3)]
    with tf.control_dependencies([updates[0]]):
        train_step = global_step.read_value()
    directory, reads, workers = TrainDir(str(tmp_path)), Reads(pair), AsyncWorkersHook(updates[1:])
    log, events = metrics.Metrics(str(tmp_path)), summaries.Events(str(tmp_path))
    progress = hooks.ProgressHook(train_step, dict(loss=tf.constant(0.0)), 1, LAST_STEP, LAST_STEP, sys.stdout, log, {})
    saved = checkpoint.Checkpoints(directory, None, global_step, pair[1], max_to_keep=0)
    validation = ValidationHook(reads, train_step, 3, LAST_STEP, progress, events, log, workers)
    loop.run(train_step, [
        progress, workers, *([validation] if validated else []),
        hooks.CheckpointHook(train_step, saved, 4, LAST_STEP, workers),
        hooks.StopHook(train_step, LAST_STEP)], config=tf.ConfigProto(inter_op_parallelism_threads=8))
    events.close()
    assert set(begun) == {0, 1, 2} and bool(reads.found) is validated
    for values in reads.found:
        assert values['weights'] == values['examples_seen']
    for prefix in checkpoints(tmp_path):
        assert set(variables(prefix).values()) == {step_of(prefix)}
    assert step_of(checkpoints(tmp_path)[-1]) == len(begun) >= LAST_STEP  # no step ends after the last save
