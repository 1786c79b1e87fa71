"""Reads the header of a JPEG or PNG before the picture is decoded, as graph operations."""
import tensorflow.compat.v1 as tf

UPRIGHT = 1  # the EXIF orientation of a picture that is shown as it is stored
TRANSPOSED = 5  # the first orientation of those whose stored rows are shown as columns

_TAG, _KINDS = 0x112, (1, 3, 4)  # of the orientation in EXIF data: its number, and BYTE, SHORT and LONG
_BARE = (0x00, 0x01, *range(0xd0, 0xd9))  # markers of a JPEG without a segment
_LAST = (0xd9, 0xda)  # markers after which there is no EXIF segment
_MOST_SEGMENTS = 1000


def read(contents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads the header of a JPEG or PNG file.

    Args:
      contents: string scalar, of the file.

    Returns:
      (int32 scalar, the EXIF orientation from 1 to 8; int32 [2], height and width of the picture as it is shown). The
      orientation says where the first stored row and column are shown: 1 top, left; 2 top, right; 3 bottom, right;
      4 bottom, left; 5 left, top; 6 right, top; 7 right, bottom; 8 left, bottom (Exif 2.32, section 4.6.4).
    """
    data = tf.io.decode_raw(contents, tf.uint8)

    def jpeg():
        return tf.image.extract_jpeg_shape(contents)[:2], _jpeg_exif(data)

    def png():
        return tf.cast(tf.stack([_number(data, 20, 4), _number(data, 16, 4)]), tf.int32), _png_exif(data)
    shape, exif = tf.cond(tf.io.is_jpeg(contents), jpeg, png)
    orientation = _orientation(data, exif)
    return orientation, tf.where(orientation >= TRANSPOSED, tf.reverse(shape, [0]), shape)


def _number(data, offset, count, is_little=False):
    """Returns the numbers of so many bytes at offsets [...] in a file, int64 [...]; bytes beyond its end are 0."""
    index = tf.cast(offset, tf.int64)[..., None] + tf.range(count, dtype=tf.int64)
    size = tf.size(data, out_type=tf.int64)
    found = tf.cast(tf.gather(data, tf.clip_by_value(index, 0, tf.maximum(size - 1, 0))), tf.int64)
    found = tf.where(index < size, found, tf.zeros_like(found))
    weights = [256 ** k for k in range(count)]
    weights = tf.where(is_little, tf.constant(weights, tf.int64), tf.constant(weights[::-1], tf.int64))
    return tf.reduce_sum(found * weights, -1)


def _walk(data, first, step):
    """Goes through the segments of a file.

    Args:
      data: uint8 [n], the file.
      first: the offset of the first segment.
      step: function offset -> (whether EXIF data begin there, their offset, the offset of the next segment).

    Returns:
      int64 scalar, where EXIF data begin; 0 if there are none.
    """
    def goes_on(offset, exif):
        return tf.logical_and(offset < tf.size(data, out_type=tf.int64), tf.equal(exif, 0))

    def next_one(offset, exif):
        is_exif, begin, following = step(offset)
        return following, tf.where(is_exif, begin, exif)
    _, exif = tf.while_loop(goes_on, next_one, [tf.constant(first, tf.int64), tf.constant(0, tf.int64)],
                            maximum_iterations=_MOST_SEGMENTS)
    return exif


def _jpeg_exif(data):
    def step(offset):
        marker = _number(data, offset + 1, 1)
        is_marker = tf.equal(_number(data, offset, 1), 0xff) & tf.not_equal(marker, 0xff)
        is_exif = is_marker & tf.equal(marker, 0xe1) & tf.equal(_number(data, offset + 4, 6), 0x457869660000)
        length = tf.where(_is_one_of(marker, _BARE), tf.zeros_like(marker), _number(data, offset + 2, 2))
        length = tf.where(_is_one_of(marker, _LAST), tf.size(data, out_type=tf.int64), length)
        return is_exif, offset + 10, tf.where(is_marker, offset + 2 + length, offset + 1)
    return _walk(data, 2, step)


def _png_exif(data):
    def step(offset):
        name = _number(data, offset + 4, 4)
        is_last = _is_one_of(name, (0x49444154, 0x49454e44))  # IDAT, IEND
        length = tf.where(is_last, tf.size(data, out_type=tf.int64), _number(data, offset, 4))
        return tf.equal(name, 0x65584966), offset + 8, offset + 12 + length  # eXIf
    return _walk(data, 8, step)


def _is_one_of(value, values):
    return tf.reduce_any(tf.equal(value, values))


def _orientation(data, exif):
    """Returns the orientation in the first directory of EXIF data, which are laid out as a TIFF file; UPRIGHT if none.

    Args:
      data: uint8 [n], the file.
      exif: int64 scalar, where the EXIF data begin; 0 if there are none.
    """
    order = _number(data, exif, 2)
    is_little = tf.equal(order, 0x4949)
    directory = exif + _number(data, exif + 4, 4, is_little)
    entries = directory + 2 + 12 * tf.range(_number(data, directory, 2, is_little))
    kind = _number(data, entries + 2, 2, is_little)
    values = tf.stack([_number(data, entries + 8, count, is_little) for count in (1, 2, 4)], 1)
    value = tf.reduce_sum(tf.where(tf.equal(kind[:, None], _KINDS), values, tf.zeros_like(values)), 1)
    is_orientation = (tf.equal(_number(data, entries, 2, is_little), _TAG) & (value >= 1) & (value <= 8)
                      & tf.equal(_number(data, entries + 4, 4, is_little), 1))
    found = tf.concat([[UPRIGHT], tf.cast(tf.boolean_mask(value, is_orientation), tf.int32)], 0)[-1]
    return tf.where((exif > 0) & _is_one_of(order, (0x4949, 0x4d4d)), found, UPRIGHT)
