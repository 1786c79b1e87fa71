"""Checks the exercises of lesson 10: the noise scale, the scaled rate, and the length of a training."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, compare, counted, mismatch, numeric, shown

HINTS = {
    'noise_scale': [
        'write the formula for both batches: two equations with two unknowns.',
        'subtract one equation from the other to remove |G|^2: of_small - of_large = V * (1 / small - 1 / large).',
        'then |G|^2 = of_small - V / small.'],
    'scaled_rate': [
        'for this case, compute the rate of the linear rule and 1 / curvature. Which one is right?',
        'the rate is proportional to the batch, but never above 1 / curvature.'],
    'updates_and_epochs': [
        'how many examples does one update use, on all GPUs together?',
        'an epoch is `examples` examples. Do not round: a training may end within an epoch.']}


def check_noise_scale(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    drawn = []
    for _ in range(20):
        small = int(random.integers(1, 200))
        drawn.append((small, small * int(random.integers(2, 33)), 10 ** random.uniform(-6, 4),
                      10 ** random.uniform(-3, 4)))
    for small, large, norm, scale in ((4, 16, 2.0, 24.0), (16, 128, 1.0, 42.0), (1, 2, 3.0, 0.0), *drawn):
        arguments = small, large, norm * (1 + scale / small), norm * (1 + scale / large)
        for swapped in (False, True):
            order = [arguments[i] for i in ((1, 0, 3, 2) if swapped else range(4))]
            case = f'batches of {order[0]} and {order[1]} with {order[2]:.4g} and {order[3]:.4g}'
            if wrong := compare(function, tuple(order), scale, case, size=max(scale, 1e-4)):
                return wrong
    return None


def check_scaled_rate(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(0.1, 128, 512, 1.0), (0.1, 128, 4096, 1.0), (0.1, 128, 128, 1.0), (0.4, 512, 128, 1.0), (0.1, 1, 4, 5.0),
             (0.1, 100, 30, 1.0), (3.0, 64, 64, 1.0)]
    for _ in range(20):
        batch = int(random.integers(1, 1000))
        cases.append((10 ** random.uniform(-4, 0), batch, max(1, int(batch * 10 ** random.uniform(-1, 2))),
                      10 ** random.uniform(-2, 2)))
    for rate, batch, new_batch, curvature in cases:
        right = min(rate * new_batch / batch, 1 / curvature)
        case = f'the rate {rate:.3g} at {batch}, {new_batch} and the curvature {curvature:.3g}'
        if wrong := compare(function, (rate, batch, new_batch, curvature), right, case):
            return wrong
    return None


def check_updates_and_epochs(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(100000, 1, 128, 50000), (30000, 2, 128, 50000), (30000, 3, 128, 50000), (30000, 4, 128, 50000)]
    for _ in range(20):
        cases.append((int(random.integers(1, 10 ** 5)), int(random.integers(1, 65)), int(random.integers(1, 1025)),
                      int(random.integers(1000, 10 ** 6))))
    for updates, gpus, batch, examples in cases:
        case = f'for {updates} updates of {counted(gpus, "GPU")} with {batch} of {examples} examples each'
        try:
            returned = numeric(call(function, updates, gpus, batch, examples))
        except Fault as fault:
            return f'{case} {fault}'
        if returned is None or returned.shape != (2,):
            return f'{case} it does not return a pair of numbers'
        for name, number, right in zip(('epochs', 'updates of one GPU'), returned,
                                       (np.multiply(updates, gpus) * (batch / examples), np.multiply(updates, gpus))):
            if mismatch(number, right):
                return f'{case} it returns {shown(number)} {name}; {shown(right)} is right'
    return None
