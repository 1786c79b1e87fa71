"""--patience: a run ends after a number of evaluations without improvement, even if it was killed and resumed."""
import math
import os
import pathlib
import shutil

import pytest

import cifar10
from cifar10.run import metrics
from cifar10.run.best import is_better
from cifar10.run.checkpoints import remove
from cifar10.run.ended import ended
from cifar10.run.folder import best_of, step_of
from cifar10.settings.training import train_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from tests.fixtures import small
from tests.helpers import (
    as_given,
    assert_same_bits,
    checkpoints,
    last_variables,
    mostly_stress,
    patient,
    start_script,
    tf,
    train,
)

FLAGS = dict(eval_steps=4, patience=3, max_steps=1000, save_steps=6, learning_rate=0.1, moving_averages=False,
             keep_best=True, num_gpus=2, log_frequency=1)


@pytest.fixture(scope='module')
def whole(data_dir, tmp_path_factory):
    """The settings of a run that ended by patience; tests change them for other runs."""
    config = train_settings(**{**small(data_dir, tmp_path_factory.mktemp('whole')), **FLAGS}, network='linear')
    with tf.Graph().as_default():
        trainer.train(config)
    return config


def records(config, *kinds):
    """Returns the records of some kinds in a run, without measured times."""
    return [{name: value for name, value in record.items() if name not in ('time', 'images_per_sec')}
            for record in metrics.read(config.run.train_dir, *kinds)]


def expected_end(config, patience):
    """Returns (the step at which patience ends a run, the step of its best evaluation), from a longer run's records."""
    found = [(record['step'], record['accuracy']) for record in records(config, metrics.EVAL)]
    for i, (step, _) in enumerate(found):
        best = max(range(i + 1), key=lambda k: (found[k][1], -k))  # the first maximum
        if i - best == patience:
            return step, found[best][0]
    raise AssertionError(f'no end in {found}')


def assert_same_run(config, whole):
    """Asserts that two runs have taken the same steps and ended in the same way."""
    assert_same_bits(last_variables(config.run.train_dir), last_variables(whole.run.train_dir))
    kinds = metrics.TRAIN, metrics.EVAL
    assert records(config, *kinds) == records(whole, *kinds)


def test_evaluations_are_ranked_by_recorded_accuracy_then_loss():
    one, more, hardly = (dict(accuracy=value, cross_entropy=1.0) for value in (0.5, 0.51, 0.5 + 1e-9))
    assert is_better(one, None, 'accuracy') and is_better(more, one, 'accuracy')
    assert not any(is_better(*pair, 'accuracy') for pair in ((one, more), (one, one), (hardly, one)))
    surer, unknown = dict(one, cross_entropy=0.9), dict(one, cross_entropy=None)
    assert all(is_better(*pair, 'accuracy') for pair in ((surer, one), (more, surer), (one, unknown)))
    assert not any(is_better(*pair, 'accuracy') for pair in ((one, surer), (surer, more), (unknown, one)))
    some, fewer, none = (dict(more, examples=9, not_finite=count, cross_entropy=math.nan) for count in (2, 1, 9))
    assert all(is_better(*pair, 'accuracy') for pair in ((one, some), (fewer, some), (some, None), (unknown, fewer)))
    assert not any(is_better(*pair, 'accuracy') for pair in ((some, one), (some, fewer), (some, some), (none, None)))


@pytest.mark.parametrize('accuracies, step, patience, rule', [
    ({}, 9, 1, None), ({5: 0.5}, 9, 1, None), ({5: 0.5, 10: 0.4}, 10, 1, 'patience'),
    ({5: 0.5, 10: 0.5}, 10, 1, 'patience'), ({5: 0.5, 10: 0.6, 15: 0.6}, 15, 2, None),
    ({5: 0.5, 10: 0.6, 15: 0.6, 20: 0.1}, 20, 2, 'patience'),
    ({5: 0.5, 10: 0.4, 15: 0.4, 20: 0.4}, 20, 2, 'patience'),  # the patience was larger before
    ({5: 0.5, 10: 0.4, 15: 0.4}, 15, 0, None), ({5: 0.5, 10: 0.4, 15: 0.4}, 12, 2, None),
    ({5: 0.5, 7: 0.9, 10: 0.6}, 10, 1, None), ({5: 0.5, 7: 0.4, 10: 0.4}, 10, 2, None),
    ({5: 0.5, 10: 0.4}, 30, 1, 'patience'), ({5: 0.5, 10: 0.6}, 30, 1, 'max_steps')])
def test_a_run_ends_by_its_counted_evaluations_or_its_length(accuracies, step, patience, rule):
    found = [dict(step=at, accuracy=accuracy) for at, accuracy in accuracies.items()]
    assert ended(found, train_settings(patience=patience, eval_steps=5, max_steps=30), step, 30) == rule


def test_a_length_in_epochs_ends_a_run_at_the_computed_step():
    config = train_settings(epochs=2.0, max_steps=None)
    assert [ended((), config, step, last) for step, last in ((8, 9), (9, 9), (9, None))] == [None, 'epochs', None]


def test_nonfinite_evaluations_spend_patience_only_after_a_finite_one():
    found, config = [], train_settings(patience=2, eval_steps=5)
    for step, count in zip(range(5, 40, 5), (9, 9, 9, 1, 0, 1, 9)):
        found.append(dict(step=step, accuracy=0.9 - count / 10, cross_entropy=None if count else 1.0, examples=9,
                          **dict(not_finite=count) if count else {}))
        assert ended(found, config, step, 1000) == ('patience' if step == 35 else None)


def test_patience_ends_a_run_visibly_and_only_more_patience_continues_it(whole, tmp_path, capsys):
    given, kinds = whole.replace(train_dir=str(tmp_path / 'train'), patience=1), []
    end, best = expected_end(whole, 1)
    result = cifar10.train(**as_given(given), say=print, on_record=lambda record: kinds.append(record['kind']))
    assert (result.step, result.finished, result.ended_by) == (end, True, 'patience')
    output = capsys.readouterr().out
    assert '--keep_best keeps' not in output
    assert 'ended      by --patience=1\n' in output and f'saved      {result.checkpoint}\n' in output
    assert set(kinds) == {'start', 'train', 'eval', 'checkpoint'}
    assert best_of(given.run.train_dir)['step'] == best  # by the same comparison
    before = pathlib.Path(given.run.train_dir, metrics.NAME).read_text()
    result = cifar10.train(**as_given(given.replace(max_steps=2000)), say=print)
    assert (result.step, result.finished, result.ended_by) == (end, True, 'patience')
    assert (f'done       nothing to train: the run ended at step {end} by --patience=1; a larger --patience '
            'continues it; --restart begins again\n') in capsys.readouterr().out
    check(given)
    assert 'ended      without --check, nothing' in capsys.readouterr().out
    assert pathlib.Path(given.run.train_dir, metrics.NAME).read_text() == before
    assert trainer.train(given.replace(patience=whole.run.patience))[2] == 'patience'
    assert step_of(checkpoints(given.run.train_dir)[-1]) == expected_end(whole, whole.run.patience)[0]
    assert_same_bits(last_variables(given.run.train_dir), last_variables(whole.run.train_dir))
    assert trainer.train(whole.replace(train_dir=given.run.train_dir, patience=2))[2] == 'patience'  # a smaller value


@pytest.mark.stress
@pytest.mark.parametrize('mode, kills', [('parameter_server', 3), ('replicated', 1), ('local', 1)])
def test_a_killed_and_resumed_run_ends_at_the_step_of_an_unbroken_one(mode, kills, whole, tmp_path):
    local = dict(local_steps=2) if mode == 'local' else {}
    given = whole.replace(train_dir=str(tmp_path / 'killed'), variable_update=mode, patience=2 + kills, **local)
    if mode != 'parameter_server' or given.run.patience != whole.run.patience:
        whole = given.replace(train_dir=str(tmp_path / 'whole'))
        train(whole)
    saved = 0
    for _ in range(kills):
        process = start_script('multi_gpu_train.py', **as_given(given))
        for line in process.stdout:
            if f'step {saved + 8},' in line:
                break
        process.kill()  # before the end, unless this machine is very busy
        process.communicate()
        saved = max((step_of(prefix) for prefix in checkpoints(given.run.train_dir)), default=0)
    process = start_script('multi_gpu_train.py', **as_given(given))
    output = process.communicate(timeout=patient(60))[0]
    assert process.returncode == 0 and f'by --patience={given.run.patience}' in output, output
    assert_same_run(given, whole)


# The remains of the last evaluation on the disk: its complete lines, and characters of the next line.
@pytest.mark.parametrize('whole_lines, characters', mostly_stress([(0, 0), (0, 50), (1, 0), (2, 0)], (0, 50)))
def test_a_kill_near_the_last_evaluation_does_not_change_the_end(whole_lines, characters, whole, tmp_path):
    again = whole.replace(train_dir=str(shutil.copytree(whole.run.train_dir, tmp_path / 'again')))
    path = pathlib.Path(again.run.train_dir, metrics.NAME)
    lines = path.read_text().splitlines(True)
    last = max(i for i, line in enumerate(lines) if line.startswith('{"kind": "eval"'))
    assert [line.split('"')[3] for line in lines[last:]] == ['eval', 'checkpoint']
    path.write_text(''.join([*lines[:last + whole_lines], lines[last][:characters]]))
    for part in path.parent.glob(f'model.ckpt-{expected_end(whole, 3)[0]}.*'):
        os.remove(part)
    trainer.train(again)
    assert_same_run(again, whole)


def test_evaluations_of_repeated_steps_count_once(whole, tmp_path):
    again = whole.replace(train_dir=str(shutil.copytree(whole.run.train_dir, tmp_path / 'again')))
    _, best = expected_end(whole, 3)
    for prefix in checkpoints(again.run.train_dir):
        if step_of(prefix) > best:
            remove(prefix)
    trainer.train(again)
    assert_same_run(again, whole)
