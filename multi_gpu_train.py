#!/usr/bin/env python3
"""Trains a CIFAR-10 network on several GPUs, one tower on each: flags -> TrainConfig -> training.

    python multi_gpu_train.py --num_gpus=4
"""
import sys

from cifar10 import console, flags
from cifar10.config import TrainConfig


def main():
    """Reads the flags, then trains."""
    config = flags.parse(TrainConfig, __doc__.splitlines()[0], sys.argv[1:])
    termination = console.Termination()
    console.start_tensorflow(verbose=config.log_device_placement)
    # After the flags: TensorFlow takes seconds to import.
    from cifar10 import training
    training.train(config, termination)


if __name__ == '__main__':
    sys.exit(console.run(main))
