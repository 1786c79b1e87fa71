#!/usr/bin/env python3
"""Evaluates the checkpoints of a run: `cifar10-eval`, by the name of the tutorial's script.

    python cifar10_eval.py
"""
import sys

from cifar10.programs.eval import run

if __name__ == '__main__':
    sys.exit(run())
