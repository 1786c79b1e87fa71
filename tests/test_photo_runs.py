"""Training on photos: modes, resumption, clusters, photos that change, and what is done with the trained model."""
import functools
import os
import pathlib
import shutil
import subprocess
import types

import pytest

from cifar10.base.errors import RunError, UsageError
from cifar10.data import records
from cifar10.data.photos import pictures
from cifar10.evaluation import classification, evaluation, evaluator, model
from cifar10.run import metrics
from cifar10.run.train_dir import TrainDir
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.tools.check import check
from cifar10.tools.replay import rerun, verify
from cifar10.training import inputs, trainer
from tests.helpers import (
    ROOT,
    Tasks,
    assert_same_bits,
    last_variables,
    read_until,
    run_script,
    start_script,
    tf,
    train,
)
from tests.test_photos import MADE, SIZE, made, prepare, rows_of


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder of photos with a manifest."""
    return made(tmp_path_factory)


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the folder that a test may change, with a manifest."""
    return pathlib.Path(shutil.copytree(folder, tmp_path / 'mine'))


@pytest.fixture(scope='module')
def flags(folder):
    """The flags of a small run on the photos."""
    return dict(dataset=f'{folder}/', test_fraction=0.2, image_size=SIZE,
                network=f'{ROOT}/tests/networks.py:convolutions', batch_size=4, max_steps=12, save_steps=3,
                learning_rate=0.01, tower_device='cpu')


@pytest.fixture(scope='module')
def two_towers(flags, tmp_path_factory):
    """The variables after a run of two towers on two devices."""
    with tf.Graph().as_default():
        return train(train_settings(**flags, num_gpus=2, train_dir=str(tmp_path_factory.mktemp('two'))))


def test_photos_have_the_augmentation_that_is_usual_for_them(flags):
    assert train_settings(**flags).recipe.augmentation == 'resized_crop'
    assert train_settings(**{**flags, 'image_size': 64}).recipe.augmentation == 'classic'
    assert train_settings(**flags, augmentation='shift').recipe.augmentation == 'shift'
    assert train_settings(**flags, preset='classic').recipe.augmentation == 'classic'


@pytest.mark.stress
def test_a_run_has_the_same_bits_on_one_device_after_a_resume(flags, two_towers, tmp_path):
    settings = train_settings(**flags, num_towers=2, train_dir=str(tmp_path))
    trainer.train(settings.replace(max_steps=5))
    assert_same_bits(train(settings), two_towers)


@pytest.mark.stress
def test_a_killed_run_ends_with_the_same_bits(flags, two_towers, tmp_path):
    command = dict(flags, num_gpus=2, train_dir=tmp_path, log_frequency=1)
    process = start_script('multi_gpu_train.py', **command)
    read_until(process, 'step 7,')
    process.kill()
    process.communicate()
    assert run_script('multi_gpu_train.py', **command).returncode == 0
    assert_same_bits(last_variables(tmp_path), two_towers)


@pytest.mark.stress
@pytest.mark.parametrize('mode, augmentation', [
    ('replicated', 'shift'), ('async', 'classic'), ('mirrored', 'resized_crop'), ('local', 'resized_crop')])
def test_every_mode_and_augmentation_trains_and_validates(flags, mode, augmentation, tmp_path):
    settings = train_settings(**{**flags, 'max_steps': 8}, num_gpus=2, train_dir=str(tmp_path), variable_update=mode,
                              augmentation=augmentation, eval_steps=4)
    trainer.train(settings)
    last = metrics.read(str(tmp_path), metrics.EVAL)[-1]
    assert (last['step'], last['examples']) == (8, 9)


@pytest.mark.stress
@pytest.mark.parametrize('change, what', [
    pytest.param(lambda path: path.unlink(), 'No such file', marks=pytest.mark.stress),
    (lambda path: path.write_bytes(path.read_bytes()[:-1] + b'x'), 'has changed since the run began')])
def test_a_photo_that_changes_under_way_ends_the_run(flags, copy, tmp_path, change, what):
    settings = train_settings(**{**flags, 'dataset': f'{copy}/'}, train_dir=str(tmp_path / 'train'))
    trainer.train(settings.replace(max_steps=3))
    changed = copy / rows_of(prepare(copy).folder)[7]['file']
    with pytest.raises(RunError) as raised:
        trainer.train(settings, before_session=lambda: change(changed))
    line = str(raised.value)
    assert line.startswith(str(changed)) and what in line and '\n' not in line and 'model.ckpt-' in line, line
    with pytest.raises(UsageError, match='to have it made again'):
        trainer.train(settings)


@pytest.mark.stress
def test_a_run_that_goes_on_with_other_photos_says_so(flags, copy, tmp_path, capsys):
    settings = train_settings(**{**flags, 'dataset': f'{copy}/', 'max_steps': 1}, train_dir=str(tmp_path / 'train'))
    trainer.train(settings)
    shutil.rmtree(prepare(copy).folder)
    trainer.train(settings.replace(max_steps=2))
    assert 'changed' not in capsys.readouterr().out
    folder = prepare(copy).folder
    files = [copy / row['file'] for row in rows_of(folder)]
    one, other = [files[i] for i in (14, 26, 32, 24) if files[i].suffix == '.jpg'][:2]  # which step 2 takes
    one.write_bytes(other.read_bytes())
    shutil.rmtree(folder)
    trainer.train(settings.replace(max_steps=3))
    assert 'changed    the training images' in capsys.readouterr().out
    directory = TrainDir(settings.run.train_dir)
    taken = rerun.Rerun(directory, 2)
    verification = verify.Verification(directory, taken)
    for step in taken.steps():
        verification.compare(step)
    assert 'images_sha256=' in verification.line()
    evaluate = functools.partial(evaluation.evaluate, eval_settings(
        checkpoint_dir=settings.run.train_dir, eval_dir=str(tmp_path / 'eval'), run_once=True, tower_device='cpu'))
    evaluate()  # the run has gone on with these photos
    assert 'warning' not in capsys.readouterr().out
    one.write_bytes((copy / rows_of(folder)[2]['file']).read_bytes())
    shutil.rmtree(folder)
    evaluate()
    output = capsys.readouterr().out
    assert 'warning: the training images have changed since the run was trained' in output
    assert 'test images' not in output.replace('so test images may', '')
    tested, trained = (next(row['file'] for row in rows_of(folder, part) if MADE not in row['file'])
                       for part in (records.TEST, records.TRAIN))
    (copy / tested).write_bytes((copy / trained).read_bytes())
    shutil.rmtree(folder)
    evaluate()
    output = capsys.readouterr().out
    assert 'warning: 1 of the test images are training images too' in output
    assert 'warning: the test images are not those that belonged to the run when it was trained' in output
    trainer.train(settings.replace(max_steps=4))
    assert 'changed    the test images' in capsys.readouterr().out


def test_validation_takes_as_many_images_at_a_time_as_fit_into_memory():
    assert [evaluator.batch_size(size, 500) for size in (16, 64, 65, 224, 512)] == [500, 500, 484, 40, 7]
    run = types.SimpleNamespace(recipe=types.SimpleNamespace(image_size=512))
    assert model.batch_size(eval_settings(), run) == 7 and model.batch_size(eval_settings(batch_size=50), run) == 50


@pytest.mark.stress
def test_the_consumers_follow(flags, folder, tmp_path, capsys, monkeypatch):
    settings = train_settings(**{**flags, 'max_steps': 2}, train_dir=str(tmp_path / 'train'), log_frequency=1)
    check(settings)
    trainer.train(settings)
    evaluation.evaluate(eval_settings(checkpoint_dir=str(tmp_path / 'train'), eval_dir=str(tmp_path / 'eval'),
                                      run_once=True, tower_device='cpu'))
    assert 'of 9)' in capsys.readouterr().out
    decoded, make = [], pictures.Decoder.make
    monkeypatch.setattr(pictures.Decoder, 'make', lambda self, file: decoded.append(file.path) or make(self, file))
    files = tuple(str(folder / row['file']) for row in rows_of(prepare(folder).folder)[:2])
    classification.classify(eval_settings(checkpoint_dir=settings.run.train_dir, image=files, tower_device='cpu'),
                            lambda line: None)
    assert sorted(decoded) == sorted(files)
    blocks = inputs.of_run(settings, 4)
    assert blocks[0].originals.shape == (4, SIZE, SIZE, 3) and blocks[0].augmented.shape == (4, SIZE, SIZE, 3)


@pytest.mark.stress
def test_the_workers_of_a_cluster_read_their_own_photos(flags, two_towers, tmp_path):
    with Tasks(2, 0, **flags, train_dir=tmp_path / 'train') as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    assert_same_bits(last_variables(tmp_path / 'train'), two_towers)
    with Tasks(2, 0, **flags, train_dir=tmp_path / 'async', variable_update='async') as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends


@pytest.mark.stress
@pytest.mark.skipif(subprocess.run(['unshare', '-m', 'true'], capture_output=True).returncode != 0,
                    reason='no mount namespaces of our own here')
@pytest.mark.parametrize('where', ['manifest', 'photo'])
def test_a_worker_with_other_photos_is_refused(where, flags, folder, copy, tmp_path):
    row = rows_of(prepare(folder).folder)[0]['file']
    path = copy / row
    before = path.stat()
    if where == 'manifest':
        shutil.rmtree(copy / 'cifar-bin-0.2-manifest')
        path.write_bytes(path.read_bytes() + b'x')
        prepare(copy)
        status, said = 2, f"its {folder}/cifar-bin-0.2-manifest/train.tsv differs from the chief's"
    else:  # found when it is read
        path.write_bytes(path.read_bytes()[:-1] + b'x')
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        status, said = 1, f'error: worker 1: {folder}/{row} has changed since the run began'
    with Tasks(2, 0, started=['worker 0'], **{**flags, 'max_steps': 100}, train_dir=tmp_path / 'train') as tasks:
        mount = 'mount --bind "$0" "$1" && shift && exec "$@"'
        tasks.commands['worker 1'][:0] = ['unshare', '-m', 'sh', '-c', mount, str(copy), str(folder)]
        tasks.start('worker 1')
        ends = tasks.ends()
    assert ends['worker 0'][0] == status and ends['worker 1'][0] == 1
    assert said in ends['worker 0'][1]
