"""`--check`: starts a training in memory and takes its first step; writes nothing, and stops at the first problem."""

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import say, say_all
from cifar10.base.startup import numerics, versions
from cifar10.run import failures, takeover
from cifar10.settings.training import TrainSettings, flags_of
from cifar10.training import api, decisions
from cifar10.training.description import advise, describe, describe_run
from cifar10.training.plan import Plan
from cifar10.training.run import Run
from cifar10.training.soundness import Soundness
from cifar10.training.start import prepared
from cifar10.training.trainer import check_built, validation_of


def check(settings: TrainSettings) -> None:
    """Prints the plan of a run and takes its first step; raises the errors that the run would raise.

    If the run needs other tasks of a cluster, or unprepared images, the check ends before it builds the graph.
    """
    say('settings', f"{' '.join(flags_of(settings)) or 'none'}; all others have their defaults")
    found = {**versions(on_gpus=bool(tf.config.list_physical_devices('GPU'))), **numerics()}
    say('versions', ', '.join(f'{name} {value}' for name, value in found.items()))
    cluster = api.cluster_of(settings)
    if cluster:
        say_all(cluster.describe())
        cluster.own_addresses(limit=0)
        if not cluster.is_chief:
            return
    with failures.plain_errors():
        devices, images, lines = prepared(settings, makes_images=False)
        say_all(lines)
        if cluster:
            devices = devices.spread(len(cluster.workers), len(cluster.ps))
        plan, lines = decisions.plan(settings, devices, images, compares=True)
        say_all([*lines, *describe(plan), *advise(plan, settings), *describe_run(plan)])
        if takeover.sets_aside(plan.folder, settings):
            say('restart', f'the folder {plan.folder.path} would be renamed')
        if plan.ended:
            say('ended', 'without --check, nothing would run')
        elif cluster or not plan.source.is_made:
            why = 'it needs all tasks of the cluster' if cluster else 'the images are not prepared yet'
            say('not tried', f'the first step, because {why}')
        else:
            _take_first_step(plan)
            say('ready', 'without --check, the run would start')


def _take_first_step(plan: Plan) -> None:
    run = Run(plan._replace(restored=None))
    check_built(run, plan)
    if validation := validation_of(plan):
        validation.session.close()
    soundness = Soundness(run)
    with run.opened(plan.restored.values if plan.restored else None):
        soundness.begin()
        losses = run.take()['losses']
        failures.refuse_divergence(run.step, losses, plan.folder.path)
        soundness.check()
    say('tried', f'step {run.step}, loss {np.mean(losses):.4g}, in memory; files and later steps were not tried')
