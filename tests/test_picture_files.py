"""Picture files: supported formats, conversion of pixels to images, and refused files."""
import functools
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cifar10.data import augment, datasets
from cifar10.data.folders import pictures
from cifar10.data.images import loaded
from cifar10.data.photos import picture_files, resized_crop
from cifar10.data.photos.preparation import Preparation
from tests.helpers import mostly_stress, python, tf

AS_SHOWN = {  # how to turn stored pixels upright, from the places of the first row and column in the EXIF standard
    1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, -1), 7: lambda x: np.rot90(x, 2).transpose(1, 0, 2), 8: np.rot90}
# The inverse: turns an upright picture into its stored form.
AS_STORED = {**AS_SHOWN, 6: AS_SHOWN[8], 8: AS_SHOWN[6]}


def encoded(pixels, format, orientation=1, **options):
    """Returns the content of a file of upright pixels, stored with an orientation."""
    stream = io.BytesIO()
    if orientation != 1:
        exif = Image.Exif()
        exif[0x112] = orientation
        options['exif'] = exif
    Image.fromarray(np.ascontiguousarray(AS_STORED[orientation](pixels))).save(stream, format, **options)
    return stream.getvalue()


def preparation(size=32, augmentation=None, stored_size=None):
    return Preparation(size, augmentation or augment.Augmentation(), stored_size)


@functools.cache
def reader(*arguments):
    return picture_files.Reader(preparation(*arguments))


def image_of(contents, path, *arguments, prepared=False):
    """Returns the image that a `reader` makes of a file with these contents, or the reason for its refusal.

    If `prepared`, the image is the whole prepared picture.
    """
    path.write_bytes(contents)
    read = functools.partial(picture_files.prepared, preparation=preparation(*arguments))
    result, = picture_files.each(read if prepared else reader(*arguments), [str(path)])
    return str(result) if isinstance(result, picture_files.NoPicture) else result.astype(int)


def weights_of(size, other):
    """Returns the weights [other, size] of a resize: a triangle as wide as a pixel of the coarser image."""
    scale = size / other
    centres = (np.arange(other) + 0.5) * scale
    weights = np.maximum(1 - np.abs(np.arange(size) + 0.5 - centres[:, None]) / max(scale, 1), 0)
    return weights / weights.sum(1, keepdims=True)


def noise(height, width, channels=3, colours=None):
    """Returns a picture with structure of every scale, uint8 [height, width, channels]."""
    random = np.random.default_rng(0)
    pixels = sum(random.integers(0, 64, [-(-height // n), -(-width // n), channels]).repeat(n, 0).repeat(n, 1)[
        :height, :width] for n in (1, 3, 16, 50))
    return np.uint8(pixels // colours * colours if colours else pixels)


# Lossless formats. GIF has at most 256 colours, so the picture that all formats store has no more.
LOSSLESS = {'PNG': {}, 'BMP': {}, 'TIFF': dict(compression='tiff_lzw'), 'WEBP': dict(lossless=True), 'GIF': {}}


@pytest.mark.parametrize('size, augmentation, stored_size', mostly_stress(
    [(32, None, 32), (48, resized_crop.ResizedCrop, 48), (72, resized_crop.ResizedCrop, None), (224, None, None)],
    (32, None, 32), (72, resized_crop.ResizedCrop, None)))
def test_an_image_does_not_depend_on_its_files_format(tmp_path, size, augmentation, stored_size):
    arguments = size, augmentation and augmentation(None, None, 0, size), stored_size
    jpeg_arguments = 112, arguments[1], None  # a size at which libjpeg does not decode at a fraction
    pixels = noise(150, 201).max(2) // 64 * 64
    palette = Image.fromarray(pixels).convert('P')
    colours = np.asarray(palette.convert('RGB'))
    files = {name: encoded(colours, name, **options) for name, options in LOSSLESS.items() if name != 'GIF'}
    stream = io.BytesIO()
    palette.save(stream, 'GIF')
    files['GIF'] = stream.getvalue()
    images = {name: image_of(contents, tmp_path / 'x', *arguments) for name, contents in files.items()}
    assert np.ptp(images['PNG']) > 60
    for name, image in images.items():
        np.testing.assert_array_equal(image, images['PNG'], name)
    for subsampling in (0, 1, 2):
        jpeg = encoded(noise(150, 201), 'JPEG', quality=80, subsampling=subsampling)
        as_decoded = np.asarray(Image.open(io.BytesIO(jpeg)))
        np.testing.assert_array_equal(image_of(jpeg, tmp_path / 'x', *jpeg_arguments),
                                      image_of(encoded(as_decoded, 'PNG'), tmp_path / 'x', *jpeg_arguments))


@pytest.mark.parametrize('format, orientation', mostly_stress(
    [(format, orientation) for format in ('JPEG', 'PNG', 'TIFF', 'WEBP', 'AVIF') for orientation in AS_SHOWN],
    *(('JPEG', orientation) for orientation in AS_SHOWN), ('PNG', 6), ('TIFF', 8), ('WEBP', 5), ('AVIF', 3)))
def test_a_picture_is_turned_by_its_exif_orientation(tmp_path, format, orientation):
    if format == 'AVIF' and 'AVIF' not in Image.OPEN:
        pytest.skip('this Pillow reads no AVIF')
    pixels = np.repeat(np.repeat(noise(5, 8), 16, 0), 16, 1)
    options = dict(JPEG=dict(quality=100, subsampling=0), WEBP=dict(lossless=True), AVIF=dict(quality=100))
    contents = encoded(pixels, format, orientation, **options.get(format, {}))
    for arguments in ((32, None, 32), (72,)):
        expected = image_of(encoded(pixels, 'PNG'), tmp_path / 'x', *arguments)
        difference = np.abs(image_of(contents, tmp_path / 'x', *arguments) - expected)
        # One level for a different order of summation; more for lossy formats.
        assert difference.max() <= 1 if format in ('PNG', 'TIFF', 'WEBP') else difference.mean() < 3


@pytest.mark.parametrize('shape, made', [
    ((150, 201), (82, 110)), ((401, 90), (365, 82)), ((82, 300), (82, 300)), ((3, 500), (3, 500)), ((1, 1), (1, 1)),
    ((90, 90), (82, 82))])
def test_photos_shrink_to_eight_sevenths_of_the_size_and_never_grow(tmp_path, shape, made):
    pixels = noise(*shape)
    prepared = image_of(encoded(pixels, 'PNG'), tmp_path / 'x', 72, prepared=True)
    assert prepared.shape == (*made, 3)
    rows, columns = (weights_of(*sides) for sides in zip(shape, made))
    expected = np.einsum('ij,jkc,lk->ilc', rows, pixels, columns, optimize=True)
    np.testing.assert_allclose(prepared, expected, atol=1.01)  # Pillow also rounds between rows and columns


@pytest.mark.parametrize('shape', [(96, 128), (120, 48), (32, 400), (20, 30)])
def test_small_images_are_whole_pictures(tmp_path, shape):
    pixels = noise(*shape)
    rows, columns = (weights_of(side, 32) for side in shape)
    expected = np.einsum('ij,jkc,lk->ilc', rows, pixels, columns, optimize=True)
    np.testing.assert_allclose(image_of(encoded(pixels, 'PNG'), tmp_path / 'x', 32, None, 32), expected, atol=1.01)


@pytest.mark.parametrize('ratio', [2, 4, 8, 12])
def test_decoding_a_jpeg_at_a_fraction_changes_the_image_little(tmp_path, ratio):
    size = 40
    smooth = Image.fromarray(noise(size, size)).resize([2 * ratio * size] * 2, Image.Resampling.BICUBIC)
    grain = np.random.default_rng(0).normal(0, 12, [*smooth.size, 3])
    jpeg = encoded(np.uint8(np.clip(smooth + grain, 0, 255)), 'JPEG', quality=90)
    image = image_of(jpeg, tmp_path / 'x', size)
    whole = image_of(encoded(np.asarray(Image.open(io.BytesIO(jpeg))), 'PNG'), tmp_path / 'x', size)
    assert ((image - whole) ** 2).mean() ** 0.5 < 2  # of 255 levels


def served():
    """Returns files of the types that an exported model accepts: (contents, whether the result is the same)."""
    files = [(encoded(noise(90 + 31 * i, 120), name, **options), True)
             for i in range(1, 4) for name, options in (('JPEG', dict(quality=80)), ('PNG', {}))]
    files += [(encoded(noise(250, 200), 'JPEG', subsampling=k, progressive=True), False) for k in range(3)]
    for shape in ((20, 30), (64, 64), (150, 85)):
        pixels = noise(*shape, 4)
        files += [(encoded(pixels[..., :3], 'GIF'), True), (encoded(pixels, 'PNG'), True),
                  (encoded(pixels[..., :2], 'PNG'), True), (encoded(pixels[..., 0], 'JPEG'), True)]
    return files


@pytest.mark.parametrize('size, stored_size', mostly_stress([(32, 32), (48, 32), (72, None)], (32, 32), (72, None)))
def test_an_exported_model_makes_the_same_images_of_upright_files(tmp_path, size, stored_size):
    preparation = Preparation(size, resized_crop.ResizedCrop(None, None, 0, size), stored_size)
    read = picture_files.Reader(preparation)
    with tf.Graph().as_default(), tf.Session() as session:
        contents = tf.placeholder(tf.string, [None])
        images = preparation.images_of_files(contents)
        found = session.run(images, {contents: [content for content, _ in served()]})
        for image, (content, is_same) in zip(found, served()):
            (tmp_path / 'x').write_bytes(content)
            difference = image.astype(int) - read(str(tmp_path / 'x'))
            # Pillow decodes large JPEG files at half size or less.
            assert not difference.any() if is_same or size > 50 else (difference ** 2).mean() ** 0.5 < 2
        assert session.run(images, {contents: []}).shape == (0, size, size, 3)
        pixels = noise(9, 9)
        for other, reason in ((encoded(pixels, 'BMP'), 'BMP; save it as PNG or JPEG'), (b'', 'image'),
                              (encoded(pixels, 'TIFF'), 'Unknown image file format'), (b'text', 'Unknown image file')):
            with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
                session.run(images, {contents: [other]})


def test_all_kinds_of_pictures_are_read(tmp_path):
    def read(contents):
        return image_of(contents, tmp_path / 'x', 32)
    pixels = noise(32, 32)
    grey = pixels[..., 0]
    transparent = np.dstack([pixels, np.zeros([32, 32], np.uint8)])
    np.testing.assert_array_equal(read(encoded(grey, 'PNG')), np.dstack([grey] * 3))
    for name in ('PNG', 'TIFF', 'WEBP'):
        assert (read(encoded(transparent, name)) == 255).all()
    deep = grey.astype(np.uint16) * 257
    for name in ('PNG', 'TIFF'):  # 16 bits
        np.testing.assert_array_equal(read(encoded(deep, name)), np.dstack([grey] * 3))
    half = np.full([40, 40, 4], 128, np.uint8)
    half[..., :3] = (0, 101, 200)
    assert np.abs(read(encoded(half, 'PNG')) - [127, 177.7, 227.4]).max() < 1
    cmyk = io.BytesIO()
    Image.new('CMYK', (64, 64), (0, 255, 255, 0)).save(cmyk, 'JPEG', quality=95)
    assert np.abs(read(cmyk.getvalue()) - [255, 0, 0]).max() < 8
    lines = np.zeros([256, 256, 3], np.uint8)
    lines[::8] = 255
    assert np.abs(read(encoded(lines, 'PNG'))[1:-1] - 255 / 8).max() < 3  # fine lines become grey
    for name in ('GIF', 'WEBP'):  # the first frame of an animation
        stream = io.BytesIO()
        red, blue = (Image.new('RGB', (64, 64), colour) for colour in ('red', 'blue'))
        red.save(stream, name, save_all=True, append_images=[blue], **LOSSLESS[name])
        assert (read(stream.getvalue()) == [255, 0, 0]).all()


def png(width, height, kind, bits, row=None):
    """Returns a PNG file with identical rows; without `row`, it has no rows."""
    def chunk(name, data):
        return struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))
    packer = zlib.compressobj(1)
    data = b''.join(packer.compress(b'\0' + row) for _ in range(height) if row) + packer.flush()
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, bits, kind, 0, 0, 0))
            + chunk(b'IDAT', data) + chunk(b'IEND', b''))


SMALL = {name: encoded(noise(40, 40), name) for name in ('JPEG', 'PNG', 'BMP', 'TIFF', 'WEBP', 'GIF')}
FORMATS = ', '.join(name for name in ('JPEG', 'PNG', 'GIF', 'WEBP', 'BMP', 'TIFF', 'AVIF') if name in Image.OPEN)


@pytest.mark.parametrize('contents, reason', [
    (png(20000, 10000, 2, 8), 'more than 179 million pixels; make it smaller'),
    *[(contents, f'not a picture in a supported format ({FORMATS}), or corrupt') for contents in (
        b'', b'text', b'W\0\0\0is a car', encoded(noise(8, 8), 'JPEG2000'), encoded(noise(8, 8), 'EPS'),
        SMALL['PNG'][:20], SMALL['WEBP'][:-9])],
    *[(b'\0\0\0\x18ftyp' + brand + bytes(30), 'a HEIC file; convert it to JPEG or PNG')
      for brand in (b'heic', b'heix', b'hevc', b'mif1', b'msf1')],
    (encoded(np.zeros([8, 8], np.float32), 'TIFF'), 'a picture with 32 bits per channel; save it as PNG or JPEG'),
    *[(contents[:-len(contents) // 3], f'a corrupt {name} file')
      for name, contents in SMALL.items() if name != 'WEBP']])
def test_a_refusal_states_its_reason(tmp_path, capfd, contents, reason):
    for arguments in ((32,), (72,)):
        assert image_of(contents, tmp_path / 'x', *arguments) == reason
    assert capfd.readouterr().err == ''  # no output of libjpeg, libtiff or Pillow


def test_photos_in_unsupported_formats_are_listed_and_not_left_out(tmp_path, capsys):
    (tmp_path / '1.heic').write_bytes(b'\0\0\0\x18ftypheic' + bytes(30))
    (tmp_path / '2.txt').write_bytes(b'text')
    assert pictures([str(tmp_path)]) == [str(tmp_path / '1.heic')]
    assert str(tmp_path / '2.txt') in capsys.readouterr().out


def test_invalid_exif_data_are_ignored(tmp_path):
    pixels = noise(40, 50)
    upright = image_of(SMALL['PNG'], tmp_path / 'x', 32)
    contents = encoded(noise(40, 40), 'PNG', 6)
    assert np.abs(image_of(contents, tmp_path / 'x', 32) - upright).max() <= 1
    random = np.random.default_rng(0)
    jpeg = encoded(pixels, 'JPEG', 6)
    for _ in range(30):
        garbled = np.frombuffer(jpeg, np.uint8).copy()
        garbled[random.integers(30, 60, 3)] = random.integers(0, 256, 3)
        assert isinstance(image_of(garbled.tobytes(), tmp_path / 'x', 32), np.ndarray | str)


@pytest.mark.stress
def test_records_are_fed_as_classified_pictures_at_every_size(tmp_path, data_dir):
    data = datasets.prepare('shapes', data_dir, datasets.TEST, image_size=48)
    augmentation = resized_crop.ResizedCrop(None, None, 0, 48)
    augmentation.normalise = lambda pixels: pixels
    images = loaded(data)
    with tf.Session() as session:
        session.run(images.read)
        fed, _ = session.run(images.batch(augmentation, tf.constant([0], tf.int64), None))
    pixels = data.images(1)[0]
    stored_size = datasets.stored_size('shapes', 48)
    np.testing.assert_array_equal(
        image_of(encoded(pixels, 'PNG'), tmp_path / 'x', 48, augmentation, stored_size), fed[0])


LIMITED = '''
import functools, resource, sys
from cifar10.base import startup
startup.start_tensorflow()
from cifar10.data.augment import Augmentation
from cifar10.data.photos import picture_files, preparation
read = functools.partial(picture_files.prepared, preparation=preparation.Preparation(32, Augmentation(), 32))
list(picture_files.each(read, sys.argv[2:][-1:] * 20))
size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]),) * 2)
for image in picture_files.each(read, sys.argv[2:]):
    print(getattr(image, 'shape', image))
'''


def limited(megabytes, *paths):
    """Decodes files in a process with a limit on additional memory; returns a line for each file."""
    result = python('-c', LIMITED, megabytes << 20, *paths)
    assert result.returncode == 0 and not result.stderr, result.stderr
    return result.stdout.splitlines()


@pytest.mark.stress
@pytest.mark.parametrize('format', ['PNG', 'TIFF'])
def test_large_pictures_are_decoded_one_by_one_in_the_stated_memory(tmp_path, format):
    (tmp_path / 'large').write_bytes(png(13300, 13300, 6, 8, bytes(53200)))  # 176.9 million pixels, with alpha
    if format == 'TIFF':
        Image.new('RGBA', (13300, 13300)).save(tmp_path / 'large', 'TIFF', compression='tiff_lzw')
    (tmp_path / 'small.png').write_bytes(png(32, 32, 0, 8, bytes(32)))
    large = [tmp_path / 'large'] * 4
    assert limited(177 * 24 + 512, *large, tmp_path / 'small.png') == ['(32, 32, 3)'] * 5


@pytest.mark.parametrize('argument, kind', [
    ('https://example.org/cat.png', 'No such file or directory'), ('', 'No such file'), ('.', 'a folder'),
    ('/dev/null', 'not a file'), ('cat.png', 'No such file or directory')])
def test_a_path_that_is_no_file_is_refused_with_its_kind(argument, kind):
    refused, = picture_files.each(reader(), [argument])
    assert isinstance(refused, picture_files.NoPicture) and str(refused).startswith(kind)


def test_pillows_size_limit_may_be_off():
    result = python('-c', 'import PIL.Image; PIL.Image.MAX_IMAGE_PIXELS = None\n'
                          'import cifar10.data.photos.picture_files')
    assert result.returncode == 0, result.stderr
