"""Evaluates the checkpoints of a run, once or as they appear; or classifies images with its model, or exports it.

    cifar10-eval --run_once
    cifar10-eval --image cat.png dog.jpg
    cifar10-eval --export_dir=/tmp/models/cifar10/1
"""
import contextlib
import functools
import sys

from cifar10.base import console, signals, startup
from cifar10.programs import flags, program
from cifar10.settings.evaluation import GROUPS, eval_settings
from cifar10.training import api


def main() -> None:
    """Reads the flags, then evaluates until a signal comes, or once; or classifies pictures, or exports."""
    given = flags.parse(GROUPS, __doc__.splitlines()[0], sys.argv[1:])
    settings = eval_settings(**given)
    signals.Termination()
    if not (settings.image or settings.export_dir):
        api.evaluate(say=print, **{**given, 'run_once': settings.run_once})
        if not settings.run_once:
            console.say('stopped')
        return
    output = sys.stdout
    # Where JSON goes to standard output for a program to read, nothing else does, whoever prints it.
    with contextlib.redirect_stdout(sys.stderr if settings.json else output):
        # After the flags: TensorFlow takes seconds to import.
        startup.start_tensorflow()
        if settings.image:
            from cifar10.evaluation import classification
            classification.classify(settings, functools.partial(print, file=output))
        else:
            from cifar10.evaluation import export
            export.export(settings)


run = functools.partial(program.run, main)
