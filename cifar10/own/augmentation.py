"""A user's own augmentation: a function in a Python file that changes the images of a training batch, and their labels.

    def augmentation(images, labels, num_classes):  # float32 [n, height, width, 3] from 0 to 255, int32 [n]
        ...
        return images, labels  # which may be fractions of classes, float32 [n, num_classes]

It follows a built-in augmentation, which has cut the images and mirrored them, and comes before they are normalised. It
is never called for a tower: each gets a copy.
"""
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.base.graphs import cpu_session, place_of, seeded_graph
from cifar10.base.registry import AUGMENTATIONS
from cifar10.model import network_draws
from cifar10.own import code
from cifar10.own.call import phrase
from cifar10.own.code import BrokenRule
from cifar10.own.copied import copied_here
from cifar10.own.network import built, draws_others, traced_once

_FLAG = 'augmentation'
_IMAGES = 8  # in the whole batch of `check`
_ROUNDING = 1e-3


def augmentation(name: str) -> Callable:
    """Imports the function that 'NAME,FILE.py:FUNCTION' names; returns what makes the Augmentation that it follows."""
    built_in, own = AUGMENTATIONS.divided(name)
    if own.count('.py:') > 1:
        raise UsageError(f'--{_FLAG}={name} names several functions; give one, and call the others in it')
    function = code.function(_FLAG, own, 'images, labels, num_classes', each_time=True)
    return functools.partial(AUGMENTATIONS.load(built_in), then=functools.partial(_changed, own, function))


def _changed(name, function, images, labels, num_classes):
    """Builds a copy of the function in a tower; returns (images, labels)."""
    def call(images, labels):
        place = network_draws.current_seed(), network_draws.current_position()
        with network_draws.at_position(*place, first_draw=network_draws.OF_AUGMENTATIONS):
            return function(images, labels, num_classes)

    inputs = dict(images=images, labels=labels)
    with code.usage_errors(_FLAG, name), tf.name_scope('augmentation'):
        traced = traced_once(call, inputs, True, functools.partial(_check, images, labels, num_classes),
                             code.traced(name))
        if traced.variables:
            first = traced.variables[0].name
            raise BrokenRule(f'it makes the variable {first}, which nothing trains or saves; use constants')
        changed, classes = built(traced, inputs)
        return changed, classes if classes.shape.rank == 2 else tf.cast(classes, tf.int32)


def _check(images, labels, num_classes, found):
    """Raises a BrokenRule if a function has returned something other than images and labels."""
    form = (f'return images, labels: float [n, {images.shape[1] or "height"}, {images.shape[2] or "width"}, 3] and int '
            f'[n] or float [n, {num_classes}]')
    is_pair = isinstance(found, (tuple, list)) and len(found) == 2
    if not is_pair or not all(isinstance(each, tf.Tensor) for each in found):
        raise BrokenRule(f'it returns {phrase(found)}; {form}')
    changed, classes = found
    if not changed.dtype.is_floating or not changed.shape.is_compatible_with(images.shape):
        raise BrokenRule(f'its images are {phrase(changed)}{place_of(changed.op.name)}; {form}')
    is_class = classes.dtype.is_integer and classes.shape.is_compatible_with(labels.shape)
    soft = labels.shape[:1].concatenate(num_classes)
    if not is_class and not (classes.dtype.is_floating and classes.shape.is_compatible_with(soft)):
        raise BrokenRule(f'its labels are {phrase(classes)}{place_of(classes.op.name)}; {form}')


def check(name: str, augment: Callable, sizes: Sequence[int], num_classes: int, seed: int) -> list[str]:
    """Raises a UsageError if an augmentation breaks a rule; returns warnings. It is tried on random images.

    Args:
      name: 'NAME,FILE.py:FUNCTION'.
      augment: function (images, labels) -> (images, labels), which builds a copy, normalised.
      sizes: the heights and widths of the images in the course of a run.
      num_classes: of the data set.
      seed: of the run.
    """
    _, own = AUGMENTATIONS.divided(name)
    with code.usage_errors(_FLAG, own), seeded_graph(seed) as graph:
        first = tf.placeholder(tf.int64, [])
        side = sizes[0] if len(sizes) == 1 else None
        fed = []
        for count in (_IMAGES, _IMAGES // 2):
            images = tf.placeholder(tf.float32, [count, side, side, 3])
            labels = tf.placeholder(tf.int32, [count])
            with network_draws.at_position(seed, first):
                fed.append((images, labels, augment(images, labels)))
        draws = draws_others(copied_here()[0]) or 'it draws other random numbers after a resume' * code.draws(own)
        warning = f'{draws}; cifar10.model.uniform_like(images[:, 0, 0, 0]) draws the same' if draws else ''
        if not warning and _depends_on_others(graph, first, fed, sizes[0], num_classes):
            warning = ('what it makes of an image depends on the other images of the batch of a tower, as in mixup, so '
                       'another number of towers trains on other images')
    return [Line('warning', f'--{_FLAG}={name}: {warning}')] if warning else []


def _depends_on_others(graph, first, fed, size, num_classes):
    """Returns whether half of a batch becomes something else beside the other half than alone.

    Args:
      first: the position of a batch, a placeholder.
      fed: for a batch and for half of one: (images, labels, what becomes of them), the first two placeholders.
    """
    random = np.random.default_rng(0)
    pixels = random.uniform(0, 255, [_IMAGES, size, size, 3]).astype(np.float32)
    classes = random.integers(0, num_classes, _IMAGES)

    def compute(session, part, start, images, labels, changed):
        return session.run(changed, {images: pixels[part], labels: classes[part], first: start})
    try:
        with cpu_session(graph) as session:
            whole = compute(session, slice(None), 0, *fed[0])
            one, other = (compute(session, part, part.start, *fed[1]) for part in (
                slice(0, _IMAGES // 2), slice(_IMAGES // 2, _IMAGES)))
    except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
        return False
    return any(np.abs(together - np.concatenate(halves)).max() > _ROUNDING * np.abs(together).max()
               for together, *halves in zip(whole, one, other))
