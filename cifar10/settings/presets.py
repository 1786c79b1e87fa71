"""Defines the presets, named tables of matching settings, and the default learning rate of each optimizer."""
import re
from typing import Any, NamedTuple

from cifar10.base.errors import UsageError, shortened


class Rate(NamedTuple):
    """An initial learning rate, and the number of examples per step that it suits."""
    learning_rate: float
    examples: int = 128


# A flag overrides the entry of its name. `settings.training` explains each setting.
PRESETS: dict[str, dict[str, Any]] = {
    # The recipe of TensorFlow's CIFAR-10 tutorial.
    'classic': dict(
        network='classic', batch_size=128, max_steps=1000000, epochs=None,
        optimizer='sgd', learning_rate=0.1, schedule='staircase',
        warmup_epochs=0.0, clip_norm=0.0, augmentation='classic', sizes=None, loss='cross_entropy', label_smoothing=0.0,
        precision='fp32', moving_averages=True),
    # After the speed records on CIFAR-10, github.com/KellerJordan/cifar10-airbench; docs/measured.md has the figures.
    'fast': dict(
        network='fast', batch_size=512, max_steps=None, epochs=2.75,
        optimizer='muon', learning_rate=0.2, schedule='linear',
        warmup_epochs=0.0, clip_norm=0.0, augmentation='shift', sizes='20:0.5,28', loss='cross_entropy',
        label_smoothing=0.2, precision='auto', moving_averages=False),
    # For some hundred to some thousand photos; docs/measured.md has the figures.
    'photos': dict(
        network='photos', batch_size=32, max_steps=None, epochs=30.0,
        optimizer='adamw', learning_rate=0.001, schedule='cosine',
        warmup_epochs=1.0, clip_norm=1.0, augmentation='classic', sizes=None, loss='cross_entropy', label_smoothing=0.1,
        precision='auto', moving_averages=False, image_size=128, save_steps=200, eval_steps=200, keep_best=True)}

# The default preset, with its name.
CLASSIC = dict(PRESETS['classic'], preset='classic')

# The rate of each optimizer in a recipe for a different one. docs/measured.md has figures.
RATES = {
    'sgd': Rate(0.1),  # the tutorial's
    'momentum': Rate(0.01),  # with momentum 0.9, equal gradients add up to ten times one
    'nesterov': Rate(0.01),
    'muon': Rate(0.02),
    'adam': Rate(0.001),  # Kingma and Ba 2014
    'adamw': Rate(0.001)}

# Images larger than this get the usual augmentation for large images, unless the user sets it or a preset.
SMALL_IMAGE = 64
OF_LARGE_IMAGES = dict(augmentation='resized_crop')

# On rendered shapes, the first features that help are common to all classes. Without clipping, steps of the tutorial's
# rate of 0.1 overshoot there, and the loss rises above its start. Figures are in note b of benchmarks/README.md.
ON_SHAPES = dict(dataset='shapes', network='classic', optimizer='sgd')
OF_SHAPES = dict(clip_norm=1.5)

BALANCED, UNWEIGHTED = 'balanced', 'none'  # class weights that weigh classes equally, or images
_WEIGHT = re.compile(r'\d{1,9}(\.\d{1,9})?')
_SIZES = re.compile(r'([1-9]\d{1,2}:(0?\.\d+),){0,7}[1-9]\d{1,2}')
_SMALLEST = 12
LARGEST_IMAGE = 512  # height and width in pixels
_SCALE = 32  # image size of the presets' sizes


def default_rate(preset: str, optimizer: str) -> Rate:
    """Returns the default learning rate of a run: the preset's for its own optimizer, else the optimizer's."""
    table = PRESETS[preset]
    if optimizer == table['optimizer']:
        return Rate(table['learning_rate'], table['batch_size'])
    return RATES[optimizer]


def muon_ratio(preset: str) -> float:
    """Returns Muon's ratio of the learning rate of other variables to that for convolution filters."""
    return 3.75 if preset == 'fast' else 1.0


def parse_class_weights(text: str) -> dict[str, float]:
    """Parses class weights, such as 'cat=2,dog=1', to a dict by class name; {} if the text names none."""
    if text in (BALANCED, UNWEIGHTED):
        return {}
    pairs = [entry.rpartition('=') for entry in text.split(',')]
    weights = {name: float(weight) for name, _, weight in pairs if name and _WEIGHT.fullmatch(weight)}
    if len(weights) < len(pairs) or not all(weights.values()):
        raise UsageError(f'--class_weights={shortened(text)} is not valid; give balanced, none, or the names of '
                         'classes with weights above 0, such as cat=2,dog=1')
    return weights


def parse_sizes(text: str) -> list[tuple[float, int]]:
    """Parses image sizes to a list of (start as a fraction of the run, size in pixels).

    Args:
      text: such as '20:0.3,24:0.3,32': 20 pixels for three tenths of the run, then 24 for as long, then 32.
    """
    if not _SIZES.fullmatch(text):
        raise UsageError(f'--sizes={shortened(text)} is not valid; give sizes in pixels, each but the last with its '
                         'fraction of the run, such as 20:0.3,24:0.3,32')
    *entries, last = text.split(',')
    sizes = []
    begin = 0.0
    for entry in entries:
        size, fraction = entry.split(':')
        sizes.append((begin, int(size)))
        begin += float(fraction)
    sizes.append((begin, int(last)))
    for _, pixels in sizes:
        if not _SMALLEST <= pixels <= LARGEST_IMAGE:
            raise UsageError(f'--sizes={text} has a size of {pixels} pixels; use {_SMALLEST} to {LARGEST_IMAGE}')
    if begin >= 1:
        raise UsageError(f'--sizes={text}: the fractions add up to 1 or more, which leaves nothing for the last size; '
                         'give smaller ones')
    return sizes


def scaled_sizes(text: str, image_size: int) -> str:
    """Scales the sizes of a preset, which are for images of 32 pixels, to other images.

    Args:
      text: as for `parse_sizes`.
      image_size: height and width in pixels of the images before augmentation.
    """
    def scaled(size):
        return str(max(int(size) * image_size // _SCALE, _SMALLEST))
    entries = [entry.partition(':') for entry in text.split(',')]
    return ','.join(scaled(size) + colon + fraction for size, colon, fraction in entries)
