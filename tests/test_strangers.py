"""Files that other users of a machine may have put into a directory beforehand are not trusted."""
import os
import shutil
import stat

import pytest

from cifar10.base import directories
from cifar10.base.directories import refuse_of_others
from cifar10.base.errors import UsageError
from cifar10.evaluation import evaluation
from cifar10.run import trust
from cifar10.run.folder import look
from cifar10.settings.evaluation import eval_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from examples import fashion_mnist
from tests.helpers import LINEAR, change_record, small_disk, tf

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
def own(request, settings, tmp_path):
    """(a function that evaluates a run of a user's own network, the file of the network, the train_dir)."""
    file = tmp_path / 'code' / 'net.py'
    file.parent.mkdir()
    file.write_text(NETWORK)
    trained = settings(network=f'{file}:linear', max_steps=1)
    trainer.train(trained)
    # A copy, because a process does not import a file twice.
    moved = tmp_path / 'theirs'
    shutil.copytree(file.parent, moved)
    os.remove(moved / 'net.py.has-run')
    name = f"{moved / 'net.py'}:linear"
    change_record(trained.run.train_dir, network=name)
    if not hasattr(request, 'param'):
        trust.remember(look(trained.run.train_dir).run.run, name)

    def evaluate(**flags):
        with tf.Graph().as_default():
            evaluation.evaluate(eval_settings(checkpoint_dir=trained.run.train_dir, eval_dir=str(tmp_path / 'eval'),
                                           run_once=True, tower_device='cpu', num_examples=10, **flags))
    return evaluate, moved / 'net.py', trained.run.train_dir


@pytest.mark.stress
@only_root
def test_a_stored_network_that_others_can_write_is_run_only_if_the_user_names_it(own):
    evaluate, file, _ = own
    for path in (file, file.parent):
        os.chown(path, SOMEBODY, -1)
        with pytest.raises(UsageError, match=f'{file}: {path} belongs to user {SOMEBODY}'):
            evaluate()
        os.chown(path, os.geteuid(), -1)
    # From the folder it may import other files, also from one such as /tmp, where others can add them.
    for path, mode in ((file, 0o644), (file.parent, 0o755), (file.parent, 0o1755)):
        os.chmod(path, mode | 0o022)
        with pytest.raises(UsageError, match=f'{file}: {path} is writable for everybody'):
            evaluate()
        os.chmod(path, mode)
    assert not os.path.exists(f'{file}.has-run')
    evaluate(network=f'{file}:linear')
    assert os.path.exists(f'{file}.has-run')
    os.chmod(file, 0o664)  # as the group wishes
    evaluate()


@pytest.mark.parametrize('own', ['not named'], indirect=True)
def test_code_that_came_with_a_run_is_run_once_the_user_has_named_it(own, monkeypatch, tmp_path, capsys):
    evaluate, file, _ = own
    refused = pytest.raises(UsageError, match=f'{file}, .* not named it for this run so far; give --network={file}:lin')
    with refused:
        evaluate()
    assert not os.path.exists(f'{file}.has-run')
    evaluate(network=f'{file}:linear')
    assert os.path.exists(f'{file}.has-run')
    capsys.readouterr()
    evaluate()
    assert f'code       {file} is executed' in capsys.readouterr().out
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'of another user'))
    with refused:
        evaluate()
    monkeypatch.setenv('XDG_STATE_HOME', '/proc/nowhere')  # where nothing can be noted
    evaluate(network=f'{file}:linear')
    with refused:
        evaluate()


def test_the_user_who_trained_a_run_has_named_its_code(settings, first_step, tmp_path, capsys):
    evaluation.evaluate(eval_settings(checkpoint_dir=first_step(LINEAR), eval_dir=str(tmp_path / 'eval'), run_once=True,
                                   tower_device='cpu', num_examples=10))
    file = LINEAR.rpartition(':')[0]
    assert f'code       {file} is executed' in capsys.readouterr().out
    assert stat.S_IMODE(os.stat(os.path.join(os.environ['XDG_STATE_HOME'], 'cifar10')).st_mode) & 0o077 == 0


@pytest.fixture(params=['of somebody else', 'below one of somebody else', 'a link of somebody else', 'open to all'])
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
        return str(directory), f'{directory} is writable for everybody'
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
        assert status == 2 and (why in error or '--check' in flags), (flags, error)
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
    evaluation.evaluate(eval_settings(
        checkpoint_dir=path, eval_dir=str(tmp_path / 'eval'), data_dir=path, run_once=True, tower_device='cpu',
        num_examples=10, network=LINEAR))
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


@pytest.mark.parametrize('name', ['lock', 'config.json', 'metrics.jsonl'])
@pytest.mark.parametrize('kind', ['link', 'pipe'])
def test_only_regular_files_are_opened(settings, one_step, tmp_path, capsys, name, kind):
    """A link may lead to any file of the user's, and opening a pipe waits for its other end."""
    path = os.path.join(settings().run.train_dir, name)
    victim = tmp_path / 'victim'
    victim.write_bytes(open(path, 'rb').read() if name != 'lock' else b'')
    before = victim.read_bytes()
    if os.path.exists(path):
        os.remove(path)
    os.symlink(victim, path) if kind == 'link' else os.mkfifo(path)
    with pytest.raises(UsageError, match=f'{path} is a link, or no regular file'):
        trainer.train(settings(max_steps=3))
    with pytest.raises(UsageError, match='the run cannot start'):
        check(settings(max_steps=3))
    assert f'problem    {path} is a link, or no regular file' in capsys.readouterr().out
    assert victim.read_bytes() == before
