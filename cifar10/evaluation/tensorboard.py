"""What TensorBoard shows of any evaluation: curves, confusion matrix, classes, the images with the largest losses."""
import re
from collections.abc import Sequence

import numpy as np

from cifar10.base.console import printable
from cifar10.evaluation import confusion
from cifar10.evaluation.evaluator import Prediction, Result
from cifar10.run.tensorboard import EVAL, Events

_MATRIX_SIDE = 320  # pixels of the image of a matrix, at least
_IMAGE_SIDE = 96  # pixels of an image, at least
_COLUMNS = 4  # of these images
_GAP = 2  # pixels between two of them


def write(events: Events, step: int, result: Result, classes: Sequence[str], group: str = EVAL) -> None:
    """Writes the Result of a step; `classes` are the names of the classes, and the tags begin with `group`."""
    points = {group + name: value for name, value in result.figures.items() if isinstance(value, float)}
    events.add_scalars(points, step)
    events.add_text(group + 'precision_by_class', class_table(result.confusion, classes), step)
    axes = f'{confusion.AXES}; both in the order of the table precision_by_class'
    events.add_image(group + 'precision_confusion', confusion_image(result.confusion), step, axes)
    if result.largest_losses:
        events.add_text(group + 'largest_losses', losses_table(result.largest_losses, classes), step)
        events.add_image(group + 'largest_losses_images', losses_image(result.largest_losses), step)


def _escaped(name: str) -> str:
    """Returns the name of a class or a file so that Markdown shows it as it is."""
    return re.sub(r'([\\`*_{}\[\]<>#|~])', r'\\\1', name)


def class_table(counts: np.ndarray, classes: Sequence[str]) -> str:
    """Returns a table in Markdown with a row for each class; `counts` is the confusion matrix."""
    names = [_escaped(name) for name in classes]
    rows = ['| class | correct | total | recall | precision | most often mistaken for |', '|---|---|---|---|---|---|']
    for name, correct, total, recall, precision, confused_with in confusion.per_class(counts, names):
        rows.append(f'| {name} | {correct} | {total} | {recall:.3f} | {precision:.3f} | {confused_with} |')
    return '\n'.join(rows)


def confusion_image(counts: np.ndarray) -> np.ndarray:
    """Returns the matrix as an image, uint8 [height, width, 3]: white is 0, blue is correct, red is wrong.

    A cell's colour is the square root of its share of its row, so that rare mistakes are visible.
    """
    num_classes = len(counts)
    shares = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    colours = np.where(np.eye(num_classes, dtype=bool)[..., None], [31, 90, 180], [200, 30, 30])
    cells = 255 + shares[..., None] * (colours - 255.0)
    scale = max(-(-_MATRIX_SIDE // num_classes), 2)  # rounded up
    pixels = cells.round().astype(np.uint8).repeat(scale, 0).repeat(scale, 1)
    if scale > 4:  # a grid
        pixels[::scale] = 220
        pixels[:, ::scale] = 220
    return pixels


def losses_table(predictions: Sequence[Prediction], classes: Sequence[str]) -> str:
    """Returns a table of some predictions in Markdown, in the order of the images in their picture."""
    names = [_escaped(name) for name in classes]
    rows = ['| in the picture | image | true class | its probability | predicted |', '|---|---|---|---|---|']
    for i, found in enumerate(predictions):
        place = f'row {i // _COLUMNS + 1}, column {i % _COLUMNS + 1}'
        cells = (place, _escaped(printable(found.name)), names[found.label], f'{np.exp(-found.loss):.4f}',
                 names[found.predicted])
        rows.append(f"| {' | '.join(cells)} |")
    return '\n'.join(rows)


def losses_image(predictions: Sequence[Prediction]) -> np.ndarray:
    """Returns the images of some predictions in rows, in their order, as one image: uint8 [height, width, 3].

    Each is scaled so that its smallest value is black and its largest white.
    """
    images = np.stack([found.image for found in predictions])
    low, high = (find(images, axis=(1, 2, 3), keepdims=True) for find in (np.min, np.max))
    pixels = (255 * (images - low) / np.maximum(high - low, 1e-6)).round().astype(np.uint8)
    scale = -(-_IMAGE_SIDE // images.shape[1])  # rounded up
    pixels = pixels.repeat(scale, 1).repeat(scale, 2)
    pixels = np.pad(pixels, [(0, -len(images) % _COLUMNS), (0, _GAP), (0, _GAP), (0, 0)], constant_values=255)
    rows = pixels.reshape(-1, _COLUMNS, *pixels.shape[1:]).swapaxes(1, 2)
    return rows.reshape(-1, _COLUMNS * pixels.shape[2], 3)
