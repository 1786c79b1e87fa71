"""Files that other users of a machine may have put into a directory beforehand are not trusted."""
import grp
import os
import re
import shutil

import pytest

from cifar10.base import directories
from cifar10.base.directories import refuse_of_others
from cifar10.base.errors import UsageError
from cifar10.run import trust
from cifar10.tools.check import check
from cifar10.training import trainer
from examples import fashion_mnist
from tests.helpers import LINEAR, change_record, evaluated, mostly_stress, small_disk, tf

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
def code(tmp_path):
    """A file with a network, in a folder that nobody else can write."""
    file = tmp_path / 'above' / 'code' / 'net.py'
    file.parent.mkdir(0o755, parents=True)
    file.write_text(NETWORK)
    return file


@pytest.fixture
def evaluates(settings, tmp_path):
    """A function that evaluates a run which names a file as its network, with what else is given."""
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


@pytest.mark.stress  # what is refused, by default: below
def test_code_that_a_run_names_is_executed_if_nobody_else_can_write_it(evaluates, code, capsys):
    code.chmod(0o600)
    evaluates(code)
    assert os.path.exists(f'{code}.has-run') and f'code       {code} is executed' in capsys.readouterr().out


def test_code_that_others_can_change_is_executed_if_the_user_names_it(evaluates, code):
    code.parent.chmod(0o1777)
    message = f'names the Python file {code}, .* is writable by everybody; give --network={code}:linear if you trust'
    with pytest.raises(UsageError, match=message):
        evaluates(code)
    assert not os.path.exists(f'{code}.has-run')
    evaluates(code, network=f'{code}:linear')
    assert os.path.exists(f'{code}.has-run')


def refusal(file):
    """Returns why a file that a run names is not executed; None if it is."""
    try:
        trust.check('network', f'{file}:linear', 'the train_dir')
    except UsageError as refused:
        return re.search(f'{file}, .*code: (.*); give --network={file}:linear', str(refused))[1]


@only_root
def test_a_file_or_folder_of_another_user_is_refused_and_one_of_root_is_not(code):
    for path in (code, code.parent, code.parent.parent):
        os.chown(path, SOMEBODY, -1)
        assert refusal(code) == f'{path} belongs to user {SOMEBODY}'
        os.chown(path, 0, -1)
        assert refusal(code) is None


@pytest.mark.parametrize('mode', [0o002, 0o1002])
def test_what_everybody_may_write_is_refused_but_for_a_sticky_folder_further_above(code, mode):
    for path in (code, code.parent, code.parent.parent):
        before = path.stat().st_mode
        path.chmod(before | mode)
        is_allowed = path == code.parent.parent and mode & 0o1000
        assert refusal(code) == (None if is_allowed else f'{path} is writable by everybody')
        path.chmod(before)
        assert refusal(code) is None


@only_root
def test_only_the_private_group_of_the_owner_may_write(code):
    shared = next(group.gr_gid for group in grp.getgrall() if group.gr_name != 'root')
    for path in (code, code.parent):
        path.chmod(path.stat().st_mode | 0o020)
        assert refusal(code) is None  # the group root of root
        os.chown(path, -1, shared)
        assert refusal(code) == f'{path} is writable by its group'
        os.chown(path, -1, 0)


@only_root
def test_both_a_link_and_where_it_leads_must_be_the_users(code):
    real = code.parent / 'real.py'
    code.rename(real)
    code.symlink_to(real)
    assert refusal(code) is None
    os.lchown(code, SOMEBODY, -1)
    assert refusal(code) == f'{code} belongs to user {SOMEBODY}'
    os.lchown(code, 0, -1)
    os.chown(real, SOMEBODY, -1)
    assert refusal(code) == f'{real} belongs to user {SOMEBODY}'
    os.chown(real, 0, -1)
    (code.parent / 'folder').symlink_to(code.parent)
    assert refusal(code.parent / 'folder' / 'net.py') is None
    os.lchown(code.parent / 'folder', SOMEBODY, -1)
    assert refusal(code.parent / 'folder' / 'net.py') == f"{code.parent / 'folder'} belongs to user {SOMEBODY}"


@pytest.fixture(params=mostly_stress(
    ['of somebody else', 'below one of somebody else', 'a link of somebody else', 'open to all'], 'of somebody else',
    'open to all'))
def of_others(request, tmp_path):
    """(a directory that other users may have made or may change, how a message says why)."""
    if request.param != 'open to all' and os.geteuid():
        pytest.skip('only root may give files to other users')
    shared = tmp_path / 'shared'
    shared.mkdir()
    shared.chmod(0o1777)
    directory = shared / 'theirs'
    if request.param == 'a link of somebody else':
        (tmp_path / 'mine').mkdir()
        os.symlink(tmp_path / 'mine', directory)
    else:
        directory.mkdir()
    if request.param == 'open to all':
        directory.chmod(0o777)
        return str(directory), f'{directory} is writable by everybody'
    os.lchown(directory, SOMEBODY, -1)
    why = f'{directory} belongs to user {SOMEBODY}'
    return str(directory / 'new' if request.param == 'below one of somebody else' else directory), why


def test_a_directory_of_others_is_not_written(of_others, call, data_dir, first_step):
    path, why = of_others
    run = first_step(LINEAR)
    from_run = (f'--checkpoint_dir={run}', '--tower_device=cpu', '--num_examples=10', f'--data_dir={data_dir}')
    for script, *flags in [
            ('multi_gpu_train.py', f'--train_dir={path}'),
            ('multi_gpu_train.py', f'--train_dir={path}', '--check'),
            ('multi_gpu_train.py', f'--data_dir={path}'),
            ('cifar10_eval.py', f'--eval_dir={path}', *from_run)]:
        status, error = call(script, *flags)
        assert status == 2 and why in error, (flags, error)
    assert not os.path.isdir(path) or not os.listdir(path)
    with pytest.raises(UsageError, match=why):
        fashion_mnist.read(path)
    if 'belongs' in why:  # a new file or folder where everybody may make some is this user's
        status, error = call('cifar10_eval.py', f'--export_dir={path}/1', *from_run)
        assert status == 2 and why in error
        with pytest.raises(UsageError, match=why):
            directories.check_plot(os.path.join(path, 'plot.png'))


def test_a_directory_of_others_is_read_with_a_warning(of_others, data_dir, first_step, tmp_path, capsys):
    path, why = of_others
    shutil.copytree(data_dir, path, dirs_exist_ok=True)
    shutil.copytree(first_step(LINEAR), path, dirs_exist_ok=True)
    if 'everybody' in why:
        os.chmod(path, 0o777)
    evaluated(path, tmp_path / 'eval', data_dir=path, num_examples=10, network=LINEAR)
    output = capsys.readouterr().out
    for flag in ('checkpoint_dir', 'data_dir'):
        assert output.count(f'warning: --{flag}={path}: {why}') == 1


def test_only_the_owner_of_a_shared_directory_is_asked_for(tmp_path, capsys):
    """A directory of this user's below one that everybody may write, as all in /tmp, and one that a group may write."""
    (tmp_path / 'shared').mkdir()
    (tmp_path / 'shared').chmod(0o1777)
    (tmp_path / 'shared' / 'run').mkdir(0o770)
    for name in ('run', 'new'):
        refuse_of_others(str(tmp_path / 'shared' / name), name)
    assert not capsys.readouterr().out  # neither refused nor warned of


@only_root
def test_a_volume_that_is_open_to_everybody_is_as_its_owner_wished(tmp_path):
    with small_disk(tmp_path / 'volume', 1) as volume:
        refuse_of_others(str(volume), 'volume')
        volume.chmod(0o777)
        (volume / 'run').mkdir()
        os.chown(volume / 'run', SOMEBODY, -1)  # as on NFS, where root is nobody
        for path in (volume, volume / 'run', volume / 'new'):
            refuse_of_others(str(path), 'path')
        volume.chmod(0o1777)  # as /tmp, where each user is to have files of his own
        with pytest.raises(UsageError, match=f"{volume / 'run'} belongs to user {SOMEBODY}"):
            refuse_of_others(str(volume / 'run'), 'run')


@pytest.mark.parametrize('name, kind', mostly_stress(
    [(name, kind) for name in ('lock', 'config.json', 'metrics.jsonl') for kind in ('link', 'pipe')], ('lock', 'link'),
    ('metrics.jsonl', 'pipe')))
def test_only_regular_files_are_opened(settings, one_step, tmp_path, capsys, name, kind):
    """A link may lead to any file of the user's, and opening a pipe waits for its other end."""
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
