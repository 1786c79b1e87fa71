"""Tries whether the GPUs of a run exchange gradients rightly, and compute the same.

Where GPUs cannot reach each other, a collective does not fail: it hangs, and keeps its process. So `--check` tries it
in a process of its own, before it uses a GPU itself.
"""
import itertools
import json
import math
import os
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from cifar10.base import console, startup
from cifar10.base.activity import doing
from cifar10.base.errors import UsageError, listed
from cifar10.settings.training import TrainSettings, completed

_SIZE = 1 << 20  # numbers of a tower
_EXCHANGE_SECS = 60
_LIMIT_SECS = 300  # for all, with the start of TensorFlow and of the GPUs
_REMEDY = 'leave that GPU out, and test it'
_HANGS = 75  # the status of the child where the exchange takes longer
_DIFFERENCE = 0.05  # of the norm of a gradient: far above rounding, in any precision
# With the parent's modules, and none of the working directory.
_CHILD = f'import sys; sys.path[:] = {{}}; from {__name__} import main; main()'


def refuse_broken(settings: TrainSettings) -> None:
    """Raises a UsageError if the GPUs of a run do not exchange gradients rightly, or do not answer."""
    process = subprocess.Popen([sys.executable, '-c', _CHILD.format(sys.path)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with doing('while the GPUs are tried', math.inf):
            problem, errors = process.communicate(json.dumps(settings.flat()), _LIMIT_SECS)
    except subprocess.TimeoutExpired:
        raise UsageError(f'the GPUs have not started and computed a gradient within {_LIMIT_SECS} s; one of them may '
                         'hang: see what nvidia-smi and dmesg tell of it') from None
    finally:
        process.kill()  # and nobody waits for its end: the kernel may hold it
    if process.returncode == _HANGS:
        raise UsageError(
            f'the GPUs have not exchanged gradients within {_EXCHANGE_SECS} s; set NCCL_P2P_DISABLE=1 (their machine '
            'may keep them from each other) or NCCL_SOCKET_IFNAME (a network interface), or use '
            '--variable_update=parameter_server, which needs no NCCL')
    if process.returncode:
        raise UsageError(f"the GPUs cannot exchange gradients: {(errors.splitlines() or ['no reason'])[-1]}")
    if problem:
        raise UsageError(problem)


class _Exchange(NamedTuple):
    """A step on known numbers, for `Run`; and what to look at then: (place, tensor) pairs, and the expected value."""
    step: Any
    looks: list
    expected: np.ndarray
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
    copies = [variable for copy in itertools.chain(*plan.mode.copied()) for variable in copy
              if variable.op.name.endswith('exchanged')]
    places = map(plan.devices.place, range(len(copies))) if copies else ['/cpu:0']
    looks = [(place, variable.read_value()) for place, variable in zip(places, copies or [step.gradients[0][1]])]
    return _Exchange(step, looks, np.mean(numbers, 0) if plan.mode.synchronous else np.sum(numbers, 0),
                     tf.global_variables_initializer(), tf.local_variables_initializer())


def _wrong_exchange(plan):
    """Returns the places at which known numbers went wrong in a step."""
    from cifar10.training.run import Run
    run = Run(plan, is_new=False, build=_build)
    with run.opened():
        # From here on, since GPUs may need a minute to start.
        limit = threading.Timer(_EXCHANGE_SECS, os._exit, [_HANGS])
        limit.daemon = True
        limit.start()
        found = _exchanged(run)
        limit.cancel()
    return [place for (place, _), value in zip(run.graph.looks, found)
            if not np.allclose(value, run.graph.expected, rtol=1e-5)]


def _exchanged(run):
    """Takes a step; returns what the numbers are after it, at each place."""
    step = run.graph.step
    run.session.run(step.train_ops)
    if step.average:
        run.session.run(step.average.equalise)
    return run.session.run([tensor for _, tensor in run.graph.looks])


def _wrong_computing(plan):
    """Returns the places at which the gradient of a batch is not that of most other places."""
    from cifar10.training import inside
    from cifar10.training.run import Run
    run = Run(plan, is_new=True, build=inside.build)
    gradients = []
    with run.opened():
        batch = run.session.run(list(run.graph.batch[:3]), dict.fromkeys(run.graph.positions, 0))
        for tower, fed in zip(run.graph.towers[:len(plan.devices.groups)], run.graph.fed):
            found = run.session.run(list(tower['gradients'].values()), dict(zip(fed, batch)))
            # With the first scale of its loss, fp16 may overflow.
            gradients.append(np.nan_to_num(np.concatenate([np.ravel(each) for each in found]).astype(np.float64)))
    alike = [sum(np.linalg.norm(one - other) <= _DIFFERENCE * np.linalg.norm(one) for other in gradients)
             for one in gradients]
    return [plan.devices.place(k) for k, count in enumerate(alike) if count <= len(gradients) / 2]


def main() -> None:
    """Reads settings from standard input, tries, and writes what is wrong to standard output, or nothing."""
    with os.fdopen(os.dup(1), 'w') as output:
        os.dup2(2, 1)  # NCCL and code of the user's print there
        startup.start_tensorflow()
        from cifar10.training import start, trainer
        with console.Output(lambda line: None).used():
            begun = trainer.prepared(completed(json.load(sys.stdin)))
            start.decide(begun)
            if wrong := _wrong_exchange(begun.plan):
                output.write(f'gradients that were exchanged are wrong on {listed(wrong)}; {_REMEDY}')
            elif wrong := _wrong_computing(begun.plan):
                said = f'for the same batch, the gradient of {listed(wrong)} is another than elsewhere; {_REMEDY}'
                if len(wrong) == len(begun.plan.devices.groups):  # no majority is alike
                    said = f'for the same batch, the gradients of {listed(wrong)} differ; test them all'
                output.write(said)
