"""Trains a network in towers on one or more GPUs; resumes the run in train_dir if there is one.

    cifar10-train --num_gpus=4
    cifar10-train --preset=fast --train_dir=/tmp/fast
    cifar10-train --preset=photos --dataset=PHOTOS/
"""
import collections
import contextlib
import dataclasses
import functools
import json
import sys

from cifar10.base import console, signals, startup
from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.base.errors import UsageError
from cifar10.base.stuck import StuckWatch
from cifar10.programs import flags, program
from cifar10.settings.definition import setting
from cifar10.settings.training import GROUPS
from cifar10.training import api
from cifar10.training.resumed import settings_of

# The flags that `--help` shows.
_OFTEN = ('train_dir', 'dataset', 'data_dir', 'preset', 'max_steps', 'num_gpus', 'batch_size', 'eval_steps',
          'check', 'restart')


@dataclasses.dataclass(frozen=True)
class OutputSettings:
    """The form of what is printed."""
    TITLE = 'Output'
    json: bool = setting(False, 'print what --check finds as one JSON object')


def main() -> int:
    """Reads the flags, then trains, or reports what a run would do or where the time of a step goes."""
    given = flags.parse([*GROUPS, OutputSettings], __doc__, sys.argv[1:], _OFTEN)
    as_json = given.pop('json', False)
    if given.get('check'):
        _check_as_json(given) if as_json else _check(given)
        return program.FINISHED
    if as_json:
        raise UsageError('--json is for --check only; leave it out (metrics.jsonl in the train_dir has the '
                         'figures of a run)')
    if given.get('explain'):
        _explain(given)
        return program.FINISHED
    termination = signals.Termination()
    result = api.train(say=print, termination=termination, **given)
    if result and not result.finished:
        return program.STOPPED if termination.requested else program.UNREAD
    return program.FINISHED


def _explain(given):
    """Reports where the time of a step goes."""
    with _started(given, 'while it explains') as (settings, termination):
        from cifar10.tools.explain import explain
        api.take_part(settings, termination, explain)


def _check(given):
    """Reports what a run with some settings would do."""
    with _started(given, 'in the check') as (settings, _):
        from cifar10.tools.check import check
        check(settings)


@contextlib.contextmanager
def _started(given, what):
    """Context with the settings of a start that trains nothing, and what handles its signals; TensorFlow is started."""
    settings, lines = settings_of(given)
    termination = signals.Termination()
    with StuckWatch(settings.run.stuck_secs), doing(what, OF_FIRST_STEP):
        startup.start_tensorflow(verbose=settings.reports.log_device_placement)
        console.say_all(lines)
        yield settings, termination


def _check_as_json(given):
    """Prints the lines of a check as JSON: the texts in lists, by their words."""
    texts, problem = collections.defaultdict(list), None
    with program.stdout_for_json(True) as output:
        try:
            with console.Output(lambda line: texts[line.word].append(line.text)).used():
                _check(given)
        except UsageError as error:
            problem = error
            if 'problem' not in texts:  # a setting is wrong, so nothing was checked
                texts['problem'].append(str(error))
        output.write(json.dumps(dict(ready=problem is None, lines=texts)) + '\n')
    if problem:
        raise problem


run = functools.partial(program.run, main)
