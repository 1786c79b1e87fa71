"""Photos: preparation, lists, and crops in training, evaluation and classification."""
import os
import pathlib
import shutil
import signal
import sys
import time

import numpy as np
import pytest
from PIL import Image

from cifar10.base import files
from cifar10.base.errors import UsageError
from cifar10.data import augment, datasets, draws
from cifar10.data.draws import Positions
from cifar10.data.images import ImageSource, eval_batches, loaded
from cifar10.data.photos import preparation, prepared_photos, resized_crop
from tests.crashes import read_tree
from tests.forked import Forked
from tests.helpers import mostly_stress, patient, tf
from tests.test_picture_files import encoded, reader, weights_of

SIZE = 72
SHORT = 82  # the shorter side of prepared photos
PHOTOS = 'data/mine-72px'  # beside the folder of the photos
CLASSES = ('ant', 'bee', 'cat')
BLUE = (40, 120, 200)  # for the photos of each class
COUNT = 8  # per class; two of them are not JPEG files
OTHERS = {3: 'png', 4: 'webp'}


def ramps(height, width, blue):
    """Returns a picture, uint8, whose red encodes a pixel's row and whose green encodes its column."""
    red = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    green = np.linspace(0, 255, width)[None].repeat(height, 0)
    return np.rint(np.stack([red, green, np.full([height, width], blue)], -1)).astype(np.uint8)


def write_photos(folder):
    """Writes a folder of photos of three classes, of many sizes and orientations, some in other formats than JPEG."""
    random = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(COUNT):
            shown = ramps(*random.integers(60, 260, 2), BLUE[label])
            path = folder / name / f'{i}.jpg'
            if i in OTHERS:
                shown = np.dstack([shown, np.full(shown.shape[:2], 255, np.uint8)])
                path.with_suffix('.' + OTHERS[i]).write_bytes(encoded(shown, OTHERS[i], lossless=True))
            else:
                path.write_bytes(encoded(shown, 'JPEG', 1 + i % 8, quality=100, subsampling=0))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder of prepared photos."""
    path = tmp_path_factory.mktemp('photos') / 'mine'
    write_photos(path)
    prepare(path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the folder and its prepared photos, which a test may change."""
    shutil.copytree(folder.parent / 'data', tmp_path / 'data')
    return pathlib.Path(shutil.copytree(folder, tmp_path / 'mine'))


def prepare(folder, part=datasets.TRAIN, size=SIZE, fraction=0.25):
    return datasets.prepare(f'{folder}/', str(folder.parent / 'data'), part, fraction, size)


def prepared(folder):
    """Returns the folder of the prepared photos."""
    return folder.parent / PHOTOS


def lists(folder):
    """Returns the folders with lists of the prepared photos."""
    return [path for path in prepared(folder).glob('[!.]*') if path.is_dir()]


def photos_of(data):
    """Returns the prepared photos of a part, in order."""
    return [photo for _, photo in prepared_photos.read_list(data.files[0])]


def pixels_of(data):
    """Returns the pixels of the prepared photos of a part, in order, as Pillow reads them."""
    return [np.asarray(Image.open(os.path.join(data.root, photo.name))) for photo in photos_of(data)]


def times(folder):
    """Returns the modification time of each prepared photo."""
    return {path.name: path.stat().st_mtime_ns for path in prepared(folder).glob('*.bmp')}


def test_every_photo_is_prepared_upright_and_listed(folder):
    parts = prepare(folder), prepare(folder, datasets.TEST)
    assert [data.count for data in parts] == [18, 6] and parts[0].classes == CLASSES and parts[0].size == SIZE
    random = np.random.default_rng(0)
    shapes = {f'{name}/{i}': random.integers(60, 260, 2) for name in CLASSES for i in range(COUNT)}
    found = set()
    for data in parts:
        for i, (photo, pixels) in enumerate(zip(photos_of(data), pixels_of(data))):
            assert data.name_of(i) == str(folder / photo.source) and (folder / photo.source).is_file()
            assert photo.name.endswith(f'-{files.sha256(os.path.join(data.root, photo.name))[:32]}.bmp')
            assert pixels.shape == (photo.height, photo.width, 3)
            name = os.path.splitext(photo.source)[0]
            shape = shapes[name]
            assert min(pixels.shape[:2]) == min(SHORT, *shape)
            assert abs(photo.height / photo.width / (shape[0] / shape[1]) - 1) < 0.01
            shown = ramps(photo.height, photo.width, BLUE[CLASSES.index(name.split('/')[0])])
            assert np.abs(pixels - shown.astype(int)).mean() < 2
            found.add(name)
    assert found == set(shapes)


def test_photos_are_prepared_once_for_each_size_and_any_split(copy, capsys):
    written = times(copy)
    list_time = os.stat(prepare(copy).files[0]).st_mtime_ns
    assert capsys.readouterr().out == ''
    assert prepare(copy, datasets.TEST, fraction=0.5).count == 12
    output = capsys.readouterr().out
    assert f'preparing  24 images of 3 classes in {copy}, about 27 kB each, in {prepared(copy)}; ' in output
    assert times(copy) == written and os.stat(prepare(copy).files[0]).st_mtime_ns == list_time


def test_only_new_and_changed_photos_are_prepared_again(copy):
    written = times(copy)
    shutil.move(copy / 'ant' / '0.jpg', copy / 'ant' / 'moved.jpg')
    (copy / 'bee' / '1.jpg').write_bytes(encoded(ramps(99, 130, 0), 'JPEG'))
    (copy / 'cat' / 'new.jpg').write_bytes(encoded(ramps(130, 99, 0), 'JPEG'))
    data = prepare(copy)
    assert data.count + prepare(copy, datasets.TEST).count == 25 and len(lists(copy)) == 2
    now = times(copy)
    assert len(now) == len(written) + 2 and written.items() <= now.items()


def overwrite(path):
    """Changes the pixels of a prepared photo, but neither its size nor its modification time."""
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:54] + bytes(255 - byte for byte in content[54:]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize('change, what', [
    (lambda path: path.unlink(), 'is missing'), (lambda path: os.truncate(path, 999), 'has changed'),
    (lambda path: path.write_bytes(b''), 'has changed'), (overwrite, 'has changed')])
def test_a_changed_prepared_photo_is_refused_and_can_be_prepared_again(copy, change, what):
    data = prepare(copy)
    before, photo, clock = pixels_of(data), photos_of(data)[5], copy / 'clock'
    clock.touch()
    while clock.stat().st_mtime_ns <= os.stat(data.files[0]).st_mtime_ns:  # file systems have coarse clocks
        clock.touch()
    clock.unlink()
    change(prepared(copy) / photo.name)
    with pytest.raises(UsageError, match=f'{photo.name} of {photo.source} {what}; to prepare them again: rm'):
        prepare(copy)
    shutil.rmtree(data.folder)
    for pixels, expected_pixels in zip(pixels_of(prepare(copy)), before, strict=True):
        np.testing.assert_array_equal(pixels, expected_pixels)


def test_copies_of_prepared_photos_are_read_once(copy):
    data = prepare(copy)
    os.utime(data.files[0], (1e9, 1e9))  # some programs keep the times of copied files
    assert prepare(copy) == data
    assert os.stat(data.files[0]).st_mtime_ns > max(path.stat().st_ctime_ns for path in prepared(copy).glob('*.bmp'))
    overwrite(prepared(copy) / photos_of(data)[0].name)
    with pytest.raises(UsageError, match='has changed'):
        prepare(copy)


@pytest.mark.parametrize('text', ['label\n1\n', None])
def test_an_invalid_list_is_refused(copy, text):
    path = lists(copy)[0] / 'train.tsv'
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UsageError, match=f'the prepared photos of {path} .*; to prepare them again: rm'):
        prepare(copy)


PREPARE = """
import sys
from cifar10.data import datasets
datasets.prepare(sys.argv[1], sys.argv[1] + '../data', test_fraction=float(sys.argv[2]), image_size=72)
"""


@pytest.fixture
def started(copy, tmp_path):
    """A function that starts a process to prepare the photos of `copy`, which has no prepared photos."""
    shutil.rmtree(prepared(copy))
    (tmp_path / 'prepare.py').write_text(PREPARE)
    return lambda fraction=0.25: Forked([sys.executable, tmp_path / 'prepare.py', f'{copy}/', fraction])


def test_a_killed_preparation_continues(folder, copy, started):
    whole = read_tree(prepared(folder))
    process = started()
    limit = time.monotonic() + patient(60)
    while len(list(prepared(copy).glob('*.bmp'))) < 3:
        assert time.monotonic() < limit
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    written = times(copy)
    assert 3 <= len(written) < COUNT * len(CLASSES) and not lists(copy)
    for name in written:  # files under their final names are complete
        assert (prepared(copy) / name).read_bytes() == whole[name]
    prepare(copy)
    assert written.items() <= times(copy).items() and read_tree(prepared(copy)) == whole


def test_concurrent_preparations_share_the_work(copy, started):
    processes = [started(fraction) for fraction in (0.25, 0.25, 0.5)]
    outputs = [process.communicate(patient(60)) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    text = ''.join(output for output, _ in outputs)
    assert text.count('preparing  24 images') == 2
    assert prepare(copy).count == 18 and prepare(copy, fraction=0.5).count == 12 and len(times(copy)) == 24


def test_a_full_disk_omits_no_photo(copy, monkeypatch):
    shutil.rmtree(*lists(copy))
    (copy / 'ant' / 'new.jpg').write_bytes(encoded(ramps(130, 99, 0), 'JPEG'))

    def full(*arguments):
        raise OSError(28, 'No space left on device')
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, 'save', full)
        with pytest.raises(UsageError, match='cannot be made for .*No space left on device'):
            prepare(copy)
    assert not lists(copy)
    assert prepare(copy).count + prepare(copy, datasets.TEST).count == 25


def test_invalid_photos_are_left_out_with_a_reason(copy, capsys):
    photo = next((copy / 'ant').glob('*.jpg')).read_bytes()
    (copy / 'ant' / 'cut.jpg').write_bytes(photo[:len(photo) // 2])
    (copy / 'ant' / 'a\tb.jpg').write_bytes(photo)
    (copy / 'bee' / 'x.jp2').write_bytes(encoded(ramps(9, 9, 0), 'JPEG2000'))
    (copy / 'bee' / os.fsdecode(b'\xff.jpg')).write_bytes(photo)
    data = prepare(copy)
    assert data.count + prepare(copy, datasets.TEST).count == 25
    first, second, third = pathlib.Path(data.folder, 'left-out.txt').read_text().splitlines()
    said = f'warning: left out 3 of 28 files and folders that are not pictures: {first}, {second}, {third}; '
    assert said in capsys.readouterr().out
    assert first.endswith("a\\tb.jpg' (its name has a tab or a line break; rename it)")
    assert 'cut.jpg (a corrupt JPEG file)' in second and 'x.jp2 (not a picture in a supported format' in third


# Crops.

def crops(shape, n=20000, first=0, seed=0):
    """Returns the boxes [n, 4] of random crops, with top <= bottom and left <= right, and whether each is mirrored."""
    positions = Positions(tf.constant(first, tf.int64), None, None, None, None)
    boxes = resized_crop.ResizedCrop(None, None, seed).boxes(tf.tile(tf.constant([shape]), [n, 1]), positions)
    with tf.Session() as session:
        boxes = session.run(boxes)
    mirrored = boxes[:, 1] > boxes[:, 3]
    boxes[:, 1::2].sort(1)
    return boxes, mirrored


@pytest.mark.parametrize('shape', [(375, 500), (224, 224)])
def test_random_crops_have_the_documented_areas_and_aspect_ratios(shape):
    boxes, mirrored = crops(shape)
    heights, widths = (boxes[:, 2:] - boxes[:, :2] + 1).T
    areas = heights * widths / np.prod(shape)
    aspects = widths / heights
    assert 0.079 < areas.min() < 0.085 and 0.9 < areas.max() <= 1
    assert 0.735 < aspects.min() < 0.76 and 1.32 < aspects.max() < 1.36  # rounded to whole pixels
    # Uniform, like torchvision's draws, which also repeat a draw that does not fit.
    random = np.random.default_rng(0)
    area = random.uniform(0.08, 1, 10 ** 6)
    aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3), 10 ** 6))
    fits = (np.sqrt(area * aspect * np.prod(shape)) <= shape[1]) & (np.sqrt(area / aspect * np.prod(shape)) <= shape[0])
    for found, drawn in ((areas, area[fits]), (np.log(aspects), np.log(aspect[fits]))):
        np.testing.assert_allclose(np.quantile(found, np.linspace(0, 1, 11)[1:-1]),
                                   np.quantile(drawn, np.linspace(0, 1, 11)[1:-1]), atol=0.015)
    assert abs(mirrored.mean() - 0.5) < 0.02


@pytest.mark.parametrize('shape', [(60, 80), (10, 200), (300, 9), (1, 1), (2, 3)])
def test_crops_reach_every_pixel_and_stay_inside_the_photo(shape):
    boxes, _ = crops(shape)
    reached = np.zeros(shape, int)
    for top, left, bottom, right in boxes[:4000]:
        assert 0 <= top <= bottom < shape[0] and 0 <= left <= right < shape[1]
        reached[top:bottom + 1, left:right + 1] += 1
    assert reached.min() > 0
    heights, widths = (boxes[:, 2:] - boxes[:, :2] + 1).T
    if min(shape) > 5:
        assert (widths / heights).min() > 0.66 and (widths / heights).max() < 1.5  # rounded to whole pixels


@pytest.mark.parametrize('shape, part', [((10, 200), (10, 13)), ((300, 9), (12, 9))])
def test_without_a_fitting_crop_the_largest_allowed_aspect_is_used(shape, part):
    boxes, _ = crops(shape, 100)
    assert {tuple(size) for size in boxes[:, 2:] - boxes[:, :2] + 1} == {part}


def test_the_crop_of_a_position_does_not_depend_on_the_batch():
    whole, mirrored = crops((375, 500), 64, 100)
    part, turned = crops((375, 500), 16, 132)
    np.testing.assert_array_equal(whole[32:48], part)
    np.testing.assert_array_equal(mirrored[32:48], turned)
    assert not np.array_equal(crops((375, 500), 64, 100, seed=1)[0], whole)


class Boxes(augment.Augmentation):
    """Cuts given boxes out of pictures without changing their pixels."""

    def __init__(self, boxes):
        self._boxes = boxes

    def boxes(self, shapes, positions=None):
        return tf.constant(self._boxes, tf.int32)

    def normalise(self, pixels):
        return pixels


def fed(data, augmentation):
    """Returns (pixels, labels) of all photos of a part, in list order."""
    images = loaded(data)
    with tf.Session() as session:
        session.run(images.read)
        return session.run(images.batch(augmentation, tf.range(data.count, dtype=tf.int64), None))


def test_boxes_of_photos_are_resized_with_anti_aliasing(folder):
    data, random, boxes = prepare(folder), np.random.default_rng(1), []
    for photo in photos_of(data):
        (top, bottom), (left, right) = (np.sort(random.integers(0, n, 2)) for n in (photo.height, photo.width))
        boxes.append((top, right, bottom, left) if random.random() < 0.5 else (top, left, bottom, right))
    found, labels = fed(data, Boxes(boxes))
    assert [CLASSES[label] for label in labels] == [photo.source.split('/')[0] for photo in photos_of(data)]
    for image, pixels, (top, first, bottom, last) in zip(found, pixels_of(data), boxes):
        window = pixels[top:bottom + 1, min(first, last):max(first, last) + 1]
        rows, columns = (weights_of(side, SIZE) for side in window.shape[:2])
        part = np.einsum('ij,jkc,lk->ilc', rows, window, columns, optimize=True)
        np.testing.assert_allclose(image, part[:, ::-1] if last < first else part, atol=0.51)


def test_evaluation_uses_the_central_seven_eighths_of_each_photo_once(folder):
    data = prepare(folder, datasets.TEST)
    images = loaded(data)
    augmentation = resized_crop.ResizedCrop(None, None, 0, SIZE)
    iterator, start = eval_batches(images, augmentation, data.count, 4)
    batch = iterator.get_next()
    with tf.Session() as session:
        session.run(images.read)
        session.run(start)
        found, labels = map(np.concatenate, zip(*[session.run(batch) for _ in range(2)]))
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    photos = photos_of(data)
    assert [CLASSES[label] for label in labels] == [photo.source.split('/')[0] for photo in photos]
    found = found * (58.395, 57.12, 57.375) + (123.675, 116.28, 103.53)
    for image, pixels in zip(found, pixels_of(data)):
        rows, columns = (round(7 / 8 * side) for side in pixels.shape[:2])
        top, left = (pixels.shape[0] - rows) // 2, (pixels.shape[1] - columns) // 2
        middle = pixels[top:top + rows, left:left + columns]
        expected = np.einsum('ij,jkc,lk->ilc', weights_of(rows, SIZE), middle, weights_of(columns, SIZE), optimize=True)
        np.testing.assert_allclose(image, expected, atol=0.51)
    assert len({pixels.shape for pixels in pixels_of(data)}) > 1


@pytest.mark.parametrize('size', [65, 224, 299])
def test_seven_eighths_of_the_short_side_equal_the_size(size):
    boxes = resized_crop.ResizedCrop(None, None, 0, size).boxes(tf.constant([[preparation.short_side(size)] * 2]))
    with tf.Session() as session:
        top, left, bottom, right = session.run(boxes)[0]
    assert bottom + 1 - top == right + 1 - left == size


@pytest.mark.parametrize('augmentation', mostly_stress([resized_crop.ResizedCrop, augment.Classic], augment.Classic))
def test_a_classified_photo_has_the_bytes_of_evaluation(augmentation, folder):
    data = prepare(folder)

    class Unchanged(augmentation):
        def __call__(self, images, positions=None):
            return images
    found, _ = fed(data, Unchanged(None, None, 0, SIZE))
    read = reader(SIZE, augmentation(None, None, 0, SIZE))
    np.testing.assert_array_equal([read(str(folder / photo.source)) for photo in photos_of(data)], found)


def test_images_in_memory_are_cropped_too(data_dir):
    data = datasets.prepare('shapes', data_dir, image_size=48)
    images = loaded(data)
    augmentation = resized_crop.ResizedCrop(None, None, 3, 48)
    n = 64
    first = tf.constant(100, tf.int64)
    batch = ImageSource(data, augmentation, n, 3).batch(images, first, first)
    examples = draws.shuffled(first + tf.range(n, dtype=tf.int64), data.count, 3)
    boxes = augmentation.boxes(tf.fill([n, 2], 32), Positions(first, None, None, None, None))
    with tf.Session() as session:
        session.run(images.read)
        (pixels, labels), boxes, examples = session.run([batch, boxes, examples])
    assert pixels.shape == (n, 48, 48, 3)
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in data.files]).reshape(-1, 3073)[examples]
    np.testing.assert_array_equal(labels, rows[:, 0])
    pixels = pixels * (58.395, 57.12, 57.375) + (123.675, 116.28, 103.53)
    for found, row, (top, left, bottom, right) in zip(pixels, rows, boxes):
        part = row[1:].reshape(3, 32, 32)[:, top:bottom + 1, min(left, right):max(left, right) + 1]
        part = part[:, :, ::-1] if right < left else part
        corners = found[[0, 0, -1, -1], [0, -1, 0, -1]].T  # these are pixels of the file
        np.testing.assert_allclose(corners, part[:, [0, 0, -1, -1], [0, -1, 0, -1]], atol=0.6)
        assert abs(found.mean() - part.mean()) < 12


def test_memory_holds_a_row_for_each_photo_but_no_pixels(folder):
    photos = prepare(folder)
    images = loaded(photos)
    with tf.Session() as session:
        session.run(images.read)
        columns = session.run(tf.local_variables())
    for column in columns:
        assert len(column) == images.count and column.size <= 3 * images.count
    stored = sum(sum(map(len, column)) if column.dtype == object else column.nbytes for column in columns)
    assert stored <= 300 * photos.count  # temporary folders have long names
