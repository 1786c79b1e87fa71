"""Classification of images with a trained model."""
import csv
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import printable, say, say_all
from cifar10.base.directories import check_dir, make_dir
from cifar10.base.errors import UsageError
from cifar10.base.files import new_file
from cifar10.data.arrays import coloured
from cifar10.data.folders import pictures
from cifar10.data.photos.picture_files import NoPicture, Reader, each, shown
from cifar10.evaluation import confusion
from cifar10.evaluation.evaluator import filled
from cifar10.evaluation.trained import Model
from cifar10.evaluation.views import average, views
from cifar10.run.metrics import fraction
from cifar10.settings.evaluation import EvalSettings

_TOP = 3  # classes that are printed for each image
_DOUBTFUL = 0.5  # an image is listed below this probability of its class
_MOST_DOUBTFUL = 5  # images that are listed for each class


class Classifier:
    """The graph of a classifier, built in the current default graph.

    Args:
      device: name of the device that computes the network.
      most: the maximum number of images at a time; None for any number, which some networks do not support.

    Attributes:
      images: uint8 [n, image_size, image_size, 3], with the run's image_size: decoded from `files`, or fed.
      files: placeholder string [n], the contents of picture files.
      probabilities: float32 [n, classes].
    """

    def __init__(self, model: Model, device: str, most: int | None = None):
        # The name scopes match evaluation: TensorFlow would rename a variable that has the name of an operation, and
        # the checkpoint would lack it.
        with tf.device('/cpu:0'), tf.name_scope('input'):
            size = model.recipe.image_size
            self.files = tf.placeholder(tf.string, [None], name='files')
            self.images = tf.placeholder_with_default(
                model.preparation.images_of_files(self.files), [None, size, size, 3], name='images')
            # Rejects wrong shapes, because callers of an exported model may feed any shape.
            images = tf.ensure_shape(self.images, self.images.shape)
            count = tf.shape(images)[0]
            # A batch of no images is padded with a black one, because no network accepts an empty batch.
            images = tf.pad(images, [[0, tf.maximum(1 - count, 0)], [0, 0], [0, 0], [0, 0]])
            if most is not None:
                at_most = tf.debugging.assert_less_equal(count, most, message=f'the model takes {most} images at most')
                with tf.control_dependencies([at_most]):
                    images = filled(images, most)
            images = model.recipe.augmentation(images)
        with tf.device(device), tf.name_scope('tower_0'):
            if model.averaging:
                logits = average(model.recipe.inference(views(images)))
            else:
                logits = model.recipe.inference(images)
            probabilities = tf.nn.softmax(logits)
            self.probabilities = tf.identity(probabilities[:count], name='probabilities')


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The classes of n images.

    Attributes:
      step: the step of the checkpoint.
      checkpoint: its prefix.
      classes: their names.
      probabilities: float32 [n, classes]. The row of an image that could not be classified is NaN.
      files: the paths of the n files; empty for an array or the contents of files.
      errors: {path, or index where there is no path: why the image could not be classified}.
      notes: warnings, such as that files were left out.
    """
    step: int
    checkpoint: str
    classes: tuple[str, ...] = dataclasses.field(repr=False)
    probabilities: np.ndarray = dataclasses.field(repr=False)
    files: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    errors: dict[str | int, str] = dataclasses.field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    @property
    def predicted(self) -> list[str | None]:
        """The name of the most likely class of each image; None for an image that could not be classified."""
        return [None if np.isnan(row).any() else self.classes[row.argmax()] for row in self.probabilities]


def predict(settings: EvalSettings, images: np.ndarray | Sequence[bytes] | None = None) -> Predictions:
    """Classifies images batch by batch, with a progress bar on a terminal.

    Args:
      images: as `arrays.check_images` takes them, or the contents of files; None: the pictures in `settings.image`.
    """
    paths = pictures(settings.image) if images is None else ()
    sources = paths if images is None else images
    names = paths or range(len(sources))
    model = Model.open(settings)
    reader = Reader(model.preparation)
    batch_size = max(min(model.batch_size, len(sources)), 1)
    rows, errors = np.full([len(sources), len(model.classes)], np.nan, np.float32), dict[str | int, str]()

    def image(source):
        try:
            return reader(coloured(source) if isinstance(source, np.ndarray) else source)
        except OSError as error:  # other files may be read
            raise NoPicture(error.strerror) from error
    with model.session(lambda: Classifier(model, model.devices.tower_devices[0], batch_size)) as opened:
        found, classifier = model.newest(), opened.built
        opened.restore(found)
        if not settings.json:
            say('model', f'{found.prefix}, step {found.step}')
        read = enumerate(each(image, sources, progress=True))
        while batch := list(itertools.islice(read, batch_size)):
            errors |= {names[i]: str(result) for i, result in batch if isinstance(result, NoPicture)}
            valid = {i: result for i, result in batch if not isinstance(result, NoPicture)}
            if valid:
                pixels = np.array([*valid.values()])
                computed = opened.session.run(classifier.probabilities, {classifier.images: pixels})
                rows[[*valid]] = computed
                errors |= {names[i]: 'the model computes NaN for it' for i, row in zip(valid, computed)
                           if np.isnan(row).any()}
    return Predictions(found.step, found.prefix, model.classes, rows, tuple(paths), errors)


def classify(settings: EvalSettings, show: Callable[[str], Any]) -> None:
    """Classifies the pictures in `settings.image`.

    Shows the most likely classes, as a table or as one JSON object per line; or writes the classes of all files to
    `settings.csv`, a new file, and shows only unreadable files and, of each class, files in its folder that have a
    low probability of this class.

    Args:
      show: function called with each line of the result. Other lines go to the console.

    Raises a UsageError if a file could not be classified, after classifying all others; with `settings.csv`, only if
    none could.
    """
    if settings.csv:
        check_new(settings.csv)
    found = predict(settings)
    width = max(map(len, map(shown, found.files)))
    for path, row in zip(found.files, found.probabilities):
        outcome = found.errors.get(path) or _top_classes(row, found.classes)
        if settings.json:
            show(_as_json(path, outcome))
        elif not settings.csv or path in found.errors:
            show(printable(_as_row(path, outcome, width)))
    failed = f'{len(found.errors)} of {len(found.files)} files could not be classified; see the lines above'
    if settings.csv and len(found.errors) < len(found.files):
        say_all(_doubtful(found))
        write_rows(settings.csv, [*_rows(found)])
        if found.errors:
            say('warning', failed)
    elif found.errors:
        raise UsageError(failed)


def check_new(path: str) -> None:
    """Raises a UsageError if a file exists, or cannot be created."""
    check_dir(os.path.dirname(os.path.abspath(path)), '--csv')
    if os.path.lexists(path):
        raise UsageError(f'--csv={path} exists; remove it, or give the name of a new file')


def write_rows(path: str, rows: Sequence) -> None:
    """Writes a heading and rows to a new file, and prints their number."""
    make_dir(os.path.dirname(os.path.abspath(path)), '--csv')
    with new_file(path) as temporary, open(
            temporary, 'w', encoding='utf-8', errors='surrogateescape', newline='') as stream:
        csv.writer(stream, lineterminator='\n').writerows(rows)
    say('written', f'{path}, {len(rows) - 1} rows')


def _rows(found):
    yield ['file', 'true_class', 'class', *(f'p({name})' for name in found.classes)]  # a class may be called 'file'
    for file, predicted, row in zip(found.files, found.predicted, found.probabilities):
        values = map(str, row) if predicted else [''] * len(row)  # as text, a float32 has the digits that it needs
        yield [file, _true_class(file, found.classes), predicted, *values]


def _true_class(file, classes):
    """Returns the name of a file's folder if it is the name of a class, else None."""
    folder = os.path.basename(os.path.dirname(os.path.abspath(file)))
    return folder if folder in classes else None


def _doubtful(found):
    """Returns lines with the files of each class that have the lowest probability of this class."""
    doubtful = []
    for file, predicted, row in zip(found.files, found.predicted, found.probabilities):
        name = _true_class(file, found.classes)
        if name and (probability := float(row[found.classes.index(name)])) < _DOUBTFUL:  # not NaN
            doubtful.append((name, probability, predicted, file))
    listed = [dict(zip(('class', 'probability', 'predicted', 'image'), each))
              for _, of_class in itertools.groupby(sorted(doubtful), lambda each: each[0])
              for each in itertools.islice(of_class, _MOST_DOUBTFUL)]
    return confusion.image_lines(listed, 'may be in the wrong folder') if listed else []


def _top_classes(probabilities, classes):
    order = np.argsort(-probabilities, kind='stable')
    return [(classes[i], float(probabilities[i])) for i in order[:_TOP]]


def _as_json(path, outcome):
    if isinstance(outcome, str):
        return json.dumps(dict(file=path, error=outcome))
    classes = [dict(name=name, probability=round(probability, 6)) for name, probability in outcome]
    return json.dumps(dict(file=path, classes=classes))


def _as_row(path, outcome, width):
    text = outcome if isinstance(outcome, str) else '  '.join(
        f'{name} {fraction(probability)}' for name, probability in outcome)
    return f'{shown(path):{width}}  {text}'
