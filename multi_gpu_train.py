#!/usr/bin/env python3
"""Trains a CIFAR-10 network in towers on one or more GPUs; resumes the run in train_dir if there is one.

    python multi_gpu_train.py --num_gpus=4
"""
import sys

from cifar10 import console, signals
from cifar10.cli import flags, program
from cifar10.cluster import membership
from cifar10.config import TrainConfig
from cifar10.registry import UPDATE_MODES


def main():
    """Reads the flags, then trains; as a task of a cluster, if they or the environment describe one."""
    config = flags.parse(TrainConfig, __doc__.splitlines()[0], sys.argv[1:])
    termination = signals.Termination()
    if config.check:
        console.start_tensorflow()
        from cifar10.cli import check
        return check.check(config)
    found = membership.resolve(config)
    console.start_tensorflow(verbose=config.log_device_placement)
    # After the flags: TensorFlow takes seconds to import.
    from cifar10 import training
    if found is None:
        training.train(config, termination)
    else:
        train_in(found, config, termination)


def train_in(found, config, termination):
    """Takes part in training over a cluster: as its chief, or as a server of towers or variables."""
    from cifar10 import preparation, training
    from cifar10.cluster import member
    from cifar10.data import records
    from cifar10.parallel import devices
    local, files = devices.NONE, ()
    if found.job == 'worker':
        local = preparation.local_devices(config)
        files = records.prepare(config.dataset, config.data_dir, test_fraction=config.test_fraction).files
    member.take_part(found, local, lambda *arguments: training.train(config, termination, *arguments),
                     config.cluster_timeout_secs, UPDATE_MODES.load(config.variable_update).recovers, files,
                     termination)


def run():
    """Runs the script; returns the exit status."""
    return program.run(main)


if __name__ == '__main__':
    sys.exit(run())
