"""Kills at each system call that changes files, and power failures between these calls.

A snapshot of the folder before a call equals the folder after a SIGKILL on entering the call.
"""
import contextlib
import functools
import re

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.data import datasets, download
from cifar10.evaluation import export, of_checkpoints
from cifar10.run import checkpoints as of_run
from cifar10.run import metrics
from cifar10.run.folder import best_of, step_of
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.crashes import (
    command_of,
    distinct,
    names,
    power_failures,
    read_tree,
    trace,
    write_tree,
)
from tests.helpers import (
    ROOT,
    assert_same_bits,
    best_prefix,
    checkpoints,
    last_variables,
    mostly_stress,
    rewrite,
    script_command,
    tf,
    variables,
    write_records,
)
from tests.test_picture_files import encoded
from tests.test_records import Server, published  # noqa: F401 (a fixture)


@pytest.fixture(scope='module')
def flags(data_dir):
    """The flags of a run of 40 steps and 4 checkpoints, with a network of 40 numbers; it keeps 2 checkpoints."""
    return dict(network=f'{ROOT}/tests/networks.py:tiny', dataset='shapes', data_dir=data_dir, batch_size=4,
                max_steps=40, save_steps=10, max_to_keep=2, tower_device='cpu')


@pytest.fixture(scope='module')
def run(flags, tmp_path_factory):
    """(The Traced of the run with `flags`, its train_dir)."""
    return traced(tmp_path_factory.getbasetemp() / 'traced', tuple(flags.items()))


@functools.cache  # pytest makes an imported fixture once for each module
def traced(scratch, flags):
    """Traces a run with flags, pairs of a name and a value, in a new folder; returns (its Traced, its train_dir)."""
    command = script_command('multi_gpu_train.py', train_dir=scratch / 'train', **dict(flags))
    return trace(command, scratch / 'train', scratch / 'traced'), scratch / 'train'


def records_of(train_dir):
    """Returns the steps, losses and digests of a run's records."""
    return [(record['step'], record.get('loss'), record.get('sha256')) for kind in (metrics.TRAIN, metrics.CHECKPOINT)
            for record in metrics.read(str(train_dir), kind)]


def killed_states(traced):
    """Returns the distinct states of a traced folder after kills."""
    return [state for _, state in distinct(enumerate(traced.states))]


def assert_resumes(state, folder, flags, train_dir, capsys):
    """Asserts that a run resumes from a state of its folder and ends like an unbroken run.

    Returns the step from which it resumed.
    """
    write_tree(folder, state)
    with tf.Graph().as_default():
        trainer.train(train_settings(train_dir=str(folder), **flags))
    assert_same_bits(last_variables(folder), last_variables(train_dir))
    assert records_of(folder) == records_of(train_dir)
    assert [step for step, _, sha256 in records_of(folder) if sha256] == [10, 20, 30, 40]
    assert names(folder) == names(train_dir)
    assert (folder / 'checkpoint').read_text() == (train_dir / 'checkpoint').read_text()
    found = re.search(r'^run .*, (?:resumed )?at step (\d+)', capsys.readouterr().out, re.M)
    return int(found[1]) if found else 0


@pytest.mark.parametrize('chosen', mostly_stress([slice(30, 31), slice(None)], slice(30, 31)))
def test_a_run_killed_at_a_system_call_resumes_to_the_same_bits_and_files(chosen, run, flags, tmp_path, capsys):
    states = killed_states(run[0])
    assert len(states) > 40
    for i, state in enumerate(states[chosen]):
        assert_resumes(state, tmp_path / str(i), flags, run[1], capsys)


REPLACE = ('import sys; from cifar10.base import files\n'
           "files.replace(sys.argv[1] + '/file', 'new')\n"
           "open(sys.argv[1] + '/later', 'w').close()")


def test_after_a_power_failure_a_replaced_file_is_old_or_new_and_then_stays_new(tmp_path):
    root = write_tree(tmp_path / 'root', {'file': b'old'})
    replaced = trace(command_of('-c', REPLACE, root), root, tmp_path / 'traced')
    later = replaced.calls.index(['openat', 'later'])
    found = [(number < later, state['file']) for number, state in power_failures(replaced)]
    assert {*found} == {(True, b'old'), (True, b'new'), (False, b'new')}


ASIDE = ('import sys; from cifar10.run.takeover import TrainDir\n'
         'directory = TrainDir(sys.argv[1])\n'
         'with directory.locked():\n'
         '    directory.set_aside()')


def test_killed_at_any_system_call_of_a_restart_the_old_run_is_whole_in_one_folder(tmp_path):
    old = {'config.json': b'{}', 'notes.txt': b'mine', 'eval/metrics.jsonl': b'', 'lock': b''}
    write_tree(tmp_path / 'root' / 'train', old)
    traced = trace(command_of('-c', ASIDE, tmp_path / 'root' / 'train'), tmp_path / 'root', tmp_path / 'traced')
    states = killed_states(traced)
    assert len(states) > 4
    for state in states:
        found = [folder for folder in ('train', 'train.1') if f'{folder}/notes.txt' in state]
        assert len(found) == 1
        assert all(state[f'{found[0]}/{name}'] == content for name, content in old.items() if name != 'lock')
        assert {path.partition('/')[0] for path in state} <= {'train', 'train.1'}
    # The rename of the old run reaches the disk before the new run begins.
    renamed = traced.calls.index(['rename', 'train', 'train.1'])
    assert [call for call, path, *_ in traced.calls[renamed + 1:] if path in ('.', 'train')][:2] == ['fsync', 'mkdir']


def covered(calls):
    """Returns the step of the newest checkpoint that an fsync covers after these calls, or 0."""
    named, found = 0, 0
    for call, *paths in calls:
        if call == 'rename' and (index := re.fullmatch(r'model\.ckpt-(\d+)\.index', paths[1])):
            named = int(index[1])
        if call == 'fsync' and paths == ['.']:
            found = named
    return found


@pytest.mark.stress  # by default without runs: below
def test_a_power_failure_loses_no_covered_checkpoint(run, flags, tmp_path, capsys):
    failures = distinct(power_failures(run[0]))
    assert len(failures) > 200
    for i, (number, state) in enumerate(failures[::3]):
        assert assert_resumes(state, tmp_path / str(i), flags, run[1], capsys) >= covered(run[0].calls[:number])


def curve(folder):
    """Returns the steps of the points in a run's event files, up to the first torn file."""
    steps = set()
    for path in (folder / 'train').glob('events.*'):
        with contextlib.suppress(tf.errors.DataLossError):
            for event in tf.train.summary_iterator(str(path)):
                steps.update([event.step] if event.summary.value else [])
    return steps


def test_after_a_kill_or_power_failure_each_checkpoint_is_whole_and_has_its_records(run, tmp_path):
    states = [*enumerate(run[0].states), *power_failures(run[0])][::2]
    whole, steps = records_of(run[1]), set()
    for i, (number, state) in enumerate(distinct(states)):
        folder = write_tree(tmp_path / str(i), state)
        found = [step_of(prefix) for prefix in checkpoints(folder) if of_run.read(prefix)]
        newest = max(found, default=0)
        assert newest >= covered(run[0].calls[:number])
        assert {each for each in whole if each[0] <= newest} <= {*records_of(folder)}
        assert newest <= max(curve(folder), default=0)
        steps.add(newest)
    assert len(states) > 150 and steps == {0, 10, 20, 30, 40}


@pytest.fixture(scope='module')
def keeping(flags, tmp_path_factory):
    """(The flags, the Traced and the train_dir of a run whose best checkpoint is at a step without a regular one)."""
    flags = dict(flags, eval_steps=15, keep_best=True, save_steps=20, moving_averages=False, learning_rate=0.02)
    return flags, *traced(tmp_path_factory.getbasetemp() / 'keeping', tuple(flags.items()))


def assert_keeps_the_best(state, folder, keeping):
    """Asserts that a run resumes from a state of its folder and keeps the best checkpoint of an unbroken run."""
    flags, _, train_dir = keeping
    write_tree(folder, state)
    with tf.Graph().as_default():
        trainer.train(train_settings(train_dir=str(folder), **flags))
    assert_same_bits(last_variables(folder), last_variables(train_dir))
    assert_same_bits(variables(best_prefix(folder)), variables(best_prefix(train_dir)))
    one, other = ([(record['step'], record['correct']) for record in metrics.read(str(each), metrics.EVAL)]
                  for each in (folder, train_dir))
    assert one == other and [step for step, _ in one] == [15, 30, 40]
    assert best_of(str(folder)) == best_of(str(train_dir))
    assert names(folder) == names(train_dir)


@pytest.mark.stress
def test_a_run_killed_at_any_system_call_keeps_the_same_best_checkpoint(keeping, tmp_path):
    states = killed_states(keeping[1])
    ended = next(state for state in states if 'model.ckpt-40.index' in state)
    assert b'"eval", "step": 40' in ended['metrics.jsonl']  # a checkpoint comes after all records of its step
    for i, state in enumerate(states):
        assert_keeps_the_best(state, tmp_path / str(i), keeping)


@pytest.fixture(scope='module')
def evaluator(run, tmp_path_factory):
    """(A function eval_dir -> settings, the Traced of an evaluator that evaluates a second checkpoint)."""
    folder = tmp_path_factory.mktemp('evaluator')
    images = np.random.default_rng(0).integers(0, 256, [10, 3, 32, 32], np.uint8)
    write_records(folder / 'data', [4] * 10, images)
    trained = checkpoints(run[1])[-1]
    (folder / 'train').mkdir()
    (folder / 'train' / 'config.json').write_text((run[1] / 'config.json').read_text())

    def config(eval_dir):
        return dict(checkpoint_dir=str(folder / 'train'), eval_dir=str(eval_dir), data_dir=str(folder / 'data'),
                    run_once=True, tower_device='cpu')

    def checkpoint(step, answer):
        values = {'weights': np.zeros([3, 10], np.float32), 'biases': np.eye(10, dtype=np.float32)[answer]}
        averages = {f'{name}/ExponentialMovingAverage': value for name, value in values.items()}
        rewrite(trained, to=str(folder / 'train' / f'model.ckpt-{step}'), global_step=np.int64(step), **values,
                **averages)
    checkpoint(50, 5)
    with tf.Graph().as_default():
        of_checkpoints.evaluate(eval_settings(**config(folder / 'eval')))
    checkpoint(60, 4)
    command = script_command('cifar10_eval.py', **config(folder / 'eval'))
    return config, trace(command, folder / 'eval', folder / 'traced')


@pytest.mark.stress
def test_an_evaluator_killed_at_any_system_call_leaves_only_its_records(evaluator, tmp_path):
    config, traced = evaluator
    expected = sorted({re.sub(r'events\.out.*', 'events', path) for path in traced.states[-1]})
    for i, state in enumerate(killed_states(traced)):
        folder = write_tree(tmp_path / str(i), state)
        with tf.Graph().as_default():
            of_checkpoints.evaluate(eval_settings(**config(folder)))
        found = metrics.read(str(folder), metrics.EVAL)
        assert [(record['step'], record['accuracy']) for record in found] == [(50, 0.0), (60, 1.0)]
        assert names(folder) == expected


CONVERT = ('import sys; from cifar10.data import datasets; '
           'datasets.prepare(*sys.argv[1:3], test_fraction=0.1, image_size=int(sys.argv[3]))')


def pictures(folder):
    """Makes a folder of photos of two classes."""
    for name in ('cat', 'dog'):
        (folder / name).mkdir(parents=True)
        for i in range(5):
            pixels = np.random.default_rng(i).integers(0, 256, [40, 30, 3], np.uint8)
            (folder / name / f'{i}.png').write_bytes(encoded(pixels, 'PNG'))
    return folder


@pytest.mark.stress
@pytest.mark.parametrize('size', [32, 65])
def test_a_conversion_killed_at_any_system_call_leaves_nothing(tmp_path, size):
    folder, data = f"{pictures(tmp_path / 'photos')}/", tmp_path / 'data'
    data.mkdir()
    code = 'from cifar10.base import startup; startup.start_tensorflow(); ' + CONVERT
    traced = trace(command_of('-c', code, folder, data, size), data, tmp_path / 'traced')
    states = killed_states(traced)
    assert len(states) > 10
    for i, state in enumerate(states):
        copy = write_tree(tmp_path / str(i), state)
        datasets.prepare(folder, str(copy), test_fraction=0.1, image_size=size)
        # A process that was killed after it had finished leaves its lock file.
        found, expected = ({path: content for path, content in tree.items() if not path.endswith('.lock')}
                           for tree in (read_tree(copy), traced.states[-1]))
        assert found == expected


@pytest.mark.stress
def test_an_export_killed_at_any_system_call_leaves_nothing(run, tmp_path):
    (tmp_path / 'models').mkdir()

    def command(folder):
        return script_command('cifar10_eval.py', checkpoint_dir=run[1], export_dir=folder / '1', tower_device='cpu')
    traced = trace(command(tmp_path / 'models'), tmp_path / 'models', tmp_path / 'traced')
    for i, state in enumerate(killed_states(traced)):
        copy = write_tree(tmp_path / str(i), state)
        whole = (copy / '1').exists()
        with tf.Graph().as_default(), pytest.raises(UsageError) if whole else contextlib.nullcontext():
            export.export(eval_settings(checkpoint_dir=str(run[1]), export_dir=str(copy / '1'), tower_device='cpu'))
        assert names(copy) == names(tmp_path / 'models')


FETCH = ('import sys; from cifar10.data import download\n'
         'url, size, checksum, path = sys.argv[1:]\n'
         'download.fetch(url, path, int(size), checksum)')


def test_a_download_killed_at_any_system_call_leaves_nothing(published, tmp_path):  # noqa: F811
    folder, content, checksum = published
    (tmp_path / 'target').mkdir()
    with Server(folder) as url:
        given = f'{url}file', len(content), checksum
        command = command_of('-c', FETCH, *given, tmp_path / 'target' / 'file')
        traced = trace(command, tmp_path / 'target', tmp_path / 'traced')
        assert traced.states[-1] == {'file': content}
        for i, state in enumerate(killed_states(traced)):
            copy = write_tree(tmp_path / str(i), state)
            download.fetch(given[0], str(copy / 'file'), *given[1:])
            assert read_tree(copy) == {'file': content}
