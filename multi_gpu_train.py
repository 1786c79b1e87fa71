#!/usr/bin/env python3
"""Trains a CIFAR-10 network in towers on one or more GPUs: `cifar10-train`, by the name of the tutorial's script.

    python multi_gpu_train.py --num_gpus=4
"""
import sys

from cifar10.programs.train import run

if __name__ == '__main__':
    sys.exit(run())
