"""Picture files that need care: BMPs of every kind, headers that lie, bombs, and too little memory."""
import multiprocessing.pool
import struct
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest

from cifar10.data import headers, pictures
from tests.helpers import ROOT, patient, tf

RED, BLUE = (255, 0, 0), (0, 0, 255)
WHICH = np.random.default_rng(0).integers(0, 2, [32, 32])  # the index of each pixel's colour
PIXELS = np.array([RED, BLUE], np.uint8)[WHICH]
PALETTE = bytes([0, 0, 255, 0, 255, 0, 0, 0])  # blue, green, red and nothing

# WebP animations without loss, of 8 x 8 pixels: one red frame, then one blue frame.
ANIMATED_WEBP = bytes.fromhex(
    '524946468400000057454250565038580a00000002000000070000070000414e494d06000000000000000000414e4d46280000000000000000'
    '00070000070000000000005650384c0f0000002f07c001000710fd8ffe0722a2ff0100414e4d46280000000000000000000700000700000000'
    '00005650384c0f0000002f07c001000710d1fffe0722a2ff0100')


def bmp(bits, rows, compression=0, header=40, masks=(), palette=b'', top_down=False):
    """Returns a BMP file of 32 x 32 pixels; rows are those from the top, as bytes."""
    masks = struct.pack(f'<{len(masks)}I', *masks)
    if header == 12:
        second = struct.pack('<IHHHH', 12, 32, 32, 1, bits)
    else:
        second = struct.pack('<IiiHHIIiiII', header, 32, -32 if top_down else 32, 1, bits, compression, *[0] * 5)
        second = (second + masks).ljust(max(header, len(second + masks)), b'\0')
    offset = 14 + len(second) + len(palette)
    data = b''.join(rows if top_down else rows[::-1])
    return b'BM' + struct.pack('<IHHI', offset + len(data), 0, 0, offset) + second + palette + data


def packed(bits):
    """Returns the rows of indices, the first pixel in the highest bits."""
    return [np.packbits((row[:, None] >> np.arange(bits - 1, -1, -1)) & 1).tobytes() for row in WHICH]


def pixels_of(red, blue, kind):
    """Returns the rows of pixels that are colours, as numbers of a kind."""
    return [row.tobytes() for row in np.where(WHICH, blue, red).astype(kind)]


RGB24 = [row[:, ::-1].tobytes() for row in PIXELS]


@pytest.mark.parametrize('content', [
    bmp(1, packed(1), palette=PALETTE), bmp(4, packed(4), palette=PALETTE), bmp(8, packed(8), palette=PALETTE),
    bmp(8, packed(8), palette=bytes([0, 0, 255, 255, 0, 0]), header=12), bmp(8, packed(8), palette=PALETTE, header=124),
    bmp(8, packed(8), palette=PALETTE, top_down=True), bmp(24, RGB24), bmp(24, RGB24, header=12),
    bmp(24, RGB24, top_down=True) + b'more', bmp(16, pixels_of(0x7c00, 0x001f, '<u2')),
    bmp(16, pixels_of(0xf800, 0x001f, '<u2'), 3, masks=(0xf800, 0x7e0, 0x1f)),
    bmp(32, pixels_of(0x00ff0000, 0x000000ff, '<u4')), bmp(32, pixels_of(0x7fff0000, 0xff0000ff, '<u4'), top_down=True),
    bmp(32, pixels_of(0x00ff0000, 0x000000ff, '<u4'), header=124),
    bmp(32, pixels_of(0x000000ff, 0x00ff0000, '<u4'), 3, masks=(0xff, 0xff00, 0xff0000)),
    bmp(32, pixels_of(0x3ff00000, 0x000003ff, '<u4'), 3, masks=(0x3ff00000, 0xffc00, 0x3ff)),
    bmp(32, pixels_of(0xffff0000, 0xff0000ff, '<u4'), 3, 124, (0xff0000, 0xff00, 0xff, 0xff000000)),
    bmp(32, pixels_of(0xffff0000, 0xff0000ff, '<u4'), 6, masks=(0xff0000, 0xff00, 0xff, 0xff000000)),
    bmp(32, pixels_of(0x00ff0000, 0x000000ff, '<u4'), 3, 108, (0xff0000, 0xff00, 0xff, 0xff000000)),  # alpha unused
])
def test_a_bmp_of_every_uncompressed_kind_has_its_colours(tmp_path, content):
    (tmp_path / 'x.bmp').write_bytes(content)
    np.testing.assert_array_equal(pictures.Decoder()(str(tmp_path / 'x.bmp')), PIXELS)


def test_a_bmp_with_an_alpha_mask_is_transparent(tmp_path):
    (tmp_path / 'x.bmp').write_bytes(
        bmp(32, pixels_of(0x00ff0000, 0xff0000ff, '<u4'), 3, 56, (0xff0000, 0xff00, 0xff, 0xff000000)))
    image = pictures.Decoder()(str(tmp_path / 'x.bmp'))
    np.testing.assert_array_equal(image, np.where(WHICH[..., None], BLUE, 255))


@pytest.mark.parametrize('content, part', [
    (bmp(8, packed(8), 1, palette=PALETTE), 'a compressed BMP; save it as PNG'),
    (bmp(4, packed(4), 2, palette=PALETTE), 'a compressed BMP; save it as PNG'),
    (bmp(24, RGB24, 5), 'a compressed BMP; save it as PNG'), (bmp(1, packed(1), 3, header=64), 'a compressed BMP'),
    (bmp(2, RGB24), r'a BMP of an unknown kind \(2 bits a pixel\); save it as PNG'),
    (bmp(32, pixels_of(0, 1, '<u4'), 3, masks=(0xf0f, 0xf0, 0xf000)), 'colour mask 0xf0f; save it as PNG'),
    (bmp(16, RGB24, 3, masks=(0xff0000, 0xff00, 0xff)), 'a BMP with the colour mask 0xff0000'),
    (bmp(24, RGB24)[:-1], 'a BMP that is cut off'), (bmp(24, RGB24)[:40], 'a BMP that is cut off'),
    (b'BM' + b'W is a car, and this is a text.' * 3, 'not a picture'), (b'BM', 'not a picture')])
def test_other_bmps_are_errors_with_a_remedy(tmp_path, content, part):
    (tmp_path / 'x.bmp').write_bytes(content)
    with pytest.raises(pictures.NoPicture, match=part):
        pictures.Decoder()(str(tmp_path / 'x.bmp'))


def png(width, height, kind, bits, row=None):
    """Returns a PNG file whose rows are all the same; without a row, one that has none."""
    def chunk(name, data):
        return struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))
    packer = zlib.compressobj(1)
    data = b''.join(packer.compress(b'\0' + row) for _ in range(height) if row) + packer.flush()
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, bits, kind, 0, 0, 0))
            + chunk(b'IDAT', data) + chunk(b'IEND', b''))


def gif(*frames):
    """Returns a GIF file with frames of these (width, height); the data of each is one red pixel."""
    return b'GIF89a' + bytes([1, 0, 1, 0, 0x80, 0, 0, 255, 0, 0, 0, 0, 0]) + b'!\xf9\4\0\0\0\0\0' + b''.join(
        b',' + struct.pack('<HHHH', 0, 0, width, height) + bytes([0, 2, 2, 0x44, 1, 0])
        for width, height in frames) + b';'


def jpeg(width, height, marker=0xc2):
    """Returns the beginning of a JPEG file."""
    # A frame's marker inside another segment does not count.
    preview = b'\xff\xe1\x00\x13\xff\xc0\x00\x11\x08\x00\x01\x00\x01' + bytes(8)
    return b'\xff\xd8' + preview + struct.pack('>BBHBHH', 0xff, marker, 17, 8, height, width) + bytes(10)


def webp(kind, body):
    return b'RIFF' + bytes(4) + b'WEBP' + kind + struct.pack('<I', len(body)) + body


HUGE = {
    'png': png(20000, 10000, 2, 8), 'jpg': jpeg(20000, 10000), 'baseline.jpg': jpeg(20000, 10000, 0xc0),
    'gif': gif((20000, 10000)), 'bmp': bmp(8, [])[:18] + struct.pack('<ii', 20000, -10000) + bytes(100),
    'lossy.webp': webp(b'VP8 ', b'\0\0\0\x9d\x01\x2a' + struct.pack('<HH', 16383, 10000)),
    'lossless.webp': webp(b'VP8L', b'\x2f' + struct.pack('<I', 16383 | 9999 << 14)),
    'extended.webp': webp(b'VP8X', bytes(4) + struct.pack('<I', 19999)[:3] + struct.pack('<I', 9999)[:3])}


@pytest.mark.parametrize('name', HUGE)
def test_a_picture_of_too_many_pixels_is_refused_by_its_header(tmp_path, name):
    width, height = headers.size(HUGE[name])
    assert height == 10000 and width == (16384 if 'lossless' in name else 16383 if 'lossy' in name else 20000)
    (tmp_path / name).write_bytes(HUGE[name])
    with pytest.raises(pictures.NoPicture, match=f'^{width} x 10000 pixels, more than 128 million; make it smaller$'):
        pictures.Decoder()(str(tmp_path / name))


@pytest.mark.parametrize('name', HUGE)
def test_a_header_that_is_cut_off_or_wrong_is_no_picture(tmp_path, name):
    for end in range(1, 26):
        size = headers.size(HUGE[name][:end])
        assert size is None or size == headers.size(HUGE[name])
    random = np.random.default_rng(0)
    for _ in range(300):
        content = np.frombuffer(HUGE[name], np.uint8).copy()
        content[random.integers(4, len(content), 3)] = random.integers(0, 256, 3)
        headers.size(content.tobytes())  # raises nothing


def test_the_size_in_a_header_is_the_one_that_is_decoded():
    pixels = np.zeros([30, 41, 3], np.uint8)
    with tf.Session() as session:
        for content in session.run([tf.io.encode_png(pixels), tf.io.encode_jpeg(pixels),
                                    tf.io.encode_jpeg(pixels, progressive=True, xmp_metadata='x' * 60000)]):
            assert headers.size(content) == (41, 30)
            assert headers.size(content[:2] + b'\xff\xe5\0\0garbage' + content[2:]) in ((41, 30), None)


def with_exif(content, orientation, order='<', kind=3):
    """Returns a JPEG file with an EXIF segment that has some other tag, and the orientation."""
    magic = b'II*\0' if order == '<' else b'MM\0*'
    entries = struct.pack(order + 'HHIHH', 0x10f, 3, 1, 7, 0) + struct.pack(order + 'HHIHH', 0x112, kind, 1,
                                                                             orientation, 0)
    exif = b'Exif\0\0' + magic + struct.pack(order + 'IH', 8, 2) + entries + bytes(4)
    after_jfif = 20  # what TensorFlow writes begins with a JFIF segment of 18 bytes
    return content[:after_jfif] + b'\xff\xe1' + struct.pack('>H', 2 + len(exif)) + exif + content[after_jfif:]


AS_SHOWN = {  # what is done to the stored pixels, from the places of the first row and column in the EXIF standard
    1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, -1), 7: lambda x: np.rot90(x, 2).transpose(1, 0, 2), 8: np.rot90}


@pytest.fixture(scope='module')
def photo():
    """A JPEG file of 64 x 40 pixels, and its pixels as they are decoded."""
    pixels = np.random.default_rng(0).integers(0, 256, [5, 8, 3], np.uint8).repeat(8, 0).repeat(8, 1)
    with tf.Graph().as_default(), tf.Session() as session:
        content = session.run(tf.io.encode_jpeg(pixels, chroma_downsampling=False))
        return content, session.run(tf.io.decode_image(content))


@pytest.mark.parametrize('orientation', AS_SHOWN)
def test_a_photo_is_turned_as_its_exif_orientation_says(photo, tmp_path, orientation):
    content, pixels = photo
    with tf.Graph().as_default(), tf.Session() as session:
        upright = session.run(tf.io.encode_png(np.ascontiguousarray(AS_SHOWN[orientation](pixels))))
    (tmp_path / 'upright.png').write_bytes(upright)
    (tmp_path / 'intel.jpg').write_bytes(with_exif(content, orientation))
    (tmp_path / 'motorola.jpg').write_bytes(with_exif(content, orientation, '>'))
    expected, *images = pictures.Decoder().try_each(
        [str(tmp_path / name) for name in ('upright.png', 'intel.jpg', 'motorola.jpg')])
    for image in images:
        np.testing.assert_allclose(image.astype(int), expected.astype(int), atol=1)  # rounded after another sum


def test_an_exif_segment_that_makes_no_sense_is_ignored(photo):
    content = with_exif(photo[0], 6)
    assert headers.orientation(content) == 6
    for other in (photo[0], with_exif(photo[0], 0), with_exif(photo[0], 9), with_exif(photo[0], 6, kind=4),
                  HUGE['png'], HUGE['gif'], b'', content.replace(b'Exif', b'http')):
        assert headers.orientation(other) == headers.UPRIGHT
    random = np.random.default_rng(0)
    for end in range(80):
        assert headers.orientation(content[:end]) in (1, 6)
        garbled = np.frombuffer(content, np.uint8).copy()
        garbled[random.integers(2, 80, 3)] = random.integers(0, 256, 3)
        assert 1 <= headers.orientation(garbled.tobytes()) <= 8


def test_only_the_first_frame_of_an_animation_is_decoded(tmp_path):
    (tmp_path / 'x.gif').write_bytes(gif((1, 1), (6000, 6000), (6000, 6000)))
    decoder = pictures.Decoder()
    image = decoder(str(tmp_path / 'x.gif'))
    assert (image[..., 0] > 230).all() and (image[..., 1:] < 25).all()
    if hasattr(tf.io, 'decode_webp'):
        (tmp_path / 'x.webp').write_bytes(ANIMATED_WEBP)
        np.testing.assert_array_equal(decoder(str(tmp_path / 'x.webp')), np.broadcast_to(RED, [32, 32, 3]))


def test_threads_share_the_memory():
    budget = pictures.MemoryBudget(10)
    reserved = []
    totals = []

    def reserve(size):
        with budget.reserve(size):
            reserved.append(size)
            totals.append(sum(reserved))
            time.sleep(0.002)
            reserved.remove(size)
    with multiprocessing.pool.ThreadPool(8) as pool:
        pool.map(reserve, [1, 10, 4, 3, 7, 2, 9, 5] * 5, 1)
    assert len(totals) == 40 and max(totals) == 10
    done = threading.Event()
    with pytest.raises(ValueError), budget.reserve(10):
        threading.Thread(target=lambda: [reserve(10), done.set()]).start()
        raise ValueError
    assert done.wait(patient(10))


LIMITED = '''
import resource, sys
from cifar10.base import console
console.start_tensorflow()
from cifar10.data import pictures
decoder = pictures.Decoder()
decoder.try_each(sys.argv[2:][-1:] * 20)
size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]),) * 2)
for image in decoder.try_each(sys.argv[2:]):
    print(getattr(image, 'shape', image))
'''


def limited(megabytes, *paths):
    """Decodes files in a process that may take so many megabytes more; returns a line for each file."""
    result = subprocess.run([sys.executable, '-c', LIMITED, str(megabytes << 20), *map(str, paths)], cwd=ROOT,
                            capture_output=True, text=True, timeout=patient(120))
    assert result.returncode == 0 and not result.stderr, result.stderr
    return result.stdout.splitlines()


@pytest.mark.stress
def test_a_picture_that_does_not_fit_in_memory_is_an_error_and_the_others_are_decoded(tmp_path):
    (tmp_path / 'large.png').write_bytes(png(11000, 11000, 0, 1, bytes(1375)))  # 121 MB, in a file of 20 KB
    (tmp_path / 'small.png').write_bytes(png(32, 32, 0, 8, bytes(32)))
    assert limited(64, tmp_path / 'large.png', tmp_path / 'small.png') == [
        'too large for the memory that is free', '(32, 32, 3)']


@pytest.mark.stress
def test_large_pictures_are_decoded_one_after_the_other_in_the_memory_that_is_stated(tmp_path):
    (tmp_path / 'large.png').write_bytes(png(11300, 11300, 6, 8, bytes(45200)))  # 127.7 million pixels, with alpha
    (tmp_path / 'small.png').write_bytes(png(32, 32, 0, 8, bytes(32)))
    large = [tmp_path / 'large.png'] * 4
    assert limited(128 * 24 + 512, *large, tmp_path / 'small.png') == ['(32, 32, 3)'] * 5


@pytest.mark.parametrize('argument, kind', [
    ('https://example.org/cat.png', 'a URL; download it'), ('file:///cat.png', 'a URL'), ('*.bmp', 'a pattern that no'),
    ('cat[1].png', 'a pattern'), ('-', 'not the name of a file'), ('', 'not the name of a file'), ('.', 'a folder'),
    ('/dev/null', 'not a file'), ('cat.png', 'No such file or directory')])
def test_an_argument_that_is_no_file_is_refused_as_what_it_is(argument, kind):
    refused, = pictures.Decoder(32, 1.0).try_each([argument])
    assert isinstance(refused, pictures.NoPicture) and str(refused).startswith(kind)
