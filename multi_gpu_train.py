#!/usr/bin/env python3
"""Trains a CIFAR-10 network in towers on one or more GPUs; resumes the run in train_dir if there is one.

    python multi_gpu_train.py --num_gpus=4
"""
import sys

from cifar10 import console, signals
from cifar10.cli import flags, plots, program
from cifar10.cluster import membership
from cifar10.registry import UPDATE_MODES
from cifar10.settings.training import GROUPS, train_settings


def main():
    """Reads the flags, then trains; as a task of a cluster, if they or the environment describe one."""
    settings = train_settings(**flags.parse(GROUPS, __doc__.splitlines()[0], sys.argv[1:]))
    if settings.run.plot:
        plots.check_plot(settings.run.plot)
    termination = signals.Termination()
    if settings.run.check:
        console.start_tensorflow()
        from cifar10.cli import check
        return check.check(settings)
    cluster = membership.resolve(settings.cluster)
    console.start_tensorflow(verbose=settings.reports.log_device_placement)
    train = _train_function(settings)
    if cluster is None:
        train(settings, termination)
    else:
        train_in(cluster, settings, termination, train)


def _train_function(settings):
    """Returns what trains with the settings, or measures how it would."""
    # After the flags: TensorFlow takes seconds to import.
    if settings.run.explain:
        from cifar10.explain.program import explain
        return explain
    from cifar10 import training
    return training.train


def train_in(cluster, settings, termination, train):
    """Takes part in a cluster: as its chief, which calls `train`, or as a server of towers or variables."""
    import tensorflow as tf

    from cifar10 import plan
    from cifar10.cluster import member
    from cifar10.data import records
    from cifar10.parallel import devices
    plan.check_cluster(cluster, settings.towers)
    if settings.towers.deterministic:  # in every process, because an operation's kernel runs where its device is
        tf.config.experimental.enable_op_determinism()
    local, files = devices.NONE, ()
    if cluster.job == 'worker':
        plan.check_network(plan.Start(settings))
        local = plan.local_devices(settings.towers)
        files = records.prepare(
            settings.data.dataset, settings.data.data_dir, test_fraction=settings.data.test_fraction).files
    member.take_part(cluster, local, lambda *given: train(settings, termination, *given),
                     settings.cluster.cluster_timeout_secs,
                     UPDATE_MODES.load(settings.towers.variable_update).recovers, files, termination)


def run():
    """Runs the script; returns the exit status."""
    return program.run(main)


if __name__ == '__main__':
    sys.exit(run())
