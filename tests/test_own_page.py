"""The code of docs/your-own.md: the functions for state, and the table of what to write in place of tf.layers."""
import re
import subprocess
import sys

import numpy as np
import pytest

from cifar10.model import batch_normalisation, dropout
from cifar10.model.own_network import rehearse
from cifar10.training import trainer
from tests.helpers import ROOT, last_variables, patient, tf

PAGE = (ROOT / 'docs' / 'your-own.md').read_text()
STATE, = [code for code in re.findall(r'```python\n(.*?)```', PAGE, re.S) if 'add_moving_statistic' in code]
# The name in tf.layers -> what to write.
TABLE = dict(re.findall(r'^\| `tf\.layers\.(\w+)\(.*?\)` \| `(.*?)`', PAGE, re.M))
ORDER = ('conv2d', 'batch_normalization', 'max_pooling2d', 'flatten', 'dropout', 'dense')


def written(name, x, is_training):
    """Returns the result of a row of the table."""
    names = dict(tf=tf, x=x, training=is_training, batch_normalisation=batch_normalisation, dropout=dropout)
    with tf.variable_scope(name) if name == 'batch_normalization' else tf.name_scope(name):
        return eval(TABLE[name], names)


def test_the_table_has_what_networks_are_made_of():
    assert set(TABLE) == set(ORDER)


def test_a_network_of_the_rows_of_the_table_is_trained(settings, tmp_path):
    lines = [f"    {'with tf.variable_scope(name): ' if name == 'batch_normalization' else ''}x = {TABLE[name]}"
             for name in ORDER]
    (tmp_path / 'old.py').write_text('\n'.join([
        'import tensorflow.compat.v1 as tf', 'from cifar10.model import batch_normalisation, dropout',
        'def network(x, num_classes, training):', "    name = 'batch_normalization'", *lines, '    return x']))
    config = settings(network=f"{tmp_path / 'old.py'}:network", num_gpus=2, max_steps=1)
    trainer.train(config)
    shapes = {name: value.shape for name, value in last_variables(config.run.train_dir).items()}
    # The names and shapes that tf.layers gave them.
    for name, shape in {'conv2d/kernel': (3, 3, 3, 16), 'conv2d/bias': (16,), 'dense/kernel': (11 * 11 * 16, 10),
                        'dense/bias': (10,), **{f'batch_normalization/{each}': (16,) for each in (
                            'gamma', 'beta', 'moving_mean', 'moving_variance')}}.items():
        assert shapes[name] == shape, name


def test_the_functions_for_state_are_called_as_the_page_shows():
    def inference(images, is_training):
        x = tf.reshape(images, [-1, 192]) @ tf.get_variable('first', [192, 64])
        names = dict(tf=tf, x=x, training=is_training)
        exec(STATE, names)
        return names['x'] @ tf.get_variable('last', [64, 10])
    assert rehearse(inference, 4, [8], tf.float32, 0) == []


KERAS = '''
import sys
import keras
import numpy as np
random = np.random.default_rng(0)
x = random.normal(size=[2, 9, 9, 3]).astype(np.float32)
model = keras.Sequential([
    keras.layers.Input([9, 9, 3]), keras.layers.Conv2D(16, 3, padding='same'), keras.layers.BatchNormalization(),
    keras.layers.MaxPooling2D(3, 2), keras.layers.Flatten(), keras.layers.Dropout(0.4), keras.layers.Dense(10)])
model.set_weights([random.uniform(0.1, 1, each.shape) for each in model.weights])
np.savez(sys.argv[1], x, np.asarray(model(x, training=False)), *model.get_weights())
'''


@pytest.mark.stress
def test_the_rows_of_the_table_are_the_layers_of_keras(tmp_path):
    subprocess.run([sys.executable, '-c', KERAS, str(tmp_path / 'keras.npz')], check=True, timeout=patient(120))
    with np.load(tmp_path / 'keras.npz') as saved:
        x, expected, *values = saved.values()
    found = tf.constant(x)
    for name in ORDER:
        found = written(name, found, False)
    with tf.Session() as session:
        for variable, value in zip(tf.global_variables(), values, strict=True):
            variable.load(value, session)
        np.testing.assert_allclose(session.run(found), expected, rtol=1e-4)
