"""Training on photos: modes, resumption, clusters, changed photos, and uses of the trained model."""
import functools
import shutil

import pytest

from cifar10.base.errors import RunError, UsageError
from cifar10.data import datasets
from cifar10.evaluation import trained
from cifar10.run import metrics
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.helpers import ROOT, Tasks, assert_same_bits, evaluated, last_variables, tf, train
from tests.test_photos import SIZE, copy, folder, lists, photos_of, prepare, prepared  # noqa: F401 (fixtures)
from tests.test_picture_files import encoded, noise


@pytest.fixture(scope='module')
def flags(folder):  # noqa: F811
    """The flags of a small run on the photos."""
    return dict(dataset=f'{folder}/', data_dir=str(folder.parent / 'data'), test_fraction=0.25, image_size=SIZE,
                network=f'{ROOT}/tests/networks.py:convolutions', batch_size=4, max_steps=12, save_steps=3,
                learning_rate=0.01, tower_device='cpu')


def of(copy, flags):  # noqa: F811
    """Returns the flags for a copy of the photos."""
    return dict(flags, dataset=f'{copy}/', data_dir=str(copy.parent / 'data'))


@pytest.fixture(scope='module')
def two_towers(flags, tmp_path_factory):
    """The variables after a run of two towers on two devices."""
    with tf.Graph().as_default():
        return train(train_settings(**flags, num_gpus=2, train_dir=str(tmp_path_factory.mktemp('two'))))


def test_the_default_augmentation_of_photos_is_resized_crop(flags):
    assert train_settings(**flags).recipe.augmentation == 'resized_crop'
    assert train_settings(**{**flags, 'image_size': 64}).recipe.augmentation == 'classic'
    assert train_settings(**flags, augmentation='shift').recipe.augmentation == 'shift'
    assert train_settings(**flags, preset='classic').recipe.augmentation == 'classic'


@pytest.mark.stress
def test_a_run_resumed_on_one_device_has_the_same_bits(flags, two_towers, tmp_path):
    settings = train_settings(**flags, num_towers=2, train_dir=str(tmp_path))
    trainer.train(settings.replace(max_steps=5))
    assert_same_bits(train(settings), two_towers)


@pytest.mark.stress
@pytest.mark.parametrize('mode, augmentation', [
    ('replicated', 'shift'), ('async', 'classic'), ('mirrored', 'resized_crop'), ('local', 'resized_crop')])
def test_every_mode_and_augmentation_trains_and_validates(flags, mode, augmentation, tmp_path):
    settings = train_settings(**{**flags, 'max_steps': 8}, num_gpus=2, train_dir=str(tmp_path), variable_update=mode,
                              augmentation=augmentation, eval_steps=4)
    trainer.train(settings)
    last = metrics.read(str(tmp_path), metrics.EVAL)[-1]
    assert (last['step'], last['examples']) == (8, 6)


@pytest.mark.stress
def test_a_prepared_photo_that_disappears_during_a_run_ends_it(flags, copy, tmp_path):  # noqa: F811
    settings = train_settings(**of(copy, flags), train_dir=str(tmp_path / 'train'))
    trainer.train(settings.replace(max_steps=3))
    gone = prepared(copy) / photos_of(prepare(copy))[7].name
    with pytest.raises(RunError) as raised:
        trainer.train(settings, before_session=gone.unlink)
    line = str(raised.value)
    assert line.startswith(str(gone)) and 'No such file' in line and '\n' not in line and 'model.ckpt-' in line, line
    listed, = lists(copy)
    with pytest.raises(UsageError, match=f'{gone.name} of .* is missing; to prepare them again: rm -r {listed}'):
        trainer.train(settings)
    shutil.rmtree(listed)
    trainer.train(settings)
    assert last_variables(tmp_path / 'train')['global_step'] == 12


@pytest.mark.stress
def test_changed_photos_are_reported_in_training_and_evaluation(flags, copy, tmp_path, capsys):  # noqa: F811
    settings = train_settings(**{**of(copy, flags), 'max_steps': 1}, train_dir=str(tmp_path / 'train'))
    trainer.train(settings)
    shutil.rmtree(prepared(copy))
    trainer.train(settings.replace(max_steps=2))
    assert '\nchanged ' not in capsys.readouterr().out
    train, test = ([copy / photo.source for photo in photos_of(prepare(copy, part))]
                   for part in (datasets.TRAIN, datasets.TEST))

    def replace(file, by):
        """Changes a file, and removes the prepared photos that the run could keep."""
        file.write_bytes(by)
        shutil.rmtree(prepared(copy))
    for i, file in enumerate(train):  # one of them is in step 2
        file.write_bytes(encoded(noise(90 + i, 130), 'JPEG'))
    shutil.rmtree(prepared(copy))
    trainer.train(settings.replace(max_steps=3))
    assert '\nchanged    the training images' in capsys.readouterr().out
    evaluate = functools.partial(evaluated, settings.run.train_dir, tmp_path / 'eval')
    evaluate()  # the run has already continued with these photos
    assert 'warning' not in capsys.readouterr().out
    replace(train[3], encoded(noise(130, 99), 'JPEG'))
    evaluate()
    output = capsys.readouterr().out
    assert 'warning: the training images have changed since the run was trained' in output
    assert 'test images' not in output.replace('trained on test images', '')
    replace(test[0], train[1].read_bytes())
    evaluate()
    output = capsys.readouterr().out
    assert 'warning: 1 test images are also training images' in output
    assert 'warning: the test images have changed since' in output
    trainer.train(settings.replace(max_steps=4))
    assert 'changed    the test images' in capsys.readouterr().out


def test_validation_batches_fit_into_memory():
    assert [trained.batch_size(size, 500) for size in (16, 64, 65, 224, 512)] == [500, 500, 484, 40, 7]


@pytest.mark.stress
def test_the_workers_of_a_cluster_read_their_own_photos(flags, two_towers, tmp_path):
    with Tasks(2, 0, **flags, train_dir=tmp_path / 'train') as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    assert_same_bits(last_variables(tmp_path / 'train'), two_towers)
    with Tasks(2, 0, **flags, train_dir=tmp_path / 'async', variable_update='async') as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
