"""Uses of a trained model: evaluation, confusion tables, classification, and export as a SavedModel."""
import contextlib
import csv
import json
import math
import os
import pathlib
import shutil
import warnings

import numpy as np
import pytest

import cifar10
from cifar10 import evaluate, predict
from cifar10.base.errors import TemporaryError, UsageError
from cifar10.data import datasets, folders
from cifar10.data.shapes import CLASSES
from cifar10.evaluation import classification, confusion, result_pictures
from cifar10.evaluation import export as exporting
from cifar10.evaluation.result import Prediction
from cifar10.evaluation.trained import Model
from cifar10.model import classic
from cifar10.run.pictures import names as drawn_names
from cifar10.settings.evaluation import eval_settings
from tests.helpers import ROOT, evaluated, last_variables, python, tf, train
from tests.test_picture_files import encoded, served


@pytest.fixture(scope='module')
def pictures(tmp_path_factory, data_dir):
    """(A folder with the first test images as PNG files, their pixels)."""
    folder = tmp_path_factory.mktemp('pictures')
    data = datasets.prepare('shapes', data_dir, datasets.TEST)
    pixels = data.images(6)
    for i, image in enumerate(pixels):
        (folder / f'{i}.png').write_bytes(encoded(image, 'PNG'))
    (folder / 'text.png').write_text('not a picture')
    return folder, pixels


def test_confusion_tables():
    counts = np.array([[8, 2, 0], [0, 9, 1], [0, 0, 0]])
    assert confusion.per_class(counts, ['cat', 'dog', 'eel']) == [
        ('cat', 8, 10, 0.8, 1.0, 'dog (2)'), ('dog', 9, 10, 0.9, 9 / 11, 'eel (1)'), ('eel', 0, 0, math.nan, 0.0, '')]
    lines = confusion.lines(counts, ['cat', 'dog', 'eel'])
    assert lines[1].split() == ['cat', '8', '10', '0.800', '1.000', 'dog', '(2)']
    assert [line.split() for line in lines[-3:]] == [['cat', '8', '2', '0'], ['dog', '0', '9', '1'],
                                                     ['eel', '0', '0', '0']]
    assert '| dog | 9 | 10 | 0.900 | 0.818 | eel (1) |' in result_pictures.class_table(counts, ['cat', 'dog', 'eel'])
    with_others = np.c_[counts, [3, 0, 5]]  # a column for examples without a finite prediction
    assert confusion.per_class(with_others, ['cat', 'dog', 'eel']) == [
        ('cat', 8, 13, 8 / 13, 1.0, 'not finite (3), dog (2)'), ('dog', 9, 10, 0.9, 9 / 11, 'eel (1)'),
        ('eel', 0, 5, 0.0, 0.0, 'not finite (5)')]
    assert confusion.mean_recall(with_others) == (8 / 13 + 0.9 + 0.0) / 3
    assert [line.split() for line in confusion.lines(with_others, ['cat', 'dog', 'eel'])[-3:]] == [
        ['cat', '8', '2', '0', '3'], ['dog', '0', '9', '1', '0'], ['eel', '0', '0', '0', '5']]
    assert result_pictures.confusion_image(with_others, ['cat', 'dog', 'eel']).shape == result_pictures.confusion_image(
        counts, ['cat', 'dog', 'eel']).shape
    assert len(confusion.lines(np.eye(100, dtype=int), [f'class {i}' for i in range(100)])) == 101  # no matrix


def test_the_confusion_picture_allows_any_names_and_fits_a_screen():
    assert drawn_names(['caf\u00e9', '\u732b', 'a\nb', 'dog']) == ['cafe', 'class 1', 'class 2', 'dog']
    for n, length in ((2, 200), (20, 3)):
        picture = result_pictures.confusion_image(np.full([n, n], 1_234_567), ['m' * length] * n)
        assert max(picture.shape) < 1900


def test_the_largest_losses_are_in_the_same_order_in_picture_and_table():
    ramp = np.linspace(-1, 2, 30 * 30 * 3, dtype=np.float32).reshape(30, 30, 3)
    found = [Prediction(5.0 - i, 10 + i, i % 2, 2, ramp if i % 2 else -ramp, f'a_{i}', 0.9) for i in range(6)]
    classes = ['cat', 'a|b', '*d* <b>_x_']
    picture = result_pictures.losses_image(found, classes)
    height, width = len(picture) // 2, picture.shape[1] // 4
    assert width == 6 * 30 + 4 and height > 6 * 30 + 2 * 14 and picture.dtype == np.uint8
    first, second = picture[:180, :180], picture[:180, width:width + 180]
    assert first[0, 0, 0] == second[-1, -1, -1] == 255 and first[-1, -1, -1] == second[0, 0, 0] == 0
    third = picture[height:]
    assert (third[:180, :180] == first).all() and (third[:, 2 * width:] == 255).all()  # there is no seventh image
    rows = result_pictures.losses_table(found, classes).splitlines()
    assert rows[2] == '| row 1, column 1 | a\\_0 | cat | 0.0067 | \\*d\\* \\<b\\>\\_x\\_ |'
    assert rows[-1] == '| row 2, column 2 | a\\_5 | a\\|b | 1.0000 | \\*d\\* \\<b\\>\\_x\\_ |'
    assert len(rows) == 2 + len(found)
    for pixels in (ramp, np.full_like(ramp, np.nan), np.full_like(ramp, np.inf)):
        found[0] = Prediction(np.inf, 0, 0, len(classes), pixels, 'a_0', np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            other = result_pictures.losses_image(found, classes)
        assert (other[:, width:] == picture[:, width:]).all()
    assert result_pictures.losses_table(found, classes).splitlines()[2] == (
        '| row 1, column 1 | a\\_0 | cat | nan | not finite |')


@pytest.mark.parametrize('size', [24, 48, 96, 224])
def test_captions_of_images_are_readable_in_a_card_of_tensorboard(size):
    images, classes = np.zeros([16, size, size, 3], np.float32), ['triangle', 'butterfly']
    found = [Prediction(5.0, i, 0, 1, image, f'{i}.png', 0.98) for i, image in enumerate(images)]
    height, width = result_pictures.losses_image(found, classes).shape[:2]
    scale = min(348 / width, 215 / height)  # a Time Series card; an Images card has the same width and any height
    line = (height / 2 - width / 4) / 2  # square images, each with two lines below
    assert line * scale > 11.5  # letters have 10 pixels
    places = [row.split(' | ')[0] for row in result_pictures.losses_table(found, classes).splitlines()]
    assert [place for place in places[2:] if 'row' in place] == [
        f'| row {row}, column {column}' for row in (1, 2) for column in (1, 2, 3, 4)] and len(places) == 18


def probabilities_of(trained, pixels):
    """Computes the classic network's softmax from the moving averages in a checkpoint."""
    arrays = last_variables(trained)
    with tf.Graph().as_default(), tf.Session() as session:
        images = tf.image.per_image_standardization(tf.cast(pixels[:, 4:28, 4:28], tf.float32))
        probabilities = tf.nn.softmax(classic.inference(images))
        for variable in tf.global_variables():
            variable.load(arrays[variable.op.name + '/ExponentialMovingAverage'], session)
        return session.run(probabilities)


def test_images_are_classified_and_invalid_files_are_listed(first_step, pictures):
    (folder, pixels), trained = pictures, first_step('classic')
    names = [str(folder / name) for name in ('0.png', 'text.png', '1.png', 'miss\ning\udcff.png')]
    rows, lines = [], []
    for as_json, printed in ((False, rows), (True, lines)):
        with pytest.raises(UsageError, match='^2 of 4 files could not be classified; see the lines above$'):
            classification.classify(eval_settings(checkpoint_dir=trained, tower_device='cpu', image=tuple(names),
                                                  batch_size=2, json=as_json), printed.append)
    expected = probabilities_of(trained, pixels[:2])
    assert [row.split()[0] for row in rows] == [*names[:3], repr(names[3])]
    assert 'not a picture' in rows[1] and 'No such file' in rows[3]
    objects = [json.loads(line) for line in lines]
    assert [item['file'] for item in objects] == names and 'error' in objects[1] and 'error' in objects[3]
    for item, row, probabilities in zip(objects[::2], rows[::2], expected):
        order = np.argsort(-probabilities)[:3]
        assert [top['name'] for top in item['classes']] == [CLASSES[i] for i in order]
        np.testing.assert_allclose([top['probability'] for top in item['classes']], probabilities[order], atol=1e-5)
        columns = [column for top in item['classes'] for column in (top['name'], f"{top['probability']:.3f}")]
        assert row.split()[1:] == columns


@pytest.fixture(scope='module')
def tree(pictures, tmp_path_factory):
    """A folder with pictures at several depths, among other files; returns the paths of the pictures.

    The third picture is unreadable; the others are the first test images.
    """
    folder, files = tmp_path_factory.mktemp('tree'), [str(pictures[0] / f'{i}.png') for i in range(3)]
    names = ['a/0.png', 'a/deep/1.PNG', 'b/broken.jpg', 'b/without_a_suffix']
    for name in (*names, '.hidden.png', '.hidden/0.png', 'notes.txt', 'b/Thumbs.db'):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('not a picture')
    for file, name in zip(files, (names[0], names[1], names[3])):
        shutil.copy(file, folder / name)
    (folder / 'a' / 'loop').symlink_to('..')
    return folder, [str(folder / name) for name in names]


def test_all_pictures_in_a_folder_are_classified_into_a_table(first_step, tree, tmp_path, capsys):
    folder, paths = tree
    given = dict(train_dir=first_step('linear'), tower_device='cpu')
    target, other, refused = tmp_path / 'new' / 'table.csv', tmp_path / 'other.csv', []
    classification.classify(eval_settings(**given, image=(str(folder),), csv=str(target), batch_size=2), refused.append)
    output = capsys.readouterr().out
    assert f'written    {target}, 4 rows\n' in output and 'warning: 1 of 4 files could not be classified' in output
    assert [line.split()[0] for line in refused] == [paths[2]] and 'not a picture' in refused[0]
    with open(target, newline='') as stream:
        head, *rows = csv.reader(stream)
    with pytest.warns(UserWarning, match='^warning: ') as warned:
        found = predict(folder, **given)
    assert [str(each.message) for each in warned] == list(found.notes) and len(found.notes) == 2
    assert f'skipping 2 of 6 files in {folder} ' in found.notes[0] and f'{folder}/b/Thumbs.db' in found.notes[0]
    assert found.step == 1 and found.files == tuple(paths) and found.classes == tuple(CLASSES)
    assert found.errors.keys() == {paths[2]} and found.errors[paths[2]] in refused[0]
    assert head == ['file', 'true_class', 'class', *(f'p({name})' for name in CLASSES)]
    assert [row[:2] for row in rows] == [[path, ''] for path in paths]  # no folder has the name of a class
    assert [row[2] or None for row in rows] == found.predicted and found.predicted.index(None) == 2
    np.testing.assert_array_equal(np.array([[value or 'nan' for value in row[3:]] for row in rows], np.float32),
                                  found.probabilities)
    before = target.read_bytes()
    with pytest.raises(UsageError, match='1 of 1 files could not be classified'):
        classification.classify(eval_settings(**given, image=(paths[2],), csv=str(other)), print)
    assert not other.exists()
    with pytest.raises(UsageError, match=f'--csv={target} exists; remove it, or give the name of a new file'):
        classification.classify(eval_settings(**given, image=(str(folder),), csv=str(target)), print)
    assert target.read_bytes() == before and os.listdir(target.parent) == ['table.csv']


def test_a_folder_without_pictures_is_refused_but_any_file_is_accepted(tmp_path):
    (tmp_path / 'text').write_text('not a picture')
    (tmp_path / 'below').mkdir()
    with pytest.raises(UsageError, match=f'--image={tmp_path} has no pictures'):
        folders.pictures([str(tmp_path)])
    assert folders.pictures([str(tmp_path / 'text')]) == [str(tmp_path / 'text')]


def test_arrays_are_classified_like_files_and_as_in_evaluation(first_step, pictures, tmp_path, data_dir):
    (folder, pixels), trained = pictures, first_step('classic')
    settings = dict(train_dir=trained, tower_device='cpu')
    of_array = predict(pixels, **settings)
    of_files = predict(map(folder.joinpath, map('{}.png'.format, range(6))), **settings)
    assert of_array.probabilities.shape == (6, 10) and of_array.probabilities.dtype == np.float32
    np.testing.assert_array_equal(of_array.probabilities, of_files.probabilities)
    np.testing.assert_allclose(of_array.probabilities, probabilities_of(trained, pixels), atol=1e-6)
    assert of_array.files == () and of_array.errors == {} and of_array.notes == ()
    settings.update(train_dir=first_step('linear'))
    grey = pixels[:2, ..., :1].repeat(40, 1)  # a different shape
    expected = predict(grey.repeat(3, 3), **settings).probabilities
    np.testing.assert_array_equal(predict(grey[..., 0], **settings).probabilities, expected)
    assert predict(pixels[:0], **settings).probabilities.shape == (0, 10)
    images = datasets.prepare('shapes', data_dir, datasets.TEST).images(150)
    predicted = predict(images, **settings, batch_size=64).probabilities.argmax(1)  # in three batches
    evaluated = evaluate(**settings, eval_dir=str(tmp_path), num_examples=150)
    np.testing.assert_array_equal(np.bincount(predicted, minlength=10), evaluated.confusion.sum(0))


def test_files_may_be_bytes_or_paths_in_any_collection(first_step, pictures):
    folder, _ = pictures
    paths = [str(folder / f'{i}.png') for i in range(2)]
    contents = [pathlib.Path(path).read_bytes() for path in paths]
    settings = dict(train_dir=first_step('linear'), tower_device='cpu')
    with pytest.warns(UserWarning, match='1 of 3 images could not be classified'):
        expected = predict([*paths, 'a\0b.png'], **settings)
    assert expected.predicted[2] is None and expected.errors.keys() == {'a\0b.png'}
    found = predict(map(memoryview, contents), **settings)
    np.testing.assert_array_equal(found.probabilities, expected.probabilities[:2])
    assert (found.files, found.errors) == ((), {})
    np.testing.assert_array_equal(predict(contents[1], **settings).probabilities, expected.probabilities[1:2])
    with pytest.warns(UserWarning, match='3 of 4 images could not be classified'):
        found = predict([contents[0], b'', contents[0][:-40], paths[0].encode()], **settings)
    assert found.predicted == [expected.predicted[0], None, None, None] and found.errors.keys() == {1, 2, 3}


@pytest.mark.parametrize('given', [3, [3], ['a.png', b'a'], [['a.png']], [None], np.array(['a.png', 3], object),
                                   [np.zeros([4, 4, 3], np.uint8), np.zeros([5, 5, 3], np.uint8)], object()])
def test_invalid_images_are_refused(given):
    with pytest.raises(UsageError, match='^predict got images of '):
        predict(given)


REPLACED_WHEN_BUILT = '''
import os
import tensorflow as tf

def network(images, num_classes, training):
    if os.path.exists('{0}/other'):
        os.rename('{0}/run', '{0}/gone')
        os.rename('{0}/other', '{0}/run')
    return tf.reduce_mean(images, [1, 2]) @ tf.compat.v1.get_variable('w', [3, num_classes])
'''


def test_a_run_replaced_between_reading_its_settings_and_its_checkpoint_is_refused(settings, tmp_path):
    path, target = tmp_path / 'run', tmp_path / 'model'
    (tmp_path / 'net.py').write_text(REPLACED_WHEN_BUILT.format(tmp_path))
    train(settings(network=f'{tmp_path}/net.py:network', train_dir=str(path), max_steps=1))
    of_other = shutil.copytree(path, tmp_path / 'copy')
    config = json.loads((of_other / 'config.json').read_text())
    config.update(run='another', classes=config['classes'][::-1])
    (of_other / 'config.json').write_text(json.dumps(config))
    of_other.rename(tmp_path / 'other')
    with pytest.raises(TemporaryError, match=f'the run in {path} was replaced'):
        exporting.export(eval_settings(checkpoint_dir=str(path), export_dir=str(target), tower_device='cpu'))
    assert (tmp_path / 'gone').exists() and not target.exists()


LOAD = '''
import sys, json, numpy as np, tensorflow as tf
signatures = tf.saved_model.load(sys.argv[1]).signatures
model = signatures['serving_default']
images = np.load(sys.argv[2])
outputs = [model(images=tf.constant(part)) for part in (images, images[:1], images[:0])]
files = [open(path, 'rb').read() for path in sys.argv[3:]]
outputs.append(signatures['classify_bytes'](image_bytes=tf.constant(files)))
try:
    model(images=tf.constant(images[:, :28, :28]))
    sys.exit('images of another shape are taken')
except tf.errors.InvalidArgumentError:
    pass
print(json.dumps([{name: np.char.decode(value.numpy().astype(bytes)).tolist() if value.dtype == tf.string else
                   value.numpy().tolist() for name, value in output.items()} for output in outputs]))
'''


@pytest.mark.stress
def test_an_exported_model_answers_in_a_tensorflow_2_program(first_step, pictures, tmp_path, call):
    (folder, pixels), trained = pictures, first_step('classic')
    np.save(tmp_path / 'images.npy', pixels)
    target = tmp_path / 'models' / '1'
    arguments = f'--checkpoint_dir={trained}', '--tower_device=cpu', f'--export_dir={target}'
    assert call('cifar10_eval.py', *arguments) == (0, '')
    files = []
    for i, content in enumerate(content for content, is_same in served() if is_same):
        files.append(str(tmp_path / str(i)))
        pathlib.Path(files[-1]).write_bytes(content)
    result = python('-c', LOAD, target, tmp_path / 'images.npy', *files)
    assert result.returncode == 0, result.stderr
    of_all, of_one, of_none, of_files = json.loads(result.stdout.splitlines()[-1])
    lines = []
    classification.classify(eval_settings(checkpoint_dir=trained, image=tuple(files), json=True, tower_device='cpu'),
                            lines.append)
    for line, *row in zip(lines, of_files['probabilities'], of_files['classes'], of_files['class_name'], strict=True):
        by_name = dict(zip(row[1], row[0], strict=True))
        classes = json.loads(line)['classes']
        assert classes[0]['name'] == row[2]
        for each in classes:
            assert abs(by_name[each['name']] - each['probability']) < 1e-5
    assert of_none == dict(probabilities=[], class_index=[], class_name=[], classes=[])
    expected = probabilities_of(trained, pixels)
    np.testing.assert_allclose(of_all['probabilities'], expected, atol=1e-5)
    assert of_all['class_index'] == expected.argmax(1).tolist() and len(of_one['class_index']) == 1
    assert of_all['class_name'] == [CLASSES[i] for i in of_all['class_index']]
    status, error = call('cifar10_eval.py', f'--checkpoint_dir={trained}', f"--export_dir={folder / '0.png'}/model")
    assert status == 2 and '--export_dir' in error
    assert os.listdir(tmp_path / 'models') == ['1']


def test_a_network_that_needs_a_fixed_number_of_images_is_evaluated_and_exported(settings, pictures, tmp_path):
    network = f'{ROOT}/tests/idioms.py:of_a_known_number'
    train(settings(network=network, max_steps=2, batch_size=4, moving_averages=False))
    trained, model = tmp_path / 'train', tmp_path / 'model'
    assert evaluated(trained, tmp_path / 'eval', num_examples=50, batch_size=20)['examples'] == 50
    folder, pixels = pictures
    lines = []
    files = tuple(str(folder / f'{i}.png') for i in range(3))
    classification.classify(eval_settings(checkpoint_dir=str(trained), image=files, json=True, tower_device='cpu',
                                          batch_size=2), lines.append)
    classification.classify(eval_settings(checkpoint_dir=str(trained), image=files[:1], tower_device='cpu'), print)
    exporting.export(eval_settings(checkpoint_dir=str(trained), tower_device='cpu', export_dir=str(model)))
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ['serve'], str(model)).signature_def['serving_default']
        images, output = signature.inputs['images'].name, signature.outputs['probabilities'].name
        probabilities = session.run(output, {images: pixels[:3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match='the model takes 8 images at most'):
            session.run(output, {images: np.concatenate([pixels, pixels])})
    for row, line in zip(probabilities, lines, strict=True):
        best = json.loads(line)['classes'][0]
        assert CLASSES[row.argmax()] == best['name'] and abs(row.max() - best['probability']) < 1e-5


def test_a_model_is_exported_from_python(first_step, tmp_path):
    trained = first_step('linear')
    lines, target = [], tmp_path / 'models' / '1'
    exported = cifar10.export(target, train_dir=trained, tower_device='cpu', say=lines.append)
    assert exported == cifar10.ExportResult(1, os.path.join(trained, 'model.ckpt-1'), str(target))
    assert 'saved_model.pb' in os.listdir(target) and lines[-1].startswith('exported ')
    with pytest.raises(UsageError, match='exists and is not empty'):
        cifar10.export(str(target), train_dir=trained, tower_device='cpu')
    with pytest.raises(UsageError, match='--json is for the command line only'):
        cifar10.export(tmp_path / 'other', train_dir=trained, json=True)


def test_an_export_overtaken_by_another_one_is_refused(first_step, tmp_path, monkeypatch):
    target = tmp_path / 'model'

    @contextlib.contextmanager
    def making(path):
        target.mkdir()
        (target / 'saved_model.pb').write_text('of the other one')
        yield
    monkeypatch.setattr(exporting, 'making', making)
    with pytest.raises(UsageError, match='exists and is not empty'):
        exporting.export(eval_settings(checkpoint_dir=first_step('linear'), tower_device='cpu', export_dir=str(target)))
    assert os.listdir(tmp_path) == ['model'] and os.listdir(target) == ['saved_model.pb']


def test_a_missing_list_of_classes_is_refused_with_its_source(trained, tmp_path):
    without = shutil.ignore_patterns('config.json', 'metrics.jsonl')  # either file has the classes
    copied = shutil.copytree(trained, tmp_path / 'copied', ignore=without)
    (tmp_path / 'mine').mkdir()
    with pytest.raises(UsageError, match='no config.json in .*, so the classes are unknown; copy it from the run'):
        Model.open(eval_settings(train_dir=str(copied), dataset=f"{tmp_path / 'mine'}/", tower_device='cpu'))
