"""Checks the exercises of lesson 12: who divides, and what three mistakes change."""
import itertools
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, compare, shown

# The gradient that a framework applies if `world` devices with `local` examples each have equal gradients g.
APPLIED = {'graph towers': lambda g, local, world: g,
           'tf.distribute': lambda g, local, world: g * world,
           'Keras': lambda g, local, world: g / world * world,
           'PyTorch': lambda g, local, world: g * world / world,
           'JAX': lambda g, local, world: g * world,
           'Horovod': lambda g, local, world: g * world / world,
           'MXNet': lambda g, local, world: g * world / (local * world)}
FAULTS = ('one device', 'means added', 'same batch')
ALL_FAULTS = [set(some) for count in range(4) for some in itertools.combinations(FAULTS, count)]
HINTS = {
    'divide': [("framework 'Torch'", 'raise a ValueError for a name that is not in FRAMEWORKS.'),
               'assume equal losses on all devices: the update must use the gradient of the mean loss of an example.',
               'for each framework, write down the factor that it applies to the loss, and divide by this factor.',
               'with equal shares there are only three different answers: loss_sum, loss_sum / local, and one more.'],
    'after_update': ['which examples does each replica compute? Start with a list of arrays, one for each replica.',
                     'the derivative of the sum of (w - x)^2 is 2 * sum(w - x); divide it as the replica does.',
                     'add the gradients of the replicas that exist, and take one step.'],
    'examples_computed': [('for (no fault|means added),', 'divide the examples as `np.array_split` does.'),
                          'the list has one number for each device; a device without a replica computes 0 examples.',
                          'first find the number of replicas. Then each replica has a share or the whole batch.']}


def check_divide(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(framework, 6.0, 3, 2) for framework in APPLIED] + [(framework, 5.0, 2, 4) for framework in APPLIED]
    for _ in range(30):
        cases.append((random.choice(list(APPLIED)), random.normal() * 10, int(random.integers(1, 300)),
                      int(random.integers(1, 70))))
    for framework, loss_sum, local, world in cases:
        # `APPLIED` is linear in g, so its value for g = 1 is the factor between the given and the applied gradient.
        right = loss_sum / local / APPLIED[framework](1, local, world)
        wrong = compare(function, (str(framework), loss_sum, local, world), right,
                        f'{framework} with loss_sum {shown(loss_sum)}, local {local} and world {world}')
        if wrong:
            return wrong
    try:
        returned = call(function, 'Torch', 6.0, 3, 2)
    except Fault as fault:
        return None if 'ValueError' in str(fault) else f"for the framework 'Torch' {fault}; ValueError is right"
    return f"for the framework 'Torch' it returns {returned}; it has to raise ValueError"


def check_after_update(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(faults, 0.0, np.arange(1.0, 5), 2, 0.1) for faults in ALL_FAULTS]
    cases += [(faults, 0.5, np.array([1.0, 2, 6]), 2, 0.25) for faults in ALL_FAULTS]
    for _ in range(30):
        replicas = int(random.integers(1, 9))
        x = random.normal(size=replicas + random.integers(0, 20)) * 10
        cases.append((ALL_FAULTS[random.integers(8)], random.normal(), x, replicas, random.uniform(0.01, 2)))
    for faults, w, x, replicas, rate in cases:
        gradient = 0.0
        for share in _shares(faults, x, replicas):
            gradient += 2 * np.sum(w - share) / (len(share) if 'means added' in faults else len(x))
        wrong = compare(function, (set(faults), w, x, replicas, rate), w - rate * gradient,
                        f'{_named(faults)}, w {shown(w)}, x {shown(x)}, {replicas} replicas and rate {shown(rate)}')
        if wrong:
            return wrong
    return None


def check_examples_computed(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(faults, 8, 4) for faults in ALL_FAULTS] + [(faults, 5, 3) for faults in ALL_FAULTS]
    for _ in range(30):
        replicas = int(random.integers(1, 40))
        cases.append((ALL_FAULTS[random.integers(8)], replicas + int(random.integers(0, 300)), replicas))
    for faults, examples, replicas in cases:
        sizes = [len(share) for share in _shares(faults, np.arange(examples), replicas)]
        wrong = compare(function, (set(faults), examples, replicas), sizes + [0] * (replicas - len(sizes)),
                        f'{_named(faults)}, {examples} examples and {replicas} replicas')
        if wrong:
            return wrong
    return None


def _shares(faults, x, replicas):
    """Returns the examples that each replica computes."""
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)


def _named(faults):
    return ' and '.join(sorted(faults)) or 'no fault'
