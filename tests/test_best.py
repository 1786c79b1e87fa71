"""The best checkpoint of a run that evaluates itself: whole in the folder `best`, where nothing else is touched."""
import contextlib
import json
import math
import os
import pathlib

import pytest

from cifar10.base.installed import command
from cifar10.evaluation.evaluator import Validation
from cifar10.run import metrics
from cifar10.run.best import Best
from cifar10.run.folder import step_of
from tests.helpers import assert_same_bits, checkpoints, evaluated, state_of, train, variables


def of(folder, run='a'):
    return Best(str(folder), run, 'the record')


def offer(best, step, accuracy, text=None, **figures):
    """Writes a candidate of a step; returns whether it is kept, or None if there must be no candidate."""
    prefix = best.candidate()
    if prefix is None:
        return None
    for suffix in ('.data-00000-of-00001', '.index'):
        pathlib.Path(f'{prefix}-{step}{suffix}').write_text(text or str(step))
    return best.keep(step, accuracy=accuracy, correct=1, **figures)


def files_of(step):
    return [f'model.ckpt-{step}.data-00000-of-00001', f'model.ckpt-{step}.index']


def test_the_best_checkpoint_is_the_only_one(tmp_path):
    best = of(tmp_path)
    assert best.figures() is None and best.describe() == ''
    assert offer(best, 30, 0.5) and offer(best, 20, 0.7) and not offer(best, 30, 0.7)
    assert sorted(os.listdir(tmp_path / 'best')) == ['best.json', 'config.json', *files_of(20)]
    assert best.figures() == dict(step=20, accuracy=0.7, correct=1, of=dict(run='a'), steps=[20])
    assert offer(of(tmp_path), 50, 0.8) and best.figures()['step'] == 50
    assert best.describe() == f'step 50, accuracy 0.800, in {tmp_path}/best'
    assert Best(str(tmp_path), 'another', 'the record').describe() == ''
    assert (tmp_path / 'best' / 'config.json').read_text() == 'the record'
    assert (tmp_path / 'best' / files_of(50)[1]).read_text() == '50'


@pytest.mark.parametrize('accuracy', [0.6, 0.8])
def test_of_two_evaluations_of_a_step_the_later_one_counts(accuracy, tmp_path):
    best = of(tmp_path)
    assert offer(best, 40, 0.7, 'first') and not offer(best, 40, 0.7, 'the same again')
    assert (tmp_path / 'best' / files_of(40)[1]).read_text() == 'first'
    assert offer(of(tmp_path), 40, accuracy, 'second') and of(tmp_path).figures()['accuracy'] == accuracy
    assert {(tmp_path / 'best' / name).read_text() for name in files_of(40)} == {'second'}
    assert sorted(os.listdir(tmp_path / 'best')) == ['best.json', 'config.json', *files_of(40)]
    assert not offer(best, 50, 0.5) and offer(best, 30, 0.4)  # resumed before step 40, whose record is dropped
    assert offer(best, 50, 0.5) and best.figures()['step'] == 50


def test_the_figures_are_valid_json(tmp_path):
    assert offer(of(tmp_path), 20, 1 / 3, cross_entropy=math.nan, examples=9, not_finite=1)
    text = (tmp_path / 'best' / 'best.json').read_text()
    assert json.loads(text, parse_constant=pytest.fail)['cross_entropy'] is None
    (tmp_path / 'best' / 'best.json').write_text(text.replace('null', 'NaN'))  # as it once was
    assert not offer(of(tmp_path), 30, 0.9, cross_entropy=0.1, examples=9, not_finite=9)
    assert offer(of(tmp_path), 40, 0.2, cross_entropy=0.1, examples=9)


def test_what_is_not_the_runs_in_the_folder_of_the_best_is_left_alone_and_what_a_kill_left_is_removed(tmp_path):
    folder = tmp_path / 'best'
    assert offer(of(tmp_path), 20, 0.6)
    mine = ['mine', 'model.ckpt-35.index', 'model.ckpt-55.data-00000-of-00001']
    # Of a run that was killed: a better checkpoint that best.json names beside the best, parts of one, a file.
    left = ['model.ckpt-30.index', '.model.ckpt-40.index', 'model.ckpt-50.data-00000-of-00001', '.best.json.0123abcd']
    for name in mine + left:
        (folder / name).write_text('x')
    figures = json.loads((folder / 'best.json').read_text())
    (folder / 'best.json').write_text(json.dumps(dict(figures, steps=[20, 30, 50])))
    best = of(tmp_path)
    assert best.figures()['step'] == 20 and offer(best, 60, 0.7)
    assert sorted(os.listdir(folder)) == sorted(['best.json', 'config.json', *mine, *files_of(60)])


def spoil(content):
    return lambda folder: (folder / 'best.json').write_text(content)


@pytest.mark.parametrize('run, change', [
    ('b', lambda folder: None), ('a', lambda folder: (folder / metrics.NAME).touch()), ('a', spoil('')),
    ('a', spoil('[]')), ('a', spoil('{"accuracy": "high", "of": {}}')),
    ('a', lambda folder: os.remove(folder / 'best.json'))],
    ids=['of another run', 'trained on', 'empty', 'a list', 'other values', 'no figures'])
def test_a_folder_that_is_not_provably_the_best_checkpoint_of_this_run_stays(run, change, tmp_path, capsys):
    assert offer(of(tmp_path), 20, 0.5)
    change(tmp_path / 'best')
    before = state_of(tmp_path)
    best = of(tmp_path, run)
    assert offer(best, 30, 0.9) is None and offer(best, 40, 0.9) is None and state_of(tmp_path) == before
    assert capsys.readouterr().out == (
        f"best       {tmp_path}/best holds something other than this run's best checkpoint, so it is left alone "
        'and no best checkpoint is kept; move it away\n')


def test_a_best_checkpoint_of_the_first_release_is_replaced_as_one_of_this(tmp_path):
    assert offer(of(tmp_path), 20, 0.5)
    path = tmp_path / 'best' / 'best.json'
    evaluation = dict(run='a', data='test', num_examples=None, use_ema=True)
    path.write_text(json.dumps(dict(json.loads(path.read_text()), of=evaluation)))
    assert offer(of(tmp_path), 30, 0.6) and of(tmp_path).figures()['step'] == 30


@pytest.mark.parametrize('step', [25, 30])
@pytest.mark.parametrize('moment', range(1, 11))
def test_a_kill_at_any_moment_leaves_one_best_checkpoint_after_the_next(tmp_path, moment, step, monkeypatch):
    def killed(function):
        def call(*arguments):
            calls.append(function)
            if len(calls) == moment:
                raise KeyboardInterrupt
            return function(*arguments)
        return call
    calls = []
    offer(of(tmp_path), 30, 0.1)
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        for name in ('replace', 'rename', 'remove'):
            patch.setattr(os, name, killed(getattr(os, name)))
        offer(of(tmp_path), step, 0.2, 'later')  # the same or an earlier step, of a run that went another way
    if figures := of(tmp_path).figures():
        texts = {(tmp_path / 'best' / name).read_text() for name in files_of(figures['step'])}
        assert (figures['accuracy'], texts) in ((0.1, {'30'}), (0.2, {'later'}))
    assert (figures or step == 30) and offer(of(tmp_path), 40, 0.3)
    assert sorted(os.listdir(tmp_path / 'best')) == ['best.json', 'config.json', *files_of(40)]


KEEPING = dict(eval_steps=2, keep_best=True, max_steps=8, save_steps=100, learning_rate=0.02, moving_averages=False)


def best_of(train_dir):
    """Returns (the figures of the best checkpoint of a run, its step, its variables)."""
    folder = os.path.join(train_dir, 'best')
    with open(os.path.join(folder, 'best.json')) as stream:
        figures = json.load(stream)
    prefix, = checkpoints(folder)
    return figures, step_of(prefix), variables(prefix)


def steps(train_dir):
    """Returns the steps of the checkpoints in a directory."""
    return [step_of(prefix) for prefix in checkpoints(train_dir)]


@pytest.mark.stress
def test_a_run_keeps_its_best_checkpoint_where_no_checkpoint_is_due(settings, tmp_path, capsys):
    train(settings(**KEEPING))
    folder = settings().run.train_dir
    found = metrics.read(folder, metrics.EVAL)
    accuracies = {record['step']: record['accuracy'] for record in found}
    highest = max(accuracies, key=accuracies.get)  # the first of them
    figures, step, kept = best_of(folder)
    assert list(accuracies) == [2, 4, 6, 8] and steps(folder) == [8]
    assert (figures['step'], step, round(figures['accuracy'], 6)) == (highest, highest, accuracies[highest])
    output = capsys.readouterr().out  # when it was found, and at the end
    assert output.count(f'best       step {highest}, accuracy {accuracies[highest]:.3f}, in {folder}/best\n') == 2
    assert f"next       {command('eval')} --train_dir={folder}/best --run_once evaluates the model; " in output
    whole = train(settings(**dict(KEEPING, train_dir=str(tmp_path / 'whole'), max_steps=highest, eval_steps=0,
                                  keep_best=False)))
    assert_same_bits(kept, whole)
    assert evaluated(f'{folder}/best', tmp_path / 'eval')['correct'] == figures['correct']
    assert not [name for name in os.listdir(folder) if name.startswith('.best')]


def kill_at(monkeypatch, count):
    """Makes a run end at so many evaluations, and leave as they are what it has kept and recorded so far."""
    evaluate, calls = Validation.evaluate, []

    def killed(self, values):
        calls.append(values)
        if len(calls) == count:
            raise KeyboardInterrupt
        return evaluate(self, values)
    monkeypatch.setattr(Validation, 'evaluate', killed)


@pytest.mark.stress  # by default, without runs: above
def test_the_best_stays_after_a_kill_and_goes_where_a_step_on_another_way_is_better(settings, monkeypatch):
    flags = dict(KEEPING, eval_steps=3, save_steps=5)
    folder = settings().run.train_dir
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_at(patch, 3)
        train(settings(**dict(flags, max_steps=20, learning_rate=0.1)))
    figures = best_of(folder)[0]
    assert steps(folder) == [5] and figures['step'] in (3, 6)
    with open(os.path.join(folder, 'best', 'notes.txt'), 'w') as stream:
        stream.write('mine')
    train(settings(**dict(flags, max_steps=7, learning_rate=1e-6)))  # another way than before, from step 5 on
    found = metrics.read(folder, metrics.EVAL)
    assert [record['step'] for record in found] == [3, 6, 7]
    counting = found if figures['step'] == 3 else found[1:]  # the best one of step 6 is not of this way
    assert best_of(folder)[0]['correct'] == max(record['correct'] for record in counting)
    assert any(record['step'] == best_of(folder)[1] and record['correct'] == best_of(folder)[0]['correct']
               for record in found)
    with open(os.path.join(folder, 'best', 'best.json'), 'w') as stream:
        json.dump(dict(figures, accuracy=0.0), stream)
    train(settings(**dict(flags, max_steps=9)))
    assert best_of(folder)[1] == 9 and open(os.path.join(folder, 'best', 'notes.txt')).read() == 'mine'


@pytest.mark.stress  # in the other modes: test_modes.py
def test_what_is_kept_as_best_is_what_was_evaluated_while_other_towers_wait(settings, tmp_path):
    train(settings(variable_update='async', num_gpus=2, **KEEPING))
    folder = settings().run.train_dir
    assert evaluated(f'{folder}/best', tmp_path / 'eval')['correct'] == best_of(folder)[0]['correct']
