"""The mathematics of every update mode, against plain NumPy: loss = mean(x) * A * B on every tower."""
import itertools
import re
import tempfile
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import primary_name
from cifar10.base.registry import OPTIMIZERS, UPDATE_MODES
from cifar10.model import add_moving_statistic
from cifar10.parallel import devices
from cifar10.parallel.packing import _LARGE
from tests.helpers import ancestors, mostly_stress, patient, stepping, update_mode, values_by_name

RATE = 0.1
FEEDS = np.array([[1.0, 3.0], [2.0, -1.0], [0.5, 4.0], [2.5, 1.5]])  # one row per tower


SYNCHRONOUS = ['parameter_server', 'replicated', 'mirrored']


def cpu_names(num_towers):
    return [f'/cpu:{k}' for k in range(num_towers)]


def tower_fn(k, scope):
    a = tf.get_variable('a', [], initializer=tf.constant_initializer(2.0))
    b = tf.get_variable('b', [], initializer=tf.constant_initializer(5.0))
    tf.get_variable('unused', [], initializer=tf.constant_initializer(1.0))
    # Not a constant, because constant folding would move it past the variables and lose the order of their reads and
    # updates. Real inputs are not constants either.
    x = tf.placeholder_with_default(tf.constant(FEEDS[k], tf.float32), [2])
    return dict(total_loss=tf.reduce_mean(x) * a * b)


def gradient_descent():
    return tf.train.GradientDescentOptimizer(RATE)


def built(mode, num_towers, make_optimizer=gradient_descent, tower=tower_fn):
    """Returns a context of (session, Step), with all variables initialised."""
    return stepping(mode, cpu_names(num_towers), tower, make_optimizer)


def saved(session):
    """Returns a and b as in a checkpoint."""
    values = session.run(values_by_name())
    return [values['a'], values['b']]


@pytest.mark.parametrize('num_towers', [1, 4])
@pytest.mark.parametrize('mode', SYNCHRONOUS)
def test_synchronous_steps_match_numpy(mode, num_towers):
    x = FEEDS[:num_towers].mean()
    a, b, speed_a, speed_b = 2.0, 5.0, 0.0, 0.0
    with built(mode, num_towers, lambda: tf.train.MomentumOptimizer(RATE, 0.9)) as (session, step):
        losses = [scalars['total_loss'] for scalars in step.scalars]
        for k in range(1, 6):
            values, _ = session.run([losses, step.train_ops])
            np.testing.assert_allclose(values, FEEDS[:num_towers].mean(1) * a * b, rtol=1e-5)
            speed_a, speed_b = 0.9 * speed_a + x * b, 0.9 * speed_b + x * a
            a, b = a - RATE * speed_a, b - RATE * speed_b
            np.testing.assert_allclose(saved(session), [a, b], rtol=1e-5)
            assert session.run(tf.train.get_global_step()) == k


@pytest.mark.parametrize('mode', mostly_stress(UPDATE_MODES, 'parameter_server'))
def test_fetched_gradients_and_values_are_those_of_the_applied_update(mode):
    # Fetching a variable together with the train op is a race.
    with built(mode, 2) as (session, step):
        gradients = {variable.op.name: gradient for gradient, variable in step.gradients}
        assert gradients.pop('unused') is None
        handles = [variable.handle for _, variable in step.gradients]
        changes = [op for op in tf.get_default_graph().get_operations() if op.type == 'ResourceApplyGradientDescent'
                   and any(op.inputs[0] is handle for handle in handles)]
        assert len(changes) == (4 if mode == 'async' else 2)  # the second tower has its own update
        assert all({step.values['a'].op, step.values['b'].op} <= ancestors(change) for change in changes[:2])
        for _ in range(20):
            before = saved(session)
            values, shown, _ = session.run([[step.values['a'], step.values['b']], gradients, step.train_ops[0]])
            assert values == before
            change = [(old - new) / RATE for old, new in zip(before, saved(session))]
            np.testing.assert_allclose([shown['a'], shown['b']], change, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize('mode, device_names', [
    ('replicated', ['/cpu:0', '/cpu:1']),
    ('parameter_server', ['/gpu:0', '/gpu:1'])])  # built for GPUs, run on any device
def test_packed_gradients_reach_their_own_variables(mode, device_names):
    shapes = dict(small=[3], large=[600, 500], scalar=[], huge=[700, 500], last=[2, 2])

    def tower(k, scope):
        x = tf.placeholder_with_default(tf.constant(FEEDS[k], tf.float32), [2])
        return dict(total_loss=tf.add_n([
            i * tf.reduce_mean(x) * tf.reduce_sum(tf.get_variable(name, shape, initializer=tf.zeros_initializer()))
            for i, (name, shape) in enumerate(shapes.items(), 1)]))
    with stepping(mode, device_names, tower, gradient_descent) as (session, step):
        session.run(step.train_ops)
        values = session.run(values_by_name())
        for i, name in enumerate(shapes, 1):
            np.testing.assert_allclose(values[name], -RATE * i * FEEDS[:2].mean(), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize('mode, optimizer', mostly_stress(
    list(itertools.product(UPDATE_MODES, ['momentum', 'muon'])), ('replicated', 'muon'),
    *((mode, 'momentum') for mode in UPDATE_MODES)))
def test_an_embedding_takes_numpys_steps(mode, optimizer):
    # Unused rows still move by their momentum.
    rows = np.array([[[0, 1, 1], [2, 3, 0], [5, 5, 5]], [[1, 5, 0], [4, 0, 0], [2, 2, 1]]])
    rows = rows[:1] if mode == 'async' else rows
    initial, slopes = np.arange(12.0).reshape(6, 2), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    def tower_fn(k, scope):
        table = tf.get_variable('table', [6, 2], initializer=tf.constant_initializer(initial))
        used = tf.gather(tf.placeholder_with_default(rows[k], [3, 3]), tf.train.get_global_step())
        return dict(total_loss=tf.reduce_sum(tf.gather(table, used) * tf.constant(slopes, tf.float32)))
    expected, velocity, keep = initial, np.zeros_like(initial), 0.9 if optimizer == 'momentum' else 0.85
    options = dict(auxiliary_rate=RATE) if optimizer == 'muon' else {}
    with built(mode, len(rows), lambda: OPTIMIZERS.load(optimizer)(RATE, **options), tower_fn) as (session, step):
        table = values_by_name()['table']
        for k in range(3):
            session.run(step.train_ops)
            if step.average:
                session.run(step.average.scheduled)
            gradient = np.zeros_like(initial)
            for used in rows[:, k]:
                np.add.at(gradient, used, slopes / len(rows))
            velocity = keep * velocity + gradient
            expected = expected - RATE * (velocity if optimizer == 'momentum' else gradient + keep * velocity)
            np.testing.assert_allclose(session.run(table), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('mode', [*SYNCHRONOUS, 'local'])
def test_adam_takes_numpys_steps_for_gradients_of_very_different_sizes(mode):
    # Gradients of 1e-6 and 1e4 lead to steps of the same size.
    slopes, num_towers, rate = np.array([1e4, 1e-6, 7.3, 1e-3]), 2 if mode == 'mirrored' else 4, 0.01
    feeds = np.array([1.0, 2.0, -0.5, 4.0])[:num_towers] if mode != 'local' else np.ones(num_towers)

    def tower_fn(k, scope):
        w = tf.get_variable('w', [4], initializer=tf.zeros_initializer())
        x = tf.placeholder_with_default(tf.constant(feeds, tf.float32)[k], [])
        return dict(total_loss=x * tf.reduce_sum(w * tf.constant(slopes, tf.float32)))
    mean, square, expected = np.zeros(4), np.zeros(4), np.zeros(4)
    with built(mode, num_towers, lambda: OPTIMIZERS.load('adam')(rate), tower_fn) as (session, step):
        w = values_by_name()['w']
        for t in range(1, 9):
            session.run(step.train_ops)
            if step.average:
                session.run(step.average.equalise)
            gradient = feeds.mean() * slopes
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient ** 2
            corrected = rate * np.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
            expected = expected - corrected * mean / (np.sqrt(square) + 1e-8)
            np.testing.assert_allclose(session.run(w), expected, rtol=1e-4)


@pytest.mark.parametrize('mode', list(UPDATE_MODES))
def test_moving_statistics_move_by_the_towers_mean_in_call_order(mode):
    """In `async`, each update moves them by its own tower's values."""
    keeps, values = [0.5, 0.9, 0.25, 0.75], np.array([[1.0, -2.0, 30.0, 4.0], [3.0, 8.0, 50.0, 2.0]])

    def tower_fn(k, scope):
        state = tf.get_variable('state', [1000], initializer=tf.ones_initializer(), trainable=False)
        for value, keep in zip(values[k], keeps):
            value = tf.placeholder_with_default(tf.fill([1000], np.float32(value)), [1000])
            add_moving_statistic(state, value, keep)
        return dict(total_loss=tf.get_variable('a', []) * 1.0)
    expected = 1.0
    with built(mode, 2, tower=tower_fn) as (session, step):
        state = values_by_name()['state']
        for _ in range(10):
            for train_op in step.train_ops:
                session.run(train_op)
            if step.average:
                session.run(step.average.scheduled)
            for changes in values if mode == 'async' else [values.mean(0)]:
                for value, keep in zip(changes, keeps):
                    expected = keep * expected + (1 - keep) * value
            np.testing.assert_allclose(session.run(state), [expected] * 1000, rtol=1e-5)


def test_an_asynchronous_update_belongs_to_one_tower():
    with built('async', 3) as (session, step):
        assert len(step.train_ops) == 3
        a, b = 2.0, 5.0
        for count, k in enumerate([2, 0, 1, 1, 2], 1):
            session.run(step.train_ops[k])
            x = FEEDS[k].mean()
            a, b = a - RATE * x * b, b - RATE * x * a
            np.testing.assert_allclose(saved(session), [a, b], rtol=1e-5)
            assert session.run(tf.train.get_global_step()) == count


def test_staleness_counts_updates_between_a_read_and_its_write():
    # A gate in the tower's loss blocks it while other towers continue.
    gates = [tf.FIFOQueue(100, tf.float32, shapes=[[]], name=f'gate_{k}') for k in range(2)]
    has_read = [threading.Event() for _ in gates]

    def gated(k, scope):
        loss = tower_fn(k, scope)['total_loss']
        with tf.control_dependencies([tf.numpy_function(lambda _: has_read[k].set(), [loss], [])]):
            return dict(total_loss=loss * gates[k].dequeue())
    opened = [gate.enqueue(1.0) for gate in gates]
    with built('async', 2, tower=gated) as (session, step):
        staleness, found = [scalars['staleness'] for scalars in step.scalars], []
        slow = threading.Thread(target=lambda: found.append(session.run([staleness[1], step.train_ops[1]])[0]))
        slow.start()
        assert has_read[1].wait(patient(60))
        for _ in range(3):
            session.run(opened[0])
            session.run(step.train_ops[0])
        session.run(opened[1])
        slow.join()
        session.run(opened[0])
        assert found == [3] and session.run([staleness[0], step.train_ops[0]])[0] == 0


def test_a_tower_reads_the_step_for_staleness_before_any_variable():
    with built('async', 3):
        operations = tf.get_default_graph().get_operations()
    steps = [op for op in operations if op.type == 'ReadVariableOp' and op.name.startswith('report/')]
    for k, step in enumerate(steps):
        reads = [op for op in operations if op.type == 'ReadVariableOp' and tower_of(op) == f'tower_{k}']
        assert len(reads) >= 2 and all(step in ancestors(op) for op in reads)
    assert len(steps) == 3


def test_asynchronous_updates_exclude_each_other():
    """An update takes a common lock when its gradients are ready, and releases it at its end."""
    with built('async', 3):
        updates = [op for op in tf.get_default_graph().get_operations() if op.type == 'ResourceApplyGradientDescent']
    locks = [[op for op in ancestors(update) if op.type == 'MutexLock'] for update in updates]
    assert [len(each) for each in locks] == [1] * 6 and len({lock for lock, in locks}) == 3
    assert len({lock.inputs[0] for lock, in locks}) == 1


@pytest.mark.parametrize('mode', list(UPDATE_MODES))
def test_all_modes_save_the_same_names(mode):
    with built(mode, 3, lambda: tf.train.MomentumOptimizer(RATE, 0.9)) as (session, _), \
            tempfile.TemporaryDirectory() as directory:
        tf.train.Saver().save(session, directory + '/model')
        names = [name for name, _ in tf.train.list_variables(directory + '/model')]
        assert names == ['a', 'a/Momentum', 'b', 'b/Momentum', 'global_step', 'unused']


@pytest.mark.parametrize('mode, towers, copies', [
    ('parameter_server', 2, 1), ('replicated', 2, 2), ('mirrored', 2, 2), ('async', 2, 2), ('local', 2, 2),
    ('parameter_server', 4, 1), ('replicated', 4, 2), ('local', 4, 4)])  # on two devices
def test_a_variable_changes_only_after_its_towers_have_read_it(mode, towers, copies):
    def tower(k, scope):
        # The gradient of `a` needs only `b`, so it may be ready before `a` is read. It travels alone.
        a, b = tf.get_variable('a', [_LARGE]), tf.get_variable('b', [])
        return dict(total_loss=tf.placeholder_with_default(1.0, []) * tf.reduce_mean(a) * b)
    with stepping(mode, devices.choose(2, 'cpu').with_towers(towers), tower, gradient_descent):
        operations = tf.get_default_graph().get_operations()
    updates = [op for op in operations if op.type == 'ResourceApplyGradientDescent']
    assert len(updates) == 2 * copies
    for update in updates:
        before = ancestors(update)
        towers = set(map(tower_of, before)) - {None}
        reads = {op for op in operations if op.type == 'ReadVariableOp' and tower_of(op) in towers
                 and op.inputs[0].op is update.inputs[0].op}
        assert reads and reads <= before, update.name


def tower_of(op):
    """Returns the name scope of an operation's tower, or None."""
    return re.match(r'(?:replica_\d/)?(tower_\d)?', op.name).group(1)


@pytest.mark.parametrize('mode, other', [
    ('parameter_server', 'replicated'), ('replicated', 'mirrored'), ('mirrored', 'parameter_server')])
def test_momentum_is_kept_when_the_mode_changes(mode, other, tmp_path):
    def steps(mode, num_steps, restore=None):
        with tf.Graph().as_default(), \
                built(mode, 2, lambda: tf.train.MomentumOptimizer(RATE, 0.9)) as (session, step):
            saver = tf.train.Saver()
            if restore:
                saver.restore(session, restore)
                session.run(tf.local_variables_initializer())
            for _ in range(num_steps):
                session.run(step.train_ops)
            return saver.save(session, str(tmp_path / 'model')), saved(session)
    half, _ = steps(mode, 2)
    np.testing.assert_allclose(steps(other, 3, restore=half)[1], steps(mode, 5)[1], rtol=1e-5)


def test_the_parameter_servers_variables_and_slots_are_on_the_cpu():
    update = update_mode('parameter_server', ['/gpu:0', '/gpu:1'])
    update.build(tower_fn, lambda: tf.train.MomentumOptimizer(RATE, 0.9), tf.train.create_global_step())
    devices = {v.op.name: v.device for v in tf.global_variables() if v.op.name != 'global_step'}
    assert devices == dict.fromkeys(['a', 'a/Momentum', 'b', 'b/Momentum', 'unused'], '/device:CPU:0')


@pytest.mark.parametrize('sizes', [[4] * 7, [1, 9, 1, 9, 1, 9], [20, 1, 1, 1, 1, 1, 1, 1]])
def test_each_variable_and_its_slots_are_on_the_least_loaded_server(sizes):
    cluster = devices.choose(1, 'cpu').spread(num_workers=2, num_ps=3)

    def tower(k, scope):
        return dict(total_loss=tf.add_n([
            tf.reduce_sum(tf.get_variable(f'v{i}', [size])) for i, size in enumerate(sizes)]))
    update_mode('parameter_server', cluster).build(
        tower, lambda: tf.train.MomentumOptimizer(RATE, 0.9), tf.train.create_global_step())
    held = {f'/job:ps/task:{i}/device:CPU:0': 0 for i in range(3)}
    found = {variable.op.name: variable for variable in tf.global_variables()}
    for i, size in enumerate(sizes):
        server = found[f'v{i}'].device
        assert held[server] == min(held.values()) and found[f'v{i}/Momentum'].device == server
        held[server] += size


def test_replicas_start_from_the_primaries_and_stay_bit_identical():
    with built('replicated', 4, lambda: tf.train.MomentumOptimizer(RATE, 0.9)) as (session, step):
        replicas = [v for v in tf.local_variables() if v.op.name.endswith(('/a', '/b', '/Momentum'))]
        assert len(replicas) == 3 * 4 and not set(replicas) & set(tf.trainable_variables())
        primaries = {v.op.name: v for v in tf.global_variables()}
        session.run(primaries['a'].assign(3.25))  # as a restore does
        session.run(tf.local_variables_initializer())
        for _ in range(10):
            session.run(step.train_ops)
            values = session.run({v.op.name: v.read_value() for v in tf.global_variables() + replicas})
            for replica in replicas:
                assert values[replica.op.name] == values[re.sub(r'^(replica_\d/)+', '', replica.op.name)]


@pytest.mark.parametrize('mode, local_steps', [('replicated', ()), ('local', (1,)), ('local', (4,))])
def test_all_copies_are_compared_with_their_primary(mode, local_steps):
    update = update_mode(mode, cpu_names(3), *local_steps)
    update.build(tower_fn, lambda: tf.train.MomentumOptimizer(RATE, 0.9), tf.train.create_global_step())
    compared = {copy.op.name: primary.op.name for group in update.copied() for primary, *copies in zip(*group)
                for copy in copies}
    assert compared == {each.op.name: primary_name(each.op.name) for each in tf.local_variables()
                        if each.op.name.startswith('replica_')}
    assert {'a', 'a/Momentum', 'unused'} <= {*compared.values()}


@pytest.mark.parametrize('tower, named', [(0, 'tower 1'), (1, 'replica_1/more')])
def test_a_variable_that_one_tower_lacks_is_named(tower, named):
    def lopsided(k, scope):
        scalars = tower_fn(k, scope)
        if k == tower:
            scalars['total_loss'] += tf.get_variable('more', [])
        return scalars
    with pytest.raises(ValueError, match=named):
        update_mode('replicated', cpu_names(2)).build(lopsided, gradient_descent, tf.train.create_global_step())
