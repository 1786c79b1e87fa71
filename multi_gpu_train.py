#!/usr/bin/env python3
"""Trains a CIFAR-10 network on several GPUs, one tower on each: flags -> TrainConfig -> training.

    python multi_gpu_train.py --num_gpus=4
"""
import sys

from cifar10 import console, flags, membership
from cifar10.config import TrainConfig
from cifar10.console import UsageError


def main():
    """Reads the flags, then trains; as a task of a cluster, if they or TF_CONFIG describe one."""
    config = flags.parse(TrainConfig, __doc__.splitlines()[0], sys.argv[1:])
    termination = console.Termination()
    found = membership.resolve(config)
    if found and config.variable_update == 'mirrored':
        raise UsageError('--variable_update=mirrored is of one machine; use parameter_server, replicated or async')
    console.start_tensorflow(verbose=config.log_device_placement)
    # After the flags: TensorFlow takes seconds to import.
    from cifar10 import training
    if found is None:
        training.train(config, termination)
    else:
        train_in(found, config, termination)


def train_in(found, config, termination):
    """Takes part in training over a cluster: as its chief, or as a server of towers or variables."""
    from cifar10 import devices, member, modes, records, training
    local, files = None, ()
    if found.job == 'worker':
        local = devices.choose(config.num_gpus, config.tower_device, config.gpus_per_tower)
        files = records.find(config.dataset, config.data_dir).files
    member.take_part(found, local, lambda *towers: training.train(config, termination, *towers),
                     config.cluster_timeout_secs, modes.MODES[config.variable_update].recovers, files, termination)


if __name__ == '__main__':
    sys.exit(console.run(main))
