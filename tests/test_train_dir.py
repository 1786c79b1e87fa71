"""A train_dir: runs resumed, refused, replaced and restarted; its lock and files of other programs."""
import contextlib
import errno
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cifar10
from cifar10.base import console, files, locks
from cifar10.base.errors import RunError, TemporaryError, UsageError, describe_os_error
from cifar10.data import datasets
from cifar10.run import metrics
from cifar10.run.folder import look, step_of
from cifar10.run.takeover import TrainDir
from cifar10.tools.check import check
from cifar10.training import trainer
from tests.crashes import read_tree
from tests.helpers import (
    ROOT,
    as_given,
    assert_same_bits,
    checkpoints,
    last_variables,
    mostly_stress,
    small_disk,
    state_of,
    train,
)


@pytest.mark.parametrize('write', [lambda path, other: files.replace(path, 'x' * 2 ** 21),
                                   lambda path, other: shutil.copyfile(other, path)], ids=['replaced', 'copied'])
def test_a_file_that_does_not_fit_on_the_disk_is_named(write, tmp_path):
    other = tmp_path / 'file'
    other.write_bytes(bytes(2 ** 21))
    with small_disk(tmp_path / 'disk', 1) as disk, pytest.raises(OSError) as raised:
        write(f'{disk}/config.json', other)
    assert describe_os_error(raised.value).startswith(f'{disk}/config.json: No space left on device')


def test_a_refused_start_changes_nothing(one_step, settings, data_dir, tmp_path):
    """The test images are corrupt, although this start does not evaluate."""
    data = shutil.copytree(data_dir, tmp_path / 'data')
    folder = settings().run.train_dir
    os.truncate(data / 'shapes-bin' / 'test_batch.bin', 5000)
    before = state_of(folder)
    flags = dict(data_dir=str(data), restart=True, max_steps=3)
    for start in (check, trainer.train):
        with pytest.raises(UsageError, match='test_batch.bin has 5000 bytes'):
            start(settings(**flags))
    assert {name: state_of(folder)[name] for name in before if name != 'lock'} == {
        name: state for name, state in before.items() if name != 'lock'}


def test_restart_renames_the_folder_with_its_contents_and_prints_the_new_name(one_step, settings, tmp_path, capsys):
    folder, link = settings().run.train_dir, str(tmp_path / 'link')
    os.symlink(folder, link)
    os.mkdir(f'{folder}.1')  # an earlier one
    for name in ('notes.txt', 'events.out.tfevents.1.mine', 'model.h5', 'lock'):
        open(os.path.join(folder, name), 'a').close()
    before, checkpoint = read_tree(folder), last_variables(folder)
    check(settings(max_steps=1, seed=9, train_dir=link, restart=True))
    assert 'would be renamed' in capsys.readouterr().out and read_tree(folder) == before
    trainer.train(settings(max_steps=1, seed=9, train_dir=link, restart=True, warm_start=folder))
    assert f'restart    the earlier run is now in {folder}.2\n' in capsys.readouterr().out
    assert read_tree(f'{folder}.2') == before and look(folder).record.settings.flat()['seed'] == 9
    assert look(folder).record.settings.run.warm_start == f'{folder}/model.ckpt-1'
    assert_same_bits(train(settings(max_steps=1, train_dir=f'{folder}.2')), checkpoint)


def test_a_folder_that_cannot_be_renamed_is_refused_before_any_change(one_step, settings, tmp_path, monkeypatch):
    folder = settings().run.train_dir
    pathlib.Path(folder, 'net.py').write_text('def f(images, num_classes, training): return images')
    before = state_of(folder)

    def refused(why, **changes):
        for start in (trainer.train, check):
            with pytest.raises(UsageError) as raised:
                start(settings(restart=True, **changes))
            assert start is check or f'--restart would rename {folder}, but {why}' in str(raised.value)
        assert {name: state for name, state in state_of(folder).items() if name != 'lock'} == {
            name: state for name, state in before.items() if name != 'lock'}
        assert os.listdir(tmp_path) == ['train']
    refused(f'this command uses {folder}/data', data_dir=f'{folder}/data')
    refused(f'this command uses {folder}/net.py', network=f'{folder}/net.py:f')
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        refused(f'this command uses {folder}')
    with small_disk(tmp_path / 'disk', 8) as disk:
        shutil.copytree(folder, disk, dirs_exist_ok=True)
        with pytest.raises(UsageError, match='is a mount point; use another --train_dir'):
            trainer.train(settings(restart=True, train_dir=str(disk)))


def test_after_a_restart_the_name_and_the_old_run_are_free_at_once(one_step, settings):
    directory, folder = TrainDir(settings().run.train_dir), settings().run.train_dir
    with directory.locked():
        aside = directory.set_aside()
        with pytest.raises(TemporaryError, match='another process is training'):
            TrainDir(folder).refuse_another_process()
        TrainDir(aside).refuse_another_process()
        assert [step_of(prefix) for prefix in checkpoints(aside)] == [1] and os.listdir(folder) == ['lock']
        os.rename(folder, folder + '.mine')
        with pytest.raises(RunError, match='no longer the folder'):
            directory.set_aside()


def test_a_restart_reports_another_process_that_took_the_folders_name(tmp_path, monkeypatch):
    directory = TrainDir(str(tmp_path / 'train'))

    def sync(path):  # a faster process acts between the renaming and the new lock
        os.mkdir(directory.path)
        others.enter_context(locks.locked(os.path.join(directory.path, 'lock')))
    with contextlib.ExitStack() as others, pytest.raises(TemporaryError, match='another process is training'):
        with directory.locked():
            monkeypatch.setattr(files, 'sync', sync)
            directory.set_aside()
    assert sorted(os.listdir(tmp_path)) == ['train', 'train.1']


def test_a_new_run_replaces_a_run_without_a_checkpoint(settings):
    folder = settings().run.train_dir
    path = os.path.join(folder, 'config.json')
    with pytest.raises(RunError, match='try a lower learning rate'):
        trainer.train(settings(learning_rate=1e38, max_steps=9, summary_steps=1, log_frequency=1))
    failed = json.loads(pathlib.Path(path).read_text())
    train(settings(max_steps=2, seed=5, summary_steps=1, log_frequency=1))
    stored = json.loads(pathlib.Path(path).read_text())
    assert (failed['settings']['seed'], stored['settings']['seed']) == (0, 5) and failed['run'] != stored['run']
    shown = EventAccumulator(folder + '/train').Reload().Scalars('loss')
    assert [(point.step, math.isclose(point.value, 2.3, abs_tol=0.2)) for point in shown] == [(1, True), (2, True)]
    assert [record['step'] for record in metrics.read(folder, metrics.TRAIN)] == [1, 2]
    assert [record['settings']['seed'] for record in metrics.read(folder, metrics.START)] == [5]
    with pytest.raises(UsageError, match='a run of --seed=5'):
        trainer.train(settings())


def test_errors_are_reported_before_data_is_fetched_if_possible(one_step, settings, tmp_path):
    (tmp_path / 'file').write_text('')
    for changes, part in ((dict(train_dir=str(tmp_path / 'file')), 'file is not a directory'),
                          (dict(seed=5), 'a run of --seed=0'),
                          (dict(network='missing.py:f', train_dir=str(tmp_path / 'other')), 'there is no file'),
                          (dict(network='classic', num_gpus=3, gpus_per_tower=3, train_dir=str(tmp_path / 'other')),
                           'has 2 parts')):
        with pytest.raises(UsageError, match=part):
            trainer.train(settings(data_dir=str(tmp_path / 'new'), **changes))
    assert sorted(os.listdir(tmp_path)) == ['file', 'train']


def test_a_start_refused_after_locking_leaves_nothing(settings, own, tmp_path):
    network = own('def network(images, num_classes, training): return images')
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(UsageError, match='it returns a tensor'):
        trainer.train(settings(network=network, train_dir=str(tmp_path / 'new' / 'train')))
    assert sorted(os.listdir(tmp_path)) == before
    (tmp_path / 'train').mkdir()  # the user's own folder stays
    with pytest.raises(UsageError, match='it returns a tensor'):
        trainer.train(settings(network=network))
    assert os.listdir(tmp_path / 'train') == []


def test_two_processes_cannot_train_in_one_directory(settings):
    with TrainDir(settings().run.train_dir).locked():
        with pytest.raises(TemporaryError, match='another process is training'):
            trainer.train(settings())
    assert os.path.getsize(os.path.join(settings().run.train_dir, 'lock')) == 0  # no holder, so no name


def test_a_stopped_holder_of_the_lock_is_reported(tmp_path):
    code = ('import os, signal, sys; from cifar10.base import locks\n'
            'with locks.locked(sys.argv[1]):\n'
            '    os.kill(os.getpid(), signal.SIGSTOP)')
    process = subprocess.Popen([sys.executable, '-c', code, str(tmp_path / 'lock')], cwd=ROOT)
    os.waitpid(process.pid, os.WUNTRACED)
    with pytest.raises(TemporaryError, match=f'which is stopped: kill -CONT {process.pid} continues it'):
        TrainDir(str(tmp_path)).refuse_another_process()
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0


def test_the_lock_is_on_a_file_opened_for_writing(settings):
    # NFS shares such a lock between machines; a lock on a directory is local to one machine.
    path = os.path.join(settings().run.train_dir, 'lock')
    with TrainDir(settings().run.train_dir).locked():
        number, = [name for name in os.listdir('/proc/self/fd') if os.path.realpath('/proc/self/fd/' + name) == path]
        flags, = [line.split()[1] for line in open('/proc/self/fdinfo/' + number) if line.startswith('flags')]
        assert os.path.isfile(path) and int(flags, 8) & os.O_ACCMODE == os.O_RDWR


def test_a_file_system_without_locks_gives_a_warning(settings, monkeypatch, capsys):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, 'No locks available')
    monkeypatch.setattr(fcntl, 'flock', refuse)
    with TrainDir(settings().run.train_dir).locked():
        pass
    assert f'warning: {settings().run.train_dir}/lock cannot be locked (No locks available)' in capsys.readouterr().out


@pytest.mark.parametrize('umask', [0o077, 0o022, 0o002])
def test_new_files_and_folders_have_default_modes(tmp_path, umask):
    os.chmod(tmp_path, 0o2775)  # new entries inherit its group
    before = os.umask(umask)
    try:
        os.mkdir(tmp_path / 'plain')
        (tmp_path / 'plain.txt').touch()
        with files.new_folder(str(tmp_path / 'ours')):
            pass
        files.replace(str(tmp_path / 'ours.txt'), '')
    finally:
        os.umask(before)
    for suffix in ('', '.txt'):
        plain, ours = ((tmp_path / (name + suffix)).stat() for name in ('plain', 'ours'))
        assert (ours.st_mode, ours.st_gid) == (plain.st_mode, plain.st_gid)


@pytest.mark.stress
def test_a_program_accepts_its_own_files_under_any_umask(settings, tmp_path):
    given = settings(train_dir=str(tmp_path / 'a' / 'b' / 'run'), max_steps=1, eval_steps=1, keep_best=True)
    path = given.run.train_dir
    flags = as_given(given, data_dir=str(tmp_path / 'data'))
    before = os.umask(0)
    try:
        cifar10.train(**flags)
        cifar10.evaluate(train_dir=path, tower_device='cpu', num_examples=10)
        cifar10.train(**{**flags, 'max_steps': 2})
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_nothing_is_written_to_a_folder_that_replaces_the_runs_folder(settings, tmp_path):
    given = settings(max_steps=40, save_steps=10, log_frequency=1, summary_steps=7, eval_steps=20, keep_best=True)
    path, moved = given.run.train_dir, str(tmp_path / 'moved')

    def move(record):
        if record['step'] == 15 and not os.path.exists(moved):
            os.rename(path, moved)
            os.mkdir(path)
    lost = f'{path} is no longer the folder that this run has lock'
    with console.Output(on_record=move).used(), pytest.raises(RunError, match=lost):
        trainer.train(given)
    assert not os.listdir(path)
    trainer.train(settings(train_dir=moved, max_steps=11))
    assert [step_of(prefix) for prefix in checkpoints(moved)] == [10, 11]


REMOVABLE = 'lock', 'config.json', 'checkpoint', 'metrics.jsonl', 'best.json'


@pytest.mark.parametrize('names', mostly_stress(
    [{'lock', 'config.json'}, {'checkpoint', 'metrics.jsonl', 'best.json'}], {'lock', 'config.json'}))
def test_a_run_continues_after_a_cleaner_removed_some_files(names, settings):
    given = dict(save_steps=2, eval_steps=2, keep_best=True)
    train(settings(**given, max_steps=4, train_dir=settings().run.train_dir + '-whole'))
    train(settings(**given, max_steps=2))
    folder = pathlib.Path(settings().run.train_dir)
    for name in names:
        (folder / name).unlink()
    train(settings(**given, max_steps=4))
    assert_same_bits(last_variables(folder), last_variables(f'{folder}-whole'))
    assert {path.name for path in folder.iterdir()} >= {*REMOVABLE}


def test_a_cleaner_does_not_remove_files_that_a_run_needs(settings):
    """A cleaner removes files that were not used for days; the test then removes some files nevertheless."""
    given = settings(max_steps=6, save_steps=2, eval_steps=2, keep_best=True)
    folder = pathlib.Path(given.run.train_dir)
    data = [pathlib.Path(file) for file in datasets.prepare('shapes', given.data.data_dir).files]
    old, seen = 1e9, []

    def clean(record):
        if record['kind'] != metrics.CHECKPOINT:
            return
        needed = [path for path in [*folder.rglob('*'), *data] if path.is_file()]
        if record['step'] == 2:
            for path in needed:
                os.utime(path, (old, old))
        elif record['step'] == 4:
            seen.extend(path for path in needed if path.stat().st_atime == old)
            assert all(path.stat().st_mtime == old for path in data)
            for name in ('lock', 'config.json'):
                (folder / name).unlink()
        else:
            with pytest.raises(locks.Held):
                locks.refuse_held(str(folder / 'lock'))
            assert json.loads((folder / 'config.json').read_text())['run'] == look(str(folder)).starts[0]['run']
    with console.Output(on_record=clean).used():
        trainer.train(given)
    assert not seen


def test_a_lock_file_that_was_replaced_counts_as_lost(settings):
    given = settings(max_steps=6, save_steps=2)
    path = os.path.join(given.run.train_dir, 'lock')

    def replace(record):
        if record['step'] == 2:
            os.unlink(path)
            open(path, 'x').close()
    with console.Output(on_record=replace).used(), pytest.raises(RunError, match='no longer the folder that this run'):
        trainer.train(given)
