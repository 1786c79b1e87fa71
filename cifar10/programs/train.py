"""Trains a network in towers on one or more GPUs; resumes the run in train_dir if there is one.

    cifar10-train --num_gpus=4
    cifar10-train --preset=fast --train_dir=/tmp/fast
    cifar10-train --preset=photos --dataset=PHOTOS/
"""
import contextlib
import dataclasses
import functools
import json
import sys

from cifar10.base import console, plots, signals, startup
from cifar10.base.errors import UsageError
from cifar10.programs import flags, program
from cifar10.settings.definition import setting
from cifar10.settings.training import GROUPS
from cifar10.training import api
from cifar10.training.continued import settings_of

# The flags that `--help` shows.
_OFTEN = ('train_dir', 'dataset', 'preset', 'epochs', 'num_gpus', 'batch_size', 'learning_rate', 'eval_steps', 'check',
          'restart')


@dataclasses.dataclass(frozen=True)
class OutputSettings:
    """The form of what is printed."""
    TITLE = 'Output'
    json: bool = setting(False, 'print what --check finds as one JSON object')


def main() -> int:
    """Reads the flags, then trains, or says what a run would do or where the time of a step goes."""
    given = flags.parse([*GROUPS, OutputSettings], __doc__, sys.argv[1:], _OFTEN)
    as_json = given.pop('json', False)
    if as_json and not given.get('check'):
        raise UsageError('--json is for --check; metrics.jsonl in the train_dir has the figures of a run')
    settings, lines = settings_of(given)
    termination = signals.Termination()
    if settings.run.plot:
        plots.check_plot(settings.run.plot)
    # After the flags: TensorFlow takes seconds to import.
    if settings.run.check:
        _check(settings, lines, as_json)
    elif settings.run.explain:
        startup.start_tensorflow(verbose=settings.reports.log_device_placement)
        from cifar10.tools.explain.program import explain
        console.say_all(lines)
        api.take_part(settings, termination, explain)
    else:
        result = api.train(say=print, termination=termination, **given)
        if result and not result.finished:
            return program.STOPPED if termination.requested else program.UNREAD
    return program.FINISHED


def _check(settings, lines, as_json):
    """Says the lines, and what a run would do; or prints them as JSON, in lists, by the words that they begin with."""
    startup.start_tensorflow()
    from cifar10.tools import check
    if not as_json:
        console.say_all(lines)
        check.check(settings)
        return
    output, said, problem = sys.stdout, [*lines], None
    with contextlib.redirect_stdout(sys.stderr), console.Output(said.append).used():
        try:
            check.check(settings)
        except UsageError as error:
            problem = error
    found, word = {}, ''
    for line in said:
        first, _, text = line.partition(' ')
        word = first or word  # a line that is continued begins with spaces
        found.setdefault(word, []).append(text.strip())
    output.write(json.dumps(dict(ready=problem is None, lines=found)) + '\n')
    if problem:
        raise problem


run = functools.partial(program.run, main)
