"""Formats a confusion matrix, figures per class, and lists of images as text. NumPy only.

A matrix is int64 [classes, classes]: the number of examples of each class (row) predicted as each class (column). An
extra column counts predictions that are not finite.
"""
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cifar10.run.metrics import fraction

_MOST_COLUMNS = 20  # classes; a wider matrix is unreadable as text
_WIDTH = 80  # characters of a line of the matrix with the names of the classes at its head
AXES = 'row: the true class; column: the predicted class'
NOT_FINITE = 'not finite'  # in the place of a predicted class


def per_class(confusion: np.ndarray, classes: Sequence[str]) -> list[tuple]:
    """Returns a row for each class: name, correct, total, recall, precision, confused classes.

    The recall of a class without examples is NaN. The last item is a string: the two most frequent wrong predictions,
    with counts.
    """
    rows = []
    for i, name in enumerate(classes):
        correct = confusion[i, i]
        total = confusion[i].sum()
        predicted = confusion[:, i].sum()
        recall = correct / total if total else math.nan
        precision = correct / predicted if predicted else 0.0
        mistakes = np.where(np.arange(confusion.shape[1]) == i, 0, confusion[i])
        most_frequent = [j for j in np.argsort(-mistakes, kind='stable')[:2] if mistakes[j]]
        confused_with = ', '.join(f'{[*classes, NOT_FINITE][j]} ({mistakes[j]})' for j in most_frequent)
        rows.append((name, int(correct), int(total), recall, precision, confused_with))
    return rows


def mean_recall(confusion: np.ndarray) -> float:
    """Returns the mean recall of the classes that have examples."""
    totals = confusion.sum(1)
    return float((np.diag(confusion)[totals > 0] / totals[totals > 0]).mean())


def lines(confusion: np.ndarray, classes: Sequence[str]) -> list[str]:
    """Returns the table of the classes and, if it is not too wide, the matrix, as lines of text."""
    width = max(max(map(len, classes)), len('class'))
    result = [f"{'class':{width}}  correct  total  recall  precision  most often mistaken for"]
    for name, correct, total, recall, precision, confused_with in per_class(confusion, classes):
        figures = f'{fraction(recall):>6}  {fraction(precision):>9}'
        line = f'{name:{width}} {correct:8} {total:6}  {figures}  {confused_with}'
        result.append(line.rstrip())
    if len(classes) <= _MOST_COLUMNS:
        result += ['', AXES, *_matrix_lines(confusion, classes)]
    return result


def _matrix_lines(confusion, classes):
    labels = heads = list(classes)
    longest = max(map(len, classes))
    if longest + len(classes) * (longest + 2) > _WIDTH:  # numbers instead of names
        labels = [f'{i:2} {name}' for i, name in enumerate(classes)]
        heads = [str(i) for i in range(len(classes))]
    heads = [*heads, NOT_FINITE][:confusion.shape[1]]
    width = max(map(len, labels))
    cell = max(*map(len, heads), len(str(confusion.max()))) + 2
    result = [' ' * width + ''.join(f'{head:>{cell}}' for head in heads)]
    for label, row in zip(labels, confusion):
        result.append(f'{label:{width}}' + ''.join(f'{count:{cell}}' for count in row))
    return result


def image_lines(found: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    """Returns images, in the form of `EvalResult.largest_losses`, as lines of text with a heading."""
    rows = [('nan', each['class'], NOT_FINITE, each['image']) if each['predicted'] is None else
            (fraction(each['probability']), each['class'], each['predicted'], each['image']) for each in found]
    width = max((len(name) for _, *names, _ in rows for name in names), default=0)
    shared = os.path.commonprefix([each['image'] for each in found]).rpartition('/')[0]
    head = f'{what}: the probability of its class, its class, the predicted class, the image'
    return ['', head + f' in {shared}' * bool(shared), *(
        f"{probability:5}  {name:{width}}  {predicted:{width}}  {image.removeprefix(f'{shared}/')}"
        for probability, name, predicted, image in rows)]
