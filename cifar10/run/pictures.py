"""Pictures for people, with words in them, as arrays of pixels: for TensorBoard."""
import unicodedata
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLUMNS = 4  # of images in a picture
_IMAGE_SIDE = 160  # pixels of an image, at least, below which three words find room
_GAP = 4  # pixels between two of them, and around a word
_TEXT = 14  # pixels, the size of letters
_LONGEST = 160  # pixels of a name beside a table
_LEAST_TABLE = 320  # pixels of a side of its cells together, at least,
_LEAST_CELL = 36  # and of a cell
_UPRIGHT = 4  # columns of a table with names that are not turned, at most


def names(classes: Sequence[str]) -> list[str]:
    """Returns the names of classes in the letters that Pillow's font has; a class that has others, as its number."""
    plain = [''.join(letter for letter in unicodedata.normalize('NFKD', name) if not unicodedata.combining(letter))
             for name in classes]
    return [name if name.isascii() and name.isprintable() else f'class {i}' for i, name in enumerate(plain)]


def word(text: str, width: int) -> np.ndarray:
    """Returns a line of ASCII text in black on white, uint8 [height, at most `width`, 3].

    Of one that is too long the middle is left out, because names often differ at their ends only.
    """
    font = ImageFont.load_default(_TEXT)
    kept, shown = len(text), text
    while font.getlength(shown) > width and kept > 1:
        kept -= 1
        shown = f'{text[:kept - kept // 2]}\u2026{text[len(text) - kept // 2:]}'
    height = sum(font.getmetrics())  # type: ignore[union-attr]  # of a size, `load_default` returns a FreeTypeFont
    image = Image.new('RGB', (max(min(round(font.getlength(shown)) + 1, width), 1), height), 'white')
    ImageDraw.Draw(image).text((0, 0), shown, 'black', font)
    return np.asarray(image)


def captioned(images: np.ndarray, captions: Sequence[Sequence[str]]) -> np.ndarray:
    """Returns images in rows of four, each with lines of text below it, as one picture: uint8 [height, width, 3].

    Args:
      images: [n, height, width, 3], with n > 0; each is scaled so that its smallest value is black and its largest
        white. Values that are not finite count as 0.
      captions: for each image its lines, in ASCII; as many for each.
    """
    images = np.nan_to_num(images, posinf=0.0, neginf=0.0)
    low, high = (find(images, axis=(1, 2, 3), keepdims=True) for find in (np.min, np.max))
    pixels = (255 * (images - low) / np.maximum(high - low, 1e-6)).round().astype(np.uint8)
    scale = -(-_IMAGE_SIDE // images.shape[2])  # rounded up
    pixels = pixels.repeat(scale, 1).repeat(scale, 2)
    height, width = pixels.shape[1:3]
    line = len(word('', 1))
    below = line * len(captions[0])
    pixels = np.pad(pixels, [(0, -len(images) % COLUMNS), (0, below + _GAP), (0, _GAP), (0, 0)], constant_values=255)
    for image, lines in zip(pixels, captions):
        for i, text in enumerate(lines):
            put(image, word(text, width), height + i * line, 0)
    rows = pixels.reshape(-1, COLUMNS, *pixels.shape[1:]).swapaxes(1, 2)
    return rows.reshape(-1, COLUMNS * pixels.shape[2], 3)


def put(picture: np.ndarray, part: np.ndarray, top: int, left: int) -> None:
    """Puts a picture into a larger one."""
    picture[top:top + part.shape[0], left:left + part.shape[1]] = part


def _grid(cells, texts, side, font):
    """Returns the cells of a table with their texts and the lines between them; `side` is that of a cell."""
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
    """Returns a picture of a table with words at its left and above it: what the rows and the columns are.

    Args:
      top, left: where the first cell is in the picture; the names of rows and columns may be before it.
    """
    rows, columns = (word(title, side) for title, side in zip(titles, picture.shape[:2]))
    edge = len(rows) + 2 * _GAP
    framed = np.pad(picture, [(edge, 0), (edge, 0), (0, 0)], constant_values=255)
    put(framed, np.rot90(rows), edge + (picture.shape[0] + top - rows.shape[1]) // 2, _GAP)
    put(framed, columns, _GAP, edge + (picture.shape[1] + left - columns.shape[1]) // 2)
    return framed


def table(cells: np.ndarray, texts: np.ndarray, heads: Sequence[str], titles: tuple[str, str]) -> np.ndarray:
    """Returns a square table with coloured cells as a picture, uint8 [height, width, 3].

    Args:
      cells: uint8 [n, n, 3], the colours.
      texts: [n, n], what is written in the cells.
      heads: the n names of the rows, which are those of the columns as well, in ASCII.
      titles: what the rows are, and what the columns are.
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
    else:  # turned, to be read from below
        above = [np.rot90(label) for label in labels]
    top = max(label.shape[0] for label in above) + _GAP
    picture = np.full([top + n * side + 1 + _GAP, left + n * side + 1 + _GAP, 3], 255, np.uint8)
    put(picture, _grid(cells, texts, side, font), top, left)
    for i, (label, head) in enumerate(zip(labels, above)):
        middle = round((i + 0.5) * side)
        put(picture, label, top + middle - line // 2, left - _GAP - label.shape[1])
        put(picture, head, top - _GAP - head.shape[0], left + middle - head.shape[1] // 2)
    return titled(picture, titles, top, left)
