"""What outlives the newest checkpoints: those that are kept for good, and single ones that are evaluated and used."""
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.evaluation import classification, evaluation, export
from cifar10.evaluation.evaluator import Validation
from cifar10.run import metrics
from cifar10.run.best import Best
from cifar10.run.names import step_of
from cifar10.run.train_dir import TrainDir
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from cifar10.training.resumed import settings_of
from tests.helpers import (
    ROOT,
    assert_same_bits,
    checkpoints,
    mostly_stress,
    rewrite,
    tf,
    train,
    variables,
)


@pytest.fixture
def tiny(settings):
    """A function that makes the settings of a run with a network of 40 numbers."""
    return functools.partial(settings, network=f'{ROOT}/tests/networks.py:tiny')


def steps(train_dir):
    """Returns the steps of the checkpoints in a directory."""
    return [step_of(prefix) for prefix in checkpoints(train_dir)]


@pytest.fixture(scope='module')
def run(tmp_path_factory, data_dir):
    """The train_dir of a run of 40 steps with two checkpoints, of which the older one answers 4 throughout."""
    config = train_settings(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path_factory.mktemp('run')),
                            batch_size=4, max_steps=2, save_steps=1, tower_device='cpu')
    with tf.Graph().as_default():
        trainer.train(config)
    older, _ = checkpoints(config.run.train_dir)
    average = '/ExponentialMovingAverage'
    rewrite(older, **{'softmax_linear/weights' + average: np.zeros([192, 10], np.float32),
                      'softmax_linear/biases' + average: 9 * np.eye(10, dtype=np.float32)[4]})
    return config.run.train_dir


@pytest.mark.parametrize('suffix', mostly_stress(['', '.index'], ''))
def test_a_single_checkpoint_is_evaluated_once_and_no_best_is_kept(run, tmp_path, capsys, suffix):
    older = checkpoints(run)[0]
    evaluation.evaluate(eval_settings(checkpoint=older + suffix, eval_dir=str(tmp_path), tower_device='cpu'))
    assert re.search(r'precision @ 1 = .*, step 1$', capsys.readouterr().out, re.M)
    record, = metrics.read(str(tmp_path), metrics.EVAL)
    assert record['step'] == 1 and not os.path.exists(tmp_path / 'best')


@pytest.mark.stress
def test_a_single_checkpoint_classifies_and_is_exported(run, tmp_path, capsys):
    older = checkpoints(run)[0]
    with tf.Session() as session:
        (tmp_path / 'any.png').write_bytes(session.run(tf.io.encode_png(np.zeros([32, 32, 3], np.uint8))))
    shown = []
    classification.classify(eval_settings(checkpoint=older, image=(str(tmp_path / 'any.png'),), tower_device='cpu'),
                            shown.append)
    fourth = json.loads(open(os.path.join(run, 'config.json')).read())['classes'][4]
    assert f'any.png  {fourth} 0.99' in shown[-1]
    export.export(eval_settings(checkpoint=older, export_dir=str(tmp_path / 'model'), tower_device='cpu'))
    assert f'exported   {older}, step 1, to' in capsys.readouterr().out


def test_what_contradicts_a_single_checkpoint_is_refused_in_a_line(run, tmp_path):
    older, newest = checkpoints(run)
    for flags, part in ((dict(checkpoint_dir=run), 'both say what to evaluate; leave one of them out'),
                        (dict(train_dir=run), 'both say what to evaluate; leave one of them out'),
                        (dict(run_once=False), 'are for the checkpoints of a run, but --checkpoint='),
                        (dict(keep_best=True), 'are for the checkpoints of a run, but --checkpoint=')):
        with pytest.raises(UsageError, match=part):
            eval_settings(checkpoint=older, **flags)
    shutil.copy(newest + '.index', tmp_path / 'broken.index')
    for given, part in ((run, f'there is no such checkpoint; give the prefix of one, such as {newest}$'),
                        (older + '0', 'there is no such checkpoint'), (str(tmp_path / 'broken'), 'cannot be read')):
        with pytest.raises(UsageError, match=part) as refused:
            evaluation.evaluate(eval_settings(checkpoint=given, eval_dir=str(tmp_path / 'eval'), tower_device='cpu'))
        assert '\n' not in str(refused.value) and not os.path.exists(tmp_path / 'eval')


KEEPING = dict(eval_steps=2, keep_best=True, max_steps=8, save_steps=100, learning_rate=0.02, moving_averages=False)


def best_of(train_dir):
    """Returns (the figures of the best checkpoint of a run, its step, its variables)."""
    folder = os.path.join(train_dir, 'best')
    with open(os.path.join(folder, 'best.json')) as stream:
        figures = json.load(stream)
    prefix, = checkpoints(folder)
    return figures, step_of(prefix), variables(prefix)


@pytest.mark.stress
def test_a_run_keeps_its_best_checkpoint_where_no_checkpoint_is_due(tiny, tmp_path, capsys):
    train(tiny(**KEEPING))
    folder = tiny().run.train_dir
    found = metrics.read(folder, metrics.EVAL)
    precisions = {record['step']: record['precision'] for record in found}
    highest = max(precisions, key=precisions.get)  # the first of them
    figures, step, kept = best_of(folder)
    assert list(precisions) == [2, 4, 6, 8] and steps(folder) == [8]
    assert (figures['step'], step, round(figures['precision'], 6)) == (highest, highest, precisions[highest])
    assert capsys.readouterr().out.count(f'best       {folder}/best\n') >= 1
    whole = train(tiny(train_dir=str(tmp_path / 'whole'), max_steps=highest, moving_averages=False, learning_rate=0.02))
    assert_same_bits(kept, whole)
    evaluation.evaluate(eval_settings(checkpoint_dir=os.path.join(folder, 'best'), run_once=True, tower_device='cpu',
                                      eval_dir=str(tmp_path / 'eval')))
    assert metrics.read(str(tmp_path / 'eval'), metrics.EVAL)[0]['correct'] == figures['correct']
    assert not [name for name in os.listdir(folder) if name.startswith('.best')]


@pytest.mark.stress
def test_the_best_checkpoint_goes_with_its_run_and_another_runs_stays(tiny, tmp_path, capsys):
    folder = tiny().run.train_dir
    train(tiny(**KEEPING))
    first = TrainDir(folder).stored().run
    train(tiny(**dict(KEEPING, learning_rate=0.0, max_steps=10)))  # goes on, and is not better
    assert best_of(folder)[0]['of']['run'] == first
    shutil.copytree(os.path.join(folder, 'best'), tmp_path / 'other')
    train(tiny(**dict(KEEPING, max_steps=2, restart=True)))
    assert best_of(folder)[0]['of']['run'] == TrainDir(folder).stored().run != first
    shutil.rmtree(os.path.join(folder, 'best'))
    shutil.copytree(tmp_path / 'other', os.path.join(folder, 'best'))
    train(tiny(**dict(KEEPING, max_steps=2, restart=True)))
    output = capsys.readouterr().out
    assert output.count('best belongs to another run or other evaluation settings and is kept; use another --tr') == 1
    assert best_of(folder)[0]['of']['run'] == first


def kill_at(monkeypatch, count):
    """Makes a run end at so many evaluations, and leave as they are what it has kept and recorded so far."""
    evaluate, calls = Validation.evaluate, []

    def killed(self, values):
        calls.append(values)
        if len(calls) == count:
            raise KeyboardInterrupt
        return evaluate(self, values)
    monkeypatch.setattr(Validation, 'evaluate', killed)


def test_the_best_stays_after_a_kill_and_goes_where_a_step_on_another_way_is_better(tiny, monkeypatch):
    flags = dict(KEEPING, eval_steps=3, save_steps=5)
    folder = tiny().run.train_dir
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_at(patch, 3)
        train(tiny(**dict(flags, max_steps=20, learning_rate=0.1)))
    figures = best_of(folder)[0]
    assert steps(folder) == [5] and figures['step'] in (3, 6)
    with open(os.path.join(folder, 'best', 'notes.txt'), 'w') as stream:
        stream.write('mine')
    train(tiny(**dict(flags, max_steps=7, learning_rate=1e-6)))  # another way than before, from step 5 on
    found = metrics.read(folder, metrics.EVAL)
    assert [record['step'] for record in found] == [3, 6, 7]
    assert best_of(folder)[0]['correct'] == max(figures['correct'], *(record['correct'] for record in found))
    with open(os.path.join(folder, 'best', 'best.json'), 'w') as stream:
        json.dump(dict(figures, precision=0.0), stream)
    train(tiny(**dict(flags, max_steps=9)))
    assert best_of(folder)[1] == 9 and open(os.path.join(folder, 'best', 'notes.txt')).read() == 'mine'


def test_a_checkpoint_that_a_user_puts_into_best_stays(tiny, tmp_path):
    folder = tiny().run.train_dir
    best = os.path.join(folder, 'best')
    train(tiny(**dict(KEEPING, max_steps=4)))
    first = best_of(folder)[1]
    for suffix in ('.index', '.data-00000-of-00001'):
        shutil.copy(f'{best}/model.ckpt-{first}{suffix}', f'{best}/model.ckpt-999{suffix}')
    shutil.copy(f'{best}/model.ckpt-{first}.data-00000-of-00001', f'{best}/model.ckpt-998.data-00000-of-00001')
    figures = json.loads(open(os.path.join(best, 'best.json')).read())
    with open(os.path.join(best, 'best.json'), 'w') as stream:
        json.dump(dict(figures, precision=0.0), stream)  # so that the next one is better
    train(tiny(**dict(KEEPING, max_steps=6)))
    assert json.loads(open(os.path.join(best, 'best.json')).read())['step'] == 6
    assert steps(best) == [6, 999] and 'model.ckpt-998.data-00000-of-00001' in os.listdir(best)


@pytest.mark.parametrize('moment', range(1, 8))
def test_a_kill_at_any_moment_leaves_one_best_checkpoint_after_the_next(tmp_path, moment, monkeypatch):
    def keep(step, precision):
        best = Best(str(tmp_path), dict(run='r'), '--train_dir')
        candidate = best.candidate(str(tmp_path))
        for suffix in ('.data-00000-of-00001', '.index'):
            pathlib.Path(f'{candidate}-{step}{suffix}').write_text(str(step))
        best.keep(step, precision)

    def killed(function):
        def call(*arguments):
            calls.append(function)
            if len(calls) == moment:
                raise KeyboardInterrupt
            return function(*arguments)
        return call
    calls = []
    keep(30, 0.1)
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        for name in ('replace', 'rename', 'remove'):
            patch.setattr(os, name, killed(getattr(os, name)))
        keep(25, 0.2)  # an earlier step, of a run that went another way
    best = Best(str(tmp_path), dict(run='r'), '--train_dir')
    assert best.figures()['step'] in (25, 30)
    keep(40, 0.3)
    assert sorted(os.listdir(tmp_path / 'best')) == [
        'best.json', 'model.ckpt-40.data-00000-of-00001', 'model.ckpt-40.index']


@pytest.mark.stress
def test_a_start_does_not_delete_the_best_checkpoint_where_it_is_the_only_one(tiny, monkeypatch, capsys):
    folder = tiny().run.train_dir
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_at(patch, 3)
        train(tiny(**KEEPING))
    figures, step, _ = best_of(folder)
    best = os.path.join(folder, 'best')
    with pytest.raises(UsageError, match='run of --seed=0. For --seed=5 use .* or --restart to delete that run'):
        trainer.train(tiny(**KEEPING, seed=5))
    capsys.readouterr()
    check(tiny(**KEEPING))
    line = (f'again      the run in {folder} has no checkpoint but its best one, {best}/model.ckpt-{step}, which stays'
            f'; it begins again, and --train_dir={best} goes on from there\n')
    assert line in capsys.readouterr().out and best_of(folder)[0] == figures
    shutil.copytree(folder, f'{folder}-copy')
    train(settings_of(dict(train_dir=f'{folder}-copy/best'))[0])
    assert f'resumed at step {step} of 8' in capsys.readouterr().out
    run = TrainDir(folder).stored().run
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_at(patch, 1)
        train(tiny(**KEEPING))
    assert line in capsys.readouterr().out and best_of(folder)[0] == figures
    train(tiny(**KEEPING))
    assert TrainDir(folder).stored().run == best_of(folder)[0]['of']['run'] == run and steps(folder) == [8]
    assert best_of(folder)[0]['precision'] >= figures['precision']


def test_the_photos_are_saved_at_each_of_their_evaluations():
    reports = train_settings(preset='photos').reports
    assert reports.save_steps == reports.eval_steps == 200


@pytest.mark.stress  # in the other modes: test_modes.py
def test_what_is_kept_as_best_is_what_was_evaluated_while_other_towers_wait(tiny, tmp_path):
    train(tiny(variable_update='async', num_gpus=2, **KEEPING))
    folder = tiny().run.train_dir
    evaluation.evaluate(eval_settings(checkpoint_dir=os.path.join(folder, 'best'), run_once=True, tower_device='cpu',
                                      eval_dir=str(tmp_path / 'eval')))
    assert metrics.read(str(tmp_path / 'eval'), metrics.EVAL)[0]['correct'] == best_of(folder)[0]['correct']


def test_nothing_to_compare_is_refused(tiny):
    with pytest.raises(UsageError, match='--keep_best compares the evaluations of --eval_steps, and there are none'):
        tiny(keep_best=True)
