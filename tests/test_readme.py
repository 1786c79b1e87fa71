"""README: its diff from the tutorial's script to an adapter, and its list of files from the command to the average."""
import re
import sys
import traceback
from types import SimpleNamespace

import numpy as np

from cifar10.parallel import parameter_server
from tests.helpers import ROOT, add_tower, initialise, last_variables, own_towers, stepping, tf

PAGE = (ROOT / 'README.md').read_text()
DIFF = re.search(r'^```diff\n(.*?)^```', PAGE, re.M | re.S)[1]
SCRIPT, ADAPTER = ('\n'.join(re.findall(rf'^(?:[ {sign}](.*)|)$', DIFF, re.M)) for sign in '-+')

# A file like the tutorial's cifar10.py, with a smaller network.
MODEL = '''
import tensorflow as tf

tf.app.flags.DEFINE_integer('batch_size', 128, 'images in a batch')  # also a flag of this program

def _variable(name, shape, wd=0.0):
  with tf.device('/cpu:0'):
    var = tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=0.1, seed=1))
  tf.add_to_collection('losses', tf.multiply(tf.nn.l2_loss(var), wd, name='weight_loss'))
  return var

def inference(images):
  with tf.variable_scope('conv1') as scope:
    conv = tf.nn.conv2d(images, _variable('weights', [5, 5, 3, 4]), [1, 4, 4, 1], padding='SAME')
    conv1 = tf.nn.relu(conv, name=scope.name)
    tf.summary.histogram(conv1.op.name + '/activations', conv1)
  with tf.variable_scope('softmax_linear'):
    flat = tf.reshape(conv1, [images.get_shape().as_list()[0], -1])
    return tf.matmul(flat, _variable('weights', [int(flat.shape[1]), 10], wd=0.5))
'''


def average_gradients(tower_grads):
    """Returns the mean of each variable's gradients over the towers, like a script's own function."""
    return [(tf.add_n([grad for grad, _ in pairs]) / len(pairs), pairs[0][1]) for pairs in zip(*tower_grads)]


def tower_loss(scope, images, labels):
    """Returns the loss of a tower, like a script's own function."""
    logits = sys.modules['model'].inference(images)
    tf.add_to_collection('losses', tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits)))
    return tf.add_n(tf.get_collection('losses', scope))


def test_the_adapter_of_the_diff_takes_the_step_of_the_script_and_trains(tmp_path, call):
    (tmp_path / 'model.py').write_text(MODEL)
    (tmp_path / 'adapter.py').write_text(ADAPTER)
    name = f"{tmp_path / 'adapter.py'}:net"
    random = np.random.default_rng(0)
    images, labels = random.standard_normal([2, 6, 24, 24, 3], np.float32), random.integers(0, 10, [2, 6], np.int32)
    towers = own_towers(name)
    with tf.Graph().as_default(), stepping(
            'parameter_server', ['/cpu:0', '/cpu:1'], lambda k, scope: add_tower(towers, images[k], labels[k]),
            lambda: tf.train.GradientDescentOptimizer(0.1)) as (session, step):
        before = session.run({each.op.name: each for each in tf.trainable_variables()})
        session.run(step.train_ops)
        found = session.run({each.op.name: each for each in tf.trainable_variables()})

    script = re.sub('^import .*', '', SCRIPT, flags=re.M).replace('/gpu:', '/cpu:')
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
        names = dict(tf=tf, FLAGS=SimpleNamespace(num_gpus=2), tower_loss=tower_loss, tower_grads=[],
                     average_gradients=average_gradients, images=tf.unstack(tf.constant(images)),
                     labels=tf.unstack(tf.constant(labels)), opt=tf.train.GradientDescentOptimizer(0.1),
                     global_step=tf.train.create_global_step())
        with tf.variable_scope(tf.get_variable_scope()):
            exec(script, names)
        initialise(session)
        for variable in tf.trainable_variables():
            variable.load(before[variable.op.name], session)
        session.run(names['train_op'])
        expected = session.run({each.op.name: each for each in tf.trainable_variables()})
    assert found.keys() == expected.keys() == {'conv1/weights', 'softmax_linear/weights'}
    for each in found:
        np.testing.assert_allclose(found[each], expected[each], atol=1e-6)
        assert abs(found[each] - before[each]).max() > 1e-3

    assert ' --network=adapter.py:net ' in PAGE
    assert call('multi_gpu_train.py', f'--network={name}', '--num_gpus=2', '--batch_size=8', '--max_steps=3',
                '--tower_device=cpu') == (0, '')
    trained = last_variables(tmp_path / 'train')
    assert trained['global_step'] == 3 and trained['examples_seen'] == 48 and found.keys() <= trained.keys()


def test_files_between_command_and_average_are_in_the_pages_order(call, monkeypatch):
    calling = []

    def noted(tower_grads):
        frames = [frame.filename.partition('/cifar10/')[2] for frame in traceback.extract_stack()]
        calling.extend(dict.fromkeys(path for path in frames if path))
        return original(tower_grads)
    original = parameter_server.average_gradients
    monkeypatch.setattr(parameter_server, 'average_gradients', noted)
    assert call('multi_gpu_train.py', '--network=linear', '--tower_device=cpu', '--batch_size=8') == (0, '')
    section = PAGE.split('\n## How a step works\n')[1].split('\n## ')[0]
    shown = re.findall(r'`(\w+/\w+\.py)`', section)
    assert calling and calling == [path for path in shown if path in calling]
    assert all((ROOT / 'cifar10' / path).exists() for path in shown)


def test_the_speeds_on_the_page_are_measured():
    measured = (ROOT / 'docs' / 'measured.md').read_text()
    speeds = re.findall(r'\d[\d,]+\d', ''.join(re.findall(r'^\| (?:AMD|Intel|NVIDIA) [^|]*(.*)', PAGE, re.M)))
    assert len(speeds) == 18 and all(re.search(rf'\b{speed}\b', measured) for speed in speeds)
