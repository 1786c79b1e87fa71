"""The code of docs/tf1.md, row by row, and the functions for state of docs/networks.md."""
import builtins
import re
import sys

import pytest

from cifar10.base import own_files
from cifar10.base.errors import UsageError
from cifar10.base.graphs import MOVING_STATISTICS
from cifar10.own import network as own_network
from cifar10.own.network import rehearse
from tests import idioms, test_idioms
from tests.helpers import ROOT, inference_of, rehearsed, run_forked, tf

PAGE = (ROOT / 'docs' / 'tf1.md').read_text()
STATE, = [code for code in re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'networks.md').read_text(), re.S)
          if 'add_moving_statistic' in code]


def rows_of(section):
    """Returns the rows of the table of a section: for each its cells."""
    text = PAGE.split(f'## {section}\n')[1].split('\n## ')[0]
    rows = [[cell.strip() for cell in line.strip('|').split(' | ')] for line in text.splitlines() if line[:2] == '| ']
    return rows[1:]  # without the heading


# What each row of 'What runs unchanged' is about -> the networks of idioms.py that have it.
RUNS = {
    'tf.losses.add_loss': [
        'tf_losses', 'as_the_tutorial', 'regularizer', 'regularizer_of_a_scope', 'regularizer_of_a_shared_variable',
        'collected_unless_reused', 'regularizers_summed', 'total_loss', 'over_trainable_variables'],
    'GraphKeys.UPDATE_OPS': [
        'moving_average', 'moving_averages_in_a_group', 'moving_average_in_place', 'exponential_moving_average',
        'unbiased_average', 'averages_of_weights', 'read_after_it_is_assigned_in_an_update'],
    'of an integer': ['counter', 'counter_that_is_set'],
    'images.shape[0]': ['of_a_known_number'],
    'partitioner=': ['partitioned', 'not_resource_variables'],
    'counters and lists': ['template_of_the_file', 'counted_names', 'kept_tensor'],
    'np.random': ['drawn_in_the_function', 'drawn_in_the_file'],
    'AdamOptimizer': ['with_an_optimizer']}
# What the text before them names.
AS_ON_ONE_DEVICE = [
    'moving_average_in_a_branch', 'variables_by_hand', 'variables_without_names', 'named_after_a_scope',
    'frozen_by_name', 'over_names_that_end', 'template_within', 'reused_automatically']

# What 'What needs a change' names -> a network that has it, as a line, or a network of idioms.py; and what the refusal
# says.
CHANGED = {
    'in a branch of': ('assigned_in_a_branch', 'add_moving_statistic'),
    'scatter updates': ("state = tf.get_variable('s', [2], trainable=False); "
                        'images += tf.reduce_sum(tf.scatter_nd_update(state, [[0]], [1.0]))', 'add_moving_statistic'),
    'assigning a trained variable': ('assigned_and_trained', 'leave the assignment out'),
    'placeholders': ("images *= tf.placeholder(tf.float32, [], name='keep_prob')", '{placeholder: value}'),
    'queues': ('images *= tf.queue.FIFOQueue(1, tf.float32, [[]]).dequeue()', 'use the images that the'),
    'a number of images': (
        'return tf.reshape(images, [16, -1])[:, :n] + tf.get_variable("w", [n])', 'write -1 or images.shape[0] for'),
    'shape[1].value': ('images.shape[1].value', 'leave out .value'),
    'sessions': ('runs_a_session', 'give variables their values as initializer='),
    'local variables': ("tf.get_variable('s', [], collections=['local'])", 'leave out collections='),
    'are not float32': ("tf.get_variable('s', [], tf.bfloat16)", 'make it float32'),
    'outside the function': ('images *= OUTSIDE', 'a tensor that is made outside the function belongs to another')}


def test_every_row_of_what_runs_is_trained_on_any_number_of_towers():
    for row, *_ in rows_of('What runs unchanged'):
        about = [networks for part, networks in RUNS.items() if part in row]
        assert len(about) == 1 and {*about[0], *AS_ON_ONE_DEVICE} <= set(test_idioms.TRAINED), row
    assert len(rows_of('What runs unchanged')) == len(RUNS)


@pytest.mark.parametrize('part', CHANGED)
def test_what_needs_a_change_is_refused(part, own):
    assert part in PAGE.split('## What needs a change')[1]
    line, remedy = CHANGED[part]
    name = test_idioms.name_of(line) if hasattr(idioms, line) else own(f"""
import tensorflow.compat.v1 as tf
OUTSIDE = tf.constant(2.0)
def network(images, n, training):
    {line}
    return tf.reduce_mean(images, [1, 2]) @ tf.get_variable('w', [3, n])
""")
    with pytest.raises(UsageError) as refused:
        rehearsed(name)
    assert remedy in str(refused.value) and '\n' not in str(refused.value)


# What the page's adapters adapt, in their order; each is a linear network but for its form.
THEIRS = ['''
def theirs(images, classes, is_training):
    return linear(images, classes), dict(last=images)
''', '''
def theirs(images, classes, training):
    assert images.shape[1] == 3
    return linear(tf.transpose(images, [0, 2, 3, 1]), classes)
''', '''
def theirs(images, classes, training):
    assert images.shape[3] == 1
    return linear(images, classes)
''', '''
def theirs(images, classes, training):
    assert images.shape[1] == 32
    return linear(images, classes)
''', '''
def theirs(images, classes, training):
    with tf.control_dependencies([tf.debugging.assert_greater_equal(images, 0.0),
                                  tf.debugging.assert_less_equal(images, 1.0)]):
        return linear(tf.identity(images), classes)
''', '''
class theirs:
    class ResNet:
        def __init__(self, images, classes, mode):
            self.logits = linear(images, classes)
            mean = tf.get_variable('mean', [3], trainable=False)
            self.extra_train_ops = [tf.assign(mean, tf.reduce_mean(images, [0, 1, 2]))] if mode == 'train' else []
            self.l2_losses = [tf.nn.l2_loss(variable) for variable in tf.trainable_variables()]
''']
THEIRS.append('''
class theirs:
    class Model:
        def __init__(self, classes):
            self.images = tf.placeholder(tf.float32, [None, 24, 24, 3])
            self.is_training = tf.placeholder(tf.bool)
            self.keep_prob = tf.placeholder_with_default(1.0, [])
            mean = tf.get_variable('mean', [3], trainable=False)
            def assigned():
                with tf.control_dependencies([tf.assign_sub(mean, mean - tf.reduce_mean(self.images, [0, 1, 2]))]):
                    return tf.identity(self.images)
            images = tf.cond(self.is_training, assigned, lambda: self.images - mean)
            self.logits = linear(images, classes) * self.keep_prob
            tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_mean(self.logits))
''')
ADAPTERS = [f'def net(images, num_classes, training):\n    {cells[1][1:-1]}' for cells in rows_of('Adapters')]
ADAPTERS += re.findall(r'```python\n(def net.*?)```', PAGE.split('## Adapters')[1], re.S)


@pytest.mark.parametrize('adapter, theirs', list(zip(ADAPTERS, THEIRS, strict=True)))
def test_an_adapter_makes_a_network_of_theirs(adapter, theirs, own):
    name = own(f"""
import tensorflow.compat.v1 as tf
def linear(images, classes):
    x = tf.reduce_mean(images, [1, 2])
    return x @ tf.get_variable('w', [x.shape[1], classes])
{theirs}
{adapter}""", 'net')
    assert rehearsed(name) == []


# Files as they were written for TensorFlow 1, and two that know TensorFlow 2. `plain` has no name of either alone;
# `alone/steps.py` also has one of TensorFlow 2, in what nothing calls.
FILES = {
    'theirs/plain.py': """
import tensorflow as tf
def scaled(x):
    return tf.nn.relu(x)
""",
    'theirs/network.py': """
import tensorflow as tf
from tensorflow import estimator
import tensorflow.contrib.slim as slim
from tensorflow.contrib.framework.python.ops import arg_scope
from tensorflow.contrib.layers import l2_regularizer
from theirs import aware, new, plain
tf.app.flags.DEFINE_float('decay_of_theirs', 0.1, '')
tf.compat.v1.logging.set_verbosity(tf.logging.ERROR)
assert estimator.ModeKeys.TRAIN == 'train'
def inference(images, classes, is_training):
    channels = images.get_shape()[3].value
    kernel = tf.get_variable('kernel', [3, 3, channels, 8], initializer=tf.contrib.layers.xavier_initializer(),
                             regularizer=l2_regularizer(tf.app.flags.FLAGS.decay_of_theirs))
    with arg_scope([slim.conv2d], normalizer_fn=tf.contrib.layers.batch_norm,
                   normalizer_params=dict(is_training=is_training)):
        x = slim.conv2d(tf.nn.conv2d(images, kernel, [1, 2, 2, 1], 'SAME'), 8, 3)
    rows = tf.unstack(tf.reduce_mean(plain.scaled(x), 2), axis=1)
    outputs, _ = tf.contrib.rnn.static_rnn(tf.contrib.rnn.GRUCell(8), rows, dtype=tf.float32)
    return slim.layers.fully_connected(outputs[-1], classes, activation_fn=None)
""",
    'alone/steps.py': """
import tensorflow as tf
def momentum(rate):
    return tf.train.MomentumOptimizer(rate, tf.placeholder(tf.float32, []))
def keras_loss():
    return tf.losses.CategoricalCrossentropy()
""",
    'lib/in_a_path.py': 'import tensorflow as tf\nSIZE = tf.Dimension(3)\n',
    'theirs/aware.py': 'import tensorflow as tf2\nimport tensorflow.compat.v1 as tf\n',
    'theirs/new.py': 'import tensorflow as tf2\ntf2.get_current_name_scope()\n',
    'adapter.py': """
import os, sys
from alone import steps
from theirs import network
sys.path.append(os.path.join(os.path.dirname(__file__), 'lib'))
import in_a_path
def net(images, num_classes, training):
    return network.inference(images, num_classes, is_training=training)
"""}


def test_files_of_tensorflow_1_are_used_as_they_are(tmp_path):
    before = builtins.__import__
    for folder in ('theirs', 'alone', 'lib'):
        (tmp_path / folder).mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    name = f"{tmp_path / 'adapter.py'}:net"
    assert rehearsed(name) == []
    assert builtins.__import__ is before
    found = {each: sys.modules[f'theirs.{each}'] for each in ('plain', 'network', 'aware', 'new')}
    assert found['plain'].tf is found['network'].tf is found['aware'].tf is sys.modules['alone.steps'].tf is tf
    assert found['aware'].tf2 is found['new'].tf2 is sys.modules['tensorflow']
    assert set(own_files.sha256(str(tmp_path / 'adapter.py'))) == {*FILES}
    own_network.network(name).inference(tf.zeros([4, 24, 24, 3]), True)
    assert len(tf.get_collection(tf.GraphKeys.LOSSES)) == 1 and len(tf.get_collection(MOVING_STATISTICS)) == 2


WITHOUT_LIBRARIES = """
import os, sys
os.environ['TF_USE_LEGACY_KERAS'] = '0'
if sys.argv[1] == 'hidden':
    sys.modules['tf_keras'] = sys.modules['tf_slim'] = None
from cifar10 import UsageError, train
for path in sys.argv[3:]:
    try:
        train(network=path + ':network', dataset='shapes', data_dir=sys.argv[2], train_dir=path + '.run',
              tower_device='cpu')
    except UsageError as error:
        print(error)
"""


@pytest.mark.parametrize('libraries, remedies', [
    ('installed', {
        'tf.contrib.crf.crf_decode(x)': 'tf_slim does not have it; see contrib in docs/tf1.md',
        'from tensorflow.contrib.layers import real_valued_column': 'tf_slim does not have it; see contrib in docs',
        'tf.layers.dense(x, 10)': 'set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported'}),
    ('hidden', {
        **dict.fromkeys(['tf.layers.dense(x, 10)', 'import tf_slim'], "python -m pip install -e '.[tf1]' installs it"),
        'tf.contrib.layers.fully_connected(x, 10)':
            "python -m pip install -e '.[tf1]' installs tf_slim, which has contrib.layers.fully_connected",
        'from tensorflow.contrib import slim':
            "python -m pip install -e '.[tf1]' installs tf_slim, which has contrib.slim"})])
def test_libraries_that_are_not_there_are_told(libraries, remedies, data_dir, tmp_path):
    paths = [tmp_path / f'mine{i}.py' for i in range(len(remedies))]
    for path, line in zip(paths, remedies):
        path.write_text(f'import tensorflow.compat.v1 as tf\ndef network(x, n, training):\n    {line}\n')
    (tmp_path / 'script.py').write_text(WITHOUT_LIBRARIES)
    result = run_forked([sys.executable, tmp_path / 'script.py', libraries, data_dir, *paths])
    for path, remedy, told in zip(paths, remedies.values(), result.stdout.splitlines(), strict=True):
        assert f'(line 3 of {path}); {remedy}' in told, result.stderr


def test_the_functions_for_state_are_called_as_the_page_shows():
    def inference(images, is_training):
        x = tf.reshape(images, [-1, 192]) @ tf.get_variable('first', [192, 64])
        names = dict(tf=tf, x=x, training=is_training)
        exec(STATE, names)
        return names['x'] @ tf.get_variable('last', [64, 10])
    assert rehearse(inference_of(inference), 4, [8], tf.float32, 0) == []
