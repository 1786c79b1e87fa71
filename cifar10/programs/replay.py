"""Replays a step of a run, in memory, and shows what happened in it: losses, gradients, updates, examples.

    cifar10-replay --train_dir=DIR --step=7020
    cifar10-replay --train_dir=DIR --against=DIR2

It starts from the newest checkpoint before the step. Nothing in the train_dir is changed. With --against it replays
nothing, and shows where the records of two runs diverge.
"""
import functools
import sys

from cifar10.base import startup
from cifar10.base.directories import warn_of_others
from cifar10.programs import flags, program
from cifar10.settings.replay import ReplaySettings, replay_settings


def main() -> None:
    """Reads the flags, then replays, or compares the records of two runs."""
    settings = replay_settings(**flags.parse([ReplaySettings], __doc__, sys.argv[1:]))
    warn_of_others(settings.train_dir, f'--train_dir={settings.train_dir}')
    if settings.against is not None:
        warn_of_others(settings.against, f'--against={settings.against}')
    startup.start_tensorflow()
    # After the flags: TensorFlow takes seconds to import.
    from cifar10.tools.replay.program import replay
    replay(settings)


run = functools.partial(program.run, main)
