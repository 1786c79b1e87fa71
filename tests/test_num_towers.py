"""Towers do not depend on devices: same bits on any devices, towers in turn, a run keeps its towers and batch size."""
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.data import datasets
from cifar10.parallel import devices
from tests.helpers import (
    ancestors,
    build_training,
    division,
    last_variables,
    stepping,
    train,
    update_mode,
)


@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_towers_on_one_device_take_turns(mode):
    events = []

    def tower(k, scope):
        weight = tf.get_variable('weight', [], initializer=tf.zeros_initializer())

        def record(value, what):
            events.append((k, what))
            if what == 'begins':
                time.sleep(0.02)
            return value

        @tf.custom_gradient
        def watched(value):
            seen = tf.py_func(lambda x: record(x, 'begins'), [value], tf.float32)
            return seen, lambda upstream: tf.py_func(lambda x: record(x, 'ends'), [upstream], tf.float32)
        return dict(total_loss=tf.reshape(watched(weight.read_value()), []) * (k + 1))

    cpus = devices.choose(2, 'cpu').with_towers(5)
    with stepping(mode, cpus, tower, lambda: tf.train.GradientDescentOptimizer(1.0)) as (session, step):
        for _ in range(5):
            events.clear()
            session.run(step.train_ops)
            for group in (0, 1):
                expected = [(k, what) for k in range(group, 5, 2) for what in ('begins', 'ends')]
                assert [event for event in events if event[0] % 2 == group] == expected
        value = session.run(step.gradients[0][1])
    np.testing.assert_allclose(value, -5 * np.mean([1, 2, 3, 4, 5]), rtol=1e-6)


@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'local'])
def test_a_tower_waits_only_for_towers_on_its_own_device(mode):
    def tower(k, scope):
        weight = tf.get_variable('weight', [], initializer=tf.ones_initializer())
        return dict(total_loss=tf.placeholder_with_default(tf.ones([]), []) * weight)
    update = update_mode(mode, devices.choose(3, 'cpu').with_towers(8))
    step = update.build(tower, lambda: tf.train.GradientDescentOptimizer(1.0), tf.train.create_global_step())
    for k in range(8):
        before = ancestors(step.turns.computed[k][0].op)
        assert [j for j in range(8) if step.turns.ended[j] in before] == [*range(k % 3, k, 3)]


@pytest.mark.classic
def test_towers_share_gpus_and_every_read_waits_for_its_turn(settings, data_dir):
    gpus = devices.Devices((('/gpu:0',), ('/gpu:1',)), on_gpus=True).with_towers(5)
    build_training(settings(), datasets.prepare('shapes', data_dir), gpus, update_mode('parameter_server', gpus))
    nodes = tf.get_default_graph().as_graph_def().node
    for k in range(5):
        mine = [node for node in nodes if node.name.startswith(f'tower_{k}/')]
        convolutions = [node for node in mine if node.op.startswith('Conv2D')]
        assert convolutions and {node.device for node in convolutions} == {f'/device:GPU:{k % 2}'}
        waiting = [node for node in mine if node.op in ('ReadVariableOp', 'IteratorGetNext')
                   and not node.name.startswith(f'tower_{k}/gradients/')]
        gate, = {name for node in waiting for name in node.input if name.startswith('^')}
        assert len(waiting) == 11 and gate.startswith('^turns/')
        assert all(gate in node.input for node in waiting)
    assert sum(node.op == 'IteratorV2' for node in nodes) == 2


@pytest.mark.stress
def test_a_run_keeps_its_towers_and_batch_size(settings, capsys):
    train(settings(num_gpus=2, num_towers=4, batch_size=4, max_steps=1))
    assert 'towers     4 on 2 CPU devices (as requested): /cpu:0 /cpu:1\n' in capsys.readouterr().out
    for changes, expected, line in [
            (dict(), (4, 4), 'towers     4 on 1 CPU device (as requested): /cpu:0; the run used 2 before\n'),
            (dict(num_towers=3, batch_size=2), (3, 2),
             'changed    num_towers=4 (now 3), batch_size=4 (now 2)\n'),
            (dict(variable_update='async', num_gpus=2), (2, 2),
             'changed    num_towers=3 (now 2), variable_update=parameter_server (now async)\n')]:
        steps = last_variables(settings().run.train_dir)['global_step'] + 1
        train(settings(**dict(dict(batch_size=None, max_steps=int(steps)), **changes)))
        assert division(settings().run.train_dir) == expected
        assert line in capsys.readouterr().out
