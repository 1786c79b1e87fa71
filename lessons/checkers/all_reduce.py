"""Checks the exercises of lesson 3: the all-gather, by sending the chunks, and a step with a copy on each device."""
from collections.abc import Callable

import numpy as np

from lessons.checkers import Fault, call, counted, numeric, shown
from lessons.checkers.graph import STEP_HINTS, check_steps

HINTS = {'all_gather': [
    'for three devices, write down the chunk that each has before the first step, and the device that sends to it.',
    'in the first step a device can send only its own chunk. Which chunk has it received after this step?',
    'before step t, counted from 0, the newest chunk on device d is chunk (d + t) modulo D.'],
    'replicated_step': [
        ('trainable variable|raises ValueError',
         'each device has its own weight: the graph has one variable for each device, each with its own name.'),
        ('subdiv_offsets', '`collective_all_reduce` in lessons/all_reduce.py shows the whole call.'),
        ('waits for another|CollectiveReduce',
         'CollectiveReduce needs the same group_size, group_key and instance_key on all devices. It returns the sum.'),
        ('does not come from', 'compute the loss of tower k from the weight on its own device.'),
        *STEP_HINTS,
        'device k updates its copy with the mean of all gradients, so every device needs this mean.',
        'print the gradients and the result of the all-reduce on each device, and check them by hand.']}


def check_all_gather(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    for num_devices in (2, 3, 4, 5, 1, *random.choice(np.arange(6, 41), 20, replace=False).tolist()):
        try:
            _send(num_devices, call(function, num_devices))
        except Fault as fault:
            return f'for {counted(num_devices, "device")} {fault}'
    return None


def check_replicated_step(function: Callable, random: np.random.Generator) -> str | None:
    """Returns None if the function is right, else the first counterexample."""
    return check_steps(function, random, replicated=True)


def _send(num_devices, steps):
    """Sends the chunks from device to device; raises a Fault if one cannot be sent, or is missing at the end."""
    if not isinstance(steps, (list, tuple, np.ndarray)):
        raise Fault(f'it returns {shown(steps)}; a list of steps is right')
    if len(steps) != num_devices - 1:
        raise Fault(f'the number of steps is {len(steps)}; {num_devices - 1} is right')
    for step, chunks in enumerate(steps):
        sent = numeric(chunks)
        if sent is None or sent.shape != (num_devices,) or sent.dtype.kind not in 'iu':
            raise Fault(f'step {step + 1} is not {num_devices} whole numbers')
    held = np.eye(num_devices, dtype=bool)  # [device, chunk]: the chunks that are complete there
    for step, chunks in enumerate(steps):
        for device, chunk in enumerate(chunks):
            if not 0 <= chunk < num_devices:
                raise Fault(f'device {device} sends chunk {chunk} in step {step + 1}; there are chunks 0 to '
                            f'{num_devices - 1}')
            if not held[device, chunk]:
                raise Fault(f'device {device} sends chunk {chunk} in step {step + 1}, which it does not have yet; it '
                            f'has {_listed(held[device])}')
        held[(np.arange(num_devices) - 1) % num_devices, chunks] = True
    for device in range(num_devices):
        if not held[device].all():
            raise Fault(f'device {device} ends with {_listed(held[device])} only; all {num_devices} are right')


def _listed(held):
    """Returns a phrase for the chunks that a device has."""
    chunks = [str(chunk) for chunk in np.flatnonzero(held)]
    return f'chunk {chunks[0]}' if len(chunks) == 1 else f"chunks {', '.join(chunks[:-1])} and {chunks[-1]}"
