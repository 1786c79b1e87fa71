"""Asynchronous towers, each in a thread and all at once: stale statistics, and updates of which none is lost."""
import threading

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.model import batch_normalisation
from cifar10.model.optimizers import Muon
from tests.helpers import initialise, patient, stepping, values_by_name
from tests.test_muon import AUXILIARY, RATE, numpys_steps


def run_at_once(session, steps, opening):
    """Runs each step in a thread of its own, and an operation that lets all of them go on."""
    options = tf.RunOptions(timeout_in_ms=int(1000 * patient(30)))
    threads = [threading.Thread(target=session.run, args=(step, None, options)) for step in [*steps, opening]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_statistics_settle_however_stale_their_towers_are():
    """Eight towers read the variables before any of them updates: the last one's update is stale by seven others."""
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
        last_staleness = [values[f'last_of_tower_{k}'][1] for k in range(count)]  # beside the total loss
        for _ in range(rounds):
            run_at_once(session, step.train_ops, opening)
            assert sorted(session.run(last_staleness)) == list(range(count))
        mean, variance = session.run([values[name] for name in ('moving_mean', 'moving_variance')])
    left = keep ** (count * rounds)  # of the initial values
    np.testing.assert_allclose(mean, (1 - left) * images.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, left + (1 - left) * images.var((0, 1, 2), ddof=1), rtol=1e-5)


def test_no_update_is_lost_where_an_optimizer_reads_computes_and_assigns():
    """Eight towers' gradients are there at the same moment, and Muon iterates for a while on each."""
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
        for _ in range(4):  # what is a race may end well once
            initialise(session)
            run_at_once(session, step.train_ops, opening)
            momentum, filters = session.run([values[name] for name in ('filters/Muon', 'filters')])
            np.testing.assert_allclose(momentum, slopes * sum(0.6 ** k for k in range(count)), rtol=1e-5)
            np.testing.assert_allclose(filters, expected, atol=2e-5)
