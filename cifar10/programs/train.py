"""Trains a network in towers on one or more GPUs; resumes the run in train_dir if there is one.

    cifar10-train --num_gpus=4
    cifar10-train --preset=fast --train_dir=/tmp/fast
    cifar10-train --preset=photos --dataset=PHOTOS/
"""
import functools
import sys

from cifar10.base import console, signals, startup
from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.base.stuck import StuckWatch
from cifar10.programs import flags, program
from cifar10.settings.training import GROUPS
from cifar10.training import api
from cifar10.training.resolved import resolve

# The flags that `--help` shows.
_OFTEN = ('train_dir', 'dataset', 'preset', 'network', 'epochs', 'learning_rate', 'num_gpus', 'batch_size',
          'tower_device', 'check')


def main() -> int:
    """Reads the flags, then trains, or reports the plan of a run or the timing of a step."""
    given = flags.parse(GROUPS, __doc__, sys.argv[1:], _OFTEN)
    termination = signals.Termination()
    with signals.interrupts():
        if given.get('check') or given.get('explain'):
            _report(given)
            return program.FINISHED
        result = api.train(say=console.print_line, termination=termination, **given)
    if result and not result.finished:
        return program.STOPPED if termination.was_requested else program.UNREAD
    return program.FINISHED


def _report(given):
    settings, lines = resolve(given)
    with StuckWatch(settings.run.stuck_secs), doing('start', OF_FIRST_STEP):
        startup.start_tensorflow(verbose=settings.reports.log_device_placement)
        console.say_all(lines)
        if settings.run.check:
            from cifar10.tools.check import check
            check(settings)
        else:
            from cifar10.tools.explain import explain
            cluster = api.cluster_of(settings)
            explain(settings) if cluster is None else api.take_part(cluster, settings, None, explain)


run = functools.partial(program.run, main, to_end=True)
