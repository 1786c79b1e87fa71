"""The API works in any state of the caller's process, and leaves the state unchanged."""
import json
import os
import sys

import pytest

from tests.helpers import ROOT, mostly_stress, python, run_forked

NET = '''
import logging, os, random, sys
import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

def draw(x):
    random.random()
    np.random.rand()
    return x

def net(images, num_classes, training):
    tf.logging.set_verbosity(tf.logging.INFO)
    logging.getLogger().setLevel(logging.DEBUG)
    os.environ['OF_THE_NETWORK'] = '1'
    os.chdir('/')
    sys.argv.append('x')
    sys.path.append('x')
    random.random()
    x = tf.nn.avg_pool2d(images, 8, 8, 'VALID')
    if training:
        x = tf.ensure_shape(tf.numpy_function(draw, [x], tf.float32), x.shape)
    x = tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])
    x = tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: 2 * x)
    x = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, 0.9 * x), [0, x])[1]
    return x @ tf.get_variable('w', [x.shape[1], num_classes], initializer=tf.zeros_initializer()) + 0 * (
        tf2.keras.backend.epsilon())
'''
# A process that executes code before each of several runs and prints their results, then checks its own state.
CALLER = '''
import gc, json, logging, os, random, signal, sys, warnings
out = open(os.dup(1), 'w')
{first}
import cifar10
train, evaluate, predict, befores = json.loads(sys.argv[1])

def state():
    import numpy as np, tensorflow.compat.v1 as tf
    return dict(
        resources=tf.resource_variables_enabled(), control_flow=tf.control_flow_v2_enabled(), cwd=os.getcwd(),
        shapes=isinstance(tf.TensorShape([1])[0], int), eager=tf.executing_eagerly(), environment=dict(os.environ),
        argv=list(sys.argv), path=list(sys.path), random=random.getstate(), numpy=repr(np.random.get_state()),
        levels=[logging.getLogger(name).level for name in (None, 'absl', 'tensorflow')], frozen=gc.get_freeze_count(),
        collects=gc.isenabled(), thresholds=gc.get_threshold(), filters=list(warnings.filters), umask=os.umask(0o22),
        signals=[signal.getsignal(number) for number in range(1, 32)], streams=(sys.stdout, sys.stderr))

os.umask(0o22)
for before in befores:
    exec(before)
    found = state() if 'tensorflow' in sys.modules else dict(environment=dict(os.environ), frozen=gc.get_freeze_count())
    train['train_dir'] += 'x'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        one = cifar10.train(**train, say=say if 'say' in globals() else None)
        two = cifar10.evaluate(**evaluate, train_dir=train['train_dir'])
        import numpy as np
        three = cifar10.predict(np.zeros([1, 32, 32, 3], np.uint8), **predict, train_dir=train['train_dir'])
    now = state()
    changed = [name for name in found if found[name] != now[name]]
    print(json.dumps([one.step, two.cross_entropy, three.probabilities.tolist(), changed]), file=out, flush=True)
import tensorflow as tf
print(json.dumps(tf.keras.__name__), file=out)
sys.stdout = sys.stderr = None  # which Python flushes when it ends
'''
SWITCHES = ('tf.disable_v2_tensorshape()', 'tf.disable_resource_variables()', 'tf.disable_control_flow_v2()',
            'tf.disable_tensor_equality()', 'tf.set_random_seed(3)', 'tf.disable_eager_execution()',
            'tf.disable_v2_behavior()')
IMPORT, NONE = 'import tensorflow.compat.v1 as tf', 'sys.stdout = sys.stderr = None'
IMPORTED = 'gc.unfreeze()'  # in a process that was forked after importing TensorFlow
BOTH = 'say = print', f'{IMPORT}; tf.disable_v2_behavior()'
WRITER = """
class Writer:
    def write(self, text): pass
sys.stdout = sys.stderr = Writer()
"""
CLOSED = """
sys.stdout = sys.stderr = sys.stdin = None
os.closerange(0, 3)
"""


@pytest.fixture
def called(data_dir, tmp_path):
    """A function that runs a caller; returns its lines: the results after each state, and its version of Keras."""
    def run(befores, first):
        network = tmp_path / 'net.py'
        network.write_text(NET)
        train = dict(network=f'{network}:net', dataset='shapes', data_dir=data_dir, batch_size=8, max_steps=2,
                     train_dir=str(tmp_path / 'train'), tower_device='cpu', summary_steps=0, num_towers=2)
        evaluate = dict(data_dir=data_dir, num_examples=100, tower_device='cpu', eval_dir=str(tmp_path / 'eval'))
        given = json.dumps([train, evaluate, dict(tower_device='cpu'), befores])
        environment = {name: value for name, value in os.environ.items() if not name.startswith('TF_')}
        script = tmp_path / 'caller.py'
        script.write_text(CALLER.replace('{first}', first))
        if first == IMPORTED:
            result = run_forked([sys.executable, script, given], {**environment, 'PYTHONPATH': str(ROOT)})
        else:
            result = python(script, given, environment={**environment, 'PYTHONPATH': str(ROOT)})
        assert result.returncode == 0, result.stderr
        *lines, keras = map(json.loads, result.stdout.splitlines())
        assert not keras.startswith('tf_keras')
        assert [changed for *_, changed in lines] == [[]] * len(lines)
        return [line[:3] for line in lines]
    return run


@pytest.mark.parametrize('first, befores', mostly_stress(
    [(IMPORTED, BOTH[1:]), (WRITER, BOTH), (NONE, ('pass', 'say = print')),
     (CLOSED, ('pass', 'say = print')), (IMPORT, ('pass', *SWITCHES))], (IMPORTED, BOTH[1:])))
def test_results_and_the_callers_state_are_unchanged(called, first, befores):
    result, *others = called(befores, first)
    assert result[0] == 2 and others == [result] * len(others)
