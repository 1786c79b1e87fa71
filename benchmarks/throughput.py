#!/usr/bin/env python3
"""How fast this program is, and what a run costs, compared with other programs for the same task.

    python benchmarks/throughput.py --data_dir=/tmp/cifar10_data --plot=throughput.png
    python benchmarks/throughput.py --dataset=shapes --quick

Every cell runs in a process of its own; all cells are measured in turn, for several rounds. Training cells
are complete runs with input, summaries and a checkpoint; the peers are the programs in `benchmarks/peers`,
which train the same network on the same files. Prints medians with the lowest and highest figures, and
medians of the ratios within a round.
"""
import os
import re
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402

startup.start_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

from benchmarks import harness  # noqa: E402
from cifar10.data import records  # noqa: E402
from cifar10.evaluation import evaluator  # noqa: E402
from cifar10.model.recipe import Recipe  # noqa: E402
from cifar10.parallel import gpus  # noqa: E402
from cifar10.parallel.devices import choose as choose_devices  # noqa: E402
from cifar10.parallel.session_config import session_config  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402
from cifar10.settings.training import train_settings  # noqa: E402
from cifar10.training.decide import decided  # noqa: E402
from cifar10.training.plan import plan_of  # noqa: E402
from cifar10.training.run import Run  # noqa: E402

BATCH = 128

# Cell: the flags of a training run.
RUNS = {'fp32': [], 'bf16': ['--precision=bf16'], 'four towers': ['--num_gpus=4', f'--batch_size={BATCH // 4}']}
# Cell: the script and the flags of a peer.
PEERS = {'queue runner': ['queue_runner.py'], 'Keras': ['keras_mirrored.py'], 'PyTorch': ['pytorch.py'],
         'PyTorch bf16': ['pytorch.py', '--precision=bf16'], 'PyTorch compiled': ['pytorch.py', '--compile'],
         'PyTorch compiled bf16': ['pytorch.py', '--compile', '--precision=bf16']}
# Cell: (its unit, what it is).
COSTS = {'bare step': ('images/s', 'the fp32 step alone in a loop'), 'evaluation': ('images/s', 'a pass in fp32'),
         'input': ('us', 'CPU time of the input pipeline per image'),
         'first step': ('ms', 'from the command to the end of the first step'),
         'memory': ('MiB', 'peak of a training run')}
RATIOS = [('fp32', 'queue runner'), ('bf16', 'queue runner'), ('fp32', 'Keras'), ('fp32', 'PyTorch'),
          ('bf16', 'PyTorch bf16'), ('fp32', 'PyTorch compiled'), ('bf16', 'PyTorch compiled bf16'),
          ('four towers', 'fp32'), ('fp32', 'bare step'), ('evaluation', 'fp32')]


def start_up(options, cell):
    """Returns the milliseconds to the first step, or the peak memory in MiB, of a training run."""
    seconds, mebibytes = harness.start_up(
        options, f"--max_steps={1 if cell == 'first step' else 50}", f'--tower_device={options.tower_device}')
    return 1000 * seconds if cell == 'first step' else mebibytes


def peer(options, name):
    """Returns the images/s that a peer prints."""
    with tempfile.TemporaryDirectory() as data_dir:  # with this data set only
        folder = os.path.dirname(records.prepare(options.dataset, options.data_dir).files[0])
        os.symlink(os.path.abspath(folder), os.path.join(data_dir, 'records'))
        script, *extra = PEERS[name]
        output = harness.output_of('benchmarks/peers/' + script, *extra, '--data_dir=' + data_dir,
                                   f'--steps={options.steps // 2}', f'--warmup={options.steps // 2}',
                                   f'--batch_size={BATCH}', f'--device={options.tower_device}', timeout=900)
    return float(re.search(r'images_per_sec=([\d.]+)', output).group(1))


def inside(options, cell):
    """Measures a part of the program in this process.

    Returns:
      images/s for the cells 'bare step' and 'evaluation'; microseconds of CPU time per image for 'input'.
    """
    devices = choose_devices(1, options.tower_device)
    gpus.claim(devices.num_gpus)
    data = records.prepare(options.dataset, options.data_dir)
    return evaluation(options, devices, data) if cell == 'evaluation' else step(options, devices, data, cell)


def evaluation(options, devices, data):
    """Returns the images/s of an evaluation of training images."""
    with tf.Session(config=session_config(devices)) as session:
        count = min(data.count, BATCH * options.steps)
        recipe = Recipe(train_settings().recipe, len(data.classes))
        built = evaluator.Evaluator(data, recipe, devices.tower_devices, BATCH, count)
        session.run([tf.global_variables_initializer(), built.read])
        built.run(session)  # a warm-up
        begin = time.perf_counter()
        built.run(session)
        return count / (time.perf_counter() - begin)


def step(options, devices, data, cell):
    """Returns what `inside` does for the step, or its input, alone in a loop."""
    config = train_settings(
        dataset=options.dataset, data_dir=options.data_dir, max_steps=10 ** 6, tower_device=options.tower_device,
        num_towers=1, batch_size=BATCH, precision='fp32')
    run = Run(plan_of(decided(config, devices, before={}), data, devices))
    if cell == 'input':
        fetched = [tensor.op for tensor in run.graph.batches[0]]
        clock = time.process_time
    else:
        fetched = run.graph.train_step
        clock = time.perf_counter
    with run.opened():
        for _ in range(options.steps // 2):
            run.session.run(fetched)
        begin = clock()
        for _ in range(options.steps // 2):
            run.session.run(fetched)
        seconds = clock() - begin
    images = options.steps // 2 * BATCH
    return 1e6 * seconds / images if cell == 'input' else images / seconds


def measure(options, cell):
    """Returns the figure of a cell in RUNS, PEERS or COSTS."""
    if cell in RUNS:
        return harness.training_speed(options, options.steps, f'--tower_device={options.tower_device}', *RUNS[cell])
    if cell in PEERS:
        return peer(options, cell)
    if cell in ('first step', 'memory'):
        return start_up(options, cell)
    return float(harness.output_of('benchmarks/throughput.py', '--inside=' + cell, '--dataset=' + options.dataset,
                                   '--data_dir=' + options.data_dir, f'--steps={options.steps}',
                                   f'--tower_device={options.tower_device}').split()[-1])


def tables(results):
    """Returns the lines of two Markdown tables: of results {cell: figures}, and of their ratios."""
    rows = []
    for cell, figures in results.items():
        peer_or_run = 'images/s', 'training, a peer' if cell in PEERS else 'training, this program'
        unit, meaning = COSTS.get(cell, peer_or_run)
        rows.append([cell, f'{harness.spread(figures)} {unit}', meaning])
    ratios = [(f'{cell} / {base}', harness.ratio(results.get(cell, []), results.get(base, [])))
              for cell, base in RATIOS]
    return [*harness.table(['', 'median, lowest-highest', ''], rows), '',
            *harness.table(['ratio', 'median of the rounds'],
                           [[cells, f'{ratio:.2f}'] for cells, ratio in ratios if ratio is not None])]


def draw(path, results):
    """Draws the training speeds to a PNG: medians, with the lowest and highest as error bars."""
    from matplotlib import pyplot
    bars = [(cell, [figure for figure in results.get(cell, []) if figure is not None]) for cell in [*RUNS, *PEERS]]
    bars = [(cell, figures) for cell, figures in bars if figures][::-1]
    middles = [statistics.median(figures) for _, figures in bars]
    ends = [[middle - min(figures) for middle, (_, figures) in zip(middles, bars)],
            [max(figures) - middle for middle, (_, figures) in zip(middles, bars)]]
    figure, axes = pyplot.subplots(figsize=(7, 3.5))
    axes.barh([cell for cell, _ in bars], middles, xerr=ends,
              color=['tab:gray' if cell in PEERS else 'tab:blue' for cell, _ in bars])
    axes.set_xlabel(f'images/s, training the same network on {harness.machine()}')
    figure.savefig(path, dpi=120, bbox_inches='tight', format='png')


def main():
    """Measures all cells, reports them and draws a picture."""
    cells = [*RUNS, *PEERS, *COSTS]
    parser = harness.parser(__doc__.splitlines()[0], rounds=5)
    parser.add_argument('--steps', type=flags.at_least(4), default=400, metavar='N',
                        help='steps of a training run; the second half is timed (default: %(default)s)')
    parser.add_argument('--quick', action='store_true', help='one round of 80 steps, which takes a few minutes')
    parser.add_argument('--cells', type=harness.listed(str, cells), default=cells, metavar='CELL,...',
                        help='cells to measure (default: all): ' + ', '.join(cells))
    parser.add_argument('--tower_device', default='cpu', choices=('cpu', 'gpu'),
                        help='device of the runs and of the peers (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file to which the training speeds are drawn')
    parser.add_argument('--inside', metavar='CELL', help='cell to measure in this process; prints the figure')
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
        options.steps = 80
    harness.check(options)
    if options.inside:
        print(inside(options, options.inside))
        return
    results = harness.measure(options.cells, options.rounds, lambda cell: measure(options, cell))
    harness.report(options, tables(results), figures=results)
    if options.plot:
        draw(options.plot, results)
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
