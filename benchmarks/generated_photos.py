"""Makes a folder of generated photos, the set `textures`, for training without real photos.

The size, colours, light, haze, noise, EXIF orientation and JPEG quality of a photo are functions of its class and
number, so neither colour nor brightness identifies the class. Accuracies on these photos do not predict accuracies on
real photos.
"""
import os

import numpy as np
from PIL import Image

_SIDES = (160, 420)  # smallest and largest side of a photo, in pixels
_ROTATIONS = {3: 180, 6: 270, 8: 90}  # EXIF orientation -> the angle that restores the upright picture


def _noise(random, height, width, cells):
    """Returns smooth noise, float [height, width] from 0 to 1, with about `cells` bumps along a side."""
    grid = random.random((cells + 1, cells + 1)).astype(np.float32)
    return np.asarray(Image.fromarray(grid).resize((width, height), Image.BICUBIC)).clip(0, 1)


def _turbulence(random, height, width, cells):
    """Returns noise with details of several sizes, from 0 to 1."""
    return sum(_noise(random, height, width, cells * 2 ** k) / 2 ** k for k in range(4)) / 1.875


def _rotated(random, height, width):
    """Returns (u, v), coordinates in a randomly rotated and scaled frame, in periods of a pattern."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    angle, scale = random.uniform(0, np.pi), random.uniform(10, 40)
    return (x * np.cos(angle) + y * np.sin(angle)) / scale, (y * np.cos(angle) - x * np.sin(angle)) / scale


def _bricks(random, height, width):
    u, v = _rotated(random, height, width)
    row = np.floor(v)
    column = u / 2 + row / 2
    return (np.minimum(column % 1 * 2, v % 1) > 0.12) * (0.7 + 0.3 * np.sin(np.floor(column) * 7 + row))


def _weave(random, height, width):
    u, v = _rotated(random, height, width)
    over = (np.floor(u) + np.floor(v)) % 2
    return np.where(over, np.sin(np.pi * (u % 1)), np.sin(np.pi * (v % 1)))


def _wood(random, height, width):
    u, v = _rotated(random, height, width)
    return 0.5 + 0.5 * np.sin(6 * (v / 3 + 1.5 * _turbulence(random, height, width, 3)) + u / 40)


def _marble(random, height, width):
    u, _ = _rotated(random, height, width)
    return np.abs(np.sin(u / 3 + 5 * _turbulence(random, height, width, 4)))


def _cells(random, height, width):
    u, v = _rotated(random, height, width)
    whole = np.stack([np.floor(u), np.floor(v)])
    nearest = np.full((2, height, width), 9.0)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            a, b = whole[0] + i, whole[1] + j
            du, dv = (0.5 + 0.4 * np.sin(a * p + b * q) for p, q in ((127.1, 311.7), (269.5, 183.3)))
            nearest = np.sort(np.stack([*nearest, np.hypot(a + du - u, b + dv - v)]), axis=0)[:2]
    return (nearest[1] - nearest[0]).clip(0, 1)


def _ripples(random, height, width):
    u, v = _rotated(random, height, width)
    cu, cv = random.uniform(-8, 8, 2)
    return 0.5 + 0.5 * np.sin(3 * np.hypot(u - cu, v - cv) + 2 * _noise(random, height, width, 5))


# Class -> pattern.
PATTERNS = {name.__name__[1:]: name for name in (_bricks, _cells, _marble, _ripples, _weave, _wood)}


def photo(pattern, seed):
    """Returns (image, its EXIF, its JPEG quality) of a pattern in two random colours, with light, haze and grain."""
    random = np.random.default_rng(seed)
    width, height = (int(side) for side in random.integers(*_SIDES, 2))
    light = 1 + random.uniform(-0.5, 0.5) * (_noise(random, height, width, 2)[:, :, None] - 0.5)
    dark, pale = random.uniform(0, 160, 3), random.uniform(60, 255, 3)
    pixels = dark + (pale - dark) * pattern(random, height, width)[:, :, None]
    pixels = pixels * light * random.uniform(0.5, 1.2)
    haze = random.uniform(0, 0.5)
    pixels = pixels * (1 - haze) + random.uniform(80, 230, 3) * haze
    pixels += random.normal(0, random.uniform(2, 20), pixels.shape)
    image, exif = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), Image.Exif()
    if random.random() < 0.3:
        orientation = int(random.choice(list(_ROTATIONS)))
        exif[0x0112] = orientation
        image = image.rotate(-_ROTATIONS[orientation], expand=True)
    return image, exif, int(random.integers(60, 96))


def write(folder, count, first=0):
    """Writes photos number `first` to `first + count - 1` into a folder for each class."""
    kinds = list(PATTERNS)
    for number in range(first, first + count):
        index = number % len(kinds)
        image, exif, quality = photo(PATTERNS[kinds[index]], [0, index, number])
        os.makedirs(os.path.join(folder, kinds[index]), exist_ok=True)
        image.save(os.path.join(folder, kinds[index], f'{number:05}.jpg'), exif=exif, quality=quality)
