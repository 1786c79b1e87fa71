"""Trains a network in towers on one or more GPUs; resumes the run in train_dir if there is one.

    cifar10-train --num_gpus=4
    cifar10-train --preset=fast --train_dir=/tmp/fast
    cifar10-train --dataset=PHOTOS/ --check
"""
import functools
import sys

from cifar10.base import plots, signals, startup
from cifar10.base.console import say
from cifar10.programs import flags, program
from cifar10.settings.training import GROUPS
from cifar10.training import api
from cifar10.training.continued import settings_of

# The flags that `--help` shows.
_OFTEN = ('train_dir', 'dataset', 'preset', 'epochs', 'num_gpus', 'batch_size', 'learning_rate', 'eval_steps', 'check',
          'restart')


def main() -> int:
    """Reads the flags, then trains, or says what a run would do or where the time of a step goes."""
    given = flags.parse(GROUPS, __doc__, sys.argv[1:], _OFTEN)
    settings, lines = settings_of(given)
    termination = signals.Termination()
    if settings.run.plot:
        plots.check_plot(settings.run.plot)
    if settings.run.check or settings.run.explain:
        for line in lines:
            say(line)
    # After the flags: TensorFlow takes seconds to import.
    if settings.run.check:
        startup.start_tensorflow()
        from cifar10.tools import check
        check.check(settings)
    elif settings.run.explain:
        startup.start_tensorflow(verbose=settings.reports.log_device_placement)
        from cifar10.tools.explain.program import explain
        api.take_part(settings, termination, explain)
    else:
        result = api.train(say=print, termination=termination, **given)
        if result and not result.finished:
            return program.STOPPED if termination.requested else program.UNREAD
    return program.FINISHED


run = functools.partial(program.run, main)
