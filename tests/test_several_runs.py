"""Several runs in one process: each has the results that it has in its own process.

A run of a file that this process has used is compared with the same run of an unused copy of the file.
"""

import numpy as np
import pytest

from cifar10 import evaluate, train
from tests.helpers import assert_same_bits, last_variables

NET = '''
import os
import helper
import numpy as np
import tensorflow.compat.v1 as tf
FOLDER = os.path.dirname(__file__)
CHANNELS = int(os.environ.get('CHANNELS', 3))

def net(images, num_classes, training):
    x = tf.reduce_mean(images[..., :CHANNELS], [1, 2]) * np.load(FOLDER + '/scale.npy')
    x = tf.tanh(x @ tf.get_variable('hidden', [CHANNELS, int(os.environ.get('WIDTH', 4))]))
    return helper.GAIN * x @ tf.get_variable('w', [x.shape[1], num_classes])

def moved(images, labels, num_classes):
    return images, (labels + 1) % num_classes

def loss(logits, labels):
    power = float(os.environ.get('POWER', 1))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits) ** power

RATE = float(os.environ.get('FACTOR', 1))

def optimizer(rate):
    return tf.train.GradientDescentOptimizer(RATE * rate)
'''
HELPER = "import os\nGAIN = float(os.environ.get('GAIN', 1))\n"


class Folder:
    """A folder with a user's file, and its runs."""

    def __init__(self, path, data):
        self.path = path
        self._data = data
        self._runs = 0

    def settings(self, classes=10, augmentation='none', **changes):
        """Returns the settings of a run with a number of classes."""
        own = f'{self.path}/net.py'
        if augmentation == 'own':
            augmentation = f'none,{own}:moved'
        return dict(dataset=str(self._data / f'{classes}.npz'), network=f'{own}:net', augmentation=augmentation,
                    loss=f'{own}:loss', optimizer=f'{own}:optimizer', learning_rate=0.1, data_dir=str(self._data),
                    image_size=16, batch_size=4, max_steps=2, tower_device='cpu', summary_steps=0, **changes)

    def train(self, **changes):
        """Trains a new run; returns the train_dir."""
        self._runs += 1
        train_dir = f'{self.path}/run{self._runs}'
        train(**self.settings(**changes), train_dir=train_dir)
        return train_dir

    def evaluate(self, train_dir):
        """Returns the result of evaluating a run with this file."""
        found = evaluate(train_dir=train_dir, network=f'{self.path}/net.py:net', tower_device='cpu',
                         eval_dir=f'{self.path}/eval', data_dir=str(self._data))
        return found.accuracy, found.cross_entropy


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """A function that makes a Folder with the files."""
    data = tmp_path_factory.mktemp('data')
    random = np.random.default_rng(0)
    for classes in (3, 10, 20):
        labels = np.arange(6 * classes) % classes
        images = random.integers(0, 256, [len(labels), 16, 16, 3], np.uint8)
        np.savez(data / f'{classes}.npz', x_train=images, y_train=labels, x_test=images, y_test=labels)

    def make():
        path = tmp_path_factory.mktemp('own')
        (path / 'net.py').write_text(NET)
        (path / 'helper.py').write_text(HELPER)
        np.save(path / 'scale.npy', np.float32(1))
        return Folder(path, data)
    return make


@pytest.fixture(scope='module')
def used(folders):
    """A Folder whose files this process has already used."""
    folder = folders()
    folder.train(augmentation='own')
    return folder


@pytest.mark.parametrize('environment, scale, changes', [
    (dict(WIDTH='6', GAIN='3', FACTOR='3'), 2, {}),
    *(pytest.param(*case, marks=pytest.mark.stress) for case in (
        ({}, 1, dict(classes=20, augmentation='own')), ({}, 1, dict(freeze='hidden')), (dict(CHANNELS='2'), 1, {}),
        (dict(POWER='2'), 1, {})))])
def test_a_run_has_the_results_of_its_own_process(used, folders, monkeypatch, environment, scale, changes):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    alone = folders()
    for folder in (used, alone):
        np.save(folder.path / 'scale.npy', np.float32(scale))
    assert_same_bits(last_variables(used.train(**changes)), last_variables(alone.train(**changes)))


@pytest.mark.stress
def test_an_evaluation_does_not_depend_on_earlier_runs(folders):
    used, alone = folders(), folders()
    train_dir = alone.train(classes=3)
    used.train(classes=3, freeze='hidden')
    assert used.evaluate(train_dir) == folders().evaluate(train_dir)


def test_an_evaluation_during_a_training_does_not_affect_it(folders):
    used, alone = folders(), folders()
    of_3, of_20 = alone.train(classes=3), alone.train(classes=20)
    alone_on_3 = folders().evaluate(of_3)
    found = []

    def on_record(record):
        if record['kind'] == 'train' and record['step'] == 1:
            found.append(used.evaluate(of_3))
    assert_same_bits(last_variables(used.train(classes=20, on_record=on_record, log_frequency=1, eval_steps=1)),
                     last_variables(of_20))
    assert found == [alone_on_3]
