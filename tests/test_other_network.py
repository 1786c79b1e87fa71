"""How often a user's own network is called, and by what another one is found out."""

import pytest

from cifar10.own import code, traced
from cifar10.run.record import RunRecord, digits
from cifar10.settings.training import completed
from tests.helpers import mostly_stress, tf, train

COUNTED = '''
import os
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    with open(__file__ + '.calls', 'a') as stream:
        stream.write(f'{training}\\n')
    mean, largest = tf.reduce_mean(images, [1, 2]), tf.reduce_max(images, [1, 2])
    return (mean - largest) * SCALE @ tf.get_variable('w', [3, num_classes])
SCALE = 1.5
'''


@pytest.mark.parametrize('scale, precision, in_a_start, in_a_resume', mostly_stress([
    ('1.5', 'fp32', 4, 2), ('tf.placeholder(tf.bool)', 'fp32', 4, 2),
    ('tf.placeholder_with_default(1.5, [])', 'fp32', 6, 4),  # of each kind one more, to know what it is fed
    ('1.5', 'bf16', 5, 3)], ('1.5', 'fp32', 4, 2)))  # one more, to see that it casts nothing
def test_a_network_is_called_so_often_however_many_towers_there_are(
        scale, precision, in_a_start, in_a_resume, own, settings, tmp_path):
    if 'bool' in scale:  # it is not needed
        scale = f'({scale}, 1.5)[1]'
    network = own(COUNTED.replace('SCALE @', f'({scale}) @'))
    calls = tmp_path / 'mine.py.calls'
    for steps, expected in ((2, in_a_start), (4, in_a_resume)):
        train(settings(network=network, max_steps=steps, num_towers=4, batch_size=64, variable_update='replicated',
                       precision=precision))
        assert len(calls.read_text().split()) == expected
        calls.unlink()
        code.execute_again(network.rpartition(':')[0])  # as another process would


@pytest.mark.parametrize('before, after', mostly_stress([
    ('SCALE = 1.5', 'SCALE = 2.5'), ('SCALE = 1.5', 'SCALE = [1.5, 2.5, 3.5]'),
    ('mean - largest', 'largest - mean'), ('reduce_max(images, [1, 2])', 'reduce_max(images, [2, 1])')],
    ('mean - largest', 'largest - mean')))
def test_another_network_is_refused_at_a_resume_and_in_an_evaluation(before, after, own, call, tmp_path):
    network = own(COUNTED)
    assert call('multi_gpu_train.py', f'--network={network}', '--tower_device=cpu')[0] == 0
    use = 'cifar10_eval.py', f"--checkpoint_dir={tmp_path / 'train'}", '--tower_device=cpu'
    assert call(*use)[0] == 0
    own(COUNTED.replace(before, after))
    status, error = call('multi_gpu_train.py', f'--network={network}', '--tower_device=cpu', '--max_steps=3')
    assert status == 2 and 'holds a run of another network: in evaluation, the operation ' in error
    status, error = call(*use)
    assert status == 2 and 'is another one than in the network that was trained; use the file as it was' in error
    assert call(*use, f'--network={network}')[0] == 0


LOOPED = '''
x = tf.function(tf.square)(tf.reduce_mean(images, [1, 2]) * tf.get_variable('v', [3]))
x = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * 2 - tf.tanh(x)), [0, x])[1]
x = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: tf.tanh(x))
x = tf.custom_gradient(lambda x: (x + 1, lambda dy: dy * 2))(x)
mean, other = (tf.get_variable(name, [3], trainable=False) for name in ('mean', 'other'))
tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(mean, tf.reduce_mean(x, 0)))
result = (x - mean - other) @ tf.get_variable('w', [3, 10])
'''


def described(code):
    def network(images):
        values = dict(tf=tf, images=images)
        exec(code, values)
        return values['result']
    return traced.trace(network, dict(images=(tf.float32, [4, 24, 24, 3])), True, 0)


def test_the_order_within_a_function_and_the_devices_are_no_other_network():
    found = described(LOOPED)
    before = found.described()
    assert 'PartitionedCall' in {node.op for node in found.operations()}
    for node in found.operations():
        if 'config_proto' in node.attr:  # in which the devices of the process are
            node.attr['config_proto'].s += b'other'
    for function in found.forward[0].definition.library.function:  # TensorFlow's order differs between processes
        operations = list(function.node_def)
        function.ClearField('node_def')
        function.node_def.extend(operations[::-1])
    assert found.described() == before == described(LOOPED).described()


@pytest.mark.parametrize('before, after', [
    ('x * 2 - tf.tanh(x)', 'tf.tanh(x) - x * 2'),
    ('lambda: x * 2, lambda: tf.tanh(x)', 'lambda: tf.tanh(x), lambda: x * 2'), ('dy * 2', 'dy * 3'),
    ('tf.assign(mean,', 'tf.assign(other,'), ('tf.assign(', 'tf.assign_add('), ('square', 'abs'),
    ("'other'))", "'third'))"), ('i < 2', 'i < 3')])
def test_what_is_within_functions_gradients_and_assignments_makes_another_network(before, after):
    digests = [[what for _, what in described(code).described()]
               for code in (LOOPED, LOOPED.replace(before, after))]
    assert digests[0] != digests[1]


OF_A_SET = '''
variables = [tf.get_variable(name, [3], trainable=False) for name in 'ab']
for each in variables:
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(each, 0.1 * (each - tf.reduce_mean(images, [0, 1, 2]))))
result = tf.reduce_mean(images, [1, 2]) @ tf.get_variable('w', [3, 10])
'''


def test_the_order_of_a_set_makes_no_other_network():
    one, other = (described(OF_A_SET.replace('in variables', order)).described()
                  for order in ('in variables', 'in variables[::-1]'))
    assert [name for name, _ in one] != [name for name, _ in other]
    assert sorted(what for _, what in one) == sorted(what for _, what in other)
    record = RunRecord(completed({}), versions=dict(TensorFlow=tf.__version__),
                       network_operations=digits(dict(training=one)))
    assert record.other_operation('training', other, tf.__version__) == ''
    assert record.other_operation('training', one[:-1], tf.__version__) == 'that is no longer there'
    third = described(OF_A_SET.replace('0.1', '0.2')).described()
    assert record.other_operation('training', third, tf.__version__)


FOLLOWS_THE_BATCH = '''
import numpy as np, tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    count = int(images.shape[0])
    x = tf.reduce_mean(images, [1, 2]) + np.zeros([count, 3], np.float32)
    if training:
        tf.add_to_collection(tf.GraphKeys.LOSSES, 0.3 / count * tf.reduce_sum(tf.square(x)))
    return x @ tf.get_variable('w', [3, num_classes])
'''


def test_a_network_whose_constants_follow_the_number_of_images_is_no_other_network(own, call, tmp_path):
    network = f'--network={own(FOLLOWS_THE_BATCH)}'
    for steps in (2, 4):
        assert call('multi_gpu_train.py', network, '--tower_device=cpu', f'--max_steps={steps}')[0] == 0
    assert call('cifar10_eval.py', f"--checkpoint_dir={tmp_path / 'train'}", '--tower_device=cpu') == (0, '')
