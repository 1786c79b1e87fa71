"""What TensorBoard shows of any evaluation: curves, confusion matrix, classes, worst mistakes."""
import re
from collections.abc import Sequence

import numpy as np

from cifar10.base.console import printable
from cifar10.evaluation import confusion
from cifar10.evaluation.evaluator import Mistake, Result
from cifar10.run.tensorboard import EVAL, Events

_MATRIX_SIDE = 320  # pixels of the image of a matrix, at least
_MISTAKE_SIDE = 96  # pixels of an image that was mistaken, at least
_COLUMNS = 4  # of these images
_GAP = 2  # pixels between two of them


def write(events: Events, step: int, result: Result, classes: Sequence[str]) -> None:
    """Writes the Result of a step; `classes` are the names of the classes."""
    events.add_scalars(result.scalars, step)
    events.add_text(EVAL + 'precision_by_class', class_table(result.confusion, classes), step)
    axes = f'{confusion.AXES}; both in the order of the table precision_by_class'
    events.add_image(EVAL + 'precision_confusion', confusion_image(result.confusion), step, axes)
    if result.mistakes:
        events.add_text(EVAL + 'worst_mistakes', mistakes_table(result.mistakes, classes), step)
        events.add_image(EVAL + 'worst_mistakes_images', mistakes_image(result.mistakes), step)


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


def mistakes_table(mistakes: Sequence[Mistake], classes: Sequence[str]) -> str:
    """Returns a table of some mistakes in Markdown, in the order of the images in their picture."""
    names = [_escaped(name) for name in classes]
    rows = ['| in the picture | image | true class | its probability | predicted |', '|---|---|---|---|---|']
    for i, mistake in enumerate(mistakes):
        place = f'row {i // _COLUMNS + 1}, column {i % _COLUMNS + 1}'
        cells = (place, _escaped(printable(mistake.name)), names[mistake.label], f'{np.exp(-mistake.loss):.4f}',
                 names[mistake.predicted])
        rows.append(f"| {' | '.join(cells)} |")
    return '\n'.join(rows)


def mistakes_image(mistakes: Sequence[Mistake]) -> np.ndarray:
    """Returns the images of some mistakes in rows, in their order, as one image: uint8 [height, width, 3].

    Each is scaled so that its smallest value is black and its largest white.
    """
    images = np.stack([mistake.image for mistake in mistakes])
    low, high = (find(images, axis=(1, 2, 3), keepdims=True) for find in (np.min, np.max))
    pixels = (255 * (images - low) / np.maximum(high - low, 1e-6)).round().astype(np.uint8)
    scale = -(-_MISTAKE_SIDE // images.shape[1])  # rounded up
    pixels = pixels.repeat(scale, 1).repeat(scale, 2)
    pixels = np.pad(pixels, [(0, -len(images) % _COLUMNS), (0, _GAP), (0, _GAP), (0, 0)], constant_values=255)
    rows = pixels.reshape(-1, _COLUMNS, *pixels.shape[1:]).swapaxes(1, 2)
    return rows.reshape(-1, _COLUMNS * pixels.shape[2], 3)
