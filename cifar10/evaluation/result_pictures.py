"""Writes an evaluation's confusion matrix, class table and images with the largest losses for TensorBoard."""
from collections.abc import Sequence

import numpy as np

from cifar10.base.console import printable
from cifar10.evaluation import confusion
from cifar10.evaluation.result import EvalResult, Prediction
from cifar10.run import pictures
from cifar10.run.events import IMAGES, Events, escaped
from cifar10.run.metrics import fraction

_MOST_NAMED = 20  # classes; the picture of a larger matrix has no names
_MATRIX_SIDE = 320  # minimum pixels of the picture


def write(events: Events, result: EvalResult) -> None:
    """Writes the pictures and tables of a result, if the model predicts classes."""
    step, classes, matrix, predictions = result.step, result.classes, result.confusion, result.predictions
    if matrix is None:
        return
    events.add_text(events.group + 'by_class', class_table(matrix, classes), step)
    axes = f'{confusion.AXES}; both in the order of the table by_class'
    images = events.group + IMAGES
    events.add_image(images + 'confusion', confusion_image(matrix, classes), step, axes)
    if predictions:
        events.add_text(events.group + 'largest_losses', losses_table(predictions, classes), step)
        events.add_image(images + 'largest_losses', losses_image(predictions, classes), step)


def class_table(counts: np.ndarray, classes: Sequence[str]) -> str:
    """Returns a table in Markdown with a row for each class; `counts` is the confusion matrix."""
    names = [escaped(name) for name in classes]
    rows = ['| class | correct | total | recall | precision | most often mistaken for |', '|---|---|---|---|---|---|']
    for name, correct, total, recall, precision, confused_with in confusion.per_class(counts, names):
        figures = f'{fraction(recall)} | {fraction(precision)}'
        rows.append(f'| {name} | {correct} | {total} | {figures} | {confused_with} |')
    return '\n'.join(rows)


def confusion_image(counts: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Draws the square matrix as a picture, uint8 [height, width, 3]: white is 0, blue is correct, red is wrong.

    A cell's colour is the square root of its share of its row, so that rare mistakes are visible. The picture shows
    names and counts for up to 20 classes. More classes are numbered in the order of `classes`, from 0.
    """
    num_classes = len(counts)
    totals = np.maximum(counts.sum(1, keepdims=True), 1)
    counts = counts[:, :num_classes]
    shares = np.sqrt(counts / totals)
    colours = np.where(np.eye(num_classes, dtype=bool)[..., None], [31, 90, 180], [200, 30, 30])
    cells = (255 + shares[..., None] * (colours - 255.0)).round().astype(np.uint8)
    titles = 'true class', 'predicted class'
    if num_classes <= _MOST_NAMED:
        return pictures.table(cells, counts, pictures.names(classes), titles)
    scale = max(-(-_MATRIX_SIDE // num_classes), 2)  # rounded up
    pixels = cells.repeat(scale, 0).repeat(scale, 1)
    if scale > 4:  # a grid
        pixels[::scale] = 220
        pixels[:, ::scale] = 220
    pixels = np.pad(pixels, [(1, 1), (1, 1), (0, 0)], constant_values=220)
    numbers = f', 0 to {num_classes - 1}'
    return pictures.titled(pixels, (titles[0] + numbers, titles[1] + numbers))


def losses_table(predictions: Sequence[Prediction], classes: Sequence[str]) -> str:
    """Returns a table of some predictions in Markdown, in the order of the images in their picture."""
    names = [*map(escaped, classes), confusion.NOT_FINITE]
    rows = ['| in the picture | image | true class | its probability | predicted |', '|---|---|---|---|---|']
    for i, found in enumerate(predictions):
        row, column = divmod(i, pictures.COLUMNS)
        place = f'row {row + 1}, column {column + 1}' if i < pictures.MOST else ''
        cells = (place, escaped(printable(found.name)), names[found.label], f'{found.probability:.4f}',
                 names[found.predicted])
        rows.append(f"| {' | '.join(cells)} |")
    return '\n'.join(rows)


def losses_image(predictions: Sequence[Prediction], classes: Sequence[str]) -> np.ndarray:
    """Draws the images of the first predictions in rows as one picture: uint8 [height, width, 3].

    The caption of each image gives its class, the predicted class if it differs, and the predicted class's probability.
    """
    names = [*pictures.names(classes), confusion.NOT_FINITE]
    captions = []
    for found in predictions:
        is_right = found.predicted == found.label
        verdict = 'right' if is_right else f'as {names[found.predicted]}'
        captions.append((names[found.label], f'{verdict}, {found.confidence:.2f}'))
    return pictures.captioned(np.stack([found.image for found in predictions]), captions)
