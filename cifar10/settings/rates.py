"""Learning rates: the default of each optimizer, and which to try with more or fewer examples in a step.

This file needs no TensorFlow, because settings use it.
"""
from typing import NamedTuple


class Rates(NamedTuple):
    """Learning rates at the start of a run.

    Attributes:
      learning_rate: of all variables, or with an auxiliary rate of convolution filters only.
      auxiliary_learning_rate: of the other variables, for optimizers that distinguish them; None: the same.
      examples: how many examples a step has for which the rates were chosen.
    """
    learning_rate: float
    auxiliary_learning_rate: float | None = None
    examples: int = 128


# Each optimizer's, where a recipe has another optimizer. docs/benchmarks.md has figures.
DEFAULTS = {
    'sgd': Rates(0.1),  # the tutorial's
    'momentum': Rates(0.01),  # with momentum 0.9 gradients add up to ten times themselves
    'nesterov': Rates(0.01),
    'muon': Rates(0.02, 0.02),
    'adam': Rates(0.001),  # Kingma and Ba 2014
    'adamw': Rates(0.001)}

# How the rate follows the examples of a step: in proportion, unless the optimizer is one of these.
_BY_THE_ROOT = ('adam', 'adamw')
_AUXILIARY = ('muon',)

_WARM_UP_FROM = 4  # times the examples
_WARM_UP_EPOCHS = 5
_WARM_UP_FRACTION = 0.1  # of the run, at most


def to_try(optimizer: str, rates: Rates, examples: int, epochs: float) -> dict[str, float]:
    """Returns the settings to try, by their names, where a step has other examples than the rates were chosen for.

    The rates of gradient descent, with momentum or without, follow the examples in proportion, and where they become
    much larger, the rate rises from 0 over the first five epochs (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
    Adam's follow their square root (Malladi et al. 2022, https://arxiv.org/abs/2205.10287). Of Muon's rates only the
    auxiliary one follows them, in proportion: so it was in the runs of docs/fast.md, of 256 to 1,024 examples.

    Args:
      optimizer: its name.
      rates: its learning rates.
      examples: the examples of a step.
      epochs: the length of the run; at most a tenth of it warms up.
    """
    factor = examples / rates.examples
    if optimizer in _BY_THE_ROOT:
        return dict(learning_rate=rates.learning_rate * factor ** 0.5)
    if optimizer in _AUXILIARY:
        return dict(auxiliary_learning_rate=(rates.auxiliary_learning_rate or rates.learning_rate) * factor)
    settings = dict(learning_rate=rates.learning_rate * factor)
    if factor >= _WARM_UP_FROM:
        settings['warmup_epochs'] = min(_WARM_UP_EPOCHS, _WARM_UP_FRACTION * epochs)
    return settings
