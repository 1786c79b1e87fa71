"""Decisions of a start about a train_dir, as a table of names, records and flags, without a process."""
import json
import os

import pytest

from cifar10.run import checkpoints, metrics, takeover
from cifar10.run.folder import LIST, PROGRAM, SETTINGS, look
from cifar10.run.record import RunRecord
from cifar10.settings.training import train_settings
from cifar10.training.resolved import resolve

RUN, OTHER = 'this run', 'another run'
DATA, INDEX = '.data-00000-of-00001', '.index'
EVENTS = 'events.out.tfevents.1.host.2.cifar10'
FAST = dict(preset='fast', epochs=0.064, max_steps=None)
GROWING = dict(FAST, schedule='staircase')


def saved(*steps):
    """Returns the names of complete checkpoints and their list."""
    return [LIST, *(f'model.ckpt-{step}{part}' for step in steps for part in (DATA, INDEX))]


def write(folder, names, run=None, records=(), **settings):
    """Makes a folder with empty files, the record of a run if it has an id, and records of metrics.jsonl."""
    os.makedirs(folder, exist_ok=True)
    for name in names:
        path = os.path.join(folder, name)
        os.makedirs(path) if name.endswith('/') else open(path, 'w').close()
    if run:
        record = RunRecord(train_settings(**dict(dict(train_dir=str(folder), max_steps=9), **settings)), last_step=9)
        text = json.dumps(dict(program=PROGRAM, run=run, **record.to_json()))
        (folder / SETTINGS).write_text(text)
    for kind, step, *figures in records:
        metrics.Log(str(folder)).write(kind, step, **dict(*figures))


def checkpoint_records(*steps):
    """Returns records of checkpoints, as `write` takes them."""
    return [(metrics.CHECKPOINT, step) for step in steps]


EVALUATED = [(metrics.EVAL, step, dict(accuracy=0.5, cross_entropy=1.0)) for step in (3, 4, 5)]  # none improves
# name: (content of the folder, flags of the start, refusal or '', whether the folder is renamed). The content: names,
# then the run's id, records and settings.
STARTS = {
    'no folder': (None, {}, '', False),
    'an empty one': (dict(names=[]), {}, '', False),
    'only a lock': (dict(names=['lock']), {}, '', False),
    "a user's files": (dict(names=['notes.txt', 'model.h5']), {}, '', False),
    'a run that goes on': (dict(names=saved(5), run=RUN), {}, '', False),
    'the same with another length': (dict(names=saved(5), run=RUN), dict(max_steps=50), '', False),
    'the same with another rate': (dict(names=saved(5), run=RUN), dict(learning_rate=0.5), '', False),
    'a finished one': (dict(names=saved(9), run=RUN), {}, '', False),
    'another seed': (dict(names=saved(5), run=RUN), dict(seed=4),
                     'has a run of --seed=0. For --seed=4 use another --train_dir, or --restart', False),
    'another network': (dict(names=saved(5), run=RUN), dict(network='linear'), 'use another --train_dir, or', False),
    'another data set': (dict(names=saved(5), run=RUN), dict(dataset='shapes'), 'run of --dataset=cifar10', False),
    'images of another size': (dict(names=saved(5), run=RUN), dict(image_size=48), 'of --image_size=32', False),
    'another length in epochs': (
        dict(names=saved(5), run=RUN, epochs=2.0, schedule='cosine', max_steps=None),
        dict(epochs=3.0, schedule='cosine', max_steps=None), 'at whose end the learning rate reaches 0', False),
    **{f'of the fast preset, {name}': (dict(names=saved(5), run=RUN, **FAST), {**FAST, **now}, said, False)
       for name, now, said in (
           ('another schedule', dict(schedule='staircase'), ' run of --schedule=linear. For --schedule=staircase use'),
           ('another optimizer', dict(optimizer='nesterov'), ' run of --optimizer=muon. For --optimizer=nesterov use'),
           ('another preset', dict(preset='classic'), ' run of --preset=fast. For --preset=classic use'))},
    **{f'of a longer run {name}': (dict(names=saved(5), run=RUN, **GROWING, **sizes),
                                   {**GROWING, **sizes, 'epochs': 0.2}, said, False)
       for name, sizes, said in (
           ('whose images grow', {},
            'of --epochs=0.064, over which its image sizes are planned. For --epochs=0.2 use another'),
           ('of one size', dict(sizes='20'), ''))},
    'a run before its first checkpoint': (dict(names=[EVENTS], run=RUN), {}, '', False),
    'the same, which was killed in a save': (
        dict(names=['.model.ckpt-5' + DATA, 'model.ckpt-5' + DATA], run=RUN, records=checkpoint_records(5)), {}, '',
        False),
    'another one before its first save': (dict(names=[], run=RUN), dict(seed=4), '', False),
    'a run whose checkpoints were removed': (
        dict(names=[], run=RUN, records=checkpoint_records(3, 5)), {}, 'checkpoints have been removed', False),
    'the same, to be renamed': (
        dict(names=[], run=RUN, records=checkpoint_records(3, 5)), dict(restart=True), '', True),
    'a run without the index of its checkpoint': (
        dict(names=[LIST, 'model.ckpt-5' + DATA], run=RUN), {}, 'checkpoints have been removed', False),
    **{f'{name} {flags}': (dict(names=[name]), flags, f'holds {name}, but no config.json', False)
       for name in (LIST, 'model.ckpt-7.meta', 'model.ckpt-7' + DATA, 'model.ckpt-7-00000-of-00002', 'model.ckpt.index',
                    'model.ckpt') for flags in ({}, dict(restart=True))},
    'an eval_dir': (dict(names=[], records=[(metrics.EVAL, 5, dict(run=RUN))]), {}, 'is it an --eval_dir?', False),
    'a restart of it all the same': (
        dict(names=[], records=[(metrics.EVAL, 5, dict(run=RUN))]), dict(restart=True), 'is it an --eval_dir?', False),
    "the tutorial's run": (dict(names=saved(0, 5)), {}, 'there --warm_start=', False),
    "a restart of the tutorial's run": (
        dict(names=saved(0, 5)), dict(restart=True), 'holds checkpoint, but no config.json', False),
    'a checkpoint in the V1 format': (
        dict(names=['model.ckpt-5', 'model.ckpt-5.meta']), {}, 'holds model.ckpt-5, but no config.json', False),
    'a backup of a checkpoint': (dict(names=['model.ckpt-5.tar', 'model.ckpt-5/']), {}, '', False),
    'a restart': (dict(names=saved(5), run=RUN), dict(restart=True), '', True),
    'a restart with another seed': (dict(names=saved(5), run=RUN), dict(restart=True, seed=4), '', True),
    'a restart of nothing': (dict(names=[]), dict(restart=True), '', False),
}


@pytest.mark.parametrize('name', STARTS)
def test_a_start_is_refused_or_sets_the_folder_aside_or_continues(name, tmp_path):
    content, flags, message, is_set_aside = STARTS[name]
    folder = tmp_path / 'train'
    if content:
        write(folder, **content)
    settings = train_settings(**dict(dict(train_dir=str(folder), max_steps=9), **flags))
    found = look(str(folder))
    refusal = takeover.refusal(found, settings)
    assert message in (refusal or '') and bool(refusal) == bool(message)
    if not refusal:
        assert takeover.sets_aside(found, settings) == is_set_aside


@pytest.mark.parametrize('name', [name for name, (_, _, message, _) in STARTS.items() if message])
def test_the_remedies_of_a_refusal_are_accepted(name, tmp_path):
    content, flags, _, _ = STARTS[name]
    folder = tmp_path / 'train'
    write(folder, **content)
    settings = train_settings(**dict(dict(train_dir=str(folder), max_steps=9), **flags))
    found = look(str(folder))
    said = takeover.refusal(found, settings)
    recommended = [settings.replace(train_dir=str(tmp_path / 'other'))]
    if 'or --restart' in said:
        recommended.append(settings.replace(restart=True))
    if 'leave these flags out' in said:
        recommended.append(resolve(dict(train_dir=str(folder)))[0])
    for each in recommended:
        assert takeover.refusal(look(each.run.train_dir), each) is None


@pytest.mark.parametrize('names, recorded, abandoned', [
    ([*saved(5), 'model.ckpt-4' + DATA], (4, 5), ['model.ckpt-4' + DATA]),
    ([*saved(5), 'model.ckpt-4' + DATA], (5,), []),  # no record says that this run wrote it
    ([*saved(5), '.model.ckpt-6' + DATA, '.checkpoint.0123abcd', 'model.ckpt-7.index.tempstate12'], (5,),
     ['.checkpoint.0123abcd', '.model.ckpt-6' + DATA, 'model.ckpt-7.index.tempstate12']),
    ([*saved(5), '.notes.0123abcd', 'checkpoint.tmp', 'model.ckpt-5.tar'], (5,), [])])
def test_remains_of_killed_processes_are_removed(names, recorded, abandoned, tmp_path):
    write(tmp_path, names, RUN, checkpoint_records(*recorded))
    before = {*os.listdir(tmp_path)}
    checkpoints.remove_abandoned(look(str(tmp_path)))
    assert before - {*os.listdir(tmp_path)} == {*abandoned}


def test_the_record_of_a_step_belongs_to_the_start_that_took_it(tmp_path):
    write(tmp_path, saved(9), RUN)
    for step, seconds in ((0, 10), (5, 20)):
        record = RunRecord(train_settings(train_dir=str(tmp_path), stuck_secs=seconds), step=step)
        metrics.Log(str(tmp_path)).write(metrics.START, **record.to_json())
    folder = look(str(tmp_path))
    assert [folder.record_of(step).settings.run.stuck_secs for step in (1, 5, 6, 9)] == [10, 10, 20, 20]
    assert folder.record_of(0) is folder.record
