"""A network of the user's own: trained in every mode, evaluated, held to the rules of towers."""
import numpy as np
import pytest

from cifar10 import training
from cifar10.config import EvalConfig
from cifar10.data import records
from cifar10.errors import UsageError
from cifar10.evaluation import watch
from cifar10.networks import own
from tests.helpers import ROOT, build_training, last_variables, tf, update_mode

RESIDUAL = f"{ROOT / 'examples' / 'residual_network.py'}:residual"

LINEAR = '''
import tensorflow.compat.v1 as tf
def linear(images, num_classes, training):
    pixels = tf.reshape(images, [-1, 24 * 24 * 3])
    weights = tf.get_variable('weights', [24 * 24 * 3, num_classes], initializer=tf.zeros_initializer())
    {}
    return {}
'''


@pytest.fixture
def linear(tmp_path):
    """A function that writes a network with a line changed; returns its name."""
    def write(line='pass', result='pixels @ weights'):
        (tmp_path / 'mine.py').write_text(LINEAR.format(line, result))
        return f"{tmp_path / 'mine.py'}:linear"
    return write


@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'mirrored', 'async'])
def test_every_mode_trains_it_and_the_evaluator_takes_it(settings, tmp_path, capsys, mode):
    config = settings(network=RESIDUAL, num_gpus=2, variable_update=mode)
    training.train(config)
    found = last_variables(config.train_dir)
    assert found['stage3/shortcut/weights'].shape == (1, 1, 32, 64)
    assert not np.array_equal(found['first/moving_mean'], np.zeros(16))
    watch.evaluate(EvalConfig(checkpoint_dir=config.train_dir, eval_dir=str(tmp_path / 'eval'), run_once=True,
                                   num_examples=100, tower_device='cpu'))
    assert 'of 100), step 3' in capsys.readouterr().out


def test_towers_take_the_step_of_one_tower_with_the_whole_batch(settings, linear, data_dir):
    def trained(name, **changes):
        config = settings(network=linear(), train_dir=settings().train_dir + name, **changes)
        training.train(config)
        return last_variables(config.train_dir)['weights']
    np.testing.assert_allclose(trained('4', num_gpus=4, batch_size=8), trained('1', batch_size=32), atol=1e-6)


@pytest.mark.parametrize('line, result, part', [
    ("extra = tf.Variable(1.0, name='mine')", 'pixels @ weights * extra', 'variable mine was not made with tf.get_'),
    ('pass', 'pixels @ weights[:, :7]', 'it returns a tensor float32 [8, 7]; return logits, float [images, 10]'),
    ('pass', 'tf.argmax(pixels @ weights, 1)', 'it returns a tensor int64 [8]; return logits'),
    ('pass', 'None', 'it returns NoneType'),
    ('1 / 0', 'None', 'ZeroDivisionError: division by zero (line 6 of '),
    ('tf.get_variable("weights")', 'None', 'ValueError: Variable weights already exists'),
    ('tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.nn.l2_loss(weights))', 'pixels @ weights',
     'add losses to the collection tf.GraphKeys.LOSSES'),
    ('tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.no_op())', 'pixels @ weights', 'batch_normalisation'),
])
def test_a_broken_rule_is_told_in_a_line(call, linear, line, result, part):
    name = linear(line, result)
    status, error = call('multi_gpu_train.py', f'--network={name}', '--batch_size=8', '--tower_device=cpu')
    assert status == 2 and part in error and name in error
    assert len(error.strip().splitlines()) == 1


def test_a_network_without_variables_is_told_so(call, linear, tmp_path):
    name = linear()
    path = tmp_path / 'mine.py'
    path.write_text(path.read_text().replace('tf.get_variable(', 'tf.zeros(').replace("'weights', ", '').replace(
        ', initializer=tf.zeros_initializer()', ''))
    status, error = call('multi_gpu_train.py', f'--network={name}', '--tower_device=cpu')
    assert status == 2 and 'makes no variable that can be trained' in error


@pytest.mark.parametrize('content, function, part', [
    (None, 'f', 'there is no file'), ('x = 1', 'f', 'has no function f'), ('f = 1', 'f', 'has no function f'),
    ('def f(:', 'f', 'SyntaxError: invalid syntax (mine.py, line 1)'), ('import no_such_module', 'f', 'no_such_module'),
])
def test_what_is_no_network_is_told_in_a_line(tmp_path, content, function, part):
    if content:
        (tmp_path / 'mine.py').write_text(content)
    with pytest.raises(UsageError, match='--network=') as refused:
        own.network(f"{tmp_path / 'mine.py'}:{function}")
    assert part in str(refused.value)


def test_a_file_that_was_moved_is_still_the_same_network(call, linear, tmp_path, capsys):
    name = linear()
    assert call('multi_gpu_train.py', f'--network={name}', '--tower_device=cpu')[0] == 0
    (tmp_path / 'elsewhere').mkdir()
    moved = str(tmp_path / 'elsewhere' / 'mine.py')
    (tmp_path / 'mine.py').rename(moved)
    train_dir = f"--checkpoint_dir={tmp_path / 'train'}"
    status, error = call('cifar10_eval.py', train_dir, '--tower_device=cpu')
    assert status == 2 and 'there is no file' in error
    status, error = call('cifar10_eval.py', train_dir, '--tower_device=cpu', f'--network={moved}:linear')
    assert status == 0, error
    status, error = call('multi_gpu_train.py', f'--network={moved}:linear', '--tower_device=cpu', '--max_steps=2')
    assert status == 0, error


def test_towers_share_its_variables_in_the_graph(settings, data_dir):
    mode = update_mode('parameter_server', ['/gpu:0', '/gpu:1'])
    build_training(settings(network=RESIDUAL, num_gpus=2), records.find('shapes', data_dir), mode.devices, mode)
    assert len([v for v in tf.trainable_variables() if v.op.name.endswith('conv1/weights')]) == 3
