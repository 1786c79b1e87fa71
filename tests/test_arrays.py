"""Images as NumPy arrays: pairs in Python and FILE.npz files, converted as picture files are."""
import os
import pickle
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from cifar10 import evaluate, train
from cifar10.base.errors import UsageError
from cifar10.data import datasets
from cifar10.data.arrays import saved
from cifar10.data.datasets import TEST, TRAIN


def made(count=60, shape=(32, 32, 3), classes=3, seed=0):
    """Returns (images, labels); each label is visible in its image."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = random.integers(0, 100, [count, *shape]) + labels.reshape(-1, *[1] * len(shape)) * 50
    return images.astype(np.uint8), labels


def file_of(folder, test=None, **named):
    """Writes arrays to a file; returns its path."""
    images, labels = made()
    given = dict(x_train=images, y_train=labels, **dict(zip(('x_test', 'y_test'), test or ())), **named)
    np.savez(folder / 'mine.npz', **given)
    return str(folder / 'mine.npz')


def data_of(folder):
    return str(folder / 'data')


def rows_of(data):
    return sorted(row.tobytes() for path in data.files
                  for row in np.fromfile(path, np.uint8).reshape(-1, data.record_bytes))


def pixels_of(data):
    """Returns the labels of all records, and their planes."""
    rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, data.record_bytes) for path in data.files])
    return rows[:, 0], rows[:, 1:].reshape(-1, 3, data.stored_size, data.stored_size)


@pytest.mark.parametrize('shape, size', [
    ((32, 32, 3), 32), ((28, 28), 32), ((28, 28, 1), 28), ((24, 40, 3), 48)])
def test_arrays_become_the_same_records_as_pictures_of_the_same_pixels(shape, size, tmp_path):
    images, labels = made(20, shape, classes=2)
    tests, test_labels = made(10, shape, classes=2, seed=1)
    for part, parts_images, parts_labels in ((TRAIN, images, labels), (TEST, tests, test_labels)):
        for i, (image, label) in enumerate(zip(parts_images, parts_labels)):
            folder = tmp_path / 'pictures' / part / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.squeeze()).save(folder / f'{i}.png')
    np.savez(tmp_path / 'mine.npz', x_train=images, y_train=labels, x_test=tests, y_test=test_labels)
    for part in (TRAIN, TEST):
        of_arrays, of_pictures = (datasets.prepare(str(tmp_path / name), data_of(tmp_path), part, None, size)
                                  for name in ('mine.npz', 'pictures'))
        assert rows_of(of_arrays) == rows_of(of_pictures) and of_arrays.classes == of_pictures.classes == ('0', '1')
        assert of_arrays.stored_size == size


def test_arrays_in_memory_are_saved_once_per_type_shape_and_content(tmp_path):
    images, labels = np.zeros([6, 8, 4, 3], np.uint8), np.arange(6)
    given = [(images, labels), (images.reshape([6, 4, 8, 3]), labels), (images.reshape([6, 32, 3, 1]), labels),
             (images + np.uint8(1), labels), (images, labels[::-1]), (images, labels.astype(np.int32)),
             (images, np.zeros(6, int)), ((images, labels), (images, labels))]
    assert len({saved(each, str(tmp_path)) for each in given}) == len(given)
    assert saved(given[0], str(tmp_path)) == saved((images.copy(), labels.copy()), str(tmp_path))
    assert len(os.listdir(tmp_path)) == len(given)


def test_a_file_is_prepared_again_only_after_its_arrays_change(tmp_path):
    images, labels = made()
    path, time, folders = file_of(tmp_path), 10 ** 9, {}
    for name, given in dict(first=(images, labels), images=(images[::-1], labels), labels=(images, labels[::-1]),
                            again=(images, labels)).items():
        np.savez(path, x_train=given[0], y_train=given[1])
        os.utime(path, (time, time + (name == 'again')))
        data = datasets.prepare(path, data_of(tmp_path), TRAIN, 0.1)
        stored = dict(zip((data.name_of(i) for i in range(data.count)), zip(*pixels_of(data))))
        for i in range(0, 60, 7):
            if f'x_train[{i}]' in stored:
                label, pixels = stored[f'x_train[{i}]']
                assert label == given[1][i] and (pixels.transpose(1, 2, 0) == given[0][i]).all()
        folders[name] = data.folder
    assert folders['first'] == folders['again'] and len(set(folders.values())) == 3


def test_equal_images_with_different_labels_are_counted_and_named(tmp_path, capsys):
    images, labels = made()
    path = file_of(tmp_path, (np.concatenate([images[:2], images[:2] + np.uint8(9)]), np.array([0, 2, 0, 1])))
    datasets.prepare(path, data_of(tmp_path))
    said = dict(line.split(': ', 1) for line in re.findall('warning: (.*)', capsys.readouterr().out))
    assert said['1 images are in two classes'] == 'x_test[1] = x_train[1]' and len(said) == 2
    pairs = said['2 test images are also training images'].split(', ')
    assert sorted(pairs) == ['x_test[0] = x_train[0]', 'x_test[1] = x_train[1]']


def test_a_fraction_of_each_class_is_held_out_and_the_order_is_always_the_same(tmp_path):
    path = file_of(tmp_path)
    parts = {part: datasets.prepare(path, data_of(tmp_path), part, 0.2) for part in (TRAIN, TEST)}
    labels = {part: [row[0] for row in rows_of(data)] for part, data in parts.items()}
    for part, count in ((TRAIN, 16), (TEST, 4)):
        assert [labels[part].count(label) for label in range(3)] == [count] * 3
    before = parts[TRAIN].digest
    shutil.rmtree(parts[TRAIN].folder)
    assert datasets.prepare(path, data_of(tmp_path), TRAIN, 0.2).digest == before
    first = np.fromfile(parts[TRAIN].files[0], np.uint8).reshape(-1, parts[TRAIN].record_bytes)[:, 0]
    assert len(set(first)) == 3  # not sorted by class


def small(folder, **changes):
    return dict(dict(data_dir=str(folder / 'data'), train_dir=str(folder / 'train'), network='linear', batch_size=4,
                     tower_device='cpu', max_steps=2, summary_steps=0), **changes)


def test_a_run_on_arrays_is_resumed_with_them_and_evaluated(tmp_path):
    pair, tests = made(), made(9, seed=1)
    assert train(dataset=(pair, tests), **small(tmp_path)).step == 2
    assert train(dataset=[pair, tests], **small(tmp_path, max_steps=3)).step == 3  # already finished
    assert train(train_dir=str(tmp_path / 'train'), max_steps=4).step == 4  # the location is recorded
    result = evaluate(dataset=(pair, tests), data_dir=str(tmp_path / 'data'), checkpoint_dir=str(tmp_path / 'train'),
                      eval_dir=str(tmp_path / 'eval'))
    assert result.examples == 9 and result.classes == ('0', '1', '2')
    assert sum(name.endswith('.npz') for name in os.listdir(tmp_path / 'data')) == 1
    for other in ((pair[0], (pair[1] + 1) % 3), (made(seed=2)[0], pair[1])):
        with pytest.raises(UsageError, match='holds a run with images_sha256='):
            train(dataset=(other, tests), **small(tmp_path, max_steps=5))
    with pytest.raises(UsageError, match='holds a run with test_sha256='):
        train(dataset=(pair, made(9, seed=2)), **small(tmp_path, max_steps=5))


def test_a_file_is_named_on_the_command_line_and_may_be_moved(call, tmp_path):
    path = file_of(tmp_path)
    flags = ['--network=linear', '--batch_size=4', '--tower_device=cpu', f'--data_dir={data_of(tmp_path)}']
    assert call('multi_gpu_train.py', f'--dataset={path}', '--max_steps=1', *flags) == (0, '')
    (tmp_path / 'moved').mkdir()
    os.rename(path, tmp_path / 'moved' / 'mine.npz')
    status, error = call('multi_gpu_train.py', '--max_steps=2', f'--dataset={path}', *flags)
    assert status == 2 and f'--dataset={path} does not exist;' in error
    status, error = call('multi_gpu_train.py', '--max_steps=2', f"--dataset={tmp_path / 'moved' / 'mine.npz'}", *flags)
    assert status == 0


def test_each_example_has_the_name_of_its_array_and_its_index_there(tmp_path):
    tests, labels = made(10, classes=3, seed=1)
    np.savez(tmp_path / 'both.npz', x_train=IMAGES, y_train=LABELS, x_test=tests, y_test=labels)
    np.savez(tmp_path / 'one.npz', x_train=IMAGES, y_train=LABELS)
    for name, arrays in (('both', dict(x_train=IMAGES, x_test=tests)), ('one', dict(x_train=IMAGES))):
        found = set()
        for part in (TRAIN, TEST):
            data = datasets.prepare(str(tmp_path / f'{name}.npz'), data_of(tmp_path), part, 0.1)
            rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, data.record_bytes) for file in data.files])
            for example, row in enumerate(rows):
                array, index = re.fullmatch(r'(x_\w+)\[(\d+)\]', data.name_of(example)).groups()
                np.testing.assert_array_equal(row[1:].reshape(3, 32, 32), arrays[array][int(index)].transpose(2, 0, 1))
                found.add((array, int(index)))
        assert found == {(array, i) for array, images in arrays.items() for i in range(len(images))}


class Harmful:
    """An object that runs code when it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return open, (self._path, 'w')


IMAGES, LABELS = made()


@pytest.mark.parametrize('given, part', [
    ((IMAGES / 255, LABELS), 'of type float64; give images uint8 [n, height, width, 3] or [n, height, width]: '
                             '(images * 255).astype(np.uint8)'),
    ((IMAGES.astype(np.int64), LABELS), 'x_train of type int64; give images uint8 [n, height, width, 3] or [n, height, '
                                        'width]: images.astype(np.uint8)'),
    ((IMAGES.astype(np.uint16) * 257, LABELS), ': (images / 257).astype(np.uint8)'),
    ((IMAGES.repeat(4, 3).astype(float), LABELS), 'of type float64 and shape (60, 32, 32, 12); give images uint8'),
    (([[1, 2], [3]], [0, 1]), 'rows of different lengths; give images uint8'),
    ((IMAGES[0, 0], LABELS[:32]), 'x_train of shape (32, 3); give images uint8'),
    ((IMAGES[..., :2], LABELS), 'x_train of shape (60, 32, 32, 2); give images uint8'),
    ((IMAGES, LABELS[:5]), '60 images in x_train and 5 labels in y_train'),
    ((IMAGES, LABELS > 1), 'y_train of type bool and shape (60,); give one label for each image: whole numbers'),
    ((IMAGES, np.eye(3, dtype=int)[LABELS]), 'y_train of type int64 and shape (60, 3); give one label for each image'),
    (IMAGES, 'dataset is neither a pair of arrays nor two'),
    ((IMAGES, LABELS - 1), 'y_train with the label -1'),
    ((IMAGES, LABELS + 254), 'y_train with the label 256; give labels from 0 to at most 255'),
    ((IMAGES, LABELS * 0), 'has only one class, 0;'),
    ((IMAGES[:6], LABELS[:6]), 'has 3 training images; give at least 5'),
    (((IMAGES, LABELS), (IMAGES[:2], LABELS[:2])), 'class 2 has no test image;'),
    ((IMAGES, LABELS, IMAGES), 'dataset is neither a pair of arrays nor two')])
def test_invalid_images_or_labels_are_refused_in_one_line(given, part, tmp_path):
    with pytest.raises(UsageError) as refused:
        train(dataset=given, **small(tmp_path))
    assert part in str(refused.value) and '\n' not in str(refused.value) and len(str(refused.value)) < 400


def test_files_with_other_content_are_refused_and_never_unpickled(tmp_path, call):
    path, ran = tmp_path / 'mine.npz', tmp_path / 'ran'
    np.savez(path, x_train=np.array(20 * [Harmful(str(ran))], object), y_train=np.arange(20) % 2)
    contents = {'cannot be read': [path.read_bytes(), pickle.dumps(Harmful(str(ran))), b'', b'PK\x03\x04 broken']}
    np.savez(path, images=IMAGES, labels=LABELS)
    contents['has images, labels; give a file with x_train and y_train'] = [path.read_bytes()]
    np.savez(path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES)
    contents['has x_test only; give x_test and y_test'] = [path.read_bytes()]
    np.save(tmp_path / 'one.npy', IMAGES)
    contents['has a single array; give a file with x_train and y_train'] = [(tmp_path / 'one.npy').read_bytes()]
    for part, files in contents.items():
        for content in files:
            path.write_bytes(content)
            status, error = call('multi_gpu_train.py', f'--dataset={path}', f'--data_dir={data_of(tmp_path)}',
                                 '--network=linear', '--tower_device=cpu')
            assert status == 2 and part in error and len(error.splitlines()) == 1, error
    assert not ran.exists()
    status, error = call('multi_gpu_train.py', f'--dataset={file_of(tmp_path)}', '--image_size=96', '--network=linear')
    assert status == 2 and '--image_size=64' in error
