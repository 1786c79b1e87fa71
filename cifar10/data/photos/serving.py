"""Picture files as images within an exported model, where there is no Pillow: JPEG, PNG, and most GIFs and BMPs."""
import tensorflow.compat.v1 as tf

from cifar10.data.images import as_graph
from cifar10.data.photos.decoding import Preparation
from cifar10.data.photos.headers import after

_BMP_HEAD = 34  # bytes of a BMP that say how it is stored
_GIF_HEAD = 4096  # bytes in which the first frame of a GIF begins
_GIF_CONTROL = b'!\xf9\4'  # before a frame; the next byte is odd if a colour is transparent
_BMP_BITS = (8, 24, 32)  # a pixel
# (first byte, what is there, name) of the formats that are refused by name; a file may be of none of them.
_OTHERS = ((8, b'WEBP', 'WebP'), (0, b'II*\0', 'TIFF'), (0, b'MM\0*', 'TIFF'), (4, b'ftypavif', 'AVIF'),
           (4, b'ftypheic', 'HEIC'), (4, b'jP  ', 'JPEG 2000'))
_TAKEN = 'classify_bytes takes JPEG, PNG, GIF and BMP'


def images_of(files: tf.Tensor, preparation: Preparation) -> tf.Tensor:
    """Returns the images of picture files as classification prepares them, uint8 [n, size, size, 3].

    At another format the operation fails, with its name. Of a GIF it takes the first frame.

    Args:
      files: string [n], the contents of the files.
      preparation: how the run crops and resizes pictures.
    """
    image = tf.TensorSpec([preparation.size, preparation.size, 3], tf.uint8)
    return tf.map_fn(as_graph(lambda contents: _image(contents, preparation)), files, fn_output_signature=image)


def _image(contents, preparation):
    is_encoded = _has(contents, 0, b'\xff\xd8\xff') | _has(contents, 0, b'\x89PNG\r\n\x1a\n')
    is_gif = _has(contents, 0, b'GIF8')
    name = tf.constant('a file of none of these formats')
    for first, beginning, other in _OTHERS:
        name = tf.where(_has(contents, first, beginning), f'a {other} file', name)
    contents = _checked(contents, is_encoded | is_gif | _has(contents, 0, b'BM'),
                        tf.strings.join([_TAKEN + '; this is ', name]))
    return tf.case([(is_encoded, lambda: preparation.of_file(contents)),
                    (is_gif, lambda: preparation.of_pixels(_gif_pixels(contents)))],
                   lambda: preparation.of_pixels(_bmp_pixels(contents)))


def _has(contents, first, beginning):
    padded = tf.strings.join([contents, b'\0' * 16])  # a file may be shorter
    return tf.equal(tf.strings.substr(padded, first, len(beginning)), beginning)


def _checked(contents, condition, message):
    """Returns contents; the operation fails with a message unless the condition holds."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
        return tf.identity(contents)


def _gif_pixels(contents):
    """Returns the pixels of the first frame of a GIF, uint8 [height, width, 3]; fails if it has transparent ones.

    The layout: https://www.w3.org/Graphics/GIF/spec-gif89a.txt. Transparent pixels would be black.
    """
    head = tf.strings.join([tf.strings.substr(contents, 0, _GIF_HEAD), _GIF_CONTROL + b'\0'])
    data = tf.io.decode_raw(head, tf.uint8)
    flags = data[after(data, _GIF_CONTROL)[0]]
    return tf.io.decode_gif(
        _checked(contents, tf.equal(flags % 2, 0), _TAKEN + '; of GIF those without transparent colours'))[0]


def _bmp_pixels(contents):
    """Returns the pixels of an uncompressed BMP, uint8 [height, width, 3]; with 8 bits a pixel its palette is used.

    The layout: https://learn.microsoft.com/windows/win32/gdi/bitmap-storage.
    """
    head = tf.strings.join([tf.strings.substr(contents, 0, _BMP_HEAD), b'\0' * _BMP_HEAD])

    def number(first, kind):
        return tf.cast(tf.io.decode_raw(tf.strings.substr(head, first, kind.size), kind)[0], tf.int32)
    pixels_begin, header = number(10, tf.int32), number(14, tf.int32)
    bits, compression = number(28, tf.uint16), number(30, tf.int32)
    is_known = tf.reduce_any(tf.equal(bits, _BMP_BITS)) & tf.equal(compression, 0) & (header >= 40)
    pixels = tf.image.decode_bmp(_checked(
        contents, is_known,
        _TAKEN + '; of BMP those without compression and colour masks, with 8, 24 or 32 bits a pixel'))

    def with_palette():
        table = tf.strings.substr(contents, 14 + header, pixels_begin - 14 - header)
        colours = tf.reshape(tf.io.decode_raw(table, tf.uint8), [-1, 4])[:, 2::-1]  # blue, green, red and nothing
        return tf.gather(colours, tf.cast(pixels[..., 0], tf.int32))
    return tf.cond(tf.equal(bits, 8), with_palette, lambda: pixels[..., :3])
