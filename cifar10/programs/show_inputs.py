"""Plots the images that a run feeds its network, before and after augmentation, with the names of their classes.

    cifar10-show-inputs --out=inputs.png --preset=fast

Accepts all flags of the training, so those of a run can be repeated; `--help` shows the ones that matter here.
"""
import dataclasses
import functools
import sys

from cifar10.base import console, directories, startup
from cifar10.programs import flags, program
from cifar10.settings.definition import checked, setting
from cifar10.settings.training import GROUPS, train_settings


@dataclasses.dataclass(frozen=True)
class PlotSettings:
    """The file of the plot."""
    TITLE = 'Output'
    out: str = setting('inputs.png', 'PNG file to write; requires matplotlib', is_path=True)


def main() -> None:
    """Reads the flags and writes the plot."""
    often = ('out', 'dataset', 'data_dir', 'image_size', 'preset', 'augmentation', 'sizes', 'network', 'batch_size',
             'seed')
    given = flags.parse([PlotSettings, *GROUPS], __doc__, sys.argv[1:], often)
    out = checked([PlotSettings], dict(out=given.pop('out', PlotSettings.out)))['out']
    settings = train_settings(**given)
    directories.check_plot(out)
    startup.start_tensorflow()
    # After the flags: TensorFlow takes seconds to import.
    from cifar10.tools import show_inputs
    show_inputs.draw(out, show_inputs.inputs_of(settings))
    console.say('written', out)


run = functools.partial(program.run, main)
