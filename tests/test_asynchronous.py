"""Asynchronous towers, each in a thread: stale statistics, no lost updates, saves between steps, short runs."""
import concurrent.futures
import functools
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.model import batch_normalisation
from cifar10.model.optimizers import Muon
from cifar10.parallel.stepper import Stepper
from cifar10.run import checkpoints as of_run
from cifar10.run import metrics
from cifar10.run.folder import Folder, step_of
from cifar10.run.metrics import Log
from cifar10.run.takeover import TrainDir
from tests.helpers import checkpoints, initialise, patient, stepping, train, values_by_name, variables
from tests.test_muon import AUXILIARY, RATE, numpys_steps


def run_at_once(session, steps, opening):
    """Runs each step in its own thread, then an operation that releases all of them; returns their results."""
    options = tf.RunOptions(timeout_in_ms=int(1000 * patient(30)))
    with concurrent.futures.ThreadPoolExecutor(len(steps) + 1) as pool:
        return list(pool.map(lambda step: session.run(step, None, options), [*steps, opening]))[:-1]


def test_statistics_converge_despite_stale_towers():
    """Eight towers read the variables before any tower updates: the last update is stale by seven others."""
    count, rounds, keep = 8, 5, 0.6
    images = np.random.default_rng(0).normal(3, 2, size=(16, 2, 2, 3)).astype(np.float32)
    begun = tf.FIFOQueue(count, tf.float32, shapes=[[]])
    gates = [tf.FIFOQueue(1, tf.float32, shapes=[[]], name=f'gate_{k}') for k in range(count)]

    def tower_fn(k, scope):
        y = batch_normalisation(tf.placeholder_with_default(images, images.shape), True, keep)
        with tf.control_dependencies([y]), tf.control_dependencies([begun.enqueue(1.0)]):
            return dict(total_loss=tf.reduce_sum(y) * gates[k].dequeue())

    with tf.control_dependencies([begun.dequeue_many(count)]):
        opening = [gate.enqueue(1.0) for gate in gates]
    with stepping('async', [f'/cpu:{k}' for k in range(count)], tower_fn,
                  lambda: tf.train.GradientDescentOptimizer(0.0)) as (session, step):
        values = values_by_name()
        staleness = [scalars['staleness'] for scalars in step.scalars]
        for _ in range(rounds):
            assert sorted(run_at_once(session, staleness, opening)) == list(range(count))
        mean, variance = session.run([values[name] for name in ('moving_mean', 'moving_variance')])
    left = keep ** (count * rounds)  # of the initial values
    np.testing.assert_allclose(mean, (1 - left) * images.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, left + (1 - left) * images.var((0, 1, 2), ddof=1), rtol=1e-5)


@pytest.mark.stress
def test_no_update_is_lost_when_an_optimizer_reads_computes_and_assigns():
    """Eight towers' gradients arrive at the same moment, and Muon iterates for a while on each."""
    rng, count, shape = np.random.default_rng(0), 8, (3, 3, 64, 64)
    initial, slopes = rng.normal(size=shape), rng.normal(size=shape).astype(np.float32)
    gate = tf.FIFOQueue(count, tf.float32, shapes=[[]])

    def tower_fn(k, scope):
        filters = tf.get_variable('filters', shape, initializer=tf.constant_initializer(initial))
        return dict(total_loss=tf.reduce_sum(filters * tf.placeholder_with_default(slopes, shape)) * gate.dequeue())

    opening = gate.enqueue_many([tf.ones([count])])
    expected, _ = numpys_steps(initial, np.zeros(1), [(slopes, np.zeros(1))] * count, [(RATE, AUXILIARY)] * count)
    with stepping('async', [f'/cpu:{k}' for k in range(count)], tower_fn, lambda: Muon(RATE, AUXILIARY)) as (
            session, step):
        values = values_by_name()
        for _ in range(4):  # a race may succeed by chance
            initialise(session)
            run_at_once(session, step.train_ops, opening)
            momentum, filters = session.run([values[name] for name in ('filters/Muon', 'filters')])
            np.testing.assert_allclose(momentum, slopes * sum(0.6 ** k for k in range(count)), rtol=1e-5)
            np.testing.assert_allclose(filters, expected, atol=2e-5)


LAST_STEP = 40


def slow_update(k, counters, begun):
    """Returns an update that adds its number to `begun` and 1 to the counters, to all but the first 10 ms later.

    A thread is nearly always between the two additions, so a read during a step finds different counters.
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


def test_no_tower_is_inside_a_step_while_variables_are_read_or_saved(tmp_path):
    global_step, begun = tf.train.create_global_step(), []
    pair = [tf.get_variable(name, [], tf.int64, tf.zeros_initializer()) for name in ('weights', 'examples_seen')]
    updates = [slow_update(k, [*pair, global_step], begun) for k in range(3)]
    path = str(tmp_path)
    saved = of_run.Checkpoints(TrainDir(path), None, Folder(path), max_to_keep=0, log=Log(path))
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=8)) as session:
        session.run(tf.global_variables_initializer())

        def update(k, step):
            return functools.partial(session.run, updates[k]) if step <= LAST_STEP else None
        with Stepper(3) as stepper:
            for step, _ in enumerate(stepper.results(0, update, lambda step: step % 5 == 0), 1):
                if step % 5 == 0:
                    assert session.run([*pair, global_step]) == [step] * 3
                    saved.save(session)
    assert set(begun) == {0, 1, 2} and len(begun) == LAST_STEP
    assert [step_of(prefix) for prefix in checkpoints(tmp_path)] == list(range(5, LAST_STEP + 1, 5))
    for prefix in checkpoints(tmp_path):
        assert set(variables(prefix).values()) == {step_of(prefix)}


def test_results_arrive_as_steps_end_and_each_tower_runs_its_steps_in_order():
    gates = [threading.Event() for _ in range(4)]
    order = [1, 0, 2, 3]  # the order in which steps end

    def step_of_tower(k, step):
        def take():
            assert gates[step - 1].wait(patient(30))
            return k, step
        return take if step <= 4 else None
    taken = []
    with Stepper(2) as stepper:
        gates[order[0]].set()
        for result in stepper.results(0, step_of_tower):
            taken.append(result)
            if len(taken) < 4:
                gates[order[len(taken)]].set()
    assert [step - 1 for _, step in taken] == order
    assert sorted(k for k, step in taken if step <= 2) == [0, 1]


def test_a_lost_device_takes_precedence_over_errors_that_it_causes_in_other_towers():
    came = threading.Event()

    def fail(k, step):
        def take():
            if k:
                assert came.wait(patient(30))
                raise tf.errors.UnavailableError(None, None, 'lost')
            raise tf.errors.CancelledError(None, None, 'because of it')
        return take
    with pytest.raises(tf.errors.UnavailableError):
        with Stepper(2) as stepper:
            try:
                list(stepper.results(0, fail))
            finally:
                came.set()


def test_reports_are_written_at_the_steps_that_are_due(settings, capsys):
    last, every = 13, 12
    given = settings(max_steps=last, num_gpus=2, batch_size=4, log_frequency=every, eval_steps=every, save_steps=every,
                     max_to_keep=0, variable_update='async')
    train(given)
    folder, output = given.run.train_dir, capsys.readouterr().out
    expected = sorted({*range(every, last, every), last})
    for kind in (metrics.EVAL, metrics.TRAIN, metrics.CHECKPOINT):
        assert [record['step'] for record in metrics.read(folder, kind)] == expected
    assert [step_of(prefix) for prefix in checkpoints(folder)] == expected
    assert f': step {last}, loss = ' in output
