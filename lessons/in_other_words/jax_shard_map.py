#!/usr/bin/env python3
"""Lesson 12 in JAX: the step of four CPU devices with `jax.shard_map`.

    python lessons/in_other_words/jax_shard_map.py

It needs jax only (`python -m pip install jax`), and prints the lines of lessons/other_words.py.
"""
import sys

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec
except ModuleNotFoundError as error:
    print(f'jax_shard_map.py: error: {sys.executable} has no {error.name}: python -m pip install jax', file=sys.stderr)
    sys.exit(2)

EXAMPLES = np.arange(1, 9, dtype=np.float32)
DEVICES = 4
RATE = 0.1
UPDATES = 3


def part_of_mean(w, x):
    """The device's part of the loss: its sum divided by the number of examples on all devices."""
    return jnp.sum(jnp.square(w - x)) / len(EXAMPLES)


def mean(w, x):
    """The mean over the device's examples."""
    return jnp.mean(jnp.square(w - x))


def normalised(w, x):
    """The device's part of the loss of w * z, where z are the examples normalised over the device's share."""
    z = (x - jnp.mean(x)) / jnp.std(x)
    return jnp.sum(jnp.square(w * z - x)) / len(EXAMPLES)


def train(devices, examples, loss_of, updates=1, **options):
    """Trains on the devices, which share the examples; returns [(loss before, w after)] for each update.

    Args:
      loss_of: a function (w, examples of a device) -> loss, whose gradients are added.
      **options: of `jax.shard_map`.
    """
    mesh = Mesh(np.array(devices), ('devices',))
    whole, divided = PartitionSpec(), PartitionSpec('devices')

    def step(w, x):
        # w is the same on all devices, so its gradient has to be too: `jax.grad` adds the devices' gradients.
        loss, gradient = jax.value_and_grad(loss_of)(w, x)
        return jax.lax.psum(loss, 'devices'), w - RATE * gradient

    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(whole, divided), out_specs=(whole, whole), **options))
    w, steps = jnp.float32(0), []
    for _ in range(updates):
        loss, w = step(w, examples)
        steps.append((float(loss), float(w)))
    return steps


def table_line(name, values):
    """Returns a line of a table."""
    return f'  {name:20}' + ''.join(f'{value:10.3f}' for value in values)


def main():
    """Trains on one device and on four, then makes one mistake at a time."""
    jax.config.update('jax_num_cpu_devices', DEVICES)
    jax.config.update('jax_platforms', 'cpu')
    devices = jax.devices()
    print('                    loss at 0    w after updates 1, 2, 3')
    for count in (1, DEVICES):
        steps = train(devices[:count], EXAMPLES, part_of_mean, UPDATES)
        print(table_line(f'JAX shard_map, {count}', [steps[0][0], *(w for _, w in steps)]))
    print('\nOne mistake at a time; w after 1 update:\n                    one device   by hand  measured')
    for name, right, predicted, examples, loss_of, options in (
            ('means are added', 0.9, DEVICES * 0.9, EXAMPLES, mean, {}),
            ('no sum', 0.9, 2 * RATE * 2 * 1.5 / 8, EXAMPLES, part_of_mean, {'check_vma': False}),
            ('own statistics', 2 * RATE * np.std(EXAMPLES), 2 * RATE * 0.5, EXAMPLES, normalised, {})):
        (_, w), = train(devices, examples, loss_of, **options)
        print(table_line(name, [right, predicted, w]))
    try:
        train(devices, EXAMPLES[:6], part_of_mean)
    except ValueError as error:
        print(f'\n6 examples on {DEVICES} devices: ValueError: {str(error).splitlines()[0]}')


if __name__ == '__main__':
    main()
