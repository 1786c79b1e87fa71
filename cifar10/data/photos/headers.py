"""Reads the header of a JPEG or PNG before the picture is decoded, as graph operations."""
import tensorflow.compat.v1 as tf

UPRIGHT = 1  # the EXIF orientation of a picture that is shown as it is stored
TRANSPOSED = 5  # the first orientation of those whose stored rows are shown as columns

_JPEG_MARK, _PNG_MARK = b'Exif\0\0', b'eXIf'  # EXIF data follow these bytes
_HEAD = 1 << 18  # bytes of a file within which its EXIF data begin
_LITTLE, _BIG = 0x4949, 0x4d4d  # their byte order
_TAG, _SHORT = 0x112, 3  # of the orientation in them: its number and its type


def read(contents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads the header of a JPEG or PNG file.

    Args:
      contents: string scalar, of the file.

    Returns:
      (int32 scalar, the EXIF orientation from 1 to 8; int32 [2], height and width of the picture as it is shown). The
      orientation says where the first stored row and column are shown: 1 top, left; 2 top, right; 3 bottom, right;
      4 bottom, left; 5 left, top; 6 right, top; 7 right, bottom; 8 left, bottom (Exif 2.32, section 4.6.4).
    """
    data = tf.io.decode_raw(tf.strings.substr(contents, 0, _HEAD), tf.uint8)

    def jpeg():
        return tf.image.extract_jpeg_shape(contents)[:2], after(data, _JPEG_MARK)

    def png():
        return tf.cast(tf.stack([_number(data, 20, 4), _number(data, 16, 4)]), tf.int32), after(data, _PNG_MARK)
    shape, places = tf.cond(tf.io.is_jpeg(contents), jpeg, png)
    orientation = _orientation(data, tf.concat([places, [tf.size(data, out_type=tf.int64)]], 0)[0])
    return orientation, tf.where(orientation >= TRANSPOSED, tf.reverse(shape, [0]), shape)


def after(data: tf.Tensor, mark: bytes) -> tf.Tensor:
    """Returns the offsets that follow each place where a file, uint8 [n], has certain bytes: int64 [places]."""
    count = tf.maximum(tf.size(data) - len(mark) + 1, 0)
    begins = tf.reduce_all([tf.equal(data[i:count + i], byte) for i, byte in enumerate(mark)], 0)
    return tf.where(begins)[:, 0] + len(mark)


def _number(data, offset, count, is_little=False):
    """Returns the numbers of so many bytes at offsets [...] in a file, int64 [...]; bytes beyond its end are 0."""
    index = tf.cast(offset, tf.int64)[..., None] + tf.range(count, dtype=tf.int64)
    size = tf.size(data, out_type=tf.int64)
    found = tf.cast(tf.gather(data, tf.clip_by_value(index, 0, size - 1)), tf.int64)
    found = tf.where(index < size, found, tf.zeros_like(found))
    weights = [256 ** k for k in range(count)]
    weights = tf.where(is_little, tf.constant(weights, tf.int64), tf.constant(weights[::-1], tf.int64))
    return tf.reduce_sum(found * weights, -1)


def _orientation(data, exif):
    """Returns the orientation in the first directory of EXIF data, which are laid out as a TIFF file; UPRIGHT if none.

    Args:
      data: uint8 [n], the file.
      exif: int64 scalar, where the EXIF data begin; n if there are none.
    """
    order = _number(data, exif, 2)
    is_little = tf.equal(order, _LITTLE)
    directory = exif + _number(data, exif + 4, 4, is_little)
    entries = directory + 2 + 12 * tf.range(_number(data, directory, 2, is_little))
    value = _number(data, entries + 8, 2, is_little)
    is_orientation = (tf.equal(_number(data, entries, 2, is_little), _TAG)
                      & tf.equal(_number(data, entries + 2, 2, is_little), _SHORT) & (value >= 1) & (value <= 8))
    found = tf.concat([[UPRIGHT], tf.cast(tf.boolean_mask(value, is_orientation), tf.int32)], 0)[-1]
    return tf.where(tf.reduce_any(tf.equal(order, [_LITTLE, _BIG])), found, UPRIGHT)
