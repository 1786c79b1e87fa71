"""The worst mistakes of an evaluation, as a picture and as a table."""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cifar10.base.console import printable
from cifar10.evaluation.confusion import escaped

MOST = 8  # mistakes of an evaluation that are shown
_COLUMNS = 4
_SIDE = 96  # pixels of an image in the picture, at least
_GAP = 2  # pixels between two images


class Mistake(NamedTuple):
    """A wrong prediction.

    Attributes:
      loss: the cross entropy; exp(-loss) is the probability that the true class was given.
      example: the number of the image in its part of the data set.
      label, predicted: the true class, and the one that was predicted.
      image: float32 [height, width, 3], as the network gets it.
      name: `Records.name_of` the example.
    """
    loss: float
    example: int
    label: int
    predicted: int
    image: np.ndarray
    name: str = ''


def picture(mistakes: Sequence[Mistake]) -> np.ndarray:
    """Returns the images of some mistakes in rows, in their order, as one image: uint8 [height, width, 3].

    Each is scaled so that its smallest value is black and its largest white.
    """
    images = np.stack([mistake.image for mistake in mistakes])
    low, high = (find(images, axis=(1, 2, 3), keepdims=True) for find in (np.min, np.max))
    pixels = (255 * (images - low) / np.maximum(high - low, 1e-6)).round().astype(np.uint8)
    scale = -(-_SIDE // images.shape[1])  # rounded up
    pixels = pixels.repeat(scale, 1).repeat(scale, 2)
    pixels = np.pad(pixels, [(0, -len(images) % _COLUMNS), (0, _GAP), (0, _GAP), (0, 0)], constant_values=255)
    rows = pixels.reshape(-1, _COLUMNS, *pixels.shape[1:]).swapaxes(1, 2)
    return rows.reshape(-1, _COLUMNS * pixels.shape[2], 3)


def markdown(mistakes: Sequence[Mistake], classes: Sequence[str]) -> str:
    """Returns a table of some mistakes in Markdown, in the order of the images in their picture."""
    names = [escaped(name) for name in classes]
    rows = ['| in the picture | image | true class | its probability | predicted |',
            '|---|---|---|---|---|']
    for i, mistake in enumerate(mistakes):
        place = f'row {i // _COLUMNS + 1}, column {i % _COLUMNS + 1}'
        cells = (place, escaped(printable(mistake.name)), names[mistake.label], f'{np.exp(-mistake.loss):.4f}',
                 names[mistake.predicted])
        rows.append(f"| {' | '.join(cells)} |")
    return '\n'.join(rows)
