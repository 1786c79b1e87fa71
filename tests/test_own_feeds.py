"""Placeholders of a user's network that the network itself feeds."""
import re

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from tests.helpers import add_tower, logits_of, own_towers, rehearsed, tf


@pytest.mark.parametrize('chosen', ['tf.cond(tf.logical_not(fed), lambda: x - mean, assigned)',
                                    'tf2.cond(fed, assigned, lambda: x - mean)'])
def test_a_condition_that_depends_only_on_fed_values_is_resolved(chosen, own, graph):
    name = own(f'''
import tensorflow as tf2, tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    fed = tf.placeholder(tf.bool, [])
    x = tf.reduce_mean(images, [1, 2])
    mean = tf.get_variable('mean', [3], trainable=False, initializer=tf.zeros_initializer())
    def assigned():
        with tf.control_dependencies([tf.assign(mean, 0.9 * mean + 0.1 * tf.reduce_mean(x, 0))]):
            return tf.identity(x)
    x = {chosen}
    return x @ tf.get_variable('w', [3, num_classes]), {{fed: training}}
''')
    assert rehearsed(name) == []
    assert len(add_tower(own_towers(name), tf.ones([4, 24, 24, 3])).statistics) == 1


def test_any_tensor_can_be_fed_also_by_name(own, graph):
    for key in 'twice', '"twice:0"':
        name = own(f'''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    twice = tf.multiply(tf.placeholder(tf.float32, [None, 24, 24, 3]), 2.0, "twice")
    return tf.reduce_mean(twice, [1, 2]) @ tf.get_variable('w', [3, num_classes]), {{{key}: images}}
''')
        assert rehearsed(name) == []


@pytest.mark.parametrize('key, shape, fed, told', [
    ('"x:0"', '[None, 3, 24, 24]', 'images', 'Shapes (None, 3, 24, 24) and (8, 24, 24, 3) are incompatible'),
    ('placeholder', '[None, 24, 24, 3]', 'None', 'None values not supported')])
def test_a_fed_value_must_fit_its_placeholder(key, shape, fed, told, own):
    name = own(f'''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    placeholder = tf.placeholder(tf.float32, {shape}, 'x')
    x = placeholder * 1.0
    return tf.zeros([8, num_classes]) + tf.reduce_mean(x) * tf.get_variable('w', [num_classes]), {{{key}: {fed}}}
''')
    with pytest.raises(UsageError, match=re.escape(told)):
        rehearsed(name, batch_size=8)


DEFAULTS = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    keep = tf.placeholder_with_default(0.5, [], "keep")
    x = tf.reduce_mean(images, [1, 2]) * tf.cond(keep < 1, lambda: keep, lambda: 1.0)
    tf.placeholder_with_default(False, [])
    logits = x @ tf.get_variable('w', [3, num_classes])
    tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, logits)
    return logits, {keep: 1.0} if CONDITION else {}
'''


@pytest.mark.parametrize('condition, ratio', [('training', 2), ('True', 1)])
def test_a_placeholder_keeps_its_default_in_evaluation(condition, ratio, own, graph):
    towers, images = own_towers(own(DEFAULTS.replace('CONDITION', condition))), tf.ones([4, 24, 24, 3])
    tf.train.create_global_step()
    trained = logits_of(towers, images)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        evaluated = towers.evaluate(images)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        trained, evaluated = session.run([trained, evaluated])
    np.testing.assert_allclose(trained, ratio * evaluated, rtol=1e-5)


def test_an_unfed_default_that_matters_in_training_is_refused_with_its_line(own):
    name = own(DEFAULTS.replace('CONDITION', 'not training'))
    with pytest.raises(UsageError, match='placeholder keep, which nothing feeds .line 4 of .* return logits, {pla'):
        rehearsed(name)


FED = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x, is_training = tf.placeholder(tf.float32, [None, 24, 24, 3]), tf.placeholder(tf.bool)
    keep = tf.placeholder('float')
    noise = tf.placeholder_with_default(tf.zeros([3]), [3])
    mean = tf.get_variable('mean', [3], initializer=tf.zeros_initializer(), trainable=False)
    y = tf.reduce_mean(x, [1, 2])
    def assigned():
        with tf.control_dependencies([tf.assign(mean, 0.5 * mean + 0.5 * tf.reduce_mean(y, 0))]):
            return tf.identity(y)
    y = tf.cond(is_training, assigned, lambda: y - mean) * keep + noise
    logits = y @ tf.get_variable('w', [3, num_classes])
    tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, logits)
    return logits, {
        x: images, is_training: training, keep: 0.5 if training else 1.0, noise: tf.reduce_mean(images, [0, 1, 2])}
'''


def test_a_networks_feeds_reach_its_placeholders(own, graph):
    towers = own_towers(own(FED))
    images = tf.constant(np.random.default_rng(0).standard_normal([4, 24, 24, 3]), tf.float32)
    tf.train.create_global_step()
    computed = add_tower(towers, images)  # of class 0
    logits, = tf.get_collection(tf.GraphKeys.ACTIVATIONS)
    (gradient, weights), = computed.gradients
    (variable, value, keep), = computed.statistics
    tf.get_variable_scope().reuse_variables()
    evaluated = towers.evaluate(images)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        weights, found = session.run(weights), session.run(logits)
        pixels = session.run(images).mean((1, 2))
        fed = pixels * 0.5 + pixels.mean(0)
        np.testing.assert_allclose(found, fed @ weights, rtol=1e-5, atol=1e-6)
        of_logits = np.exp(found) / np.exp(found).sum(1, keepdims=True) - np.eye(10)[0]
        np.testing.assert_allclose(session.run(gradient), fed.T @ of_logits / 4, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(session.run(evaluated), (pixels + pixels.mean(0)) @ weights, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(session.run(value), 0.5 * pixels.mean(0), rtol=1e-5, atol=1e-6)
    assert variable.op.name == 'mean' and keep == 0


@pytest.mark.parametrize('line, fed', [
    ('x = b', '{a: images * 2.0, b: a}'), ('x = b', '{b: a * 2.0, a: images}'),
    ('with tf.control_dependencies([a]): x = tf.identity(images) * 2.0', '{a: images}')])
def test_a_placeholder_may_be_fed_another_one_or_be_a_control_input_only(line, fed, own, graph):
    name = own(f'''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    a, b = (tf.placeholder(tf.float32, [None, 24, 24, 3]) for _ in range(2))
    {line}
    logits = tf.reduce_mean(x, [1, 2]) @ tf.get_variable('w', [3, num_classes])
    tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, logits)
    return logits, {fed}
''')
    assert rehearsed(name) == []
    logits = logits_of(own_towers(name), tf.ones([4, 24, 24, 3]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        weights = session.run(tf.trainable_variables()[0])
        np.testing.assert_allclose(session.run(logits), np.full([4, 3], 2.0) @ weights, rtol=1e-5)


def test_all_outputs_of_an_operation_must_be_fed(own):
    name = own('''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    a, b = tf.split(tf.placeholder(tf.float32, [None, 24, 24, 3], 'x'), 2, axis=1)
    return tf.reduce_mean(a + b, [1, 2]) @ tf.get_variable('w', [3, num_classes]), {a: images[:, :12]}
''')
    with pytest.raises(UsageError, match='it needs the placeholder x, which nothing feeds'):
        rehearsed(name)
