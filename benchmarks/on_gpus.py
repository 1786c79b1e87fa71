#!/usr/bin/env python3
"""Measures the effect of each option on the speed of a step on a GPU, and compares it with the peers.

    python benchmarks/on_gpus.py --json=on_gpus.json
    python benchmarks/on_gpus.py --tower_device=cpu --minutes=30

It needs one or more GPUs; a single GPU is split into four for the cells with four towers. Each cell trains in a new
process. The cells take turns, the most important first, until the minutes are over. The first round also counts the
operations of one step, and the bytes that they send between the CPU and the GPUs. (Batches are copied before their step
and not counted.)
"""
import collections
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness, throughput  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

_RESNET = f"--network={os.path.join(harness.ROOT, 'examples', 'resnet18.py')}:network"
_FOUR = ['--num_gpus=4', '--batch_size=32']
_REPLICATED = '--variable_update=replicated'
_OWN_THREADS = dict(TF_GPU_THREAD_MODE='gpu_private')
# Cell: the flags of a training run with 128 images per step, and environment variables; the most important first.
RUNS = {
    'parameter_server': ([], {}),
    'replicated': ([_REPLICATED], {}),
    'replicated + threads for the GPU': ([_REPLICATED], _OWN_THREADS),
    'parameter_server + threads for the GPU': ([], _OWN_THREADS),
    'replicated + xla': ([_REPLICATED, '--xla'], {}),
    'replicated + bf16': ([_REPLICATED, '--precision=bf16'], {}),
    'replicated + xla + bf16': ([_REPLICATED, '--xla', '--precision=bf16'], {}),
    'replicated + no summaries': ([_REPLICATED, '--summary_steps=0'], {}),
    'parameter_server + 1024 images': (['--batch_size=1024'], {}),
    'replicated + 1024 images': ([_REPLICATED, '--batch_size=1024'], {}),
    'four towers + parameter_server': (_FOUR, {}),
    'four towers + replicated': ([*_FOUR, _REPLICATED], {}),
    'four towers + async': ([*_FOUR, '--variable_update=async'], {}),
    'four towers + local': ([*_FOUR, '--variable_update=local'], {}),
    'four towers + mirrored': ([*_FOUR, '--variable_update=mirrored'], {}),
    'resnet18': ([_RESNET], {}),
    'resnet18 + replicated': ([_RESNET, _REPLICATED], {}),
    'resnet18 + replicated + bf16': ([_RESNET, _REPLICATED, '--precision=bf16'], {})}
# Counts of a step. The bytes are the sizes of the tensors that operations send.
COUNTS = ('operations on the CPU', 'operations on GPUs', 'copies between them', 'bytes to GPUs', 'bytes from GPUs')
PEERS = 'queue runner', 'Keras', 'PyTorch'

# The program of the cells' processes: 'count' counts one step, 'train' trains.
_CELL = """
import os, sys
from benchmarks import on_gpus
from cifar10.programs import program
sys.exit(program.run(lambda: on_gpus.run_cell(sys.argv[1] == 'count', sys.argv[2:])))
"""


def run_cell(counts: bool, arguments: list[str]) -> int | None:
    """Trains, or prints the counts of a step as JSON; splits the first GPU if there are fewer GPUs than towers."""
    from cifar10.base import startup
    from cifar10.programs import train
    from cifar10.settings.training import GROUPS
    values = flags.parse(GROUPS, None, arguments)
    startup.start_tensorflow()
    import tensorflow as tf
    gpus = tf.config.list_physical_devices('GPU')
    towers = values.get('num_gpus', 1)
    if values['tower_device'] != 'cpu' and gpus and len(gpus) < towers:
        memory = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
        tf.config.set_logical_device_configuration(gpus[0], [memory] * towers)
    if counts:
        print(json.dumps(_count_step(values)))
        return None
    sys.argv[1:] = arguments
    return train.main()


def _count_step(values):
    """Returns the COUNTS of a step of a run."""
    import tensorflow.compat.v1 as tf

    from cifar10.base import console
    from cifar10.training.decisions import plan
    from cifar10.training.resolved import resolve
    from cifar10.training.run import Run
    from cifar10.training.start import prepared
    with console.Output(None).used():
        settings, _ = resolve(values)
        devices, images, _ = prepared(settings)
        run = Run(plan(settings, devices, images)[0])
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        with run.opened():
            for _ in range(3):
                run.take()
            run.session.run(run.graph.fetches[0], options=options, run_metadata=metadata)
    return counted(metadata)


def counted(metadata) -> tuple[int, ...]:
    """Returns the COUNTS of a traced step, given its RunMetadata with the graph of each device."""
    operations, sizes = collections.Counter(), {}
    for device in metadata.step_stats.dev_stats:
        if 'stream' in device.device:  # CUDA's view of the kernels
            continue
        operations['GPU' in device.device] += len(device.node_stats)
        for node in device.node_stats:
            for output in node.output:
                shape = [dim.size for dim in output.tensor_description.shape.dim]
                sizes[node.node_name, output.slot] = _bytes(output.tensor_description.dtype, shape)
    to_gpus, from_gpus = [], []
    for graph in metadata.partition_graphs:
        for node in graph.node:
            from_gpu, to_gpu = ('GPU' in node.attr[end].s.decode() for end in ('send_device', 'recv_device'))
            if node.op in ('_Send', '_HostSend') and from_gpu != to_gpu:
                name, _, slot = node.input[0].partition(':')
                (to_gpus if to_gpu else from_gpus).append(sizes.get((name, int(slot or 0)), 0))
    return operations[False], operations[True], len(to_gpus) + len(from_gpus), sum(to_gpus), sum(from_gpus)


def _bytes(dtype, shape):
    import numpy as np
    import tensorflow.compat.v1 as tf
    return int(np.prod(shape)) * (tf.as_dtype(dtype).base_dtype.size if dtype else 0)


def can_run(cell: str) -> bool:
    """Returns whether a cell can run here: XLA requires NVIDIA GPUs, and PyTorch may not be installed."""
    if 'xla' in cell:
        return bool(shutil.which('nvidia-smi'))
    return cell != 'PyTorch' or bool(importlib.util.find_spec('torch'))


def measure(options, cell, k):
    """Returns (images/s of a cell, and in the first round of a training cell its COUNTS)."""
    if cell in PEERS:
        return throughput.peer(options, cell),
    extra, environment = RUNS[cell]
    steps = max(options.steps * 128 // 1024, 4) if '1024' in cell else options.steps
    extra = [f'--tower_device={options.tower_device}', *extra]
    own = dict(os.environ)
    os.environ.update(environment)
    try:
        speed = harness.training_speed(options, steps, *extra, program=['-c', _CELL, 'train'],
                                       spare=40 if 'async' in cell else 0)
        if k or 'async' in cell:  # steps of `async` run in several threads
            return speed,
        with tempfile.TemporaryDirectory() as train_dir:
            output = harness.output_of('-c', _CELL, 'count', *harness.trainer(options, train_dir)[1:], *extra)
        return speed, *json.loads(output.splitlines()[-1])
    finally:
        os.environ.clear()
        os.environ.update(own)


def table(results):
    """Returns the lines of a Markdown table of results {cell: [result of `measure` in each round]}."""
    rows = []
    for cell, figures in results.items():
        rates = [figure and figure[0] for figure in figures]
        counts = next((figure[1:] for figure in figures if figure and figure[1:]), [''] * len(COUNTS))
        rows.append([cell, harness.spread(rates), *counts])
    return harness.table(['', 'images/s', *COUNTS], rows)


def main():
    """Measures the cells in turn until the minutes are over, and reports them."""
    began = time.monotonic()
    cells = [cell for cell in (*RUNS, *PEERS) if can_run(cell)]
    parser = harness.parser(__doc__, rounds=100)
    parser.set_defaults(dataset='shapes')
    parser.add_argument('--tower_device', default='gpu', choices=('gpu', 'cpu'),
                        help='device of the runs and of the peers (default: %(default)s)')
    parser.add_argument('--minutes', type=flags.positive, default=8, metavar='M',
                        help='begin no cell after this number of minutes (default: %(default)s)')
    parser.add_argument('--steps', type=flags.at_least(4), default=600, metavar='N',
                        help='steps of a training run; the second half is timed (default: %(default)s)')
    parser.add_argument('--cells', type=harness.listed(str, cells), default=cells, metavar='CELL,...',
                        help='cells to measure (default: all): ' + '; '.join(cells))
    options = parser.parse_args()
    harness.check(options)
    harness.measure(options, options.cells, lambda cell, k: measure(options, cell, k), table,
                    until=began + 60 * options.minutes)


if __name__ == '__main__':
    sys.exit(program.run(main))
