"""Plots the images that a run feeds its network, before and after augmentation, with the names of their classes."""
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import cpu_session
from cifar10.data import records
from cifar10.parallel import gpus
from cifar10.run import failures
from cifar10.settings.training import TrainSettings
from cifar10.tools.towers import batch_at
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


def inputs_of(settings: TrainSettings, n: int = 10) -> list[Inputs]:
    """Returns the first n images of a run, or all if it has fewer, and the last n.

    If the length of the run is a number of steps, it returns the first of the second epoch instead of the last.
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


def draw(path: str, blocks: Sequence[Inputs]) -> None:
    """Draws a PNG with two rows for each block: the originals, and the augmented images below them."""
    from matplotlib import pyplot
    columns = len(blocks[0].names)
    figure, axes = pyplot.subplots(2 * len(blocks), columns, figsize=(columns, 2.4 * len(blocks)), squeeze=False)
    for i, block in enumerate(blocks):
        for k, name in enumerate(block.names):
            image = block.augmented[k]
            low = image.min()
            high = image.max()
            axes[2 * i, k].imshow(block.originals[k])
            title = name.encode(errors='backslashreplace').decode()  # the name of a folder may not be UTF-8
            axes[2 * i, k].set_title(title, fontsize=8, parse_math=False)
            axes[2 * i + 1, k].imshow((image - low) / max(high - low, 1e-6))
        height, width = block.augmented.shape[1:3]
        axes[2 * i, 0].set_ylabel(f'{block.title}:\nbefore, {block.originals.shape[1]}x{block.originals.shape[2]}',
                                  fontsize=7)
        axes[2 * i + 1, 0].set_ylabel(f'as fed,\n{height}x{width}', fontsize=7)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph')  # matplotlib's font may lack a name's characters
        figure.savefig(path, dpi=120, bbox_inches='tight', format='png')
    pyplot.close(figure)
