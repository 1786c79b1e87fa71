"""Makes two folders of generated photos, to train on where no photos are at hand: `textures` and `scenes`.

Each photo is drawn from (seed, class, number): its size, its colours and its light, haze, noise, orientation in EXIF
and JPEG quality, so that neither colour nor brightness tells the class. The photos are no real ones; what is learnt on
them is not an accuracy to expect elsewhere.
"""
import os

import numpy as np
from PIL import Image, ImageDraw

_SIDES = (160, 420)  # smallest and largest side of a photo, in pixels
_WAYS = {3: 180, 6: 270, 8: 90}  # EXIF orientation: the angle by which the stored pixels are turned back


def _noise(random, height, width, cells):
    """Returns smooth noise, float [height, width] in 0 to 1, with about `cells` bumps along a side."""
    grid = random.random((cells + 1, cells + 1)).astype(np.float32)
    return np.asarray(Image.fromarray(grid).resize((width, height), Image.BICUBIC)).clip(0, 1)


def _turbulence(random, height, width, cells):
    """Returns noise with details of several sizes, in 0 to 1."""
    return sum(_noise(random, height, width, cells * 2 ** k) / 2 ** k for k in range(4)) / 1.875


def _turned(random, height, width):
    """Returns (u, v), coordinates in a randomly turned and scaled frame, in periods of a pattern."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    angle, scale = random.uniform(0, np.pi), random.uniform(10, 40)
    return (x * np.cos(angle) + y * np.sin(angle)) / scale, (y * np.cos(angle) - x * np.sin(angle)) / scale


def _bricks(random, height, width):
    u, v = _turned(random, height, width)
    row = np.floor(v)
    column = u / 2 + row / 2
    return (np.minimum(column % 1 * 2, v % 1) > 0.12) * (0.7 + 0.3 * np.sin(np.floor(column) * 7 + row))


def _weave(random, height, width):
    u, v = _turned(random, height, width)
    over = (np.floor(u) + np.floor(v)) % 2
    return np.where(over, np.sin(np.pi * (u % 1)), np.sin(np.pi * (v % 1)))


def _wood(random, height, width):
    u, v = _turned(random, height, width)
    return 0.5 + 0.5 * np.sin(6 * (v / 3 + 1.5 * _turbulence(random, height, width, 3)) + u / 40)


def _marble(random, height, width):
    u, _ = _turned(random, height, width)
    return np.abs(np.sin(u / 3 + 5 * _turbulence(random, height, width, 4)))


def _cells(random, height, width):
    u, v = _turned(random, height, width)
    whole = np.stack([np.floor(u), np.floor(v)])
    nearest = np.full((2, height, width), 9.0)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            a, b = whole[0] + i, whole[1] + j
            du, dv = (0.5 + 0.4 * np.sin(a * p + b * q) for p, q in ((127.1, 311.7), (269.5, 183.3)))
            nearest = np.sort(np.stack([*nearest, np.hypot(a + du - u, b + dv - v)]), axis=0)[:2]
    return (nearest[1] - nearest[0]).clip(0, 1)


def _ripples(random, height, width):
    u, v = _turned(random, height, width)
    cu, cv = random.uniform(-8, 8, 2)
    return 0.5 + 0.5 * np.sin(3 * np.hypot(u - cu, v - cv) + 2 * _noise(random, height, width, 5))


def _texture(pattern):
    """Returns a function that draws a photo of a pattern between two random colours."""
    def draw(random, height, width):
        dark, light = random.uniform(0, 160, 3), random.uniform(60, 255, 3)
        return dark + (light - dark) * pattern(random, height, width)[:, :, None]
    return draw


def _scene(drawn):
    """Returns a function that draws a photo: sky and ground in random colours, and on them what `drawn` adds.

    Four fifths of the photos have another class behind it, paler, as if farther away.
    """
    def draw(random, height, width):
        horizon = int(height * random.uniform(0.3, 0.65))
        sky = random.uniform((60, 90, 120), (230, 220, 255))
        ground = random.uniform((40, 40, 20), (190, 180, 150))
        shade = np.linspace(1.1, 0.8, height)[:, None, None] + 0.2 * _turbulence(random, height, width, 3)[:, :, None]
        pixels = np.where((np.arange(height) < horizon)[:, None, None], sky, ground) * shade
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        if random.random() < 0.8:
            far = image.copy()
            others = [other for other in _DRAWN if other is not drawn]
            others[random.integers(len(others))](random, ImageDraw.Draw(far), width, height, horizon, ground)
            image = Image.blend(image, far, random.uniform(0.5, 0.9))
        drawn(random, ImageDraw.Draw(image), width, height, horizon, ground)
        return np.asarray(image).astype(np.float32)
    return draw


def _colour(random, like, spread=40):
    return tuple(int(value) for value in (like + random.uniform(-spread, spread, 3)).clip(0, 255))


def _forest(random, canvas, width, height, horizon, ground):
    for _ in range(random.integers(6, 18)):
        x, foot = random.uniform(0, width), random.uniform(horizon, height * 0.9)
        tall = (foot - horizon * 0.5) * random.uniform(0.4, 0.9)
        canvas.line([x, foot, x, foot - tall * 0.6], _colour(random, ground * 0.6), int(tall / 25) + 1)
        for k in range(3):
            half, top = tall * (0.25 - 0.05 * k), foot - tall * (0.5 + 0.25 * k)
            canvas.polygon([x - half, top + tall * 0.3, x + half, top + tall * 0.3, x, top], _colour(random, ground))


def _city(random, canvas, width, height, horizon, ground):
    for _ in range(random.integers(5, 12)):
        left, wide = random.uniform(-20, width), random.uniform(0.08, 0.2) * width
        top, foot = horizon * random.uniform(0.1, 0.8), random.uniform(horizon, horizon * 1.2)
        wall = _colour(random, ground)
        canvas.rectangle([left, top, left + wide, foot], wall)
        lit, step = _colour(random, np.array(wall) + random.choice([-60, 60])), max(wide / random.integers(3, 7), 4)
        for x in np.arange(left + step / 4, left + wide - step / 2, step):
            for y in np.arange(top + step / 4, foot - step / 2, step * 1.3):
                canvas.rectangle([x, y, x + step / 2, y + step * 0.6], lit)


def _mountains(random, canvas, width, height, horizon, ground):
    for k in range(random.integers(2, 5)):
        x = np.linspace(-10, width + 10, random.integers(5, 10))
        y = horizon - random.uniform(0, 0.7, len(x)) * horizon / (k / 2 + 1)
        canvas.polygon([(-10, horizon), *zip(x, y), (width + 10, horizon)], _colour(random, ground * (0.6 + 0.2 * k)))


def _field(random, canvas, width, height, horizon, ground):
    vanishing, colour = random.uniform(0, width), _colour(random, ground * 0.7)
    for x in np.linspace(-2 * width, 3 * width, random.integers(16, 40)):
        canvas.polygon([vanishing, horizon, x, height, x + width / 14, height], colour)


def _coast(random, canvas, width, height, horizon, ground):
    sea, shore = _colour(random, ground), random.uniform(horizon + 10, height)
    canvas.polygon([0, horizon, width, horizon, width, shore, 0, random.uniform(horizon + 10, height)], sea)
    for _ in range(random.integers(10, 40)):
        y = random.uniform(horizon, shore)
        x, wide = random.uniform(0, width), (y - horizon + 5) * random.uniform(0.3, 1)
        canvas.arc([x, y, x + wide, y + wide / 5], 180, 360, _colour(random, np.array(sea) + 40), 2)


_DRAWN = (_city, _coast, _field, _forest, _mountains)

SETS = {
    'textures': {name.__name__[1:]: _texture(name) for name in (_bricks, _cells, _marble, _ripples, _weave, _wood)},
    'scenes': {name.__name__[1:]: _scene(name) for name in _DRAWN}}


def photo(draw, seed):
    """Returns (a photo as an Image, its EXIF, its JPEG quality), drawn by one of SETS' functions from a seed.

    Its light comes from one side, with haze and grain.
    """
    random = np.random.default_rng(seed)
    width, height = (int(side) for side in random.integers(*_SIDES, 2))
    light = 1 + random.uniform(-0.5, 0.5) * (_noise(random, height, width, 2)[:, :, None] - 0.5)
    pixels = draw(random, height, width) * light * random.uniform(0.5, 1.2)
    haze = random.uniform(0, 0.5)
    pixels = pixels * (1 - haze) + random.uniform(80, 230, 3) * haze
    pixels += random.normal(0, random.uniform(2, 20), pixels.shape)
    image, exif = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), Image.Exif()
    if random.random() < 0.3:
        way = int(random.choice(list(_WAYS)))
        exif[0x0112] = way
        image = image.rotate(-_WAYS[way], expand=True)
    return image, exif, int(random.integers(60, 96))


def write(name, folder, count, seed=0, first=0):
    """Writes `count` photos of the set `name` into a folder for each class, from number `first` on."""
    kinds = list(SETS[name])
    for number in range(first, first + count):
        index = number % len(kinds)
        image, exif, quality = photo(SETS[name][kinds[index]], [seed, index, number])
        os.makedirs(os.path.join(folder, kinds[index]), exist_ok=True)
        image.save(os.path.join(folder, kinds[index], f'{number:05}.jpg'), exif=exif, quality=quality)
