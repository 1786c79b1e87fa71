"""The mathematics of an update mode, against plain NumPy: loss = mean(x) * A * B on every tower."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10 import updates

RATE = 0.1
FEEDS = np.array([[1.0, 3.0], [2.0, -1.0], [0.5, 4.0], [2.5, 1.5]])  # a row a tower


def build(num_towers, make_optimizer, mode='parameter_server'):
    def tower_fn(k, scope):
        a = tf.get_variable('a', [], initializer=tf.constant_initializer(2.0))
        b = tf.get_variable('b', [], initializer=tf.constant_initializer(5.0))
        return dict(total_loss=tf.reduce_mean(tf.constant(FEEDS[k], tf.float32)) * a * b)
    global_step = tf.train.create_global_step()
    update = updates.MODES[mode](['/cpu:%d' % k for k in range(num_towers)])
    return update.build(tower_fn, make_optimizer, global_step)


def session_of(num_towers):
    session = tf.Session(config=tf.ConfigProto(device_count={'CPU': num_towers}))
    session.run(tf.global_variables_initializer())
    return session


@pytest.mark.parametrize('num_towers', [1, 2, 4])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_steps_equal_numpys(num_towers, momentum):
    step = build(num_towers, lambda: tf.train.MomentumOptimizer(RATE, momentum))
    x = FEEDS[:num_towers].mean()
    a, b, speed_a, speed_b = 2.0, 5.0, 0.0, 0.0
    with session_of(num_towers) as session:
        for k in range(1, 6):
            session.run(step.train_ops)
            speed_a, speed_b = momentum * speed_a + x * b, momentum * speed_b + x * a
            a, b = a - RATE * speed_a, b - RATE * speed_b
            np.testing.assert_allclose(session.run(tf.trainable_variables()), [a, b], rtol=1e-5)
            assert session.run(tf.train.get_global_step()) == k


def test_global_step_is_int64():
    build(1, lambda: tf.train.GradientDescentOptimizer(RATE))
    assert tf.train.get_global_step().dtype.base_dtype == tf.int64


def test_values_are_those_before_the_update():
    # A variable that is merely fetched with the train op races with it.
    step = build(2, lambda: tf.train.GradientDescentOptimizer(RATE))
    with session_of(2) as session:
        for _ in range(200):
            before = session.run(tf.trainable_variables())
            values, _ = session.run([[step.values['a'], step.values['b']], step.train_ops])
            assert values == before


def test_variables_and_slots_live_on_the_server_in_one_copy():
    build(4, lambda: tf.train.MomentumOptimizer(RATE, 0.9))
    assert sorted(v.op.name for v in tf.global_variables()) == ['a', 'a/Momentum', 'b', 'b/Momentum', 'global_step']
    assert {v.device for v in tf.global_variables() if v.op.name != 'global_step'} == {'/device:CPU:0'}
