"""The fixtures of the tests."""
import contextlib
import dataclasses
import functools
import os
import runpy
import shutil
import sys

import pytest

from cifar10.data import datasets
from cifar10.data.shapes import SHAPES
from cifar10.programs import eval, local_cluster, program
from cifar10.programs import train as train_program
from cifar10.settings.training import train_settings
from tests.features import flags_of
from tests.helpers import ROOT, WITH_GPUS, tf, train, trainer  # starts TensorFlow with hidden GPUs


@pytest.fixture(scope='session', autouse=True)
def state_home(tmp_path_factory):
    """A temporary folder for the counts of wrong answers, instead of the user's home."""
    path = str(tmp_path_factory.mktemp('state'))
    for environment in (os.environ, WITH_GPUS):
        environment['XDG_STATE_HOME'] = path


@pytest.fixture(scope='session')
def data_dir(tmp_path_factory):
    """A data_dir with a tenth of the data set `shapes`, because reading all images takes longer."""
    path = tmp_path_factory.mktemp('data')
    dataclasses.replace(SHAPES, counts={datasets.TRAIN: 1000, datasets.TEST: 200}).make(str(path / SHAPES.folder))
    return str(path)


@pytest.fixture(scope='session')
def real_data_dir():
    """A data_dir with real CIFAR-10 images; skips the test if there is none."""
    path = os.environ.get('CIFAR10_DATA_DIR')
    if not path:
        pytest.skip('CIFAR10_DATA_DIR does not name a folder with cifar-10-batches-bin')
    return path


@pytest.fixture
def classic_checkpoint_dir():
    """A folder with a checkpoint of the tutorial's scripts; skips the test if there is none."""
    path = os.environ.get('CLASSIC_CHECKPOINT_DIR')
    if not path:
        pytest.skip('CLASSIC_CHECKPOINT_DIR does not name a folder with a checkpoint of the classic scripts')
    return path


@pytest.fixture
def closed_network(monkeypatch):
    """Sends every download to a proxy port that is closed."""
    for name in ('http_proxy', 'https_proxy'):
        monkeypatch.setenv(name, 'http://127.0.0.1:9')
    monkeypatch.setenv('no_proxy', '')


@pytest.fixture
def free_addresses():
    """A function that returns the given number of free addresses, 'host:port'."""
    with contextlib.ExitStack() as held:
        yield lambda count: held.enter_context(local_cluster.free_addresses(count))


@pytest.fixture(autouse=True)
def graph():
    """Runs each test in its own graph."""
    with tf.Graph().as_default() as graph:
        yield graph


def small(data_dir, folder):
    """Returns the flags of a small, quick run in a folder."""
    return dict(dataset='shapes', data_dir=data_dir, train_dir=str(folder / 'train'), batch_size=8, max_steps=3,
                tower_device='cpu', summary_steps=0)  # summaries cost a quarter of a small run


@pytest.fixture
def settings(request, data_dir, tmp_path):
    """A function that makes the settings of a small, quick run; keyword arguments override the defaults.

    The network is `linear` of linear.py, which halves the time of a run, unless a network or a preset is given or the
    test is marked `classic`.
    """
    linear = {} if request.node.get_closest_marker('classic') else dict(network='linear')

    def make(**changes):
        network = {} if changes.keys() & {'network', 'preset'} else linear
        return train_settings(**{**small(data_dir, tmp_path), **network, **changes})
    return make


@pytest.fixture
def own(tmp_path):
    """A function that writes user code to mine.py and returns FILE.py:FUNCTION."""
    def write(text, function='network'):
        (tmp_path / 'mine.py').write_text(text)
        return f"{tmp_path / 'mine.py'}:{function}"
    return write


@pytest.fixture
def train_with(data_dir, tmp_path):
    """A function that trains in a folder with a feature and returns the last variables; arguments as in `flags_of`."""
    def run(name, feature, mode='parameter_server', **changes):
        with tf.Graph().as_default():
            return train(train_settings(**flags_of(
                feature, mode, dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path / name), **changes)))
    return run


@pytest.fixture(scope='session')
def first_step(tmp_path_factory, data_dir):
    """A function that returns the train_dir of a one-step run of a network."""
    @functools.cache
    def of(network):
        flags = dict(small(data_dir, tmp_path_factory.mktemp('first_step')), network=network, max_steps=1)
        with tf.Graph().as_default():
            trainer.train(train_settings(**flags))
        return flags['train_dir']
    return of


@pytest.fixture(scope='session')
def trained(data_dir, tmp_path_factory):
    """The train_dir of a run of 12 steps, with checkpoints of steps 11 and 12."""
    flags = dict(small(data_dir, tmp_path_factory.mktemp('trained')), network='linear', max_steps=12, save_steps=11)
    with tf.Graph().as_default():
        trainer.train(train_settings(**flags))
    return flags['train_dir']


@pytest.fixture
def one_step(first_step, settings):
    """Copies a one-step run into the train_dir of `settings`."""
    shutil.copytree(first_step(settings().recipe.network), settings().run.train_dir)


@pytest.fixture
def call(monkeypatch, capsys, data_dir, tmp_path):
    """A function that runs a script's `main` in this process; returns (status, text).

    The text is the content of standard error.
    """
    def run(script, *arguments):
        in_epochs = any(argument.startswith(('--epochs', '--preset', '--schedule')) for argument in arguments)
        defaults = {'multi_gpu_train.py': ['--dataset=shapes', '--data_dir=' + data_dir,
                                           f"--train_dir={tmp_path / 'train'}", '--summary_steps=0',
                                            *['--max_steps=1'] * (not in_epochs)],
                    'cifar10_eval.py': [f"--eval_dir={tmp_path / 'eval'}", '--run_once',
                                        f'--checkpoint_dir={tmp_path}']}[script]
        monkeypatch.setattr(sys, 'argv', [script] + defaults + list(arguments))
        monkeypatch.setattr(sys.stdout, 'reconfigure', lambda **options: None, raising=False)
        with tf.Graph().as_default():
            status = program.run((train_program if script == 'multi_gpu_train.py' else eval).main)
        return status, capsys.readouterr().err
    return run


@pytest.fixture
def output_of(call_lesson):
    """A function that runs a script of lessons/, asserts that it succeeds silently, and returns its output."""
    def run(script, *arguments):
        status, output, error = call_lesson(script, *arguments)
        assert (status, error) == (0, '')
        return output
    return run


@pytest.fixture
def call_lesson(monkeypatch, capsys):
    """A function that runs a script of lessons/ in this process; returns (status, standard output, error)."""
    def run(script, *arguments):
        monkeypatch.setattr(sys, 'argv', [script, *arguments])
        monkeypatch.setattr(sys.stdout, 'reconfigure', lambda **options: None, raising=False)
        with tf.Graph().as_default(), pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / 'lessons' / script), run_name='__main__')
        return end.value.code, *capsys.readouterr()
    return run
