"""Classification of image files with a trained model."""
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import printable, say
from cifar10.base.errors import RunError, UsageError
from cifar10.data.photos.picture_files import NoPicture, Reader, each, shown
from cifar10.data.resize import planes_of
from cifar10.data.shift import average, views
from cifar10.evaluation import trained
from cifar10.evaluation.evaluator import filled
from cifar10.settings.evaluation import EvalSettings

_TOP = 3  # classes that are printed for each image


class Classifier:
    """The graph of a classifier, built in the current default graph.

    Args:
      device: name of the device that computes the network.
      most: how many images it takes at a time; None for any number, of which some networks cannot be built.

    Attributes:
      images: uint8 [n, image_size, image_size, 3], with the image_size of the run: those of `files`, or what is fed.
      files: placeholder string [n], the contents of picture files.
      probabilities: float32 [n, classes].
    """

    def __init__(self, run: trained.Trained, device: str, most: int | None = None):
        # The same name scopes as in evaluation: a variable whose name an operation has already would get another
        # one, and would not be found in the checkpoint.
        with tf.device('/cpu:0'), tf.name_scope('input'):
            size = run.recipe.image_size
            self.files = tf.placeholder(tf.string, [None], name='files')
            self.images = tf.placeholder_with_default(
                run.preparation.images_of_files(self.files), [None, size, size, 3], name='images')
            # An exported model may be fed images of any shape, which this refuses.
            images = tf.ensure_shape(self.images, self.images.shape)
            count = tf.shape(images)[0]
            # A batch of no images is padded with a black one, because no network accepts an empty batch.
            images = tf.pad(images, [[0, tf.maximum(1 - count, 0)], [0, 0], [0, 0], [0, 0]])
            if most is not None:
                at_most = tf.debugging.assert_less_equal(count, most, message=f'the model takes {most} images at most')
                with tf.control_dependencies([at_most]):
                    images = filled(images, most)
            images = run.recipe.augmentation.plain(planes_of(images))
        with tf.device(device), tf.name_scope('tower_0'):
            if run.averaging:
                logits = average(run.recipe.inference(views(images)))
            else:
                logits = run.recipe.inference(images)
            probabilities = tf.nn.softmax(logits)
            self.probabilities = tf.identity(probabilities[:count], name='probabilities')


def classify(settings: EvalSettings, show: Callable[[str], Any]) -> None:
    """Shows the most likely classes of each file in `settings.image`, as a table or as one JSON object per line.

    Args:
      show: function that gets each line of the result. Other lines go to the console.

    Raises a UsageError if a file is not an image, after classifying all others.
    """
    look, devices = trained.open_checkpoint_dir(settings)
    run = trained.load_run(settings, look())
    reader = Reader(run.preparation)
    failures = 0
    width = max(len(shown(path)) for path in settings.image)
    batch_size = min(trained.batch_size(settings, run), len(settings.image))
    with trained.restored(run, look, devices, lambda: Classifier(run, devices.tower_devices[0], batch_size)) as (
            session, found, classifier):
        if not settings.json:
            say('model', f'{found.prefix}, step {found.step}')
        for first in range(0, len(settings.image), batch_size):
            paths = settings.image[first:first + batch_size]
            outcomes = _classify_batch(session, classifier, reader, paths, run.classes)
            for path, outcome in zip(paths, outcomes):
                show(_as_json(path, outcome) if settings.json else printable(_as_row(path, outcome, width)))
            failures += sum(isinstance(outcome, NoPicture) for outcome in outcomes)
    if failures:
        raise UsageError(
            f'{failures} of {len(settings.image)} files could not be classified; see the lines above')


def _classify_batch(session, classifier, reader, paths, classes):
    """Returns for each file its most likely classes, as `_top_classes` does, or the NoPicture that says why not."""
    def image(path):
        try:
            return reader.image(path)
        except OSError as error:  # the other files may be read
            raise NoPicture(error.strerror) from error
    images = list(each(image, paths))
    valid = [image for image in images if not isinstance(image, NoPicture)]
    if not valid:
        return images
    found = session.run(classifier.probabilities, {classifier.images: np.array(valid)})
    if not np.isfinite(found).all():
        raise RunError('the model computes NaN instead of probabilities; use another checkpoint')
    rows = iter(found)
    return [image if isinstance(image, NoPicture) else _top_classes(next(rows), classes) for image in images]


def _top_classes(probabilities, classes):
    """Returns (class, probability) pairs of the most likely classes, in descending order."""
    order = np.argsort(-probabilities, kind='stable')
    return [(classes[i], float(probabilities[i])) for i in order[:_TOP]]


def _as_json(path, outcome):
    if isinstance(outcome, NoPicture):
        return json.dumps(dict(file=path, error=str(outcome)))
    classes = [dict(name=name, probability=round(probability, 6)) for name, probability in outcome]
    return json.dumps(dict(file=path, classes=classes))


def _as_row(path, outcome, width):
    if isinstance(outcome, NoPicture):
        text = str(outcome)
    else:
        text = '  '.join(f'{name} {probability:.3f}' for name, probability in outcome)
    return f'{shown(path):{width}}  {text}'
