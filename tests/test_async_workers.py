"""Real threads that step beside the loop, while variables are read and saved between two of its steps."""
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.parallel.asynchronous import AsyncWorkers
from cifar10.run import checkpoint
from cifar10.run.folder import step_of
from cifar10.run.metrics import Metrics
from cifar10.run.train_dir import TrainDir
from tests.helpers import checkpoints, variables

LAST_STEP = 40


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


def test_no_thread_is_within_a_step_while_variables_are_read_or_saved(tmp_path):
    global_step, begun = tf.train.create_global_step(), []
    pair = [tf.get_variable(name, [], tf.int64, tf.zeros_initializer()) for name in ('weights', 'examples_seen')]
    updates = [slow_update(k, [*pair, global_step], begun) for k in range(3)]
    with tf.control_dependencies([updates[0]]):
        train_step = global_step.read_value()
    saved = checkpoint.Checkpoints(TrainDir(str(tmp_path)), None, max_to_keep=0, log=Metrics(str(tmp_path)))
    workers, step = AsyncWorkers(updates[1:]), 0
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=8)) as session:
        session.run(tf.global_variables_initializer())
        with workers.stepping(session):
            while step < LAST_STEP:
                workers.raise_error()
                step = session.run(train_step)
                with workers.paused():
                    weights, examples_seen = session.run(pair)
                    assert weights == examples_seen
                    saved.save(session)
        saved.save(session)
        assert len(begun) == session.run(global_step)  # all have ended
    assert set(begun) == {0, 1, 2} and len(begun) >= LAST_STEP
    for prefix in checkpoints(tmp_path):
        assert set(variables(prefix).values()) == {step_of(prefix)}
    assert step_of(checkpoints(tmp_path)[-1]) == len(begun)  # no step ends after the last save


def test_the_loss_of_a_device_in_a_thread_goes_before_what_the_main_thread_raises(monkeypatch):
    workers = AsyncWorkers([tf.no_op()])
    with tf.Session() as session, pytest.raises(tf.errors.UnavailableError):
        with workers.stepping(session):
            workers._error = tf.errors.UnavailableError(None, None, 'lost')  # as a thread's own
            raise tf.errors.CancelledError(None, None, 'because of it')
