"""The images that a run feeds its network."""
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import cpu_session
from cifar10.data import records
from cifar10.parallel import gpus
from cifar10.run import failures
from cifar10.settings.training import TrainSettings
from cifar10.training.inside import batch_at
from cifar10.training.plan import recipe_of


class Inputs(NamedTuple):
    """Consecutive images of the stream that feeds a run.

    Attributes:
      title: where in the run they are.
      names: the names of their classes.
      originals: uint8 [n, image_size, image_size, 3], before augmentation.
      augmented: float32 [n, height, width, 3], as the network gets them.
    """
    title: str
    names: list[str]
    originals: np.ndarray
    augmented: np.ndarray


def of_run(settings: TrainSettings, n: int = 10) -> list[Inputs]:
    """Returns the first n images of a run, or all if it has fewer, and the last n.

    If the length of the run is a number of steps, the first of the second epoch take the place of the last.
    """
    gpus.claim(0)  # which leaves them to a trainer
    data = records.prepared(settings.data)
    recipe = recipe_of(settings, data)
    places = {'at the beginning': 0, 'in the second epoch': data.count}
    if recipe.total_examples:
        n = min(n, recipe.total_examples)
        places = {'at the beginning': 0, 'at the end': recipe.total_examples - n}
    blocks = []
    with failures.plain_errors(), cpu_session() as session:
        first = tf.placeholder(tf.int64, [])
        batch, read = batch_at(first, first, n, data, recipe, settings.run.seed)
        session.run(read)
        for title, position in places.items():
            images, classes, originals = session.run(
                [batch.images, batch.labels, batch.originals], {first: position})
            names = [data.classes[i] for i in classes]
            blocks.append(Inputs(title, names, originals.transpose(0, 2, 3, 1), images))
    return blocks
