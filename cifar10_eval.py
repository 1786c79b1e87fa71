#!/usr/bin/env python3
"""Evaluates the checkpoints of a run: `cifar10-eval` under the name of the tutorial's script.

    python cifar10_eval.py
"""
import importlib.util
import sys

if __name__ == '__main__':
    package = importlib.util.find_spec('cifar10')
    if package and not package.submodule_search_locations:  # a copy of this script beside the tutorial's file
        print(f'cifar10_eval.py: error: {package.origin} hides the package cifar10, which this script imports; '
              'run cifar10-eval instead of this copy, or run the script in another folder', file=sys.stderr)
        sys.exit(2)
    from cifar10.programs.eval import run
    sys.exit(run())
