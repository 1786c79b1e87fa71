"""Classification of image files with a trained model."""
import contextlib
import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.data.pictures import Decoder, NoPicture, shown
from cifar10.data.records import SIZE
from cifar10.data.shift import average, views
from cifar10.errors import UsageError
from cifar10.parallel import devices, gpus
from cifar10.parallel.session_config import session_config
from cifar10.run.train_dir import TrainDir
from cifar10.settings.evaluation import EvalSettings
from cifar10.trained import model

_LIKELIEST = 3  # classes that are shown of each picture


class Classifier:
    """The graph of a classifier, built in the current default graph.

    Args:
      run: what is known of the run.
      device: computes the network.

    Attributes:
      images: placeholder uint8 [n, 32, 32, 3].
      probabilities: float32 [n, classes].
      restorer: gives the variables their values.
    """

    def __init__(self, run: model.Trained, device: str):
        # In scopes as in evaluation, because a variable that has the name of an operation gets another.
        with tf.device('/cpu:0'), tf.name_scope('input'):
            self.images = tf.placeholder(tf.uint8, [None, SIZE, SIZE, 3], name='images')
            # An exported model is fed images of any shape, and no network computes with none.
            images = tf.ensure_shape(self.images, self.images.shape)
            count = tf.shape(images)[0]
            images = tf.pad(images, [[0, tf.maximum(1 - count, 0)], [0, 0], [0, 0], [0, 0]])
            # Not transposed, which for bytes oneDNN does not have on every CPU and says so.
            planes = tf.stack(tf.unstack(images, axis=-1), 1)
            images = run.recipe.augmentation.plain(planes)
        with tf.device(device), tf.name_scope('tower_0'):
            logits = run.recipe.inference(views(images) if run.averaging else images, [device])
            found = tf.nn.softmax(average(logits) if run.averaging else logits)
            self.probabilities = tf.identity(found[:count], name='probabilities')
        self.restorer = model.Restorer(run.use_ema)


def classify(settings: EvalSettings) -> None:
    """Prints the likeliest classes of each picture in `settings.image`, as a table or as JSON, an object a line.

    Raises:
      UsageError: invalid configuration, or a file that is no picture, after all others are classified.
      RunError: the run has no checkpoint.
    """
    # Standard output is for what was found alone, so that a program can read it.
    with contextlib.redirect_stdout(sys.stderr) if settings.json else contextlib.nullcontext():
        directory, run, device = open_run(settings)
    decoder, wrong = Decoder(), 0
    with model.plain_errors(), tf.Graph().as_default():
        classifier = Classifier(run, device.tower_devices[0])
        with tf.Session(config=session_config(device)) as session:
            with contextlib.redirect_stdout(sys.stderr) if settings.json else contextlib.nullcontext():
                prefix, step = classifier.restorer.restore_newest(session, directory)
            if not settings.json:
                print(f'model      {prefix}, step {step}')
            for first in range(0, len(settings.image), settings.batch_size):
                paths = settings.image[first:first + settings.batch_size]
                found = decoder.try_each(paths)
                good = [image for image in found if not isinstance(image, NoPicture)]
                rows = iter(session.run(classifier.probabilities, {classifier.images: np.array(good)}) if good else ())
                for path, image in zip(paths, found):
                    likeliest = image if isinstance(image, NoPicture) else _likeliest(next(rows), run.classes)
                    print(_as_json(path, likeliest) if settings.json else _as_row(path, likeliest, settings.image))
                wrong += len(found) - len(good)
    if wrong:
        raise UsageError(f'{wrong} of {len(settings.image)} files could not be classified; the lines above name them')


def _likeliest(probabilities, classes):
    """Returns the (class, probability) pairs of the likeliest classes, in order."""
    return [(classes[i], float(probabilities[i])) for i in np.argsort(-probabilities, kind='stable')[:_LIKELIEST]]


def _as_json(path, likeliest):
    if isinstance(likeliest, NoPicture):
        return json.dumps(dict(file=path, error=str(likeliest)))
    return json.dumps(dict(file=path, classes=[dict(name=name, probability=round(probability, 6))
                                               for name, probability in likeliest]))


def _as_row(path, likeliest, paths):
    row = f'{shown(path):{max(len(shown(each)) for each in paths)}}  '
    if isinstance(likeliest, NoPicture):
        return row + str(likeliest)
    return row + '  '.join(f'{name} {probability:.3f}' for name, probability in likeliest)


def open_run(settings: EvalSettings) -> tuple[TrainDir, model.Trained, devices.Devices]:
    """Returns the train_dir, what is known of its run, and the device to use, claimed.

    Raises:
      UsageError: invalid configuration.
      RunError: the run has no checkpoint.
    """
    device = devices.choose(1, settings.tower_device)
    gpus.claim(device.num_gpus)
    directory = TrainDir(settings.checkpoint_dir)
    model.check_checkpoint_dir(directory, needed=True)
    return directory, model.load_run(settings, directory), device
