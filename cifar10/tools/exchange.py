"""Tries how the GPUs of a run exchange gradients, with numbers whose mean is known, and whether they compute the same.

Where GPUs cannot reach each other, a collective does not fail: it hangs, and keeps its process. So `--check` tries it
in a process of its own, `python -m cifar10.tools.exchange`, before it uses a GPU itself.
"""
import json
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np

from cifar10.base import console, startup
from cifar10.base.errors import UsageError, listed
from cifar10.settings.training import TrainSettings, completed

_SIZE = 1 << 20  # numbers of a tower
_LIMIT_SECS = 60
_DIFFERENCE = 0.05  # of the norm of a gradient: far above rounding, in any precision


def refuse_broken(settings: TrainSettings) -> None:
    """Raises a UsageError if the GPUs of a run do not exchange gradients rightly, or do not answer."""
    process = subprocess.Popen([sys.executable, '-m', __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(json.dumps(settings.flat()), _LIMIT_SECS)
    except subprocess.TimeoutExpired:
        process.kill()  # nobody waits for its end: the kernel may hold it
        raise UsageError(
            f'the GPUs have not exchanged gradients within {_LIMIT_SECS} s; set NCCL_P2P_DISABLE=1 (their machine may '
            'keep them from each other) or NCCL_SOCKET_IFNAME (a network interface), or use '
            '--variable_update=parameter_server, which needs no NCCL') from None
    if process.returncode:
        raise UsageError(f"the GPUs cannot exchange gradients: {(errors.splitlines() or ['no reason'])[-1]}")
    if problem := output.strip():
        raise UsageError(f'{problem}; leave that GPU out, and test it')


class _Exchange(NamedTuple):
    """A step on known numbers, for `Run`; and what to look at then: (device, tensor, its expected value)."""
    step: Any
    looks: list
    initialise: Any
    start_inputs: Any
    average: Any = None


def _build(plan, learnt):
    """Builds towers whose gradients are known numbers, and their update, which adds what became of them to 0."""
    import tensorflow.compat.v1 as tf
    del learnt
    numbers = [(np.arange(_SIZE) % 1000 + 7 * k).astype(np.float32) for k in range(plan.devices.num_towers)]

    def tower(k, scope):
        del scope
        variable = tf.get_variable('exchanged', [_SIZE], initializer=tf.zeros_initializer())
        return dict(total_loss=tf.reduce_sum(variable * numbers[k]))
    step = plan.mode.build(tower, lambda: tf.train.GradientDescentOptimizer(-1.0),
                           tf.train.get_or_create_global_step())
    sum_or_mean = np.mean(numbers, 0) if plan.mode.synchronous else np.sum(numbers, 0)
    # As the towers have computed them, where the mode tells; then what became of them, in each copy or the only one.
    devices = plan.devices.tower_devices
    looks = [(device, turn[0], number) for device, turn, number in zip(
        devices, step.turns.computed if step.turns else (), numbers)]
    copies = [variable for copy in plan.mode.copied() for variable in copy if 'exchanged' in variable.name]
    looks += [(device, variable.read_value(), sum_or_mean)
              for device, variable in (zip(devices, copies) if copies else [('/cpu:0', step.gradients[0][1])])]
    return _Exchange(step, looks, tf.global_variables_initializer(), tf.local_variables_initializer())


def _problem(settings):
    """Returns what is wrong with the devices of a run; '' if nothing is."""
    from cifar10.training import start, trainer
    begun = trainer.prepared(settings)
    start.decide(begun)
    for phrase, look in (('gradients that were exchanged are wrong on', _of_exchange),
                         ('for one batch, a gradient is another than on the first GPU on', _of_computing)):
        if wrong := look(begun.plan):
            return f'{phrase} {listed(list(dict.fromkeys(wrong)))}'
    return ''


def _of_exchange(plan):
    """Returns the names of the devices on which known numbers went wrong in a step."""
    from cifar10.training.run import Run
    run = Run(plan, is_new=False, build=_build)
    with run.opened():
        step = run.graph.step
        run.session.run(step.train_ops)
        if step.average:
            run.session.run(step.average.equalise)
        found = run.session.run([tensor for _, tensor, _ in run.graph.looks])
    return [device for (device, _, expected), value in zip(run.graph.looks, found)
            if not np.allclose(value, expected, rtol=1e-5)]


def _of_computing(plan):
    """Returns the names of the devices that compute another gradient of a batch than the first one."""
    from cifar10.training import inside
    from cifar10.training.run import Run
    run = Run(plan, build=inside.build)
    gradients = []
    with run.opened():
        batch = run.session.run(list(run.graph.batch[:3]), dict.fromkeys(run.graph.positions, 0))
        for tower, fed in zip(run.graph.towers[:len(plan.devices.groups)], run.graph.fed):
            gradients.append(run.session.run(list(tower['gradients'].values()), dict(zip(fed, batch))))
    return [device for device, found in zip(plan.devices.tower_devices, gradients) if not all(
        np.linalg.norm(one - other) <= _DIFFERENCE * np.linalg.norm(one) for one, other in zip(gradients[0], found))]


if __name__ == '__main__':
    startup.start_tensorflow()
    with console.Output(lambda line: None).used():
        problem = _problem(completed(json.load(sys.stdin)))
    console.say(problem)
