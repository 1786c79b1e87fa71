"""Predictions that are not finite: never correct or best, counted and named, without effect on other images."""
import csv
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from cifar10 import predict
from cifar10.base.errors import UsageError
from cifar10.evaluation import classification, export
from cifar10.run import metrics
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.helpers import checkpoints, run_script, tf
from tests.test_picture_files import encoded

# In evaluations NaN for images of one colour, and for all images once the weights are large.
NETWORK = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    flat = tf.reshape(images, [images.shape[0], -1])
    weights = tf.get_variable('weights', [flat.shape[1], num_classes], initializer=tf.zeros_initializer())
    if training:
        return flat @ weights
    red = images[:, :, :, 0]
    spread = tf.reduce_max(red, [1, 2])[:, None] - tf.reduce_min(red, [1, 2])[:, None]
    return flat @ weights + tf.log(spread / spread) + 0.0 * tf.sqrt(0.0021 - tf.reduce_max(tf.abs(weights)))
'''
CLASSES = ['cat', 'dog', 'eel']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder of three classes, with a test image of one colour in the first, and a network."""
    folder, random = tmp_path_factory.mktemp('images'), np.random.default_rng(0)
    for part, count in (('train', 12), ('test', 4)):
        for i, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = (random.random([32, 32, 3]) * 100 + 70 * i).astype(np.uint8)
                (folder / part / name / f'{k}.png').write_bytes(encoded(pixels, 'PNG'))
    (folder / 'test' / 'cat' / 'black.png').write_bytes(encoded(np.zeros([32, 32, 3], np.uint8), 'PNG'))
    (folder / 'net.py').write_text(NETWORK)
    return folder


def settings_of(folder, train_dir, **changes):
    return train_settings(**{**dict(
        dataset=str(folder), data_dir=f'{folder}-data', network=f'{folder}/net.py:network', train_dir=str(train_dir),
        batch_size=6, tower_device='cpu', summary_steps=0, augmentation='none', moving_averages=False,
        learning_rate=0.002, max_steps=8, eval_steps=1, save_steps=4, keep_best=True, patience=20), **changes})


@pytest.fixture(scope='module')
def run(folder, tmp_path_factory):
    """The train_dir of a run whose last evaluations have no finite prediction."""
    train_dir = tmp_path_factory.mktemp('run') / 'train'
    with tf.Graph().as_default():
        assert trainer.train(settings_of(folder, train_dir))[2] == 'max_steps'
    return train_dir


def strict(text):
    return json.loads(text, parse_constant=pytest.fail)


def test_a_run_continues_and_its_best_checkpoint_has_finite_predictions(run, folder, tmp_path, capsys):
    records = metrics.read(str(run), metrics.EVAL)
    counts = [record['not_finite'] for record in records]
    assert set(counts) == {1, 13} and sorted(counts) == counts and 2 < counts.count(1) < 7
    assert all(record['examples'] == 13 and record['cross_entropy'] is None for record in records)
    assert {record['correct'] for record in records if record['not_finite'] == 13} == {0}
    best = strict((run / 'best.json').read_text())
    highest = max(record['accuracy'] for record in records)
    assert best['step'] == next(record['step'] for record in records if record['accuracy'] == highest)
    assert f"{run}/model.ckpt-{best['step']}" in checkpoints(run) and best['not_finite'] == 1
    again = shutil.copytree(run, tmp_path / 'again')
    trainer.train(settings_of(folder, again, max_steps=10))
    line, = (line for line in capsys.readouterr().out.splitlines() if line.endswith('step 9'))
    assert 'precision @ 1 = 0.000 (0 of 13); 13 predictions not finite, such as for ' in line
    assert strict((again / 'best.json').read_text())['step'] == best['step']


def test_a_run_without_finite_predictions_has_no_best_and_spends_no_patience(folder, tmp_path):
    config = settings_of(folder, tmp_path / 'train', learning_rate=1.0, max_steps=4, patience=1)
    assert trainer.train(config)[1:] == (4, 'max_steps')
    assert {record['not_finite'] for record in metrics.read(config.run.train_dir, metrics.EVAL)} == {13}
    assert not (tmp_path / 'train' / 'best.json').exists()


def test_a_nonfinite_prediction_does_not_affect_other_files(run, folder, tmp_path):
    given = dict(train_dir=str(run), checkpoint='best', tower_device='cpu')
    paths = [str(folder / 'test' / name) for name in ('cat/0.png', 'cat/black.png', 'dog/1.png')]
    with pytest.warns(UserWarning, match='1 of 3 images could not be classified'):
        found = predict(paths, **given)
    alone = predict(paths[::2], **given)
    np.testing.assert_array_equal(found.probabilities[::2], alone.probabilities)
    assert found.predicted == [alone.predicted[0], None, alone.predicted[1]] and list(found.errors) == [paths[1]]
    assert np.isnan(found.probabilities[1]).all()
    pixels = np.stack([np.asarray(tf.keras.utils.load_img(path)) for path in paths])
    with pytest.warns(UserWarning, match='1 of 3 images could not be classified'):
        of_array = predict(pixels, **given)
    assert of_array.predicted == found.predicted and list(of_array.errors) == [1]
    table, lines = tmp_path / 'table.csv', []
    with pytest.raises(UsageError, match='1 of 3 files could not be classified'):
        classification.classify(eval_settings(**given, image=tuple(paths), json=True), lines.append)
    classification.classify(eval_settings(**given, image=tuple(paths), csv=str(table)), lines.append)
    objects = list(map(strict, lines[:3]))
    assert [each['file'] for each in objects] == paths and ['error' in each for each in objects] == [False, True, False]
    with open(table, newline='') as stream:
        rows = list(csv.reader(stream))[1:]
    assert [row[:3] for row in rows] == [[path, true, name or ''] for path, true, name in zip(
        paths, ('cat', 'cat', 'dog'), found.predicted)]
    assert rows[1][3:] == ['', '', '']


def test_an_exported_model_gives_a_nonfinite_prediction_no_class(run, tmp_path):
    export.export(eval_settings(checkpoint_dir=str(run), checkpoint='best', export_dir=str(tmp_path / 'model'),
                                tower_device='cpu'))
    images = np.random.default_rng(0).integers(0, 99, [3, 32, 32, 3], np.uint8)
    images[1] = 0
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ['serve'], str(tmp_path / 'model')).signature_def['serving_default']
        outputs = {name: value.name for name, value in signature.outputs.items()}
        found = session.run(outputs, {signature.inputs['images'].name: images})
    likeliest = found['probabilities'][::2].argmax(1)
    assert np.isnan(found['probabilities'][1]).all()
    assert found['class_index'].tolist() == [likeliest[0], -1, likeliest[1]]
    assert [name.decode() for name in found['class_name']] == [CLASSES[likeliest[0]], '', CLASSES[likeliest[1]]]


def test_all_json_is_valid(run, folder, tmp_path):
    copy = shutil.copytree(run, tmp_path / 'train')
    result = run_script('cifar10_eval.py', train_dir=copy, run_once=True, json=True)
    assert result.returncode == 0 and [strict(line)['not_finite'] for line in result.stdout.splitlines()] == [13]
    found = [pathlib.Path(path, name) for path, _, names in os.walk(copy) for name in names if '.json' in name]
    assert {path.name for path in found} == {'metrics.jsonl', 'config.json', 'best.json'} and len(found) == 4
    for path in found:
        for text in path.read_text().splitlines() if path.suffix == '.jsonl' else [path.read_text()]:
            strict(text)
