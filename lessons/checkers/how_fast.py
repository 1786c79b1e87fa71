"""Checks the exercises of lesson 9: the serial fraction, the overlap, and a row of the tutorial's table."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, call_once, compare, counted, mismatch, numeric, shown

HINTS = {
    'serial_fraction': [
        'start from speed_up = 1 / (fraction + (1 - fraction) / D), and solve this equation for the fraction.',
        '1 / speed_up = fraction + (1 - fraction) / D = 1 / D + fraction * (1 - 1 / D).',
        ('for 1 device', 'with one device, 1 - 1 / D is 0, and the speed-up is 1 for any fraction.')],
    'overlapped': [
        'walk through the layers from the last to the first: when is each gradient computed, and when is it sent?',
        'a message starts when its gradient is computed or the previous message is sent, whichever is later.',
        'keep two times: one for the pass and one for the link.'],
    'read_row': [
        ('the seconds of a step are',
         'the program divides the measured time by the number of GPUs, then prints it. Which time did it measure?'),
        ('the images a second are',
         'a step has 128 images for each GPU. The lowest images a second come from the longest step.'),
        ('the speed-up is',
         "the lowest speed-up is the row's lowest images a second divided by the highest of one K20m, 128 / 0.35."),
        ('the efficiency is', 'divide the speed-up by the number of GPUs. The result may be above 1.'),
        ('the hours are', 'each update takes the seconds of a step, not the printed `sec/batch`.'),
        'compute the five pairs by hand for two K20m, 0.13 to 0.20. Each pair follows from the pairs before it.']}


def check_serial_fraction(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    drawn = [(int(random.integers(2, 300)), random.uniform(0, 1)) for _ in range(20)]
    # In the case with the share -0.1, four devices are more than four times as fast as one.
    for devices, share in ((4, 1 / 9), (2, 0.0), (8, 1.0), (4, -0.1), *drawn):
        speed_up = 1 / (share + (1 - share) / devices)
        case = f'{devices} devices and the speed-up {speed_up:.4g}'
        if wrong := compare(function, (devices, speed_up), share, case, size=max(abs(share), 1e-4)):
            return wrong
    try:
        returned = f'returns {shown(call_once(function, 1, 1.0))}'
    except Fault as fault:
        if isinstance(fault.__cause__, ValueError):
            return None
        returned = f'raises {type(fault.__cause__).__name__}'
    return f'for 1 device and the speed-up 1 it {returned}; a ValueError is right'


def check_overlapped(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [([10, 10, 10], [5, 5, 40]), ([10, 10, 10], [40, 5, 5]), ([20] * 4, [10] * 4), ([20] * 4, [30] * 4),
             ([], []), ([7], [3]), ([10, 10], [0, 30]), ([1, 2, 3], [0, 0, 0])]
    for _ in range(20):
        layers = int(random.integers(2, 12))
        sending = random.integers(0, 50, layers) * random.integers(0, 2, layers)  # some layers have no variables
        cases.append((random.integers(1, 50, layers).tolist(), sending.tolist()))
    for backward, sending in cases:
        # From the layer with the largest sum on, the messages follow the pass without a gap.
        passes, messages = np.cumsum(backward[::-1]), np.cumsum(sending)[::-1]
        right = float(max(passes + messages, default=0))
        if wrong := compare(function, (backward, sending), right, f'backward {backward} and sending {sending}'):
            return wrong
    return None


def check_read_row(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    cases = [(4, 0.10, 0.10, 30000), (1, 0.35, 0.60, 60000), (2, 0.13, 0.20, 30000), (1, 0.25, 0.35, 100000)]
    for _ in range(20):
        low = round(random.uniform(0.01, 0.5), 3)
        cases.append((int(random.integers(1, 17)), low, round(low * random.uniform(1, 2), 3),
                      1000 * int(random.integers(1, 200))))
    for gpus, low, high, updates in cases:
        case = f'for {counted(gpus, "GPU")}, {low:g} to {high:g} and {updates} updates'
        try:
            returned = numeric(call(function, gpus, low, high, updates))
        except Fault as fault:
            return f'{case} {fault}'
        if returned is None or returned.shape != (5, 2):
            return f'{case} it does not return five pairs of numbers'
        steps = gpus * np.array([low, high])
        images = gpus * 128 / steps[::-1]
        ups = images / (128 / np.array([0.35, 0.60]))
        for name, pair, right in zip(('the seconds of a step are', 'the images a second are', 'the speed-up is',
                                      'the efficiency is', 'the hours are'),
                                     returned, (steps, images, ups, ups / gpus, updates * steps / 3600)):
            if mismatch(pair, right):
                return (f'{case} {name} {shown(pair[0])} to {shown(pair[1])}; '
                        f'{shown(right[0])} to {shown(right[1])} is right')
    return None
