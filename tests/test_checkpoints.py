"""Checkpoints: written, recorded, rotated, incomplete and corrupt."""
import hashlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base import files, locks
from cifar10.base.errors import RunError, UsageError
from cifar10.evaluation.of_checkpoints import evaluate
from cifar10.run import checkpoints as of_run
from cifar10.run import metrics
from cifar10.run.folder import Folder, best_of, glance, prefix_of, step_of, unfinished_prefix_of
from cifar10.run.takeover import TrainDir
from cifar10.settings.evaluation import eval_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from tests.helpers import ROOT, assert_same_bits, checkpoints, read_until, rewrite, state_of, train


def test_an_unreadable_checkpoint_is_reported_and_the_previous_one_is_used(settings, capsys):
    config = settings(max_steps=4, save_steps=1)
    expected = train(config)
    newest = checkpoints(config.run.train_dir)[-1] + '.data-00000-of-00001'
    os.truncate(newest, 100)
    assert_same_bits(train(config), expected)
    output = capsys.readouterr().out
    assert 'model.ckpt-4 cannot be read' in output and 'resumed at step 3 of 4' in output
    # A single changed byte is detected too.
    with open(newest, 'r+b') as stream:
        stream.seek(1000)
        stream.write(bytes([stream.read(1)[0] ^ 1]))
    assert of_run.corruption(checkpoints(config.run.train_dir)[-1])


@pytest.fixture
def saving(tmp_path):
    """(A function that saves three variables at a step, their initial values by name)."""
    names = ('global_step', 'examples_seen', 'weights')
    values = [np.int64(0), np.int64(7), np.arange(2000, dtype=np.float32).reshape([2, 1000])]
    variables = [tf.get_variable(name, initializer=value) for name, value in zip(names, values)]
    path = str(tmp_path)
    saved = of_run.Checkpoints(TrainDir(path), None, Folder(path), 0, metrics.Log(path))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def save(at, **options):
            variables[0].load(at, session)
            saved.save(session, **options)
        yield save, dict(zip(names, values))


def test_each_checkpoint_has_a_record_with_a_digest_of_its_variables(saving, tmp_path):
    save, values = saving
    expected = []
    for step in (1, 2):
        save(step)
        save(step)  # already saved
        text = b''.join(f'{name} {value.dtype} {list(value.shape)}\n'.encode() + value.tobytes()
                        for name, value in sorted(dict(values, global_step=np.int64(step)).items()))
        expected.append((step, hashlib.sha256(text).hexdigest()))
    found = metrics.read(str(tmp_path), metrics.CHECKPOINT)
    assert [(record['step'], record['sha256']) for record in found] == expected
    assert [of_run.digest(prefix) for prefix in checkpoints(tmp_path)] == [sha256 for _, sha256 in expected]
    assert len({of_run.digest_of({'a': value}) for value in (
        np.zeros(2, np.float32), np.zeros([1, 2], np.float32), np.zeros(2, np.int32), np.float32([0, -0.0]))}) == 4


def test_a_checkpoint_counts_only_once_it_is_verified_and_recorded(saving, tmp_path, monkeypatch):
    save, _ = saving
    save(1)
    write = tf.train.Saver.save

    def corrupt(saver, session, prefix, **options):
        write(saver, session, prefix, **options)
        with open(f'{prefix}.data-00000-of-00001', 'r+b') as stream:
            stream.seek(5000)
            stream.write(b'?')
    with monkeypatch.context() as patch:
        patch.setattr(tf.train.Saver, 'save', corrupt)
        with pytest.raises(RunError, match='step 2: the checkpoint cannot be written .*; the newest .*model.ckpt-1$'):
            save(2)
    before = (tmp_path / metrics.NAME).read_text()
    with monkeypatch.context() as patch:
        patch.setattr(locks, 'opened', lambda path, *flags: os.open('/dev/full', os.O_WRONLY))
        with pytest.raises(RunError, match='step 2: the checkpoint cannot be written .*No space left'):
            save(2)
    assert [step_of(prefix) for prefix in checkpoints(tmp_path)] == [1] and before.count('\n') == 1
    assert not [name for name in os.listdir(tmp_path) if 'ckpt-2' in name]


def test_best_json_is_written_after_its_checkpoint(saving, tmp_path, monkeypatch):
    save, _ = saving
    replace, named = files.replace, []

    def watched(path, text):
        replace(path, text)
        if best := best_of(str(tmp_path)):
            named.append((best['step'], best['step'] in map(step_of, checkpoints(tmp_path))))
    monkeypatch.setattr(files, 'replace', watched)
    save(1, best=dict(step=1, accuracy=0.5))
    save(2)
    save(3, best=dict(step=3, accuracy=0.6))
    assert {*named} == {(1, True), (3, True)}


def test_a_timed_checkpoint_is_removed_after_the_next_one_is_written(saving, tmp_path, monkeypatch):
    save, _ = saving
    remove, removed = of_run.remove, []

    def watched(prefix):
        removed.append((step_of(prefix), [*map(step_of, checkpoints(tmp_path))]))
        remove(prefix)
    monkeypatch.setattr(of_run, 'remove', watched)
    save(1)
    save(2, passing=True)
    save(3, passing=True)
    save(4)
    assert removed == [(2, [1, 2, 3]), (3, [1, 3, 4])]


DATA = 'model.ckpt-7.data-00000-of-00001'


def test_an_incomplete_checkpoint_is_reported_with_its_missing_files(settings, tmp_path, capsys):
    folder = tmp_path / 'part'
    folder.mkdir()
    for name in (DATA, 'checkpoint'):
        (folder / name).touch()
    before = state_of(folder)

    def look(**flags):
        evaluate(eval_settings(checkpoint_dir=str(folder), eval_dir=str(tmp_path / 'eval'), **flags))
    refused = 'holds checkpoint, but no config.json, .*; use another --train_dir'
    missing = 'holds checkpoint, but no whole checkpoint; copy the missing files'
    for call, message in ((lambda: trainer.train(settings(train_dir=str(folder))), refused),
                          (lambda: trainer.train(settings(train_dir=str(folder), restart=True)), refused),
                          (lambda: trainer.train(settings(warm_start=str(folder))), 'there is no such checkpoint'),
                          (lambda: look(run_once=True), missing), (look, missing)):
        with pytest.raises(UsageError, match=message):
            call()
    with pytest.raises(UsageError):
        check(settings(train_dir=str(folder)))
    assert state_of(folder) == before
    with pytest.raises(UsageError, match='no such checkpoint, because .*model.ckpt-7.index is missing; give'):
        trainer.train(settings(warm_start=str(folder / 'model.ckpt-7')))


def test_only_a_checkpoints_own_files_are_removed_with_it(tmp_path):
    ours = ('model.ckpt-5.index', 'model.ckpt-5.meta', 'model.ckpt-5.data-00000-of-00001',
            '.model.ckpt-5.data-00000-of-00001.tempstate123')
    for name in (*ours, 'model.ckpt-5.tar.gz', 'model.ckpt-50.index'):
        (tmp_path / name).write_text('')
    (tmp_path / 'model.ckpt-5.export').mkdir()
    for prefix in (prefix_of(str(tmp_path), 5), unfinished_prefix_of(str(tmp_path), 5)):
        of_run.remove(prefix)
    assert sorted(os.listdir(tmp_path)) == ['model.ckpt-5.export', 'model.ckpt-5.tar.gz', 'model.ckpt-50.index']


@pytest.mark.stress
def test_a_checkpoint_deleted_during_a_read_is_not_reported_as_unreadable(one_step, settings, capsys):
    # Another process writes and removes checkpoints continuously, like a trainer with --max_to_keep=1.
    rotate = (
        'import sys, time; import tensorflow.compat.v1 as tf; from cifar10.base import startup\n'
        'startup.start_tensorflow(); session = tf.Session(); v = tf.get_variable("v", [500000])\n'
        'session.run(v.initializer); saver = tf.train.Saver(max_to_keep=1); print("on", flush=True)\n'
        'while True: saver.save(session, sys.argv[1], int(time.time() * 1e4), write_meta_graph=False)')
    process = subprocess.Popen([sys.executable, '-c', rotate, os.path.join(settings().run.train_dir, 'model.ckpt')],
                               stdout=subprocess.PIPE, text=True, cwd=ROOT)
    read_until(process, 'on')
    prefixes = set()
    try:
        while process.poll() is None and len(prefixes) < 100:
            prefixes.add(of_run.newest(lambda: glance(settings().run.train_dir)).prefix)
    finally:
        process.kill()
        process.communicate()
    assert len(prefixes) == 100
    assert 'cannot be read' not in capsys.readouterr().out


def test_a_checkpoint_without_a_needed_variable_is_refused_and_nothing_is_written(one_step, settings):
    directory = settings().run.train_dir
    rewrite(checkpoints(directory)[-1], without=['linear/weights'])
    before = sorted(os.listdir(directory))
    with pytest.raises(UsageError, match='has no linear/weights: it belongs to another network or optimizer'):
        trainer.train(settings(max_steps=2))
    assert sorted(os.listdir(directory)) == before


def test_a_checkpoint_with_different_shapes_is_refused(one_step, settings):
    # A restore into resource variables does not check shapes, and the first step would never end.
    config = settings()
    rewrite(checkpoints(config.run.train_dir)[-1], **{'linear/weights': np.zeros([3, 8], np.float32)})
    with pytest.raises(UsageError, match=r'has linear/weights of shape \[3, 8\] instead of \[48, 10\]'):
        trainer.train(settings(max_steps=2))


def test_a_run_with_only_unreadable_checkpoints_is_not_restarted(one_step, settings):
    config = settings()
    data = checkpoints(config.run.train_dir)[-1] + '.data-00000-of-00001'
    os.truncate(data, 100)
    with pytest.raises(UsageError, match=r'no checkpoint in .* can be read \(.*\); use another .*, or --restart'):
        trainer.train(settings(max_steps=2))
    assert os.path.getsize(data) == 100


def test_starting_a_finished_run_again_removes_no_checkpoints(settings):
    # The second start omits --max_to_keep=0.
    train(settings(max_steps=4, save_steps=1, max_to_keep=0))
    train(settings(max_steps=4, save_steps=1, max_to_keep=2))
    assert [step_of(prefix) for prefix in checkpoints(settings().run.train_dir)] == [1, 2, 3, 4]


def test_a_finished_run_keeps_its_checkpoint_before_a_later_unreadable_one(settings, capsys):
    flags = dict(max_steps=2, save_steps=1, max_to_keep=1)
    trainer.train(settings(**flags))
    folder = settings().run.train_dir
    for name in os.listdir(folder):
        if name.startswith('model.ckpt-2.'):
            shutil.copy(os.path.join(folder, name), os.path.join(folder, name.replace('-2.', '-9.')))
    os.truncate(os.path.join(folder, 'model.ckpt-9.index'), 5)
    prefix, step, ended_by = trainer.train(settings(**flags))
    assert (step, ended_by) == (2, 'max_steps') and os.path.exists(f'{prefix}.index')


@pytest.mark.parametrize('start', ['nothing', 'a checkpoint'])
def test_a_lost_device_does_not_restart_a_run_from_the_beginning(start, settings):
    directory = TrainDir(settings().run.train_dir)
    os.makedirs(directory.path)
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        checkpoints_of_run = of_run.Checkpoints(directory, None, Folder(directory.path), 1, None)
    checkpoints_of_run.last = '' if start == 'nothing' else os.path.join(directory.path, 'model.ckpt-5')
    if start == 'nothing':
        assert checkpoints_of_run.resume() is None
    else:
        with pytest.raises(RunError, match='cannot be read any more'):
            checkpoints_of_run.resume()
