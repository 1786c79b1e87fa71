"""Evaluation against an independent computation with stock TensorFlow and NumPy."""
import json
import os
import re
import shutil
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base import locks
from cifar10.base.errors import RunError, TemporaryError, UsageError
from cifar10.data import datasets
from cifar10.evaluation import of_checkpoints
from cifar10.run import metrics
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.helpers import (
    checkpoints,
    last_variables,
    patient,
    read_until,
    rewrite,
    scalars,
    start_script,
    variables,
)

LINE = re.compile(r'^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: '
                  r'precision @ 1 = (0\.\d{3}|1\.000) \((\d+) of (\d+)\), step (\d+)$', re.M)


@pytest.fixture
def evaluate(trained, tmp_path, capsys):
    """A function that evaluates once and returns the printed (precision, correct, total, step)."""
    def call(**changes):
        config = dict(checkpoint_dir=trained, eval_dir=str(tmp_path / 'eval'), run_once=True, tower_device='cpu',
                      num_examples=200)
        capsys.readouterr()
        of_checkpoints.evaluate(eval_settings(**dict(config, **changes)))
        (precision, *counts), = LINE.findall(capsys.readouterr().out)
        return [float(precision)] + [int(count) for count in counts]
    return call


def independent_result(arrays, files, count, suffix=''):
    """Computes (correct, mean cross entropy) with stock operations, from arrays and files alone."""
    rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in files])[:count]
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)[:, 4:28, 4:28].astype(np.float32)

    def value(name):
        return tf.constant(arrays[name + suffix])

    def normalise(x):
        return tf.nn.lrn(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.placeholder(tf.float32, [None, 24, 24, 3])
        x = tf.map_fn(tf.image.per_image_standardization, batch)
        x = tf.nn.relu(tf.nn.conv2d(x, value('conv1/weights'), 1, 'SAME') + value('conv1/biases'))
        x = normalise(tf.nn.max_pool2d(x, 3, 2, 'SAME'))
        x = tf.nn.relu(tf.nn.conv2d(x, value('conv2/weights'), 1, 'SAME') + value('conv2/biases'))
        x = tf.reshape(tf.nn.max_pool2d(normalise(x), 3, 2, 'SAME'), [-1, 2304])
        x = tf.nn.relu(x @ value('local3/weights') + value('local3/biases'))
        x = tf.nn.relu(x @ value('local4/weights') + value('local4/biases'))
        x = x @ value('softmax_linear/weights') + value('softmax_linear/biases')
        logits = np.concatenate([session.run(x, {batch: images[i:i + 500]}) for i in range(0, len(images), 500)])
    logits = logits.astype(np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), rows[:, 0]]
    return int((logits.argmax(1) == rows[:, 0]).sum()), losses.mean()


def test_each_example_counts_once(evaluate, first_step, data_dir, tmp_path):
    data, trained = datasets.prepare('shapes', data_dir, datasets.TEST), first_step('classic')
    arrays = last_variables(trained)
    count = 200
    correct, loss = independent_result(arrays, data.files, count, '/ExponentialMovingAverage')
    precision, printed, total, step = evaluate(checkpoint_dir=trained, batch_size=66, num_examples=count)
    assert (total, step) == (count, 1) and abs(printed - correct) <= 1
    assert abs(precision - correct / count) < 0.002
    (label, accuracy), = scalars(tmp_path, 'accuracy', of='eval')
    assert label == 1 and abs(precision - printed / count) < 1e-6
    (_, value), = scalars(tmp_path, 'cross_entropy', of='eval')
    np.testing.assert_allclose(value, loss, rtol=1e-4)


@pytest.mark.stress
def test_plain_variables_and_a_subset_of_the_training_images_can_be_evaluated(evaluate, first_step, data_dir):
    data, trained = datasets.prepare('shapes', data_dir), first_step('classic')
    correct, _ = independent_result(last_variables(trained), data.files, 250)
    _, printed, total, _ = evaluate(checkpoint_dir=trained, use_ema=False, eval_data='train_eval', num_examples=250)
    assert total == 250 and abs(printed - correct) <= 1


def test_data_that_do_not_fit_the_run_are_refused(evaluate):
    with pytest.raises(UsageError, match='--num_examples=2001, but there are 200 test images'):
        evaluate(num_examples=2001)
    with pytest.raises(UsageError, match='--dataset=cifar10 has classes that the run does not have: airplane, '):
        evaluate(dataset='cifar10')


def test_the_tutorials_checkpoint_reaches_its_measured_accuracy(evaluate, classic_checkpoint_dir, real_data_dir):
    _, correct, total, _ = evaluate(checkpoint_dir=classic_checkpoint_dir, data_dir=real_data_dir, num_examples=None)
    assert total == 5000 and abs(correct - 3896) <= 3  # counted by another program


def test_a_run_without_a_checkpoint_yet_raises_a_temporary_error(evaluate, trained, tmp_path):
    begun = tmp_path / 'begun'
    shutil.copytree(trained, begun, ignore=shutil.ignore_patterns('model.ckpt*', 'checkpoint'))
    with pytest.raises(TemporaryError, match='no checkpoint in .*; the run there has saved none yet'):
        evaluate(checkpoint_dir=str(begun))


def test_an_unreadable_checkpoint_is_skipped(evaluate, trained, tmp_path, data_dir):
    shutil.copytree(trained, tmp_path / 'copy')
    os.truncate(tmp_path / 'copy' / 'model.ckpt-12.data-00000-of-00001', 100)
    assert evaluate(checkpoint_dir=str(tmp_path / 'copy'))[3] == 11
    os.truncate(tmp_path / 'copy' / 'model.ckpt-11.data-00000-of-00001', 100)
    with pytest.raises(RunError, match='can be read'):
        evaluate(checkpoint_dir=str(tmp_path / 'copy'))


def test_concurrent_evaluations_in_one_eval_dir_wait_for_each_other(evaluate, trained, tmp_path, capsys):
    (tmp_path / 'eval').mkdir()
    given = eval_settings(checkpoint_dir=trained, eval_dir=str(tmp_path / 'eval'), run_once=True, num_examples=50,
                          tower_device='cpu')
    with locks.locked(str(tmp_path / 'eval' / 'lock')):
        thread = threading.Thread(target=of_checkpoints.evaluate, args=[given])
        thread.start()
        output = ''
        while 'waiting    for another evaluation in' not in output:
            time.sleep(0.05)
            output += capsys.readouterr().out
        assert not metrics.read(str(tmp_path / 'eval'), metrics.EVAL)
    thread.join()
    record, = metrics.read(str(tmp_path / 'eval'), metrics.EVAL)
    assert record['examples'] == 50


def test_a_checkpoint_without_averages_is_refused_with_the_flag_to_use(evaluate, trained, tmp_path):
    (tmp_path / 'plain').mkdir()
    prefix = checkpoints(trained)[-1]
    averages = [name for name in variables(prefix) if 'Average' in name]
    rewrite(prefix, to=str(tmp_path / 'plain' / 'model.ckpt-12'), without=averages)
    shutil.copy(os.path.join(trained, 'config.json'), tmp_path / 'plain')
    with pytest.raises(UsageError, match='--use_ema=false'):
        evaluate(checkpoint_dir=str(tmp_path / 'plain'))
    assert evaluate(checkpoint_dir=str(tmp_path / 'plain'), use_ema=False)[2] == 200
    rewrite(prefix, to=str(tmp_path / 'plain' / 'model.ckpt-13'), without=averages + ['linear/biases'])
    with pytest.raises(UsageError, match='has no linear/biases; it belongs to another network'):
        evaluate(checkpoint_dir=str(tmp_path / 'plain'), use_ema=False)


def test_the_runs_own_folder_is_refused_as_eval_dir(evaluate, trained):
    with pytest.raises(UsageError, match='--eval_dir=.* is --checkpoint_dir'):
        evaluate(eval_dir=trained + '/../' + os.path.basename(trained))
    with pytest.raises(UsageError, match=f'--eval_dir={trained} is {trained}; use'):  # without an unset flag
        of_checkpoints.evaluate(eval_settings(checkpoint=checkpoints(trained)[0], eval_dir=trained, tower_device='cpu'))


def test_watching_waits_for_the_first_checkpoint_and_evaluates_each_once(trained, tmp_path):
    # In its own process. The trainer's files appear one by one, behind a corrupt checkpoint.
    watched = tmp_path / 'watched'
    watched.mkdir()
    process = start_script('cifar10_eval.py', checkpoint_dir=watched, eval_dir=tmp_path / 'eval', eval_interval_secs=1,
                           num_examples=50)
    try:
        read_until(process, 'waiting    for the first checkpoint')
        shutil.copy(os.path.join(trained, 'config.json'), watched)
        shutil.copy(os.path.join(trained, 'model.ckpt-12.index'), watched / 'model.ckpt-13.index')
        for step in (11, 12):
            for suffix in ('.data-00000-of-00001', '.index'):
                shutil.copy(os.path.join(trained, f'model.ckpt-{step}{suffix}'), watched)
            assert f'step {step}' in read_until(process, 'precision @ 1')
            read_until(process, f'waiting    for a checkpoint after step {step}; checks every 1 s')
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=patient(30))[0]
        assert process.returncode == 0 and 'precision' not in rest and rest.strip() == 'stopped'
    finally:
        process.kill()


def test_errors_name_the_given_flag(trained, tmp_path):
    prefix = checkpoints(trained)[-1]
    for flag, other in (('train_dir', 'checkpoint_dir'), ('checkpoint_dir', 'train_dir')):
        for folder, part in ((str(tmp_path), 'no checkpoint in {given};'),
                             (str(tmp_path / 'misspelt'), '{given} does not exist; give the train_dir of a run'),
                             (prefix, '{given} is a checkpoint; give the .*, or --checkpoint for it alone$')):
            with pytest.raises(UsageError, match=part.format(given=f'--{flag}={folder}')) as refused:
                of_checkpoints.evaluate(eval_settings(run_once=True, **{flag: folder}))
            assert f'--{other}' not in str(refused.value)


@pytest.mark.stress
def test_a_watching_evaluator_ends_when_another_run_replaces_its_run(data_dir, tmp_path):
    def begin(**flags):
        trainer.train(train_settings(**dict(dict(
            data_dir=data_dir, dataset='shapes', train_dir=str(tmp_path / 'train'), batch_size=8, max_steps=2,
            tower_device='cpu', restart=True), **flags)))
    begin()
    first = json.loads((tmp_path / 'train' / 'config.json').read_text())['run']
    process = start_script('cifar10_eval.py', checkpoint_dir=tmp_path / 'train', eval_dir=tmp_path / 'eval',
                           eval_interval_secs=1)
    try:
        read_until(process, 'precision @ 1')
        with tf.Graph().as_default():  # another network, with the same steps in its checkpoints' names
            begin(network='linear')
        read_until(process, f"error: the run in {tmp_path / 'train'} was replaced or removed; start again")
        assert process.wait(timeout=patient(30)) == TemporaryError.status
    finally:
        process.kill()
    assert [record['run'] for record in metrics.read(str(tmp_path / 'eval'), metrics.EVAL)] == [first]


# ---------------------------------------------------------------------------------------------------- --checkpoint

def test_a_single_checkpoint_is_evaluated_once(trained, tmp_path):
    of_checkpoints.evaluate(eval_settings(checkpoint=checkpoints(trained)[0] + '.index', eval_dir=str(tmp_path),
                                          tower_device='cpu', num_examples=50))
    assert [record['step'] for record in metrics.read(str(tmp_path), metrics.EVAL)] == [11]


def test_a_checkpoint_is_found_by_its_name_in_train_dir(trained):
    older, newest = checkpoints(trained)
    given = eval_settings(train_dir=trained, checkpoint=os.path.basename(older))
    assert (given.checkpoint, given.checkpoint_dir, given.run_once) == (older, trained, True)
    with pytest.raises(UsageError, match=f'^--checkpoint={trained}/bset: there is no such checkpoint; .*{newest}$'):
        of_checkpoints.evaluate(eval_settings(train_dir=trained, checkpoint='bset', tower_device='cpu'))


def test_conflicts_with_a_single_checkpoint_are_refused_in_one_line(trained, tmp_path):
    older, newest = checkpoints(trained)
    for flags, part in ((dict(checkpoint_dir=trained), 'each select a model; give one of them'),
                        (dict(train_dir=trained), 'each select a model; give one of them')):
        with pytest.raises(UsageError, match=part):
            eval_settings(checkpoint=older, **flags)
    shutil.copy(newest + '.index', tmp_path / 'broken.index')
    for given, part in ((trained, f'there is no such checkpoint; give the prefix of one, such as {newest}$'),
                        (older + '0', 'there is no such checkpoint'), (str(tmp_path / 'broken'), 'cannot be read')):
        with pytest.raises(UsageError, match=part) as refused:
            of_checkpoints.evaluate(
                eval_settings(checkpoint=given, eval_dir=str(tmp_path / 'eval'), tower_device='cpu'))
        assert '\n' not in str(refused.value) and not os.path.exists(tmp_path / 'eval')
