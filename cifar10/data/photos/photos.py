"""Photos in files, as operations: found in the manifest, then read, cut out and decoded, in parallel and in order.

Of the folder only the columns of the manifest are in memory. What is cut out of a photo is decided elsewhere.
"""
import dataclasses
import hashlib
import io
import os
from collections.abc import Collection
from typing import ClassVar

import tensorflow as tf2
import tensorflow.compat.v1 as tf
from PIL import Image

from cifar10.base.graphs import cpu_session, lasting_cpu_session
from cifar10.data.augment import Augmentation
from cifar10.data.images import Images, as_graph
from cifar10.data.photos import decoding, headers, manifest, pictures
from cifar10.data.photos.manifest import COLUMNS, SEPARATORS, Photo
from cifar10.data.records import Records
from cifar10.data.resize import centre_boxes, planes_of

_PARALLEL = len(os.sched_getaffinity(0))  # photos that are decoded at a time; of the chief, if it has other cores
_ROW_BYTES = 100  # of a row of the manifest, about
_BUCKETS = 2 ** 63 - 1  # of fingerprints
_EXAMINED = 64  # height and width to which a file is decoded to see whether it can be


@dataclasses.dataclass(frozen=True)
class Photos(Records):
    """The photos of one part of a data set, which stay in their files. `files` has their entries in the manifest.

    Attributes:
      root: the folder that the paths in the manifest start from.
    """
    root: str = ''
    reads_late: ClassVar[bool] = True

    @property
    def record_bytes(self):
        return _ROW_BYTES

    @property
    def memory_bytes(self):
        return 2 * self.count * _ROW_BYTES

    def verified(self):
        return dataclasses.replace(self, count=manifest.verified_count(self.files[0], self.root))

    def fingerprints(self):
        return manifest.fingerprints(self.files[0])

    def name_of(self, example):
        return manifest.source(self.files[0], example)

    def read_for(self, examples: Collection[int]) -> list[str]:
        """Returns the paths of the files from which examples are read."""
        return manifest.read_for(self.files[0], self.root, examples)

    def load(self):
        return PhotoFiles(self)

    def planes(self, n):
        with cpu_session() as session:
            images = PhotoFiles(self)
            session.run(images.read)
            return session.run(images.take(tf.range(min(n, self.count), dtype=tf.int64))[1])

    def __str__(self):
        return f'{self.dataset}, {self.count:,} photos, read from their files as {self.folder} lists them'


class PhotoFiles(Images):
    """The photos of a part of a data set, in their files. `read` reads the manifest, on the device of the caller."""

    def __init__(self, photos):
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

    def take(self, examples):
        labels, pixels = self._decoded(Augmentation(), examples, None)
        return labels, planes_of(pixels)

    def batch(self, augmentation, examples, positions):
        labels, pixels = self._decoded(augmentation, examples, positions)
        return augmentation(planes_of(pixels), positions), labels

    def _decoded(self, augmentation, examples, positions):
        """Returns (labels int32 [n], pixels uint8 [n, size, size, 3]) of the parts of photos that are augmented."""
        facts = tf.gather(self._facts, examples)
        labels, orientations, shapes = facts[:, 0], facts[:, 1], facts[:, 2:]
        boxes = augmentation.boxes(shapes, positions)
        if boxes is None:
            boxes = centre_boxes(shapes, 1.0)
        photos = tf.data.Dataset.from_tensor_slices((
            tf.gather(self._files, examples), tf.gather(self._fingerprints, examples),
            decoding.parts(orientations, shapes, boxes)))
        decoded = photos.map(as_graph(self._decode), num_parallel_calls=_PARALLEL, deterministic=True)
        options = tf.data.Options()
        options.autotune.enabled = False  # as in `pipeline`
        batch = decoded.batch(tf.size(examples, out_type=tf.int64)).with_options(options)
        pixels = tf.data.experimental.get_single_element(batch)
        return labels, tf.ensure_shape(pixels, [examples.shape[0], *pixels.shape[1:]])

    def _decode(self, path, expected, part):
        """Returns the pixels of a part of a photo, uint8 [size, size, 3]; fails if it has another fingerprint."""
        contents = tf.io.read_file(path)
        message = tf.strings.join([path, ' has changed since the run began'])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(fingerprint(contents), expected), [message])]):
            contents = tf.identity(contents)
        return decoding.decoded(contents, part, self._size)


def fingerprint(contents: tf.Tensor) -> tf.Tensor:
    """Returns the fingerprint of the contents of a file: int64 scalar."""
    return tf.strings.to_hash_bucket_fast(contents, _BUCKETS)


class Examiner(pictures.Reader):
    """Examines the files of a new manifest: a call decodes one, and returns its Photo.

    What TensorFlow does not decode is written to a folder as a PNG, which is the Photo.

    Args:
      folder: the folder of these PNGs.
      final: the path that it will have when they are read.
    """

    def __init__(self, folder: str, final: str):
        super().__init__()
        self._folder = folder
        self._final = final
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            self._contents = tf.placeholder(tf.string, [])
            orientation, shape = headers.read(self._contents)
            whole = tf.concat([[0, 0], shape - 1], 0)
            part = decoding.parts(orientation[None], shape[None], whole[None])
            image = decoding.decoded(self._contents, decoding.Part(*(each[0] for each in part)), _EXAMINED)
            with tf.control_dependencies([image]):
                self._found = fingerprint(self._contents), shape, orientation
        self._session = lasting_cpu_session(graph)

    def make(self, path, status, contents, pixels):
        if set(path) & set(SEPARATORS):
            raise pictures.NoPicture('its name has a tab or a line break; rename it')
        read = path
        if pixels is not None:
            contents, read = self._converted(pixels)
        found, shape, orientation = self._session.run(self._found, {self._contents: contents})
        return Photo(int(found), *map(int, shape), int(orientation), read, status.st_size, status.st_mtime_ns, path)

    def _converted(self, pixels):
        """Writes a picture as a PNG; returns (its contents, the path that it will have)."""
        stream = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(stream, 'PNG', compress_level=1)
        contents = stream.getvalue()
        name = hashlib.sha256(contents).hexdigest() + '.png'
        with open(os.path.join(self._folder, name), 'wb') as file:
            file.write(contents)
        return contents, os.path.join(self._final, name)
