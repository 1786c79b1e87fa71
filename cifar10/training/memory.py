"""What the towers of a run need of each device's memory, beside what is free there, for a look at its start."""
import collections
from collections.abc import Iterator

from cifar10.base.errors import UsageError
from cifar10.parallel.session_config import free_memory, memory_of
from cifar10.training.start import Start


def compare(start: Start) -> Iterator[str]:
    """Says what images and network take, and compares what the towers need with what is free on each device.

    What is needed is an estimate: TensorFlow frees early what no gradient needs, and takes working memory. So a step on
    GPUs may be tried even if they seem too small.

    Raises:
      UsageError: towers on CPU devices need more. A machine without memory kills processes, so no step may be tried.
    """
    yield f'memory     {_text(start.data.memory_bytes)} for the training images, in each process with towers'
    batch_size, devices = start.plan.settings.towers.batch_size, start.plan.devices
    sizes = start.plan.recipe.part_sizes(batch_size, start.plan.precision.dtype)
    for i, (variables, activations) in enumerate(sizes):
        yield f'part {i:<5} {_text(variables)} of variables, {_text(activations)} of activations in a tower'
    free = free_memory(devices)
    for memory, needed in _needed(devices, sizes).items():
        yield f'memory     about {_text(needed)} for the towers on {memory}, {_text(free[memory])} free'
        if needed > free[memory]:
            problem = f'--batch_size={batch_size} may need more memory than is free on {memory}; use a smaller one'
            if not devices.on_gpus:
                raise UsageError(problem)
            yield f'warning: {problem}'


def _needed(devices, sizes):
    """Returns the bytes of activations, variables and gradients, by `memory_of` the devices of this machine."""
    needed = collections.Counter()
    towers = -(-devices.num_towers // len(devices.groups))
    for group, host in zip(devices.groups, devices.group_hosts):
        for i, (variables, activations) in enumerate(sizes if host == devices.group_hosts[0] else ()):
            k = i * len(group) // len(sizes)
            # In a pipeline, device k has the activations of one tower for itself and each device after it.
            needed[memory_of(group[k])] += min(towers, len(group) - k) * activations + 2 * variables
    return needed


def _text(count):
    """Returns a number of bytes for people to read."""
    return f'{count / 1e6:.2f} MB' if count >= 1e5 else f'{count / 1e3:.2f} kB'
