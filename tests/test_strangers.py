"""Files that other users of a machine may have put into a directory beforehand are not trusted."""
import json
import os
import shutil

import pytest

from cifar10 import directories, files, training
from cifar10.data import records
from cifar10.directories import check_dir
from cifar10.errors import UsageError
from cifar10.run.train_dir import TrainDir
from cifar10.settings.evaluation import eval_settings
from cifar10.trained import evaluation
from tests.helpers import tf

SOMEBODY = 12345  # the id of another user

NETWORK = '''
import pathlib
import tensorflow.compat.v1 as tf
pathlib.Path(__file__ + '.has-run').touch()
def linear(images, num_classes, training):
    weights = tf.get_variable('weights', [3, num_classes], initializer=tf.zeros_initializer())
    return tf.cast(tf.reduce_mean(images, [1, 2]), tf.float32) @ weights
'''

only_root = pytest.mark.skipif(os.geteuid() != 0, reason='only root may give files to other users')


@pytest.fixture
def own(settings, tmp_path):
    """(a function that evaluates a run of a user's own network, the file of the network, the train_dir)."""
    file = tmp_path / 'code' / 'net.py'
    file.parent.mkdir()
    file.write_text(NETWORK)
    trained = settings(network=f'{file}:linear', max_steps=1)
    training.train(trained)
    # A copy, because a process does not import a file twice.
    moved = tmp_path / 'theirs'
    shutil.copytree(file.parent, moved)
    os.remove(moved / 'net.py.has-run')
    path = os.path.join(trained.run.train_dir, 'config.json')
    stored = json.loads(open(path).read())
    with open(path, 'w') as stream:
        json.dump(dict(stored, network=f"{moved / 'net.py'}:linear"), stream)

    def evaluate(**flags):
        with tf.Graph().as_default():
            evaluation.evaluate(eval_settings(checkpoint_dir=trained.run.train_dir, eval_dir=str(tmp_path / 'eval'),
                                           run_once=True, tower_device='cpu', num_examples=10, **flags))
    return evaluate, moved / 'net.py', trained.run.train_dir


@pytest.mark.parametrize('what', ['file', 'train_dir', *[
    pytest.param(what, marks=pytest.mark.stress) for what in ('folder', 'config.json')]])
def test_a_stored_network_that_others_can_write_is_run_only_if_the_user_names_it(own, what):
    evaluate, file, train_dir = own
    path = dict(zip(('file', 'folder', 'train_dir', 'config.json'),
                    (file, file.parent, train_dir, os.path.join(train_dir, 'config.json'))))[what]
    os.chmod(path, os.stat(path).st_mode | 0o002)
    with pytest.raises(UsageError, match=f'{path} is writable for everybody; give --network={file}:linear if you tru'):
        evaluate()
    assert not os.path.exists(f'{file}.has-run')
    evaluate(network=f'{file}:linear')
    assert os.path.exists(f'{file}.has-run')


def test_a_stored_network_of_the_user_is_run(own):
    evaluate, file, _ = own
    evaluate()
    assert os.path.exists(f'{file}.has-run')


@only_root
def test_a_stored_network_of_somebody_else_or_another_group_is_not_run(own):
    evaluate, file, _ = own
    os.chown(file, SOMEBODY, -1)
    with pytest.raises(UsageError, match=f'net.py belongs to user {SOMEBODY}'):
        evaluate()
    os.chown(file, 0, SOMEBODY)
    os.chmod(file, 0o664)
    with pytest.raises(UsageError, match=f'net.py is writable for group {SOMEBODY}'):
        evaluate()
    os.chown(file, 0, os.getegid())
    evaluate()


@only_root
@pytest.mark.parametrize('link', [False, True])
def test_default_directories_of_somebody_else_are_refused(settings, monkeypatch, tmp_path, link):
    default, other = str(tmp_path / 'default'), str(tmp_path / 'other')
    os.mkdir(other if link else default)
    if link:
        os.symlink(other, default)
        os.lchown(default, SOMEBODY, -1)
    else:
        os.chown(default, SOMEBODY, -1)
    for name in ('TRAIN_DIR', 'EVAL_DIR', 'DATA_DIR'):
        with monkeypatch.context() as patched:
            patched.setattr(directories, name, default)
            with pytest.raises(UsageError, match=f'{default}, the default, belongs to user {SOMEBODY}; give --'):
                check_dir(default, '--train_dir')
            with pytest.raises(UsageError, match='the default, belongs to user'):
                records.prepare('shapes', default)
    check_dir(default, '--train_dir')  # where it is no default, the user has named it


def test_a_folder_that_nobody_else_can_write_is_trusted(tmp_path):
    assert files.open_to_others(str(tmp_path)) is None and files.foreign_owner(str(tmp_path / 'missing')) is None
    assert TrainDir(str(tmp_path)).stored() is None
