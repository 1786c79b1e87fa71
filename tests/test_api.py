"""Training and evaluation from Python: the bits of the scripts, no printed output, no change to the caller's state."""
import dataclasses
import inspect
import json
import os
import pathlib
import re
import sys
import threading
import warnings

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

import cifar10
from cifar10 import RunError, UsageError, model
from cifar10.base import console
from cifar10.evaluation import confusion
from cifar10.programs import program
from cifar10.run import metrics
from cifar10.run.folder import look
from cifar10.settings.training import train_settings
from cifar10.training import api
from tests.helpers import (
    LINEAR,
    ROOT,
    as_given,
    checkpoints,
    python,
    state_of,
)

PAGE = (ROOT / 'docs' / 'python.md').read_text()


def run(code, *arguments):
    """Runs Python code in its own process, which may import this package; the arguments are passed as JSON."""
    return python('-c', code, *map(json.dumps, arguments))


@pytest.fixture
def small(data_dir, tmp_path):
    """The settings of a small run."""
    return dict(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path / 'train'), batch_size=8, max_steps=4,
                tower_device='cpu', log_frequency=2, summary_steps=0, network='linear')


def test_records_lines_and_results_match_the_files(small, tmp_path, capfd):
    records, lines = [], []
    small['log_frequency'] = 3
    trained = cifar10.train(**small, eval_steps=3, on_record=records.append, say=lines.append)
    path = pathlib.Path(small['train_dir']) / metrics.NAME
    assert records == [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record['kind'], record['step']) for record in records] == [
        ('start', 0), ('train', 3), ('eval', 3), ('train', 4), ('eval', 4), ('checkpoint', 4)]
    assert (trained.step, trained.finished, trained.ended_by) == (4, True, 'max_steps')
    assert trained.checkpoint.endswith('model.ckpt-4')
    assert trained.figures['loss'] == records[3]['loss'] and trained.evaluation['accuracy'] == records[4]['accuracy']
    assert [line.split()[0] for line in lines if not line.startswith('20')] == [
        'recipe', 'towers', 'update', 'data', 'batch', 'rate', 'advice', 'run', 'watch', 'cost', 'saved', 'next']
    assert sum('loss = ' in line for line in lines) == 2
    evaluated = []
    tested = cifar10.evaluate(checkpoint_dir=small['train_dir'], eval_dir=tmp_path / 'eval', on_record=evaluated.append)
    assert [record['accuracy'] for record in evaluated] == [tested.accuracy] == [trained.evaluation['accuracy']]
    assert (tested.step, tested.examples, tested.confusion.trace()) == (4, 200, evaluated[0]['correct'])
    rows = {row[0]: row for row in confusion.per_class(tested.confusion, tested.classes)}
    assert tested.per_class['star'] == dict(recall=rows['star'][3], precision=rows['star'][4])
    # Nothing is left to do, and the result is the same.
    assert cifar10.train(**small) == cifar10.TrainResult(
        4, trained.checkpoint, True, trained.figures, trained.evaluation, ended_by='max_steps')
    assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize('function, given, message', [
    ('train', dict(bach_size=8), r'unknown setting bach_size \(did you mean batch_size\?\)'),
    ('train', dict(batch_size=0), '--batch_size=0 is too small'),
    ('train', dict(check=True), '--check is for the command line only; use .*python.* .*multi_gpu_train.py --check'),
    ('evaluate', dict(image='a.png'), '--image is for the command line'),
    ('predict', dict(images='a.png', csv='b'), '--csv is for the command line'),
    ('predict', dict(images=np.zeros([1, 8, 8, 3])), r'of type float64; give .* \(images \* 255\)\.astype'),
    ('predict', dict(images=np.zeros([8, 8, 3], np.uint8)), r'shape \(8, 8, 3\), which is a single image; give'),
    ('predict', dict(images=['a.png', 3]), 'predict got images of type'),
    ('predict', dict(images='a.png', checkpoint_dir='/nowhere'), '--checkpoint_dir=/nowhere does not exist'),
    ('train', dict(network=print), "is not valid; give a function by its name, network='FILE.py:FUNCTION'"),
    ('train', dict(on_record=3), 'on_record=3 is not a function'),
    *(('evaluate', {flag: '/nowhere'}, f'--{flag}=/nowhere does not exist') for flag in (
        'checkpoint_dir', 'train_dir'))])
def test_invalid_settings_raise_a_usage_error(function, given, message):
    with pytest.raises(UsageError, match=message):
        getattr(cifar10, function)(**given)


def test_a_failed_run_raises_a_run_error(small):
    with pytest.raises(RunError, match='the loss of tower 0 is'):
        cifar10.train(**dict(small, learning_rate=1e38, max_steps=9))


def test_settings_accept_paths_and_numbers_of_other_libraries(small):
    settings = train_settings(train_dir=pathlib.Path('/x'), num_towers=np.int64(2), learning_rate=np.float32(0.5),
                              epochs=np.float64(2))
    assert (settings.run.train_dir, settings.towers.num_towers) == ('/x', 2)
    for folder in ('brk', './brk', '/x/brk'):
        path = pathlib.Path(folder)
        assert train_settings(dataset=path).data == train_settings(dataset=f'{path.absolute()}/').data
    json.dumps(settings.flat())  # as a run stores its settings
    with pytest.raises(UsageError, match='is not valid; give a whole number'):
        train_settings(num_towers=np.float64(2))


def test_an_existing_dataset_folder_needs_no_trailing_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r'=photos is unknown \(no folder here .*\); choose from: .*, FOLDER/'):
        train_settings(dataset='photos')
    for name in ('photos', 'shapes'):
        os.mkdir(name)
    assert train_settings(dataset='photos').data == train_settings(dataset='photos/').data
    assert train_settings(dataset='shapes').data.dataset == 'shapes'  # the name of a data set has priority
    assert train_settings(dataset='shapes/').data.dataset == str(tmp_path / 'shapes')


def test_warnings_reach_a_caller_who_passes_no_callback(small, tmp_path):
    network = tmp_path / 'mine.py'
    network.write_text(pathlib.Path(LINEAR.rpartition(':')[0]).read_text())
    small['network'] = f"{network}:{LINEAR.rpartition(':')[2]}"
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert cifar10.train(**small).notes == ()
    with network.open('a') as stream:
        stream.write('# edited')
    evaluation = dict(checkpoint_dir=small['train_dir'], eval_dir=tmp_path / 'eval', num_examples=100)
    changed = f"warning: --network={small['network']}: the run was last trained with a different mine.py"
    with pytest.warns(UserWarning, match=re.escape(changed)) as caught:
        assert cifar10.evaluate(**evaluation).notes == (changed,)
    assert {warning.filename for warning in caught} == {__file__}  # the caller's line
    with pytest.warns(UserWarning, match=r'changed    batch_size=8 \(now 4\)'):
        assert changed in cifar10.train(**dict(small, max_steps=6, batch_size=4)).notes


def test_calls_from_other_threads_are_refused_but_calls_from_callbacks_work(small, tmp_path):
    evaluation = dict(checkpoint_dir=small['train_dir'], eval_dir=tmp_path / 'eval', num_examples=100)
    errors, results, lines = [], [], []

    def evaluate():
        try:
            results.append(cifar10.evaluate(**evaluation))
        except UsageError as error:
            errors.append(str(error))

    def on_record(record):
        if record['kind'] == 'train':
            thread = threading.Thread(target=evaluate)
            thread.start()
            thread.join()
            evaluate()
    cifar10.train(**small, save_steps=1, on_record=on_record, say=lines.append)
    # A step is reported before it is saved.
    assert [result.step for result in results] == [1, 3] and 'another thread of this process' in errors[0]
    assert lines[-2].startswith('saved') and not any('precision' in line for line in lines)


def test_callback_errors_reach_the_caller_and_lose_no_checkpoint(small):
    error = tf.errors.AbortedError(None, None, 'no server')  # an error that also means a lost device

    def on_record(record):
        if record['kind'] == 'checkpoint':
            raise error
    with pytest.raises(tf.errors.AbortedError) as raised:
        cifar10.train(**small, eval_steps=4, keep_best=True, on_record=on_record)
    assert raised.value is error
    assert [os.path.basename(prefix) for prefix in checkpoints(small['train_dir'])] == ['model.ckpt-4']
    assert look(small['train_dir']).best['step'] == 4
    assert cifar10.train(**small).finished


def test_import_loads_no_submodules_and_no_tensorflow():
    code = 'import sys, cifar10; print(len(sys.modules), [m for m in sys.modules if m.startswith("cifar10.")]);' \
           'from cifar10 import train, evaluate, predict; print("tensorflow" in sys.modules, "numpy" in sys.modules)'
    lines = run(code).stdout.splitlines()
    assert lines[0].endswith(' []') and lines[1:] == ['False False']
    assert all(hasattr(cifar10, name) and name in dir(cifar10) for name in cifar10.__all__)
    with pytest.raises(AttributeError, match="module 'cifar10' has no attribute 'trian'"):
        cifar10.trian  # noqa: B018


@pytest.mark.stress  # the calls run above by default
def test_the_example_of_the_page_runs(tmp_path):
    first, predicts = re.findall(r'```python\n(.*?)```', PAGE, re.S)
    assert len(first.splitlines()) <= 15
    photos = tmp_path / 'photos'
    photos.mkdir()
    Image.new('RGB', (40, 50)).save(photos / 'black.png')
    result = run((first + predicts).replace('/tmp/', f'{tmp_path}/').replace('photos/', f'{photos}/'))
    first, second, *predicted = result.stdout.splitlines()
    assert result.stderr == ''
    assert [line.split('(')[0] for line in (first, second)] == ['TrainResult', 'EvalResult']
    assert first.endswith('}') and second.endswith('}') and predicted[0].startswith(f'{photos}/black.png ')


def as_shown(function):
    """Returns a function with its arguments in the page's notation."""
    shown = [f'**{each.name}' if each.kind is each.VAR_KEYWORD else each.name if each.default is each.empty else
             f"{each.name}={getattr(each.default, '__name__', repr(each.default))}"
             for each in inspect.signature(function).parameters.values() if each.name != 'self']
    return f"{function.__name__}({', '.join(shown)})"


def documented(of):
    """Returns the attributes in the docstring of a class."""
    return set(re.findall(r'^  (\w+): ', inspect.getdoc(of).partition('\nAttributes:\n')[2], re.M))


def public(of):
    """Returns the page's entries for a class: its attributes, and its methods with their arguments."""
    return documented(of) | {as_shown(value) if inspect.isfunction(value) else name
                             for name, value in vars(of).items() if not name.startswith('_')}


def shown_in(rows):
    """Returns the code in the first column of a table's rows."""
    return {name for row in rows.splitlines() for name in re.findall(r'`([^`]+)`', row.split(' | ')[0])}


def test_the_page_has_every_public_name_with_its_arguments():
    rows = PAGE.split('\n| `cifar10` | returns, or has |\n')[1].split('\n\n')[0]
    values = [getattr(cifar10, name) for name in cifar10.__all__]
    of_results = {value.__name__ for value in values if dataclasses.is_dataclass(value)}
    classes = {value.__name__ for value in values if inspect.isclass(value)}
    shown = shown_in(rows) | set(re.findall(r'\[`(\w+)`\]', rows))
    assert shown == of_results | {'Termination()', 'UsageError', 'RunError'} | {
        as_shown(value) for value in values if value.__name__ not in classes}
    for name in ('Termination', 'UsageError', 'RunError'):
        row, = (row for row in rows.splitlines() if f'`{name}' in row)
        assert public(getattr(cifar10, name)) <= set(re.findall(r'`([^`]+)`', row)), name


def test_the_page_has_every_building_block_of_networks_with_its_arguments():
    assert shown_in(PAGE.split('\n| function | returns |\n|---|---|\n')[1]) == {
        as_shown(getattr(model, name)) for name in model._FOR_NETWORKS}


@pytest.mark.parametrize('function, result', [
    ('train', cifar10.TrainResult), ('evaluate', cifar10.EvalResult), ('predict', cifar10.Predictions),
    ('export', cifar10.ExportResult)])
def test_the_page_has_every_attribute_of_a_result(function, result):
    rows = PAGE.split(f'\n| `{function}` returns | |\n|---|---|\n')[1].split('\n\n')[0]
    assert shown_in(rows) == public(result)
    assert documented(result) == {each.name for each in dataclasses.fields(result)}


def test_a_run_whose_log_becomes_unwritable_saves_and_reports_the_error(settings, tmp_path, monkeypatch, capsys):
    full = os.open('/dev/full', os.O_WRONLY)
    log = open(tmp_path / 'log', 'w')
    monkeypatch.setattr(sys, 'stdout', log)
    monkeypatch.setattr(console.Output, 'failure', None)

    def fill_disk(record):
        if record['kind'] == 'train' and record['step'] == 4:
            os.dup2(full, log.fileno())

    def main():
        config = settings(max_steps=8, log_frequency=2)
        result = api.train(say=console.print_line, on_record=fill_disk, **as_given(config, check=None, explain=None))
        assert (result.step, result.finished) == (4, False)
        return program.UNREAD
    assert program.run(main) == 1
    os.close(full)
    log.close()
    line, = capsys.readouterr().err.splitlines()
    assert 'error: standard output: No space left on device' in line
    assert checkpoints(settings().run.train_dir)[-1].endswith('-4') and 'step 2,' in (tmp_path / 'log').read_text()


def test_training_and_evaluation_in_a_fork_of_a_trained_process_are_refused(small):
    cifar10.train(**dict(small, max_steps=1))
    before = state_of(small['train_dir'])
    for call in (lambda: cifar10.train(**small), lambda: cifar10.evaluate(checkpoint_dir=small['train_dir'])):
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                call()
            except UsageError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading) as stream:
            assert stream.read().startswith('this process was forked ')
        os.wait()
    assert state_of(small['train_dir']) == before
