#!/usr/bin/env python3
"""How fast this program is, and what a run costs, beside programs that one would use instead.

    python benchmarks/throughput.py --data_dir=/tmp/cifar10_data --plot=throughput.png
    python benchmarks/throughput.py --dataset=shapes --quick

Every cell is a process of its own, all cells in turn, several rounds. Training cells are whole runs with
input, hooks, summaries and a checkpoint; the peers are the programs in `benchmarks/peers`, which train
the same network on the same files. Prints medians with the lowest and highest, and median ratios of the
same round.
"""
import os
import re
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10 import console  # noqa: E402
from cifar10.cli import flags, program  # noqa: E402
from cifar10.data import records  # noqa: E402

BATCH = 128

# Cell: the flags of a training run.
RUNS = {'fp32': [], 'bf16': ['--precision=bf16'], 'four towers': ['--num_gpus=4', f'--batch_size={BATCH // 4}']}
# Cell: the script and the flags of a peer.
PEERS = {'queue runner': ['queue_runner.py'], 'Keras': ['keras_mirrored.py'], 'PyTorch': ['pytorch.py'],
         'PyTorch bf16': ['pytorch.py', '--precision=bf16'], 'PyTorch compiled': ['pytorch.py', '--compile'],
         'PyTorch compiled bf16': ['pytorch.py', '--compile', '--precision=bf16']}
# Cell: (what it is, its unit).
COSTS = {'bare step': ('images/s', 'the fp32 step alone in a loop'), 'evaluation': ('images/s', 'a pass in fp32'),
         'input': ('us', 'CPU time of the input pipeline, an image'),
         'first step': ('ms', 'from the command to the end of the first step'),
         'memory': ('MiB', 'peak of a training run')}
RATIOS = [('fp32', 'queue runner'), ('bf16', 'queue runner'), ('fp32', 'Keras'), ('fp32', 'PyTorch'),
          ('bf16', 'PyTorch bf16'), ('fp32', 'PyTorch compiled'), ('bf16', 'PyTorch compiled bf16'),
          ('four towers', 'fp32'), ('fp32', 'bare step'), ('evaluation', 'fp32')]


def start_up(given, cell):
    """Returns the milliseconds to the first step, or the peak memory in MiB, of a training run."""
    seconds, mebibytes = harness.start_up(given, f"--max_steps={1 if cell == 'first step' else 50}")
    return 1000 * seconds if cell == 'first step' else mebibytes


def peer(given, name):
    """Returns the images/s that a peer prints."""
    with tempfile.TemporaryDirectory() as data_dir:  # with this data set alone
        folder = os.path.dirname(records.prepare(given.dataset, given.data_dir).files[0])
        os.symlink(os.path.abspath(folder), os.path.join(data_dir, 'records'))
        script, *extra = PEERS[name]
        output = harness.output_of('benchmarks/peers/' + script, *extra, '--data_dir=' + data_dir,
                                   f'--steps={given.steps // 2}', f'--warmup={given.steps // 2}',
                                   f'--batch_size={BATCH}', timeout=900)
    return float(re.search(r'images_per_sec=([\d.]+)', output).group(1))


def inside(given, cell):
    """Measures a part of the program, in this process.

    Returns:
      images/s of the 'bare step' or of an 'evaluation' pass; microseconds of CPU an image for 'input'.
    """
    console.start_tensorflow()
    import tensorflow.compat.v1 as tf

    from cifar10 import training as trainer
    from cifar10.parallel import gpus
    from cifar10.parallel.devices import choose as choose_devices
    from cifar10.parallel.session_config import session_config
    from cifar10.plan import Plan
    from cifar10.recipe import Recipe
    from cifar10.registry import UPDATE_MODES
    from cifar10.settings.training import train_settings
    from cifar10.trained import evaluator
    devices = choose_devices(1, 'cpu')
    gpus.claim(devices.num_gpus)
    data = records.prepare(given.dataset, given.data_dir)
    with tf.Session(config=session_config(devices)) as session:
        if cell == 'evaluation':
            count = min(data.count, BATCH * given.steps)
            recipe = Recipe(train_settings().recipe, len(data.classes))
            built = evaluator.Evaluator(data, recipe, devices.tower_devices, BATCH, count)
            session.run([tf.global_variables_initializer(), built.read])
            built.run(session)  # a warm-up
            begin = time.perf_counter()
            built.run(session)
            return count / (time.perf_counter() - begin)
        config = train_settings(
            dataset=given.dataset, data_dir=given.data_dir, max_steps=10 ** 6, tower_device='cpu', batch_size=BATCH)
        mode = UPDATE_MODES.load('parameter_server')(devices)
        recipe = Recipe(config.recipe, len(data.classes), config.run.seed, data.count)
        built = trainer.build(Plan(config, recipe, data, devices, mode, None, 0, config.run.max_steps), {})
        session.run(tf.global_variables_initializer())
        session.run(built.start)
        fetched = [tensor.op for tensor in built.batches[0]] if cell == 'input' else built.train_step
        clock = time.process_time if cell == 'input' else time.perf_counter
        for _ in range(given.steps // 2):
            session.run(fetched)
        begin = clock()
        for _ in range(given.steps // 2):
            session.run(fetched)
        seconds, images = clock() - begin, given.steps // 2 * BATCH
        return 1e6 * seconds / images if cell == 'input' else images / seconds


def measure(given, cell):
    """Returns the figure of a cell; see RUNS, PEERS and COSTS."""
    if cell in RUNS:
        return harness.training_speed(given, given.steps, '--tower_device=cpu', *RUNS[cell])
    if cell in PEERS:
        return peer(given, cell)
    if cell in ('first step', 'memory'):
        return start_up(given, cell)
    return float(harness.output_of('benchmarks/throughput.py', '--inside=' + cell, '--dataset=' + given.dataset,
                                   '--data_dir=' + given.data_dir, f'--steps={given.steps}').split()[-1])


def table(results):
    """Returns the lines of a Markdown table of results {cell: figures}, and of one of their ratios."""
    lines = ['| | median, lowest-highest | |', '|---|---|---|']
    for cell, figures in results.items():
        unit, what = COSTS.get(cell, ('images/s', f"training, {('a peer' if cell in PEERS else 'this program')}"))
        lines.append(f'| {cell} | {harness.spread(figures)} {unit} | {what} |')
    lines += ['', '| ratio | median of the rounds |', '|---|---|']
    for cell, base in RATIOS:
        ratio = harness.ratio(results.get(cell, []), results.get(base, []))
        if ratio is not None:
            lines.append(f'| {cell} / {base} | {ratio:.2f} |')
    return lines


def draw(path, results):
    """Draws the training speeds to a PNG, medians with their lowest and highest."""
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
    """Measures all cells, prints the tables, writes JSON and a picture."""
    cells = [*RUNS, *PEERS, *COSTS]
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--steps', type=flags.at_least(4), default=400, metavar='N',
                        help='of a training run; the second half is timed (default: %(default)s)')
    parser.add_argument('--rounds', type=flags.at_least(1), default=5, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--quick', action='store_true', help='one round of 80 steps: a few minutes')
    parser.add_argument('--cells', type=harness.listed(str, cells), default=cells, metavar='CELL,...',
                        help='what to measure (default: all): ' + ', '.join(cells))
    parser.add_argument('--plot', metavar='FILE', help='draw the training speeds to a PNG')
    parser.add_argument('--inside', metavar='CELL', help='measure this one in this process; prints the figure')
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.steps = 1, 80
    harness.check(given)
    if given.inside:
        print(inside(given, given.inside))
        return
    results = harness.measure(given.cells, given.rounds, lambda cell: measure(given, cell))
    print('\n'.join(table(results)))
    if given.json:
        harness.write_json(given.json, flags=vars(given), figures=results)
    if given.plot:
        draw(given.plot, results)
    harness.end(results)


if __name__ == '__main__':
    sys.exit(program.run(main))
