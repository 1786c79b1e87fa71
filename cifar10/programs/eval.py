"""Evaluates the checkpoints of a run, once or as they appear; or classifies images with its model, or exports it.

    cifar10-eval --run_once
    cifar10-eval --image cat.png dog.jpg
    cifar10-eval --export_dir=/tmp/models/cifar10/1
"""
import functools
import json
import sys

from cifar10.base import console, signals, startup
from cifar10.programs import flags, program
from cifar10.settings.evaluation import GROUPS, eval_settings
from cifar10.training import api

# The flags that `--help` shows.
_OFTEN = ('train_dir', 'checkpoint', 'run_once', 'per_class', 'image', 'export_dir', 'data_dir', 'eval_data',
          'tower_device')


def main() -> None:
    """Reads the flags, then evaluates until a signal comes, or once; or classifies pictures, or exports."""
    given = flags.parse(GROUPS, __doc__, sys.argv[1:], _OFTEN)
    settings = eval_settings(**given)
    with signals.interrupts(), program.stdout_for_json(settings.json) as output:
        show = functools.partial(print, file=output)
        # After the flags: TensorFlow takes seconds to import.
        if settings.image:
            startup.start_tensorflow()
            from cifar10.evaluation import classification
            classification.classify(settings, show)
        elif settings.csv:
            startup.start_tensorflow()
            from cifar10.evaluation import batches
            batches.write_csv(settings)
        elif settings.export_dir:
            startup.start_tensorflow()
            from cifar10.evaluation import export
            export.export(settings)
        else:
            on_record = (lambda record: show(json.dumps(record))) if settings.json else None
            api.evaluate(say=print, on_record=on_record, **{**given, 'json': False, 'run_once': settings.run_once})
            if not settings.run_once:
                console.say('', 'stopped')


run = functools.partial(program.run, main, to_end=True)
