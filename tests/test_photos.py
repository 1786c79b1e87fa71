"""Photos in files: the manifest, and what is cut out of them in training, evaluation and classification."""
import os
import pathlib
import shutil

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.data import augment, draws, pipeline, records
from cifar10.data.draws import Positions
from cifar10.data.photos import manifest, resized_crop
from cifar10.model import network_draws
from tests.helpers import mostly_stress, tf
from tests.test_picture_files import decoder, encoded

SIZE = 72
MADE = 'cifar-bin-0.2-manifest/'  # the folder of the manifest, which also has what was made of other formats
CLASSES = ('ant', 'bee', 'cat')
BLUE = (40, 120, 200)  # of the photos of each class
OTHERS = {3: 'png', 4: 'webp'}  # the formats of the photos of each class that are no JPEGs


def ramps(height, width, blue):
    """Returns a picture whose red says in which row a pixel is, and whose green in which column: uint8."""
    red = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    green = np.linspace(0, 255, width)[None].repeat(height, 0)
    return np.rint(np.stack([red, green, np.full([height, width], blue)], -1)).astype(np.uint8)


def write_photos(folder, count=14):
    """Writes a folder of photos of three classes, in sizes and orientations of all kinds, some of them not as JPEG."""
    random = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            shown = ramps(*random.integers(80, 700, 2), BLUE[label])
            path = folder / name / f'{i}.jpg'
            if i in OTHERS:
                shown = np.dstack([shown, np.full(shown.shape[:2], 255, np.uint8)])
                path.with_suffix('.' + OTHERS[i]).write_bytes(encoded(shown, OTHERS[i], lossless=True))
            else:
                path.write_bytes(encoded(shown, 'JPEG', 1 + i % 8, quality=100, subsampling=0))


def made(tmp_path_factory):
    """Makes a folder of photos with a manifest; returns its path."""
    path = tmp_path_factory.mktemp('photos') / 'mine'
    write_photos(path)
    prepare(path)
    return path


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder of photos with a manifest."""
    return made(tmp_path_factory)


def prepare(folder, part=records.TRAIN, size=SIZE):
    return records.prepare(f'{folder}/', '/nowhere', part, 0.2, size)


def rows_of(folder, part=records.TRAIN):
    """Returns the rows of a manifest, as dictionaries."""
    lines = (pathlib.Path(folder) / f'{part}.tsv').read_text().splitlines()
    return [dict(zip(manifest.COLUMNS, line.split('\t'))) for line in lines[1:]]


def test_the_manifest_has_every_photo_as_it_is_shown(folder):
    data, test = prepare(folder), prepare(folder, records.TEST)
    for i, row in enumerate(rows_of(data.folder)):
        assert MADE in row['file'] or data.name_of(i) == row['file']
        assert (folder / data.name_of(i)).is_file() and data.name_of(i).split('/')[0] == CLASSES[int(row['label'])]
    assert data.classes == CLASSES and (data.count, test.count) == (33, 9) and data.size == SIZE
    rows = rows_of(data.folder) + rows_of(test.folder, records.TEST)
    files = {str(path.relative_to(folder)) for path in folder.glob('*/*.*') if path.parent.name in CLASSES}
    assert {row['file'] for row in rows if MADE not in row['file']} == {
        file for file in files if not file.endswith('webp')}
    random = np.random.default_rng(0)
    shapes = {f'{name}/{i}': tuple(random.integers(80, 700, 2)) for name in CLASSES for i in range(14)}
    for row in rows:
        path = folder / row['file']
        shape = int(row['height']), int(row['width'])
        if MADE in row['file']:  # of a WebP, which TensorFlow may not read
            assert path.suffix == '.png' and shape == shapes[f"{CLASSES[int(row['label'])]}/4"]
            continue
        assert CLASSES[int(row['label'])] == path.parent.name
        assert shape == shapes[os.path.splitext(row['file'])[0]]
        assert int(row['orientation']) == (1 if path.suffix == '.png' else 1 + int(path.stem) % 8)


def test_photos_are_examined_once_and_then_only_looked_at(folder, capsys):
    data = prepare(folder)
    before = os.stat(data.files[0])
    assert prepare(folder, size=224).files == data.files  # the size is that of a run, not of the manifest
    assert os.stat(data.files[0]) == before and capsys.readouterr().out == ''


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the folder that a test may change, with a manifest."""
    return pathlib.Path(shutil.copytree(folder, tmp_path / 'mine'))


@pytest.mark.parametrize('change, what', [
    (lambda path: path.unlink(), 'has gone'), (lambda path: path.write_bytes(b'x'), 'has changed'),
    (lambda path: os.utime(path, ns=(0, 1)), 'has changed')])
def test_photos_that_have_changed_are_refused(copy, change, what):
    row = rows_of(prepare(copy).folder)[5]
    change(copy / row['file'])
    remedy = f"since {copy}/cifar-bin-0.2-manifest was made; delete {copy}/cifar-bin-0.2-manifest to have it made again"
    with pytest.raises(UsageError, match=f"^{copy / row['file']} {what} {remedy}$"):
        prepare(copy)


def test_what_is_no_photo_is_left_out_with_a_reason(copy, capsys):
    shutil.rmtree(copy / 'cifar-bin-0.2-manifest')
    photo = next((copy / 'ant').glob('*.jpg')).read_bytes()
    (copy / 'ant' / 'cut.jpg').write_bytes(photo[:len(photo) // 2])
    (copy / 'ant' / 'a\tb.jpg').write_bytes(photo)
    (copy / 'bee' / 'x.jp2').write_bytes(encoded(ramps(9, 9, 0), 'JPEG2000'))
    (copy / 'bee' / os.fsdecode(b'\xff.jpg')).write_bytes(photo)
    assert prepare(copy).count + prepare(copy, records.TEST).count == 43
    output = capsys.readouterr().out
    assert 'left out 3 of 46 files, as ' in output
    listed = copy / 'cifar-bin-0.2-manifest' / 'left-out.txt'
    assert f'as {listed} lists; the first is ' in output and 'files      ' not in output
    first, second, third = listed.read_text().splitlines()
    assert first in output and first.endswith("a\\tb.jpg' (its name has a tab or a line break; rename it)")
    assert 'cut.jpg (a corrupt JPEG file)' in second and 'x.jp2 (a picture in the format JPEG2000' in third


@pytest.mark.stress
def test_there_may_be_any_number_of_classes(tmp_path):
    for label in range(300):
        (tmp_path / str(label)).mkdir()
        for i in range(2):
            (tmp_path / str(label) / f'{i}.png').write_bytes(encoded(np.full([9, 9, 3], label % 256, np.uint8), 'PNG'))
    data = prepare(tmp_path)
    images = data.load()
    with tf.Session() as session:
        session.run(images.read)
        labels, planes = session.run(images.take(tf.range(300, dtype=tf.int64)))
    assert len(data.classes) == 300 and sorted(labels) == [*range(300)]
    assert (planes[:, 0, 0, 0] == [int(data.classes[label]) % 256 for label in labels]).all()


def test_a_photo_that_was_added_is_noticed(copy, capsys):
    prepare(copy)
    shutil.copy(next((copy / 'ant').glob('*.jpg')), copy / 'ant' / 'new.jpg')
    os.utime(copy / 'ant', (2 ** 31, 2 ** 31))
    assert prepare(copy).count == 33
    assert 'warning: images were added, removed or changed' in capsys.readouterr().out
    shutil.copytree(copy / 'ant', copy / 'gnu')  # a class that the manifest does not have
    prepare(copy)
    again = f'rm -r {copy}/cifar-bin-0.2-manifest makes the next start read all images again'
    assert f'-manifest was made, so gnu is not trained; {again}' in capsys.readouterr().out


# What is cut out.

def crops(shape, n=20000, first=0, seed=0):
    """Returns boxes [n, 4] of random parts, with top <= bottom and left <= right, and which are mirrored."""
    positions = Positions(tf.constant(first, tf.int64), None, None, None, None)
    boxes = resized_crop.ResizedCrop(None, None, seed).boxes(tf.tile(tf.constant([shape]), [n, 1]), positions)
    with tf.Session() as session:
        boxes = session.run(boxes)
    mirrored = boxes[:, 1] > boxes[:, 3]
    boxes[:, 1::2].sort(1)
    return boxes, mirrored


@pytest.mark.parametrize('shape', [(375, 500), (500, 375), (224, 224)])
def test_random_parts_have_the_areas_and_aspects_that_are_documented(shape):
    boxes, mirrored = crops(shape)
    heights, widths = (boxes[:, 2:] - boxes[:, :2] + 1).T
    areas = heights * widths / np.prod(shape)
    aspects = widths / heights
    assert 0.079 < areas.min() < 0.085 and 0.9 < areas.max() <= 1
    assert 0.735 < aspects.min() < 0.76 and 1.32 < aspects.max() < 1.36  # rounded to whole pixels
    # Even: as torchvision draws them, which also draws again what does not fit.
    drawn = np.random.default_rng(0)
    area = drawn.uniform(0.08, 1, 10 ** 6)
    aspect = np.exp(drawn.uniform(np.log(3 / 4), np.log(4 / 3), 10 ** 6))
    fits = (np.sqrt(area * aspect * np.prod(shape)) <= shape[1]) & (np.sqrt(area / aspect * np.prod(shape)) <= shape[0])
    for found, expected in ((areas, area[fits]), (np.log(aspects), np.log(aspect[fits]))):
        np.testing.assert_allclose(np.quantile(found, np.linspace(0, 1, 11)[1:-1]),
                                   np.quantile(expected, np.linspace(0, 1, 11)[1:-1]), atol=0.015)
    assert abs(mirrored.mean() - 0.5) < 0.02


@pytest.mark.parametrize('shape', [(60, 80), (10, 200), (300, 9), (1, 1), (2, 3)])
def test_every_pixel_is_reached_and_none_beyond(shape):
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
def test_where_no_random_part_fits_it_is_the_largest_with_an_allowed_aspect(shape, part):
    boxes, _ = crops(shape, 100)
    assert {tuple(size) for size in boxes[:, 2:] - boxes[:, :2] + 1} == {part}


def test_the_part_of_a_position_does_not_depend_on_the_batch():
    whole, mirrored = crops((375, 500), 64, 100)
    part, turned = crops((375, 500), 16, 132)
    np.testing.assert_array_equal(whole[32:48], part)
    np.testing.assert_array_equal(mirrored[32:48], turned)
    assert not np.array_equal(crops((375, 500), 64, 100, seed=1)[0], whole)
    # Draws of several blocks are independent, also of those of a network.
    first = tf.constant(0, tf.int64)
    with network_draws.at_position(0, first):
        drawn = [network_draws.uniform_like(tf.zeros([20000, 4])) for _ in range(6)]
    with tf.Session() as session:
        blocks = np.concatenate(session.run([draws.draws(first, 20000, 0, i) for i in range(6)] + drawn), 1)
    shifted = np.concatenate([blocks[:-1], blocks[1:]], 1)
    assert np.abs(np.corrcoef(shifted.T) - np.eye(96)).max() < 0.04


def expected_part(shape, box, blue, size=SIZE):
    """Returns the pixels of a part of a picture made by `ramps`, float [size, size, 3]."""
    (height, width), (top, left, bottom, right) = shape, box
    mirrored = right < left
    left, right = min(left, right), max(left, right)
    places = (np.arange(size) + 0.5) / size
    rows = np.clip(top + places * (bottom + 1 - top) - 0.5, top, bottom)
    columns = np.clip(left + places * (right + 1 - left) - 0.5, left, right)
    columns = columns[::-1] if mirrored else columns
    red = 255 * rows[:, None].repeat(size, 1) / (height - 1)
    green = 255 * columns[None].repeat(size, 0) / (width - 1)
    return np.stack([red, green, np.full([size, size], blue)], -1)


class Parts(augment.Augmentation):
    """Cuts given parts out of pictures, and leaves their pixels as they are."""

    def __init__(self, boxes):
        self._boxes = boxes

    def boxes(self, shapes, positions=None):
        return tf.constant(self._boxes, tf.int32)

    def plain(self, planes):
        return tf.transpose(tf.cast(planes, tf.float32), [0, 2, 3, 1])


def test_parts_of_photos_are_decoded_as_they_are_shown(folder):
    data = prepare(folder)
    random = np.random.default_rng(1)
    shapes = [(int(row['height']), int(row['width'])) for row in rows_of(data.folder)]
    boxes = []
    for height, width in shapes:
        (top, bottom), (left, right) = (np.sort(random.integers(0, n, 2)) for n in (height, width))
        boxes.append((top, right, bottom, left) if random.random() < 0.5 else (top, left, bottom, right))
    images = data.load()
    with tf.Session() as session:
        session.run(images.read)
        pixels, labels = session.run(images.batch(Parts(boxes), tf.range(data.count, dtype=tf.int64), None))
    assert labels.tolist() == [int(row['label']) for row in rows_of(data.folder)]
    for i, (shape, box, label) in enumerate(zip(shapes, boxes, labels)):
        difference = np.abs(pixels[i] - expected_part(shape, box, BLUE[label]))
        extent = 255 * np.ptp(np.reshape(box, (2, 2)), 0) / shape
        # Half a pixel of the part, and what JPEG and rounding lose.
        assert (difference.mean((0, 1)) < 3 + np.append(extent, 0) / SIZE).all(), (i, shape, box)


def test_evaluation_takes_the_centre_of_each_photo_once(folder):
    data = prepare(folder, records.TEST)
    images = data.load()
    augmentation = resized_crop.ResizedCrop(None, None, 0, SIZE)
    iterator, start = pipeline.eval_batches(images, augmentation, data.count, 4)
    batch = iterator.get_next()
    with tf.Session() as session:
        session.run(images.read)
        session.run(start)
        pixels, labels = map(np.concatenate, zip(*[session.run(batch) for _ in range(3)]))
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    rows = rows_of(data.folder, records.TEST)
    assert labels.tolist() == [int(row['label']) for row in rows]
    pixels = pixels * (58.395, 57.12, 57.375) + (123.675, 116.28, 103.53)
    for found, row, label in zip(pixels, rows, labels):
        shape = int(row['height']), int(row['width'])
        side = round(min(shape) * 7 / 8)
        top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
        expected = expected_part(shape, (top, left, top + side - 1, left + side - 1), BLUE[label])
        assert np.abs(found - expected).mean() < 5


@pytest.mark.parametrize('augmentation', mostly_stress([resized_crop.ResizedCrop, augment.Classic], augment.Classic))
def test_a_photo_that_is_classified_has_the_bytes_of_evaluation(augmentation, folder):
    data = prepare(folder)

    class Unchanged(augmentation):
        def plain(self, planes):
            return tf.transpose(tf.cast(planes, tf.float32), [0, 2, 3, 1])
    images = data.load()
    with tf.Session() as session:
        session.run(images.read)
        expected, _ = session.run(
            images.batch(Unchanged(None, None, 0, SIZE), tf.range(data.count, dtype=tf.int64), None))
    decode = decoder(SIZE, augmentation(None, None, 0, SIZE))
    decoded = [decode(str(folder / row['file'])) for row in rows_of(data.folder)]
    np.testing.assert_array_equal(decoded, expected)


def test_images_in_memory_are_cut_out_too(data_dir):
    data = records.prepare('shapes', data_dir, image_size=48)
    images = data.load()
    augmentation = resized_crop.ResizedCrop(None, None, 3, 48)
    n = 64
    first = tf.constant(100, tf.int64)
    batch = pipeline.train_batch(images, augmentation, first, first, n, 3)
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
        corners = found[[0, 0, -1, -1], [0, -1, 0, -1]].T  # which are pixels of the file
        np.testing.assert_allclose(corners, part[:, [0, 0, -1, -1], [0, -1, 0, -1]], atol=0.6)
        assert abs(found.mean() - part.mean()) < 12


def test_memory_has_a_row_for_each_photo_and_no_pixels(folder):
    photos = prepare(folder)
    images = photos.load()
    with tf.Session() as session:
        session.run(images.read)
        columns = session.run(tf.local_variables())
    for column in columns:
        assert len(column) == images.count and column.size <= 4 * images.count
    stored = sum(sum(map(len, column)) if column.dtype == object else column.nbytes for column in columns)
    assert stored <= photos.memory_bytes
