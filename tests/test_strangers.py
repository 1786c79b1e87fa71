"""Code that other users of a machine can write is not executed just because a run names it."""
import grp
import os
import re

import pytest

from cifar10.base.errors import UsageError
from cifar10.run import trust
from cifar10.tools.check import check
from cifar10.training import trainer
from tests.helpers import change_record, evaluated, tf

SOMEBODY = 12345  # another user's id

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
def code(tmp_path):
    """A file with a network, in a folder that only its owner can write."""
    file = tmp_path / 'above' / 'code' / 'net.py'
    file.parent.mkdir(0o755, parents=True)
    file.write_text(NETWORK)
    return file


@pytest.fixture
def evaluates(settings, tmp_path):
    """A function that evaluates a run whose network is a file, with further flags."""
    first = tmp_path / 'first' / 'net.py'
    first.parent.mkdir()
    first.write_text(NETWORK)
    trained = settings(network=f'{first}:linear', max_steps=1)
    trainer.train(trained)

    def evaluate(file, **flags):
        change_record(trained.run.train_dir, network=f'{file}:linear')
        with tf.Graph().as_default():
            evaluated(trained.run.train_dir, tmp_path / 'eval', num_examples=10, **flags)
    return evaluate


@pytest.mark.stress  # refusals are tested by default: below
def test_code_that_a_run_names_is_executed_if_only_the_user_can_write_it(evaluates, code, capsys):
    code.chmod(0o600)
    evaluates(code)
    assert os.path.exists(f'{code}.has-run') and f'code       {code} is executed' in capsys.readouterr().out


def test_code_that_others_can_write_is_executed_if_the_user_names_it(evaluates, code):
    code.parent.chmod(0o1777)
    message = f'names the Python file {code}, .* is writable by everybody; give --network={code}:linear if you trust'
    with pytest.raises(UsageError, match=message):
        evaluates(code)
    assert not os.path.exists(f'{code}.has-run')
    evaluates(code, network=f'{code}:linear')
    assert os.path.exists(f'{code}.has-run')


def refusal(file):
    """Returns the reason for not executing a file that a run names, or None."""
    try:
        trust.check('network', f'{file}:linear', 'the train_dir')
    except UsageError as refused:
        return re.search(f'{file}, .*code: (.*); give --network={file}:linear', str(refused))[1]


@only_root
def test_files_and_folders_of_other_users_are_refused_but_not_roots(code):
    for path in (code, code.parent):
        os.chown(path, SOMEBODY, -1)
        assert refusal(code) == f'{path} belongs to user {SOMEBODY}'
        os.chown(path, 0, -1)
        assert refusal(code) is None


@pytest.mark.parametrize('mode', [0o002, 0o1002])
def test_world_writable_code_is_refused(code, mode):
    for path in (code, code.parent):
        before = path.stat().st_mode
        path.chmod(before | mode)
        assert refusal(code) == f'{path} is writable by everybody'
        path.chmod(before)
        assert refusal(code) is None


@only_root
def test_only_the_owners_private_group_may_have_write_access(code):
    shared = next(group.gr_gid for group in grp.getgrall() if group.gr_name != 'root')
    for path in (code, code.parent):
        path.chmod(path.stat().st_mode | 0o020)
        assert refusal(code) is None  # root's group, root
        os.chown(path, -1, shared)
        assert refusal(code) == f'{path} is writable by its group'
        os.chown(path, -1, 0)


@only_root
def test_a_link_and_its_target_must_both_belong_to_the_user(code):
    real = code.parent / 'real.py'
    code.rename(real)
    code.symlink_to(real)
    assert refusal(code) is None
    os.lchown(code, SOMEBODY, -1)
    assert refusal(code) == f'{code} belongs to user {SOMEBODY}'
    os.lchown(code, 0, -1)
    os.chown(real, SOMEBODY, -1)
    assert refusal(code) == f'{real} belongs to user {SOMEBODY}'


@only_root
def test_a_link_beside_modules_of_another_user_is_refused(code, tmp_path):
    """The target belongs to the user, but Python imports from the folder of the link."""
    (tmp_path / 'theirs').mkdir()
    (tmp_path / 'theirs' / 'net.py').symlink_to(code)
    (tmp_path / 'link').symlink_to(tmp_path / 'theirs')
    os.chown(tmp_path / 'theirs', SOMEBODY, -1)
    for file in (tmp_path / 'theirs' / 'net.py', tmp_path / 'link' / 'net.py'):
        assert refusal(file) == f"{tmp_path / 'theirs'} belongs to user {SOMEBODY}"


@pytest.mark.parametrize('name, kind', [('lock', 'link'), ('config.json', 'link'), ('metrics.jsonl', 'pipe')])
def test_only_regular_files_are_opened(settings, one_step, tmp_path, capsys, name, kind):
    """A link may lead to any of the user's files, and opening a pipe waits for its other end."""
    path = os.path.join(settings().run.train_dir, name)
    victim = tmp_path / 'victim'
    victim.write_bytes(open(path, 'rb').read() if name != 'lock' else b'')
    before = victim.read_bytes()
    if os.path.exists(path):
        os.remove(path)
    os.symlink(victim, path) if kind == 'link' else os.mkfifo(path)
    for start in trainer.train, check:
        with pytest.raises(UsageError, match=f'{path} is a link or not a regular file'):
            start(settings(max_steps=3))
    assert victim.read_bytes() == before
