"""A trained model is scored on other labelled images than its run's, without changing the run."""
import functools
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image

from cifar10 import UsageError, evaluate, predict, train
from cifar10.base.registry import DATASETS
from cifar10.run import metrics
from tests.helpers import mostly_stress, run_script, tf
from tests.test_arrays import made


def folder_of(path, images, labels, classes):
    """Writes each image to a picture file, in a folder for its class; returns the folder."""
    for number, (image, label) in enumerate(zip(images, labels)):
        (path / classes[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / classes[label] / f'{number}.png')
    return f'{path}/'


CLASSES = ('ant', 'bee', 'cat', 'dog')


def train_below(path, data_dir, **changes):
    """Trains a small run with its images and data_dir in a folder; returns the train_dir."""
    shutil.copytree(data_dir, path / 'data')
    own = folder_of(path / 'own', *made(80, (50, 40, 3), 4), CLASSES)
    train(**dict(dict(dataset=own, train_dir=str(path / 'run'), data_dir=str(path / 'data'), network='linear',
                      batch_size=8, max_steps=6, tower_device='cpu', summary_steps=0), **changes))
    return str(path / 'run')


@pytest.fixture
def run(tmp_path, data_dir):
    """A function that trains a small run, by default on images of four classes, and returns its train_dir."""
    return functools.partial(train_below, tmp_path, data_dir)


@pytest.fixture(scope='module')
def folder(tmp_path_factory, data_dir):
    """The train_dir of a run that several tests share, because scoring never changes it."""
    return train_below(tmp_path_factory.mktemp('shared'), data_dir)


def files_below(folder):
    """Returns {path: content, or None for a folder} of everything below a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in pathlib.Path(folder).rglob('*')}


def scored(folder, dataset, **flags):
    """Returns the result and the records of scoring a model on a data set; asserts that the run does not change."""
    before, records = files_below(folder), []
    result = evaluate(train_dir=folder, dataset=dataset, tower_device='cpu', on_record=records.append, **flags)
    assert files_below(folder) == before
    assert [(record['accuracy'], record['examples']) for record in records] == [(
        metrics.rounded(result.accuracy), result.examples)]
    return result


def counts(folder, images, labels, classes):
    """Returns the confusion matrix of labelled images from the predictions of `predict`."""
    found = predict(images, train_dir=folder, tower_device='cpu')
    expected = np.zeros([len(classes)] * 2, int)
    for label, predicted in zip(labels, found.predicted, strict=True):
        expected[label, classes.index(predicted)] += 1
    return expected


@pytest.mark.parametrize('flags', mostly_stress(
    [dict(image_size=32, augmentation='none'), dict(image_size=48, augmentation='classic'),
     dict(image_size=72, augmentation='resized_crop'), dict(dataset='shapes', image_size=24)],
    dict(image_size=72, augmentation='resized_crop')))
def test_all_images_of_a_folder_count_once_and_match_predict(flags, run, tmp_path):
    folder = run(**flags)
    classes = DATASETS.load('shapes').classes if flags.get('dataset') else CLASSES
    images, labels = made(7, (60, 45, 3), 2, seed=5)
    labels = np.where(labels, 3, 1)  # only some of the classes, which the folder has in alphabetical order
    new = folder_of(tmp_path / 'new', images, labels, classes)
    result = scored(folder, new, per_class=True)
    np.testing.assert_array_equal(result.confusion, counts(folder, images, labels, classes))
    assert result.classes == classes and {each['image'] for each in result.largest_losses} == {
        f'{new}{classes[label]}/{number}.png' for number, label in enumerate(labels)}
    assert {name for name, figures in result.per_class.items() if np.isnan(figures['recall'])} == {
        *classes} - {classes[1], classes[3]}
    # The second scoring uses the prepared images.
    before = files_below(tmp_path / 'data')
    assert (scored(folder, new).confusion == result.confusion).all() and files_below(tmp_path / 'data') == before


def test_array_labels_are_numbers_of_the_runs_classes(folder, tmp_path):
    images, labels = made(9, (50, 40, 3), 3, seed=5)
    expected = counts(folder, images, labels, CLASSES)
    given = dict(data_dir=str(tmp_path / 'data'))
    np.testing.assert_array_equal(scored(folder, (images, labels), **given).confusion, expected)
    # If there are separate test images, only they count.
    others = made(20, (50, 40, 3), 4, seed=6)
    np.testing.assert_array_equal(scored(folder, (others, (images, np.arange(9) % 4)), **given).confusion, counts(
        folder, images, np.arange(9) % 4, CLASSES))
    with pytest.raises(UsageError, match='classes that the run does not have: 4; '):
        scored(folder, (images, labels + 2), **given)


def test_a_registered_data_set_is_matched_by_class_names(run, tmp_path):
    names = DATASETS.load('shapes').classes
    labels = np.arange(2 * 10)
    images = made(20)[0]
    folder = run(dataset=folder_of(tmp_path / 'others', images, labels % 10, names), max_steps=1, test_fraction=0.5)
    result = scored(folder, 'shapes')
    assert result.classes == tuple(sorted(names)) != names
    np.testing.assert_array_equal(result.confusion.sum(1), [20] * 10)
    rows = np.fromfile(tmp_path / 'data' / 'shapes-bin' / 'test_batch.bin', np.uint8).reshape(-1, 3073)[:150]
    expected = counts(folder, rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), [
        result.classes.index(names[label]) for label in rows[:, 0]], result.classes)
    np.testing.assert_array_equal(scored(folder, 'shapes', num_examples=150).confusion, expected)


def test_a_single_image_is_enough_and_training_images_are_reported(folder, tmp_path):
    images, _ = made(80, (50, 40, 3), 4)
    shown = np.concatenate([images[:80:4][:3], made(1, (50, 40, 3), seed=9)[0]])  # at most two of them were held out
    results = [scored(folder, folder_of(tmp_path / str(number), [image], [0], ('ant',)), num_examples=1)
               for number, image in enumerate(shown)]
    assert [result.examples for result in results] == [1] * 4
    assert 1 <= sum('training images' in str(result.notes) for result in results[:3]) and not results[3].notes


def test_unknown_classes_are_refused_before_any_preparation(folder, tmp_path):
    data = pathlib.Path(folder).with_name('data')
    new = folder_of(tmp_path / 'new', *made(8, classes=4), ('ant', 'Bee', 'elk', 'cat'))
    before = files_below(data)
    for dataset, names in ((new, 'Bee, elk'), ('cifar10', 'airplane, automobile, bird')):
        with pytest.raises(UsageError, match=f'--dataset={dataset.rstrip("/")}.*does not have: {names}'):
            scored(folder, dataset)
    with pytest.raises(UsageError, match='--eval_data=train_eval'):
        scored(folder, new, eval_data='train_eval')
    assert files_below(data) == before


@pytest.mark.parametrize('size', mostly_stress([32, 72], 32))
def test_moved_or_copied_images_of_the_run_are_recognised_and_recorded(size, run, tmp_path):
    folder, own = run(image_size=size), tmp_path / 'own'
    copied = shutil.copytree(own, tmp_path / 'copied', copy_function=shutil.copyfile)
    os.rename(own, tmp_path / 'moved')
    (tmp_path / 'moved' / 'ant' / 'thumbs.txt').write_text('x')
    evaluations = []
    for dataset in (copied, str(tmp_path / 'moved')):
        result = evaluate(train_dir=folder, dataset=f'{dataset}/', tower_device='cpu')
        evaluations.append((result.examples, result.accuracy, result.cross_entropy))
        assert metrics.last(f'{folder}/eval', metrics.EVAL)['examples'] == 8
        os.remove(f'{folder}/eval/metrics.jsonl')
    assert len(set(evaluations)) == 1
    # Other images of the same classes and number are not.
    new = folder_of(tmp_path / 'new', *made(80, (50, 40, 3), 4, seed=9), CLASSES)
    assert scored(folder, new).examples == 80


def test_the_script_scores_with_a_read_only_run(folder, tmp_path):
    new = folder_of(tmp_path / 'new', *made(8, (50, 40, 3), 4, seed=5), CLASSES)
    before = files_below(folder)
    os.chmod(folder, 0o555)
    result = run_script('cifar10_eval.py', train_dir=folder, dataset=new, run_once=True, per_class=True, json=True,
                        tower_device='cpu')
    os.chmod(folder, 0o755)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record['examples'] == 8 and record['dataset'] == new.rstrip('/') and files_below(folder) == before
    assert tf.io.gfile.glob(f'{folder}/eval*') == []
