"""The best checkpoint of a run that evaluates itself: best.json names it, and rotation keeps it."""
import pathlib

import pytest

from cifar10.base.errors import UsageError
from cifar10.base.installed import command
from cifar10.run import metrics
from cifar10.run.checkpoints import find_best, note_best, tidy
from cifar10.run.folder import best_of, look, step_of
from cifar10.run.record import RunRecord
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.helpers import checkpoints, evaluated, train

A, B, C = (10, 0.5), (20, 0.7), (30, 0.6)  # the steps and accuracies of evaluations


@pytest.mark.parametrize('noted, records, saved, step, best', [
    (None, [], [], 30, None),
    (None, [A, B, C], [10, 20, 30], 30, B),
    (A, [A, B], [10, 20], 20, B),  # killed between the checkpoint and best.json
    (A, [A, B], [10], 20, A),  # killed before the checkpoint
    (B, [A, B, C], [20, 30], 30, B),
    (B, [], [20], 30, B),  # a cleaner has removed the records
    (B, [C], [20, 30], 30, B),
    (A, [C], [10, 30], 30, C),
    (B, [A], [10, 20], 10, A),  # step 20's checkpoint is corrupt, so its steps are repeated
    (B, [A], [20], 10, None),
    (B, [A, B, C], [10, 30], 30, C)])  # step 20's checkpoint was removed
def test_best_json_names_the_best_existing_checkpoint(noted, records, saved, step, best, tmp_path):
    def figures(evaluation):
        return dict(step=evaluation[0], accuracy=evaluation[1], cross_entropy=1.0, examples=10)
    path = str(tmp_path)
    for each in records:
        metrics.Log(str(tmp_path)).write(metrics.EVAL, **figures(each))
    for each in saved:
        (tmp_path / f'model.ckpt-{each}.index').touch()
    if noted:
        note_best(path, figures(noted))

    def find(figure='accuracy'):
        return find_best(path, best_of(path), metrics.read(path, metrics.EVAL), step, figure)
    found = find()
    assert (found and found['step']) == (best and best[0])
    assert best_of(str(tmp_path)) == (figures(best) if best else None)
    assert find() == best_of(str(tmp_path)) == find(None)


@pytest.mark.parametrize('figure', ['accuracy', None])
def test_starting_a_finished_run_keeps_its_best_checkpoint(figure, tmp_path):
    log = metrics.Log(str(tmp_path))
    for each, accuracy in (A, B, C):
        record = log.write(metrics.EVAL, each, accuracy=accuracy, cross_entropy=1.0, examples=10)
        log.write(metrics.CHECKPOINT, each)
        (tmp_path / f'model.ckpt-{each}.index').touch()
        if (each, accuracy) == B:
            note_best(str(tmp_path), record)
    folder = look(str(tmp_path))._replace(record=RunRecord(train_settings(max_to_keep=1)))
    tidy(folder, 30, 1, figure)
    assert steps(tmp_path) == [20, 30]


def test_a_run_without_keep_best_writes_no_best_json(tmp_path):
    record = metrics.record_of(metrics.EVAL, 10, accuracy=0.5, cross_entropy=1.0)
    (tmp_path / 'model.ckpt-10.index').touch()
    assert find_best(str(tmp_path), None, [record], 10, None) is None
    assert not (tmp_path / 'best.json').exists()


@pytest.mark.parametrize('content', ['', '{"step": "high"}'])
def test_an_invalid_best_json_is_refused_and_kept(content, settings):
    folder = pathlib.Path(settings().run.train_dir)
    folder.mkdir()
    (folder / 'best.json').write_text(content)
    with pytest.raises(UsageError, match='best.json'):
        trainer.train(settings(**KEEPING))
    assert (folder / 'best.json').read_text() == content


KEEPING = dict(eval_steps=2, keep_best=True, max_steps=8, save_steps=100, learning_rate=0.02, moving_averages=False,
               max_to_keep=1)


def steps(train_dir):
    """Returns the steps of the checkpoints in a directory."""
    return [step_of(prefix) for prefix in checkpoints(train_dir)]


def test_the_best_checkpoint_is_used_by_name_and_replaced_only_by_a_better_one(settings, tmp_path, capsys):
    written = []
    result = trainer.train(settings(**KEEPING))
    folder = settings().run.train_dir
    found = {record['step']: record for record in metrics.read(folder, metrics.EVAL)}
    written = [record['step'] for record in metrics.read(folder, metrics.CHECKPOINT)]
    better = [step for step in found if all(
        found[step]['accuracy'] > found[before]['accuracy'] for before in found if before < step)]
    assert list(found) == [2, 4, 6, 8] and written == sorted({*better, 8}) and result[1] == 8
    best = better[-1]
    figures = look(folder).best
    assert {**found[best], **figures} == found[best] and steps(folder) == sorted({best, 8})
    output = capsys.readouterr().out
    assert output.count(f"best       step {best}, accuracy {figures['accuracy']:.3f}\n") == 2
    assert f"next       {command('eval')} --train_dir={folder} --checkpoint=best evaluates the model; " in output
    assert evaluated(folder, tmp_path / 'eval', checkpoint='best')['correct'] == figures['correct']
    with pytest.raises(UsageError, match=r'/bset: there is no such checkpoint \(did you mean best\?\)'):
        evaluated(folder, tmp_path / 'eval', checkpoint='bset')
    train(settings(**dict(KEEPING, max_steps=9, keep_best=False, save_steps=1)))
    assert steps(folder) == sorted({best, 9})  # the best one stays


@pytest.mark.parametrize('flag', ['checkpoint', 'warm_start'])
def test_a_missing_best_checkpoint_is_reported(flag, one_step, settings, tmp_path):
    folder = settings().run.train_dir
    with pytest.raises(UsageError, match=f'there is no {folder}/best.json, which --keep_best writes'):
        if flag == 'checkpoint':
            evaluated(folder, tmp_path / 'eval', checkpoint='best')
        else:
            trainer.train(settings(warm_start=f'{folder}/best', train_dir=str(tmp_path / 'other')))


def test_evaluations_of_the_best_checkpoint_go_to_the_runs_folder(tmp_path):
    given = eval_settings(train_dir=str(tmp_path), checkpoint='best')
    assert (given.checkpoint, given.eval_dir, given.run_once) == (f'{tmp_path}/best', f'{tmp_path}/eval', True)
    assert eval_settings(checkpoint='best').checkpoint == '/tmp/cifar10_train/best'
    with pytest.raises(UsageError, match='each select a model'):
        eval_settings(train_dir=str(tmp_path), checkpoint='./best')
