"""Prepared photos in a folder, and lists of photos: writing, and reading batches.

Each photo is a BMP, which is lossless and fast to read. Its name has a digest of the user's file and the decoder, so a
file that is moved to another class, or from training to testing, is prepared once. A second digest in the name, of the
BMP itself, shows whether it has changed. A list is a folder next to the photos with a file for each part of the data
set, and the file has a row for each example. Only the list is held in memory.
"""
import contextlib
import dataclasses
import hashlib
import io
import itertools
import os
import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from PIL import Image

from cifar10.base.errors import UsageError
from cifar10.base.files import named, new_file, private_names, sha256
from cifar10.base.graphs import cpu_session
from cifar10.data.augment import Augmentation
from cifar10.data.datasets import ImageFiles
from cifar10.data.images import Images, loaded, unfolded
from cifar10.data.photos.picture_files import DECODER, NoPicture, each, opened, prepared
from cifar10.data.photos.preparation import Preparation, boxes_of, cut, short_side
from cifar10.data.pipeline import as_graph

_PARALLEL = len(os.sched_getaffinity(0))  # number of photos to read at a time; in a cluster, the chief's cores count
_TEXT: dict[str, Any] = dict(encoding='utf-8', errors='surrogateescape', newline='\n')  # file names are bytes
_DIGITS = 32  # length of a digest in the name of a photo


class Photo(NamedTuple):
    """A prepared photo.

    Attributes:
      height, width: in pixels.
      name: the name of its file, without the folder.
      source: the path of the user's file; in a list, below the user's folder.
    """
    height: int
    width: int
    name: str
    source: str

    @property
    def sha256(self) -> str:
        """The first digits of the file's SHA-256, from its name."""
        return _parts_of(self.name)[1]


_COLUMNS = ('label', *Photo._fields)  # separated by tabs; the first row has their names


class Writer:
    """Prepares photos: a call writes a prepared photo to a folder, unless it exists, and returns the Photo.

    Several threads may call it. The folder must exist, and only one process may have a Writer for it at a time.
    """

    def __init__(self, folder: str, image_size: int):
        names = os.listdir(folder)
        for name in names:  # removes temporary files of killed processes
            if re.fullmatch(private_names(r'[0-9a-f]+-[0-9a-f]+\.bmp'), name):
                os.remove(os.path.join(folder, name))
        self._folder = folder
        self._names = {_parts_of(name)[0]: name for name in names}
        self._preparation = Preparation(image_size, Augmentation(), None)

    def __call__(self, source: str) -> Photo:
        """Returns the Photo of a file; raises a NoPicture like `picture_files.opened`."""
        if set(source) & set('\t\r\n'):  # they separate columns and rows
            raise NoPicture('its name has a tab or a line break; rename it')
        with opened(source):
            key = hashlib.sha256(f'{sha256(source)} {DECODER}'.encode()).hexdigest()[:_DIGITS]
        if photo := self._found(key, source):
            return photo
        pixels, content = prepared(source, self._preparation), io.BytesIO()
        Image.fromarray(pixels).save(content, 'BMP')
        name = f'{key}-{hashlib.sha256(content.getbuffer()).hexdigest()[:_DIGITS]}.bmp'
        with new_file(os.path.join(self._folder, name)) as temporary, open(temporary, 'wb') as stream:
            stream.write(content.getbuffer())
        return Photo(pixels.shape[0], pixels.shape[1], name, source)

    def _found(self, key, source):
        name = self._names.get(key, '')
        path = os.path.join(self._folder, name or key)
        with contextlib.suppress(NoPicture), opened(path) as image:
            photo = Photo(image.height, image.width, name, source)
            if sha256(path)[:_DIGITS] == photo.sha256:
                return photo
        return None


def _parts_of(name):
    """Returns the two digests in the name of a photo: of its source, and of its bytes."""
    key, _, content = name.removesuffix('.bmp').partition('-')
    return key, content


def usual_bytes(image_size: int) -> int:
    """Returns the size in bytes of a prepared photo with the aspect ratio 4:3."""
    return 4 * short_side(image_size) ** 2


def write_list(path: str, root: str, examples: Iterable[tuple[int, Photo]]) -> None:
    """Writes a file of a list; the sources are below `root`."""
    with open(path, 'w', **_TEXT) as rows:
        rows.write('\t'.join(_COLUMNS) + '\n')
        for label, photo in examples:
            fields = (label, *photo[:-1], os.path.relpath(photo.source, root))
            rows.write('\t'.join(map(str, fields)) + '\n')


def read_list(path: str) -> list[tuple[int, Photo]]:
    """Returns (label, photo) for each row of a list file; raises a ValueError if the columns are wrong."""
    with named(path), open(path, **_TEXT) as stream:
        rows = [row.rstrip('\n').split('\t') for row in stream]
    return [(int(label), Photo(int(height), int(width), name, source)) for label, height, width, name, source in
            rows[1:]]


@dataclasses.dataclass(frozen=True)
class Photos(ImageFiles):
    """The photos of one part of a data set. `files` has the path of the part's file in the list."""

    @property
    def root(self) -> str:
        """The folder of the prepared photos."""
        return os.path.dirname(self.folder)

    def verified(self):
        path, began = self.files[0], time.time_ns()
        remedy = f'to prepare them again: rm -r {self.folder}'
        try:
            examples = read_list(path)
            listed = os.stat(path).st_mtime_ns
            changed = {entry.name: entry.stat().st_ctime_ns for entry in os.scandir(self.root)}
            # Photos are usually older than their list. Only newer photos need a check, such as after a copy.
            newer = [photo.name for _, photo in examples if changed.get(photo.name, 0) >= listed]
            digests = dict(zip(newer, each(sha256, [os.path.join(self.root, name) for name in newer], progress=True)))
        except (OSError, ValueError) as error:
            raise UsageError(f'the prepared photos of {path} are not usable ({error}); {remedy}') from error
        for _, photo in examples:
            if photo.name not in changed or digests.get(photo.name, photo.sha256)[:_DIGITS] != photo.sha256:
                what = 'has changed' if photo.name in changed else 'is missing'
                raise UsageError(f'the prepared photo {os.path.join(self.root, photo.name)} of {photo.source} {what}; '
                                 f'{remedy}')
        if newer:
            with contextlib.suppress(OSError):  # another user's file
                os.utime(path, ns=(began, began))
        return self.counted(np.array([label for label, _ in examples]), sha256(path))

    def examples(self):
        return ((label, photo.sha256) for label, photo in read_list(self.files[0]))

    def name_of(self, example):
        with named(self.files[0]), open(self.files[0], **_TEXT) as rows:
            source = next(itertools.islice(rows, example + 1, None)).rstrip('\n').split('\t')[-1]
        return os.path.join(self.dataset, source)

    def images(self, n):
        with cpu_session() as session:
            files = PhotoFiles(self)
            session.run(files.read)
            return session.run(files.cut_out(Augmentation(), tf.range(min(n, self.count), dtype=tf.int64), None)[0])

    def __str__(self):
        return f'{self.dataset}, {self.count:,} photos {self._where}'


class PhotoFiles(Images):
    """The photos of one part of a data set, in their files. `read` reads the list, on the current device."""

    def __init__(self, photos):
        self.count = photos.count
        self._size = photos.size
        rows = tf2.strings.split(tf.io.read_file(unfolded(photos.files[0])), '\n')[1:-1]
        # All columns except the last, the sources.
        *facts, names = tf.io.decode_csv(rows, [tf.zeros([1], tf.int32)] * 3 + [['']], field_delim='\t',
                                         use_quote_delim=False, select_cols=[*range(len(_COLUMNS) - 1)])
        complete = tf.debugging.assert_equal(
            tf.size(rows), photos.count, message='the list of photos has changed; start again')
        with tf.control_dependencies([complete]):
            self._files = self._column('files', tf.strings.join([photos.root + '/', names]))
            self._facts = self._column('facts', tf.stack(facts, 1))
        self.read = tf.group(self._files.initializer, self._facts.initializer)

    def _column(self, name, values):
        values = tf.ensure_shape(values, [self.count, *values.shape[1:]])
        return tf.Variable(values, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES], name=name)

    def batch(self, augmentation, examples, positions):
        pixels, labels = self.cut_out(augmentation, examples, positions)
        return augmentation(pixels, positions), labels

    def cut_out(self, augmentation, examples, positions):
        """Cuts an augmentation's boxes out of photos: returns (images uint8 [n, size, size, 3], labels int32 [n])."""
        facts = tf.gather(self._facts, examples)
        labels, shapes = facts[:, 0], facts[:, 1:]
        photos = tf.data.Dataset.from_tensor_slices((
            tf.gather(self._files, examples), boxes_of(augmentation, shapes, positions)))
        images = photos.map(as_graph(self._image), num_parallel_calls=_PARALLEL, deterministic=True)
        options = tf.data.Options()
        options.autotune.enabled = False  # as in `pipeline`
        batch = images.batch(tf.size(examples, out_type=tf.int64)).with_options(options)
        pixels = tf.data.experimental.get_single_element(batch)
        return tf.ensure_shape(pixels, [examples.shape[0], *pixels.shape[1:]]), labels

    def _image(self, path, box):
        return cut(tf.image.decode_bmp(tf.io.read_file(path), channels=3), box, self._size)


loaded.register(Photos, PhotoFiles)
