"""The built-in data set: ten classes of rendered shapes, for machines without a network.

The images are a pure function of their number and a seed. Each image has its own pose, size, colours, texture and
noise, so the classes differ in form, not in the value of any pixel. As in photos, some shapes are hard to see: with
images that a network learns without a mistake, the loss of the classic recipe jumped to 28 after hundreds of steps.
"""
import numpy as np

from cifar10.base.files import new_folder
from cifar10.data import SIZE
from cifar10.data.datasets import TEST, TRAIN, Dataset, write, write_classes

# Number of images to render together; their planes fit into the processor's cache.
_CHUNK = 500


def _within_disc(pattern, u, v):
    return np.maximum(pattern, np.hypot(u, v) - 1.15)


# The outline of each class: a function (u, v) -> signed distance in radii, negative inside.
_OUTLINES = {
    'disc': lambda u, v: np.hypot(u, v) - 0.85,
    'square': lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.8,
    'triangle': lambda u, v: np.maximum(np.abs(u) * 0.866 + v * 0.5, -v) - 0.55,
    'plus': lambda u, v: np.maximum(np.maximum(np.abs(u), np.abs(v)) - 1, np.minimum(np.abs(u), np.abs(v)) - 0.27),
    'ring': lambda u, v: np.abs(np.hypot(u, v) - 0.75) - 0.2,
    'star': lambda u, v: np.hypot(u, v) - 0.65 - 0.35 * np.cos(5 * np.arctan2(v, u)),
    'stripes': lambda u, v: _within_disc(0.12 * np.sin(9 * u), u, v),
    'checkers': lambda u, v: _within_disc(0.2 * np.sin(6.5 * u) * np.sin(6.5 * v), u, v),
    'dots': lambda u, v: _within_disc(0.15 * (np.cos(8 * u) + np.cos(8 * v) + 0.6), u, v),
    'crescent': lambda u, v: np.maximum(np.hypot(u, v) - 0.95, 0.75 - np.hypot(u - 0.5, v))}
CLASSES = tuple(_OUTLINES)


def render(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Renders `count` images from a seed.

    Returns:
      (labels uint8 [count], images uint8 [count, 3, 32, 32]: red, green and blue planes).
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = (generator.permutation(count) % len(CLASSES)).astype(np.uint8)
    images = np.empty([count, 3, SIZE, SIZE], np.uint8)
    for start in range(0, count, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        images[chunk] = _colour(_masks(labels[chunk], generator), generator)
    return labels, images


def _uniform(generator, count, low, high):
    """Returns float32 [count, 1, 1], one value per image."""
    return generator.uniform(low, high, [count, 1, 1]).astype(np.float32)


def _masks(labels, generator):
    """Returns float32 [n, 32, 32] in [0, 1]: the fraction of each pixel that the shape covers."""
    n = len(labels)
    centre = (SIZE - 1) / 2
    x = np.arange(SIZE, dtype=np.float32) - centre - _uniform(generator, n, -2, 2)
    y = (np.arange(SIZE, dtype=np.float32) - centre)[:, None] - _uniform(generator, n, -2, 2)
    angle = _uniform(generator, n, -0.6, 0.6)
    radius = _uniform(generator, n, 8, 10)
    cos = np.cos(angle)
    sin = np.sin(angle)
    u = (x * cos - y * sin) / radius
    v = (x * sin + y * cos) / radius
    distance = np.empty([n, SIZE, SIZE], np.float32)
    for label, outline in enumerate(_OUTLINES.values()):
        chosen = labels == label
        distance[chosen] = outline(u[chosen], v[chosen])
    return np.clip(0.5 - distance * radius, 0, 1)


def _colour(masks, generator):
    """Returns uint8 [n, 3, 32, 32]: shapes and backgrounds in random colours, with texture and noise."""
    n = len(masks)
    ground = _uniform(generator, n, 60, 195)[:, None] + _tints(generator, n)
    step = _uniform(generator, n, 30, 130)[:, None] + _tints(generator, n)
    sign = np.where(generator.random([n, 1, 1, 1]) < 0.8, np.float32(1), np.float32(-1))  # most shapes are lighter
    texture = (_texture(generator, n) * _uniform(generator, n, 10, 30))[:, None] * (1 + _tints(generator, n) / 60)
    noise = generator.standard_normal([n, 3, SIZE, SIZE], np.float32)
    noise *= _uniform(generator, n, 4, 12)[:, None]
    images = ground + sign * step * masks[:, None] + texture + noise
    return np.clip(images, 0, 255).astype(np.uint8)


def _tints(generator, count):
    """Returns float32 [count, 3, 1, 1]: deviations of red, green and blue from grey."""
    return generator.uniform(-30, 30, [count, 3, 1, 1]).astype(np.float32)


def _texture(generator, count):
    """Returns float32 [count, 32, 32]: random fields with equal variance in each octave, as in natural images."""
    texture = np.zeros([count, SIZE, SIZE], np.float32)
    for cells in (2, 4, 8, 16):
        grid = generator.standard_normal([count, cells + 1, cells + 1], np.float32)
        place = (np.arange(SIZE, dtype=np.float32) + 0.5) * cells / SIZE
        first = place.astype(int)
        weight = place - first
        rows = grid[:, first] * (1 - weight)[:, None] + grid[:, first + 1] * weight[:, None]
        texture += rows[:, :, first] * (1 - weight) + rows[:, :, first + 1] * weight
    return texture


class _Shapes(Dataset):

    def make(self, folder):
        with new_folder(folder) as temporary:
            for part, seed in ((TRAIN, 1), (TEST, 2)):
                count = self.counts[part]
                labels, images = render(count, seed)
                rows = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
                write(temporary, part, count, map(bytes, rows))
            write_classes(temporary, self.classes)


SHAPES = _Shapes('shapes-bin', CLASSES, counts={TRAIN: 10_000, TEST: 2_000})
