"""Draws labelled pictures for TensorBoard as arrays of pixels."""
import unicodedata
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# TensorBoard's cards are 350 to 370 pixels wide, and in Time Series 215 pixels high: eight images and words fit.
COLUMNS, MOST = 4, 8  # images per row and in all
_IMAGE_SIDE = 160  # minimum width of an image in pixels
_OF_IMAGE = 8  # width of an image per height of the font below it: 16 letters fit, of 10 pixels in a card
_GAP = 4  # pixels between images, and around a word
_TEXT = 14  # height of the font in pixels
_LONGEST = 160  # maximum width of a row name in pixels
_LEAST_TABLE = 320  # minimum side of all cells in pixels
_LEAST_CELL = 36  # minimum side of a cell in pixels
_UPRIGHT = 4  # maximum number of columns with horizontal names


def names(classes: Sequence[str]) -> list[str]:
    """Returns the names of classes; replaces a name with its number if Pillow's font lacks its letters."""
    plain = [''.join(letter for letter in unicodedata.normalize('NFKD', name) if not unicodedata.combining(letter))
             for name in classes]
    return [name if name.isascii() and name.isprintable() else f'class {i}' for i, name in enumerate(plain)]


def word(text: str, width: int, size: int = _TEXT) -> np.ndarray:
    """Returns a line of ASCII text in black on white, uint8 [height, at most `width`, 3].

    Shortens long text in the middle, because names often differ only at their ends.
    """
    font = ImageFont.load_default(size)
    kept, shown = len(text), text
    while font.getlength(shown) > width and kept > 1:
        kept -= 1
        shown = f'{text[:kept - kept // 2]}\u2026{text[len(text) - kept // 2:]}'
    height = sum(font.getmetrics())  # type: ignore[union-attr]  # given a size, `load_default` returns a FreeTypeFont
    image = Image.new('RGB', (max(min(round(font.getlength(shown)) + 1, width), 1), height), 'white')
    ImageDraw.Draw(image).text((0, 0), shown, 'black', font)
    return np.asarray(image)


def captioned(images: np.ndarray, captions: Sequence[Sequence[str]]) -> np.ndarray:
    """Draws the first images in rows, each with lines of text below it; returns uint8 [height, width, 3].

    Args:
      images: [n, height, width, 3], with n > 0; the first `MOST` are drawn. Each image's smallest value becomes black
        and its largest white. Non-finite values count as 0.
      captions: ASCII lines for each image, the same number for each.
    """
    images = np.nan_to_num(images[:MOST], posinf=0.0, neginf=0.0)
    low, high = (find(images, axis=(1, 2, 3), keepdims=True) for find in (np.min, np.max))
    pixels = (255 * (images - low) / np.maximum(high - low, 1e-6)).round().astype(np.uint8)
    scale = -(-_IMAGE_SIDE // images.shape[2])  # rounded up
    pixels = pixels.repeat(scale, 1).repeat(scale, 2)
    height, width = pixels.shape[1:3]
    size = width // _OF_IMAGE
    line = len(word('', 1, size))
    below = line * len(captions[0])
    pixels = np.pad(pixels, [(0, -len(images) % COLUMNS), (0, below + _GAP), (0, _GAP), (0, 0)], constant_values=255)
    for image, lines in zip(pixels, captions):
        for i, text in enumerate(lines):
            put(image, word(text, width, size), height + i * line, 0)
    rows = pixels.reshape(-1, COLUMNS, *pixels.shape[1:]).swapaxes(1, 2)
    return rows.reshape(-1, COLUMNS * pixels.shape[2], 3)


def put(picture: np.ndarray, part: np.ndarray, top: int, left: int) -> None:
    """Copies a picture into a larger one."""
    picture[top:top + part.shape[0], left:left + part.shape[1]] = part


def _grid(cells, texts, side, font):
    """Draws the cells of a table, each `side` pixels wide, with texts and separating lines."""
    end = len(cells) * side
    pixels = np.pad(cells.repeat(side, 0).repeat(side, 1), [(0, 1), (0, 1), (0, 0)])
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    for at in range(0, end + 1, side):
        draw.line([(0, at), (end, at)], 'lightgray')
        draw.line([(at, 0), (at, end)], 'lightgray')
    for (i, j), text in np.ndenumerate(texts):
        colour = 'white' if cells[i, j].mean() < 150 else 'black'
        draw.text(((j + 0.5) * side, (i + 0.5) * side), str(text), colour, font, anchor='mm')
    return np.asarray(image)


def titled(picture: np.ndarray, titles: tuple[str, str], top: int = 0, left: int = 0) -> np.ndarray:
    """Adds the titles of a table's rows and columns to the left of its picture and above it.

    Args:
      top, left: position of the first cell in the picture; row and column names may precede it.
    """
    rows, columns = (word(title, side) for title, side in zip(titles, picture.shape[:2]))
    edge = len(rows) + 2 * _GAP
    framed = np.pad(picture, [(edge, 0), (edge, 0), (0, 0)], constant_values=255)
    put(framed, np.rot90(rows), edge + (picture.shape[0] + top - rows.shape[1]) // 2, _GAP)
    put(framed, columns, _GAP, edge + (picture.shape[1] + left - columns.shape[1]) // 2)
    return framed


def table(cells: np.ndarray, texts: np.ndarray, heads: Sequence[str], titles: tuple[str, str]) -> np.ndarray:
    """Draws a square table with coloured cells; returns uint8 [height, width, 3].

    Args:
      cells: uint8 [n, n, 3], the colours.
      texts: [n, n], the texts of the cells.
      heads: the n names of the rows and of the columns, in ASCII.
      titles: the titles of the rows and the columns.
    """
    n = len(cells)
    font = ImageFont.load_default(_TEXT)
    most = round(max(font.getlength(str(text)) for text in texts.flat))
    side = max(_LEAST_TABLE // n, most + 2 * _GAP, _LEAST_CELL)
    labels = [word(head, _LONGEST) for head in heads]
    line = len(labels[0])
    left = max(label.shape[1] for label in labels) + _GAP
    if n <= _UPRIGHT:
        above = [word(head, side - 2 * _GAP) for head in heads]
    else:  # rotated, to read upwards
        above = [np.rot90(label) for label in labels]
    top = max(label.shape[0] for label in above) + _GAP
    picture = np.full([top + n * side + 1 + _GAP, left + n * side + 1 + _GAP, 3], 255, np.uint8)
    put(picture, _grid(cells, texts, side, font), top, left)
    for i, (label, head) in enumerate(zip(labels, above)):
        middle = round((i + 0.5) * side)
        put(picture, label, top + middle - line // 2, left - _GAP - label.shape[1])
        put(picture, head, top - _GAP - head.shape[0], left + middle - head.shape[1] // 2)
    return titled(picture, titles, top, left)
