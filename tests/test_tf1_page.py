"""The code of docs/tf1.md, its list of refusals, and the table of docs/networks.md to which it links."""
import builtins
import re
import sys

import numpy as np
import pytest

import cifar10
from cifar10.base import own_files
from cifar10.base.errors import UsageError
from tests import idioms, test_idioms
from tests.helpers import ROOT, add_tower, own_towers, rehearsed, run_forked, tf

PAGE, NETWORKS = ((ROOT / 'docs' / name).read_text() for name in ('tf1.md', 'networks.md'))
TENSORFLOW = 'import tensorflow.compat.v1 as tf\n'


def rows_of(page, section):
    """Returns the cells of each row of a section's table."""
    text = page.split(f'## {section}\n')[1].split('\n## ')[0]
    rows = [[cell.strip() for cell in line.strip('|').split(' | ')] for line in text.splitlines() if line[:2] == '| ']
    return rows[1:]  # without the heading


# A row of 'What is refused' -> (a refused network, as a line or as a name in idioms.py, a part of the refusal).
REFUSED = {
    'number of images': (
        'return tf.reshape(images, [16, -1])[:, :n] + tf.get_variable("w", [n])', 'use -1 or images.shape[0]'),
    'queues': ('images *= tf.queue.FIFOQueue(1, tf.float32, [[]]).dequeue()', 'use the batch that the'),
    'sessions': ('runs_a_session', 'pass initial values as initializer='),
    'a placeholder that nothing feeds': (
        'images *= tf.placeholder_with_default(0.5, [])', 'feed it: return logits, {placeholder: value}'),
    'assigning a trained variable': ('assigned_and_trained', 'remove the assignment'),
    'scatter updates': ("state = tf.get_variable('s', [2], trainable=False); "
                        'images += tf.reduce_sum(tf.scatter_nd_update(state, [[0]], [1.0]))', 'add_moving_statistic'),
    'in a loop': ("state = tf.get_variable('s', [], trainable=False); images += tf.while_loop(lambda i: i < 3.0, "
                  'lambda i: i + state.assign_add(1.0).read_value(), [0.0])', 'add_moving_statistic'),
    'in a branch': ('assigned_in_a_branch', 'add_moving_statistic')}


@pytest.mark.parametrize('part', REFUSED)
def test_the_page_lists_refusals_that_happen(part, own):
    assert any(part in row for row, _ in rows_of(PAGE, 'What is refused'))
    line, remedy = REFUSED[part]
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


# The code that the page's adapters wrap, in the page's order; all are linear networks of different forms.
THEIRS = ['''
class resnet:
    def inference(images, classes, is_training):
        return linear(images, classes)
''', '''
class theirs:
    def ResNet(classes):
        layers = tf.keras.layers
        return tf.keras.Sequential([
            layers.Conv2D(4, 3, kernel_regularizer=tf.keras.regularizers.L2(1e-4)), layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(), layers.Dense(classes)])
''', '''
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
''', '''
class theirs:
    def model_fn(features, labels, mode, params):
        logits = linear(features, 10)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, dict(classes=tf.argmax(logits, 1), logits=logits))
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = tf.train.MomentumOptimizer(params['learning_rate'], params['momentum'])
        return tf.estimator.EstimatorSpec(mode, None, loss, optimizer.minimize(loss, tf.train.get_global_step()))
''']
CODE = re.findall(r'```python\n(.*?)```', PAGE, re.S)
ADAPTERS = [code.replace('from their_repository import resnet\n', '') for code in CODE if 'def net(' in code]
ADAPTERS += [code for code in CODE if 'def model(' in code]


@pytest.mark.parametrize('adapter, theirs', list(zip(ADAPTERS, THEIRS, strict=True)))
def test_each_adapter_makes_a_valid_network(adapter, theirs, own):
    name = own(f"""
import tensorflow.compat.v1 as tf
def linear(images, classes):
    x = tf.reduce_mean(images, [1, 2])
    return x @ tf.get_variable('w', [x.shape[1], classes])
{theirs}
{adapter}""", re.search(r'def (net|model)\(', adapter)[1])
    assert rehearsed(name) == []


def test_the_script_of_the_page_takes_the_steps_of_one_device():
    script, = (code for code in CODE if 'def step' in code)
    # test_on_towers.py tests the effect of the script's first lines on a process.
    script = script[script.index('def step'):]
    building, _ = script.replace('/gpu:', '/cpu:').split('session.run', 1)
    random = np.random.default_rng(0)
    images, labels = random.standard_normal([8, 3], np.float32), random.integers(0, 10, 8)

    def network(images):
        return images @ tf.get_variable('w', [3, 10], initializer=tf.constant_initializer(0.1))

    def trained(code):
        with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
            names = dict(tf=tf, cifar10=cifar10, session=session, network=network, images=tf.constant(images),
                         labels=tf.constant(labels))
            exec(code, names)
            for _ in range(3):
                session.run(names['train_op'])
            return session.run([names['loss'], tf.global_variables('w')[0]])
    on_one = building.split('batches = ')[0] + 'loss, train_op = step((images, labels))\n'
    for found, expected in zip(trained(script.replace('/gpu:', '/cpu:')), trained(
            on_one + 'session.run(tf.global_variables_initializer())')):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize('mode, within', [('parameter_server', True), ('replicated', False)])
def test_a_script_may_feed_its_learning_rate_and_start_from_a_checkpoint(mode, within, tmp_path):
    value = np.arange(3, dtype=np.float32)[:, None]
    with tf.Graph().as_default(), tf.Session() as session:
        weights = tf.get_variable('theirs', initializer=value)
        session.run(weights.initializer)
        prefix = tf.train.Saver([weights]).save(session, str(tmp_path / 'model'))

    def step(batch):
        loss = tf.reduce_mean(batch['x'] @ tf.get_variable('w', [3, 1]))
        if within:
            tf.train.init_from_checkpoint(prefix, {'theirs': 'w'})
        return loss, tf.train.MomentumOptimizer(batch['rate'], 0.9).minimize(loss, tf.train.get_global_step())
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
        rate = tf.placeholder(tf.float32, [])
        train_op, _ = cifar10.on_towers(step, [dict(x=tf.ones([2, 3]), rate=rate)] * 2, ['/cpu:0', '/cpu:1'], mode)
        if not within:
            tf.train.init_from_checkpoint(prefix, {'theirs': 'w'})
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        session.run(train_op, {rate: 0.5})
        for variable in tf.global_variables('w$') + tf.local_variables('.*/w$'):
            np.testing.assert_allclose(session.run(variable), value - 0.5)


# Files for TensorFlow 1, and two that know TensorFlow 2. `plain` uses only names that both versions have;
# `alone/steps.py` also has a name of TensorFlow 2, in code that is not called.
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
    rows = tf.unstack(tf.reduce_mean(plain.scaled(x), 2)[:, :2], axis=1)
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


def test_files_for_tensorflow_1_work_unchanged(tmp_path):
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
    computed = add_tower(own_towers(name), tf.zeros([4, 24, 24, 3]))
    assert len(computed.statistics) == 2
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(computed.scalars['total_loss'] - computed.scalars['cross_entropy']) > 0


@pytest.mark.parametrize('line', ['tf.contrib.slim', 'from tensorflow.contrib import slim', '1 / 0'])
@pytest.mark.parametrize('place', ['top', 'function'])
def test_code_in_another_folder_works_unchanged_and_its_errors_name_the_line(line, place, tmp_path):
    upstream, package = tmp_path / 'upstream', f'package_{abs(hash((line, place)))}'
    for folder in (upstream / package, tmp_path / 'mine'):
        folder.mkdir(parents=True)
    lines = ['import tensorflow as tf', line * (place == 'top'), 'def inference(x):',
             f'    {line}' * (place == 'function'), '    w = tf.get_variable("w", [1728, 10])',
             '    return tf.reshape(x, [-1, 1728]) @ w']
    (upstream / package / 'model.py').write_text('\n'.join(lines))
    (tmp_path / 'mine' / 'adapter.py').write_text(f"""
import sys
sys.path.insert(0, {str(upstream)!r})
from {package} import model
def net(images, num_classes, training):
    return model.inference(images)
""")
    name = f"{tmp_path / 'mine' / 'adapter.py'}:net"
    if line == '1 / 0':
        number = lines.index(line if place == 'top' else f'    {line}') + 1
        with pytest.raises(UsageError, match=rf'\(line {number} of {upstream}/{package}/model.py\)'):
            rehearsed(name)
    else:
        assert rehearsed(name) == []


_EXTRA = 'tf.layers, slim and contrib need the extra tf1'
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
        'tf.contrib.crf.crf_decode(x)': _EXTRA,
        'from tensorflow.contrib.layers import real_valued_column': _EXTRA,
        'tf.layers.dense(x, 10)': 'set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported'}),
    ('hidden', dict.fromkeys([
        'tf.layers.dense(x, 10)', 'import tf_slim', 'tf.contrib.layers.fully_connected(x, 10)',
        'from tensorflow.contrib import slim'], _EXTRA))])
def test_missing_libraries_are_reported(libraries, remedies, data_dir, tmp_path):
    paths = [tmp_path / f'mine{i}.py' for i in range(len(remedies))]
    for path, line in zip(paths, remedies):
        path.write_text(f'import tensorflow.compat.v1 as tf\ndef network(x, n, training):\n    {line}\n')
    (tmp_path / 'script.py').write_text(WITHOUT_LIBRARIES)
    result = run_forked([sys.executable, tmp_path / 'script.py', libraries, data_dir, *paths])
    for path, remedy, told in zip(paths, remedies.values(), result.stdout.splitlines(), strict=True):
        assert f'(line 3 of {path}); {remedy}' in told, result.stderr
