#!/usr/bin/env python3
"""Trains a CIFAR-10 network in towers on one or more GPUs: `cifar10-train` under the name of the tutorial's script.

    python multi_gpu_train.py --num_gpus=4
"""
import importlib.util
import sys

if __name__ == '__main__':
    package = importlib.util.find_spec('cifar10')
    if package and not package.submodule_search_locations:  # a copy of this script beside the tutorial's file
        print(f'multi_gpu_train.py: error: {package.origin} hides the package cifar10, which this script imports; '
              'run cifar10-train instead of this copy, or run the script in another folder', file=sys.stderr)
        sys.exit(2)
    from cifar10.programs.train import run
    sys.exit(run())
