"""A confusion matrix as text, as a table and as an image. NumPy only."""
from collections.abc import Sequence

import numpy as np

_MOST_COLUMNS = 20  # classes; a wider matrix is unreadable as text
_SIDE = 320  # pixels of the picture, at least


def per_class(confusion: np.ndarray, classes: Sequence[str]) -> list[tuple]:
    """Returns a row for each class: name, right, of, recall, precision, what it is most often mistaken for.

    Args:
      confusion: int64 [classes, classes], how many examples of each class (row) were taken for each (column).
      classes: their names.
    """
    rows = []
    for i, name in enumerate(classes):
        right, of, taken = confusion[i, i], confusion[i].sum(), confusion[:, i].sum()
        others = np.where(np.arange(len(classes)) == i, 0, confusion[i])
        worst = [f'{classes[j]} ({others[j]})' for j in np.argsort(-others, kind='stable')[:2] if others[j]]
        rows.append((name, int(right), int(of), right / of if of else 0.0, right / taken if taken else 0.0,
                     ', '.join(worst)))
    return rows


def lines(confusion: np.ndarray, classes: Sequence[str]) -> list[str]:
    """Returns the table of the classes and, where it is not too wide, the matrix, as lines of text."""
    width = max(max(map(len, classes)), len('class'))
    found = [f"{'class':{width}}  right     of  recall  precision  most often mistaken for"]
    for name, right, of, recall, precision, worst in per_class(confusion, classes):
        found.append(f'{name:{width}} {right:6} {of:6}  {recall:6.3f}  {precision:9.3f}  {worst}'.rstrip())
    if len(classes) > _MOST_COLUMNS:
        return found
    cell = max(6, len(str(confusion.max())) + 1)
    labels, heads = list(classes), [name[:cell - 1] for name in classes]
    if len(set(heads)) < len(heads):
        labels, heads = [f'{i:2} {name}' for i, name in enumerate(classes)], list(map(str, range(len(classes))))
    width = max(map(len, labels))
    found += ['', 'row: the class; column: what its images were taken for']
    found.append(' ' * width + ''.join(f'{head:>{cell}}' for head in heads))
    return found + [f'{label:{width}}' + ''.join(f'{count:{cell}}' for count in row)
                    for label, row in zip(labels, confusion)]


def markdown(confusion: np.ndarray, classes: Sequence[str]) -> str:
    """Returns the table of the classes in Markdown."""
    rows = ['| class | right | of | recall | precision | most often mistaken for |', '|---|---|---|---|---|---|']
    names = [name.replace('|', '\\|') for name in classes]
    return '\n'.join(rows + [f'| {name} | {right} | {of} | {recall:.3f} | {precision:.3f} | {worst} |'
                             for name, right, of, recall, precision, worst in per_class(confusion, names)])


def picture(confusion: np.ndarray) -> np.ndarray:
    """Returns the matrix as an image, uint8 [height, width, 3]: white for 0, blue for right, red for wrong answers.

    A cell's colour is the root of its share of its row, so that rare mistakes are visible.
    """
    count = len(confusion)
    shares = np.sqrt(confusion / np.maximum(confusion.sum(1, keepdims=True), 1))
    ends = np.where(np.eye(count, dtype=bool)[..., None], [31, 90, 180], [200, 30, 30])
    cells = 255 + shares[..., None] * (ends - 255.0)
    scale = max(-(-_SIDE // count), 2)
    large = cells.round().astype(np.uint8).repeat(scale, 0).repeat(scale, 1)
    if scale > 4:
        large[::scale], large[:, ::scale] = 220, 220  # a grid
    return large
