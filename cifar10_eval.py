#!/usr/bin/env python3
"""Evaluates the checkpoints of a training run: the newest, again and again or once.

    python cifar10_eval.py
"""
import sys

from cifar10.cli import flags, signals, terminal
from cifar10.config import EvalConfig


def main():
    """Reads the flags, then evaluates until a signal comes, or once."""
    config = flags.parse(EvalConfig, __doc__.splitlines()[0], sys.argv[1:])
    signals.Termination()
    terminal.start_tensorflow()
    # After the flags: TensorFlow takes seconds to import.
    from cifar10 import evaluation
    try:
        evaluation.evaluate(config)
    except KeyboardInterrupt:
        if config.run_once:
            raise
        print('stopped')  # the way in which watching is meant to end


def run():
    """Runs the script; returns the exit status."""
    return terminal.run(main)


if __name__ == '__main__':
    sys.exit(run())
