"""Photos in files, as operations: found in the manifest, then read, cut out and decoded, in parallel and in order.

A photo that is to be classified is decoded in the same way, so that it has the class that evaluation gives it.
Of the folder only the columns of the manifest are in memory. What is cut out of a photo is decided elsewhere.
"""
import dataclasses
import os
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.data import download, headers, pictures
from cifar10.data.augment import Augmentation, centre_boxes, planes_of
from cifar10.data.draws import Positions
from cifar10.data.manifest import COLUMNS, SEPARATORS, Photo
from cifar10.data.records import Records

# libjpeg decodes at a fraction of the size, which takes less memory and smooths what is too fine for it.
_SCALES = (1, 2, 4, 8)
_PARALLEL = len(os.sched_getaffinity(0))  # photos that are decoded at a time; of the chief, if it has other cores
_ROW_BYTES = 100  # of a row of the manifest, about
_BUCKETS = 2 ** 63 - 1  # of fingerprints
_MEASURED = 100  # photos that are decoded to measure how long it takes
_EXAMINED = 64  # height and width to which a file is decoded to see whether it can be

_as_graph = tf.autograph.experimental.do_not_convert


@dataclasses.dataclass(frozen=True)
class Photos(Records):
    """The photos of one part of a data set, which stay in their files. `files` is what the manifest has of them.

    Attributes:
      root: the folder that the paths in the manifest start from.
    """
    root: str = ''

    @property
    def record_bytes(self):
        return _ROW_BYTES

    @property
    def memory_bytes(self):
        return 2 * self.count * _ROW_BYTES

    def digest(self):
        return download.sha256(self.files[0])  # its rows have the fingerprint of each photo

    def describe(self, augmentation, batch_size):
        from cifar10.data import pipeline  # which imports this file
        lines = super().describe(augmentation, batch_size)
        if not os.path.exists(self.files[0]):
            return lines
        rate = pipeline.decoding_rate(self, augmentation, _MEASURED)
        ahead = (1 + pipeline.batches_ahead(False)) * batch_size * 3 * self.size ** 2 * 4  # float32
        return [*lines, f'decoding   {rate:,.0f} photos/s on {len(os.sched_getaffinity(0))} cores; the batches ahead '
                f'of each device take {ahead / 1e6:.2f} MB']

    def planes(self, n):
        on_cpu = tf.ConfigProto(device_count={'GPU': 0})
        with tf.Graph().as_default(), tf.device('/cpu:0'), tf.Session(config=on_cpu) as session:
            images = PhotoFiles(self)
            session.run(images.read)
            return session.run(images.take(tf.range(min(n, self.count), dtype=tf.int64))[1])

    def __str__(self):
        return f'{self.dataset}, {self.count:,} photos, read from their files as {self.folder} lists them'


class _Part(NamedTuple):
    """What is to be decoded of a photo; each tensor has a row for each photo.

    Attributes:
      window: int32 [4], first row, first column, height and width of a part of the picture as it is stored.
      scale: int32, the index in _SCALES at which a JPEG is decoded.
      scaled: int32 [4], the window at that scale.
      transposed: bool, whether rows of the stored picture are columns of the one that is wanted.
      reversed: bool [3], whether it is then turned upside down, mirrored, and False.
    """
    window: tf.Tensor
    scale: tf.Tensor
    scaled: tf.Tensor
    transposed: tf.Tensor
    reversed: tf.Tensor


class _Wanted(NamedTuple):
    """What is to be read; each tensor has a row for each photo.

    Attributes:
      file: string, its path.
      fingerprint: int64, that of its contents.
      label: int32.
      part: of the picture.
    """
    file: tf.Tensor
    fingerprint: tf.Tensor
    label: tf.Tensor
    part: _Part


class PhotoFiles:
    """The photos of a part of a data set, in their files; has what `pipeline.Images` has. Made on the caller's device.

    Attributes:
      count: how many there are.
      read: the operation that reads the manifest; to be run once in a session.
    """

    def __init__(self, photos: Photos):
        self.count = photos.count
        self._size = photos.size
        # From a placeholder, or graph optimisation would read the file to see whether it is constant.
        path = tf.placeholder_with_default(photos.files[0], [], name='manifest')
        rows = tf2.strings.split(tf.io.read_file(path), '\n')[1:-1]
        defaults = [[''] if name == 'file' else tf.zeros([1], tf.int64) for name in COLUMNS]
        columns = dict(zip(COLUMNS, tf.io.decode_csv(rows, defaults, field_delim='\t', use_quote_delim=False)))
        complete = tf.debugging.assert_equal(tf.size(rows), photos.count, message='the manifest has changed')
        with tf.control_dependencies([complete]):
            self._files = self._column('files', tf.strings.join([photos.root + '/', columns['file']]))
            self._fingerprints = self._column('fingerprints', columns['fingerprint'])
            self._facts = self._column('facts', tf.stack(
                [tf.cast(columns[name], tf.int32) for name in ('label', 'orientation', 'height', 'width')], 1))
        self.read = tf.group(*(each.initializer for each in (self._files, self._fingerprints, self._facts)))

    def _column(self, name, values):
        """Makes a local variable, which is never saved, of what the manifest has of each photo."""
        values = tf.ensure_shape(values, [self.count, *values.shape[1:]])
        return tf.Variable(values, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES], name=name)

    def take(self, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the squares in the centre of photos: (labels int32 [n], planes uint8 [n, 3, size, size]).

        Args:
          examples: int64 [n], the indices of the photos.
        """
        labels, pixels = self._single_batch(self._wanted(examples, centre_boxes(self._shapes(examples), 1.0)))
        return labels, planes_of(pixels)

    def batch(self, augmentation: Augmentation, examples: tf.Tensor, positions: Positions | None) -> tuple:
        """Returns (images float32 [n, height, width, 3], labels int32 [n]) of photos.

        Args:
          augmentation: says what is cut out of them, and is applied to it.
          examples: int64 [n], the indices of the photos.
          positions: where a training batch lies; None for evaluation.
        """
        labels, pixels = self._single_batch(self._wanted(examples, self._boxes(augmentation, examples, positions)))
        return _augmented(augmentation, pixels, positions), labels

    def batches(self, augmentation: Augmentation, places: tf.data.Dataset, choose: Callable,
                batch_size: int) -> tf.data.Dataset:
        """Returns a dataset of what `batch` returns for each of some places; photos are decoded ahead.

        Args:
          augmentation: as for `batch`.
          places: a dataset of tuples of scalars, one for each batch.
          choose: function place -> (examples, positions) as for `batch`.
          batch_size: photos in each batch; only the last may have less.
        """
        def wanted(*place):
            examples, positions = choose(*place)
            return self._wanted(examples, self._boxes(augmentation, examples, positions))

        def finished(place, batch):
            labels, pixels = batch
            examples, positions = choose(*place)
            pixels.set_shape([examples.shape[0], *pixels.shape[1:]])
            return _augmented(augmentation, pixels, positions), labels
        decoded = self._decoded(places.map(_as_graph(wanted)).unbatch(), batch_size)
        return tf.data.Dataset.zip((places, decoded)).map(_as_graph(finished))

    def _shapes(self, examples):
        """Returns the heights and widths of photos, int32 [n, 2]."""
        return tf.gather(self._facts, examples)[:, 2:]

    def _boxes(self, augmentation, examples, positions):
        """Returns what is cut out of photos, as `Augmentation.boxes` does."""
        shapes = self._shapes(examples)
        boxes = augmentation.boxes(shapes, positions)
        return centre_boxes(shapes, 1.0) if boxes is None else boxes

    def _wanted(self, examples, boxes):
        """Returns what is to be read: _Wanted, for a batch."""
        facts = tf.gather(self._facts, examples)
        return _Wanted(tf.gather(self._files, examples), tf.gather(self._fingerprints, examples), facts[:, 0],
                       _part(facts[:, 1], facts[:, 2:], boxes, self._size))

    def _single_batch(self, wanted):
        """Returns (labels, pixels) of all that is wanted, where a graph needs one batch."""
        n = wanted.label.shape[0]
        decoded = self._decoded(tf.data.Dataset.from_tensor_slices(wanted), n)
        labels, pixels = tf.data.experimental.get_single_element(decoded)
        return tf.ensure_shape(labels, [n]), tf.ensure_shape(pixels, [n, *pixels.shape[1:]])

    def _decoded(self, wanted, batch_size):
        """Returns a dataset of (labels, pixels) of batches of what is wanted: in its order, many decoded at a time."""
        decoded = wanted.map(_as_graph(self._decode), num_parallel_calls=_PARALLEL, deterministic=True)
        options = tf.data.Options()
        options.autotune.enabled = False  # as in `pipeline`
        return decoded.batch(batch_size).with_options(options)

    def _decode(self, wanted):
        """Returns (label, pixels uint8 [size, size, 3]) of a photo."""
        contents = tf.io.read_file(wanted.file)
        same = tf.equal(fingerprint(contents), wanted.fingerprint)
        message = tf.strings.join([wanted.file, ' has changed since the run began'])
        with tf.control_dependencies([tf.debugging.Assert(same, [message])]):
            contents = tf.identity(contents)
        return wanted.label, _as_shown(contents, wanted.part, self._size)


def _augmented(augmentation, pixels, positions):
    """Returns the images that an augmentation makes of pixels, for training at positions or for evaluation."""
    return augmentation.plain_pixels(pixels) if positions is None else augmentation.train_pixels(pixels, positions)


def _part(orientation, shapes, boxes, size):
    """Returns what is to be decoded of photos: a _Part, for a batch.

    Args:
      orientation: int32 [n], as `headers.orientation` returns it.
      shapes: int32 [n, 2], the heights and widths of the pictures as they are shown.
      boxes: int32 [n, 4], what is cut out of them, as `Augmentation.boxes` returns it.
      size: height and width to which it is resized.
    """
    height, width = tf.unstack(shapes, axis=1)
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    mirrored = right < left
    left, right = tf.minimum(left, right), tf.maximum(left, right)
    # From the picture as it is shown to the picture as it is stored.
    flipped = _is_one_of(orientation, 3, 4, 7, 8)
    top, bottom = _reversed(top, bottom, height, flipped)
    right_to_left = _is_one_of(orientation, 2, 3, 6, 7)
    left, right = _reversed(left, right, width, right_to_left)
    transposed = orientation >= headers.TRANSPOSED
    window = tf.where(transposed, tf.stack([left, top, right, bottom], 1), tf.stack([top, left, bottom, right], 1))
    extent = tf.where(transposed, tf.reverse(shapes, [1]), shapes)
    first, end = window[:, :2], window[:, 2:] + 1
    return _Part(tf.concat([first, end - first], 1), *_scaled(first, end, extent, size), transposed,
                 tf.stack([flipped, tf.not_equal(right_to_left, mirrored), tf.zeros_like(mirrored)], 1))


def _as_shown(contents, part, size):
    """Returns a part of one photo as it is shown: uint8 [size, size, 3]."""
    pixels = decoded(contents, part.window, part.scale, part.scaled, size)
    pixels = tf.cond(part.transposed, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
    pixels = tf.cast(pixels + 0.5, tf.uint8)  # they are from 0 to 255
    return tf.raw_ops.Reverse(tensor=pixels, dims=part.reversed)


def _scaled(first, end, extent, size):
    """Returns (scales, windows) at which JPEGs are decoded: the smallest that still have the pixels that are wanted.

    Args:
      first, end: int32 [n, 2], the first row and column of a part of each picture, and those after the last.
      extent: int32 [n, 2], height and width of each picture.
      size: height and width that the parts are wanted in.

    Returns:
      (int32 [n], indices in _SCALES; int32 [n, 4], first row, first column, height and width of the part there).
    """
    room = tf.reduce_min(end - first, 1)
    scale = sum(tf.cast(room >= divisor * size, tf.int32) for divisor in _SCALES[1:])
    divisor = tf.gather(_SCALES, scale)[:, None]
    first = first // divisor
    end = tf.minimum(-(-end // divisor), -(-extent // divisor))
    return scale, tf.concat([first, end - first], 1)


def fingerprint(contents: tf.Tensor) -> tf.Tensor:
    """Returns the fingerprint of the contents of a file: int64 scalar."""
    return tf.strings.to_hash_bucket_fast(contents, _BUCKETS)


def decoded(contents: tf.Tensor, window: tf.Tensor, scale: tf.Tensor, scaled: tf.Tensor, size: int) -> tf.Tensor:
    """Returns a part of a picture as it is stored, resized: float32 [size, size, 3], from 0 to 255.

    Args:
      contents: string scalar, of a file.
      window: int32 [4], first row, first column, height and width of the part.
      scale: int32 scalar, the index of the scale at which a JPEG is decoded: 1, 1/2, 1/4 or 1/8.
      scaled: int32 [4], the window at that scale.
      size: height and width to resize to.
    """
    def jpeg(divisor):
        return lambda: tf.raw_ops.ResizeBilinear(
            images=tf.image.decode_and_crop_jpeg(contents, scaled, channels=3, ratio=divisor)[None], size=[size, size],
            half_pixel_centers=True)[0]

    def other():
        pixels = tf.io.decode_image(contents, channels=0, expand_animations=False)
        top, left, height, width = tf.unstack(window)
        return pictures.on_white(pixels[top:top + height, left:left + width], size)
    branch = tf.where(tf.io.is_jpeg(contents), scale, len(_SCALES))
    return tf.ensure_shape(tf.switch_case(branch, [*map(jpeg, _SCALES), other]), [size, size, 3])


def _is_one_of(orientation, *values):
    return tf.reduce_any(tf.equal(orientation[:, None], values), 1)


def _reversed(first, last, extent, where):
    """Returns (first, last) of ranges of rows or columns, counted from the other end where `where` is true."""
    return tf.where(where, extent - 1 - last, first), tf.where(where, extent - 1 - first, last)


class Decoder(pictures.Decoder):
    """Decodes picture files as photos are decoded for evaluation, to the same bytes.

    The files that are no photos (`_is_photo`) are decoded as its base class does, which has the arguments.
    """

    def __init__(self, size: int, centre: float):
        super().__init__(size, centre)
        with self._session.graph.as_default(), tf.device('/cpu:0'):
            self._shape = tf.placeholder(tf.int32, [2])
            shape = self._shape[None]
            part = _part(self._orientation[None], shape, centre_boxes(shape, centre), size)
            self._photo = _as_shown(self._contents, _Part(*(each[0] for each in part)), size)

    def make(self, file):
        if not _is_photo(file.contents):
            return super().make(file)
        return self._session.run(self._photo, {
            self._contents: file.contents, self._orientation: file.orientation, self._shape: _shape_as_shown(file)})


class Examiner(pictures.Reader):
    """Examines the files of a new manifest: a call decodes one, and returns its Photo."""

    def __init__(self):
        super().__init__()
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._contents = tf.placeholder(tf.string, [])
            self._extent = tf.placeholder(tf.int32, [2])
            extent = self._extent[None]
            scale, window = _scaled(tf.zeros_like(extent), extent, extent, _EXAMINED)
            whole = tf.concat([[0, 0], self._extent], 0)
            pixels = decoded(self._contents, whole, scale[0], window[0], _EXAMINED)
            with tf.control_dependencies([pixels]):
                self._fingerprint = fingerprint(self._contents)
        self._session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))

    def make(self, file):
        if set(file.path) & set(SEPARATORS):
            raise pictures.NoPicture('its name has a tab or a line break; rename it')
        if not _is_photo(file.contents):
            raise pictures.NoPicture('BMPs and animations are not read above 64 pixels; save it as PNG or JPEG')
        found = self._session.run(
            self._fingerprint, {self._contents: file.contents, self._extent: (file.height, file.width)})
        return Photo(file.status.st_size, int(found), *_shape_as_shown(file), file.orientation, file.path,
                     file.status.st_mtime_ns)


def _is_photo(contents):
    """Returns whether the pipeline reads such a file: BMPs and animations take more than TensorFlow's operations."""
    return not contents.startswith(b'BM') and headers.first_frame(contents) == contents


def _shape_as_shown(file):
    """Returns (height, width) of a `pictures.File` as it is shown."""
    shape = file.height, file.width
    return shape[::-1] if file.orientation >= headers.TRANSPOSED else shape
