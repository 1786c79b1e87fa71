"""Shared code of the benchmarks: flags, processes to measure, rounds over all cells, medians, a JSON file."""
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from cifar10.base import directories  # noqa: E402
from cifar10.base.directories import DATA_DIR  # noqa: E402
from cifar10.base.errors import RunError, UsageError  # noqa: E402
from cifar10.base.registry import DATASETS  # noqa: E402
from cifar10.data import datasets  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from cifar10.run import metrics  # noqa: E402


class Failed(RunError):
    """A process failed; the message is the reason in one line."""


def parser(doc, rounds=None, seeds=None):
    """Returns an argument parser with the flags of all benchmarks.

    Args:
      doc: the benchmark's docstring.
      rounds: the default of --rounds; None: the benchmark has no such flag.
      seeds: the default of --seeds, for a benchmark with a new seed in each round; or None.
    """
    result = flags.Parser(doc)
    result.add_argument('--data_dir', default=DATA_DIR, type=os.path.abspath,
                        help='directory of the data set, downloaded if missing (default: %(default)s)')
    result.add_argument('--dataset', default=next(iter(DATASETS)), choices=tuple(DATASETS),
                        help='data set; shapes is built in and needs no download (default: %(default)s)')
    result.add_argument('--json', metavar='FILE', help='JSON file for all figures')
    if rounds:
        result.add_argument('--rounds', type=flags.at_least(1), default=rounds, metavar='N',
                            help='measurements of each cell (default: %(default)s)')
    if seeds:
        result.add_argument('--seeds', type=flags.at_least(1), default=seeds, metavar='N', dest='rounds',
                            help='runs of each cell, with seeds 0, 1, ... (default: %(default)s)')
    return result


def listed(kind, choices=None):
    """Returns an argparse type for comma-separated values of type `kind`, limited to `choices` if given."""
    def parse(text):
        values = [kind(part) for part in text.split(',')]
        for value in values:
            if choices and value not in choices:
                raise UsageError(f"{value} is unknown; choose from: {', '.join(choices)}")
        return values
    parse.__name__ = 'list'
    return parse


def check(options):
    """Checks, before hours of measuring, that the data set exists and the result files are writable."""
    datasets.prepare(options.dataset, options.data_dir)
    if options.json and not os.path.isdir(os.path.dirname(os.path.abspath(options.json))):
        raise UsageError(f'the folder of {options.json} does not exist; create it, or name another file')
    if getattr(options, 'plot', None):
        directories.check_plot(options.plot)


def output_of(*arguments):
    """Runs Python with these arguments in the repository's root; returns its standard output.

    Raises:
      Failed: the exit status is not 0.
    """
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise Failed(lines[-1] if lines else f'{arguments[0]} ended with status {result.returncode}')
    return result.stdout


def trainer(options, train_dir):
    """Returns the trainer's script with the flags of all benchmarks."""
    return ['multi_gpu_train.py', f'--dataset={options.dataset}', f'--data_dir={options.data_dir}',
            f'--train_dir={train_dir}']


def evaluated(train_dir):
    """Evaluates the newest checkpoint of a run; returns the record of the evaluation."""
    output_of('cifar10_eval.py', '--run_once', f'--train_dir={train_dir}')
    return metrics.last(os.path.join(train_dir, directories.EVALUATIONS), metrics.EVAL)


def second_half(train_dir):
    """Returns the images/s of the second half of a run, which needs --log_frequency of half its steps."""
    rates = [record['images_per_sec'] for record in metrics.read(train_dir, metrics.TRAIN)]
    if len(rates) < 2:
        raise Failed(f'the run has no speed in {metrics.NAME}')
    return rates[1]


def training_speed(options, steps, *extra, workers=1, spare=0, program=()):
    """Trains in a new process; returns the images/s of the second half of its steps.

    Args:
      options: options of the command line.
      steps: number of steps.
      extra: flags of the trainer.
      workers: number of processes, as a cluster on this machine.
      spare: number of additional steps, because threads of `async` may not report the last steps.
      program: arguments of Python that start the trainer; default: its script.
    """
    cluster = ['-m', 'cifar10', 'local_cluster', f'--workers={workers}', '--', sys.executable] if workers > 1 else []
    half = steps // 2
    with tempfile.TemporaryDirectory() as train_dir:
        script, *common = trainer(options, train_dir)
        length = f'--max_steps={2 * half + spare}', f'--log_frequency={half}'
        output_of(*cluster, *(program or [script]), *common, *length, *extra)
        return second_half(train_dir)


def measure(options, cells, measure_cell, tables, draw=None, until=math.inf):
    """Measures all cells in turn, for several rounds, so a drift of the machine affects all cells alike.

    At the end, or after an interrupt, it reports the results so far.

    Args:
      options: options of the command line, with `rounds`, the number of measurements of each cell.
      cells: hashable names, in order.
      measure_cell: function (cell, round from 0) -> a number, a tuple of numbers, or for a curve a list of numbers or
        tuples; may raise Failed.
      tables: function (results) -> lines to print. The results are {cell: [one figure per round; None if it failed]}.
      draw: function (path, results) that writes the PNG for --plot, or None.
      until: no cell begins after this `time.monotonic`.

    Raises:
      RunError: a measurement failed.
    """
    results = {cell: [] for cell in cells}
    try:
        for k in range(options.rounds):
            for cell in cells:
                if time.monotonic() > until:
                    return
                try:
                    figure = measure_cell(cell, k)
                    outcome = _brief(figure)
                except Failed as error:
                    figure = None
                    outcome = f'failed: {error}'
                results[cell].append(figure)
                print(f'round {k + 1} of {options.rounds}, {_name(cell)}: {outcome}', file=sys.stderr, flush=True)
    finally:
        report(options, tables(results), {_name(cell): figures for cell, figures in results.items()})
        if draw and options.plot:
            draw(options.plot, results)
    failed = sum(figure is None for figures in results.values() for figure in figures)
    if failed:
        raise RunError(f'{failed} measurements failed; see the lines above')


def _name(cell):
    """Returns a cell's name in lines and in the JSON file."""
    return ' '.join(map(str, cell)) if isinstance(cell, tuple) else cell


def _brief(figure):
    """Formats a figure, or the last point of a curve, for a line."""
    if isinstance(figure, list):
        figure = figure[-1]
    return ', '.join(f'{number:.6g}' for number in (figure if isinstance(figure, (list, tuple)) else [figure]))


def present(figures):
    """Returns the figures of the rounds that did not fail."""
    return [figure for figure in figures if figure is not None]


def spread(figures, decimals=0, middle=statistics.median):
    """Returns 'median (lowest-highest)' of the figures that are present, or 'failed' or 'not measured'."""
    valid = present(figures)
    if not valid:
        return 'failed' if figures else 'not measured'
    return f'{middle(valid):.{decimals}f} ({min(valid):.{decimals}f}-{max(valid):.{decimals}f})'


def ratio(figures, base):
    """Returns the median of figure / base over the rounds with both figures; None if there is no such round."""
    ratios = [a / b for a, b in zip(figures, base) if a is not None and b is not None]
    return statistics.median(ratios) if ratios else None


def table(header, rows):
    """Returns the lines of a Markdown table from lists of cells."""
    def line(cells):
        return f"| {' | '.join(map(str, cells))} |"
    return [line(header), '|' + '---|' * len(header), *map(line, rows)]


def report(options, lines, figures):
    """Prints lines and, with --json, writes the flags, figures and machine to a file."""
    print('\n'.join(lines))
    if options.json:
        with open(options.json, 'w') as stream:
            json.dump(dict(flags=vars(options), figures=figures, machine=machine()), stream, indent=1)


# Prints the names of the GPUs that a new process uses.
_GPUS = """
from cifar10.base import startup; startup.start_tensorflow()
import tensorflow as tf
from cifar10.parallel import gpus
for gpu in tf.config.list_physical_devices('GPU'):
    print(tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name))
print(gpus.selection())
"""


def machine():
    """Describes this machine: its processor, and the cores and GPUs that this process may use."""
    names = [line.split(':', 1)[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')]
    processor = f"{(names[0] if names else 'unknown processor')}, {len(os.sched_getaffinity(0))} cores"
    gpus = output_of('-c', _GPUS).splitlines() if shutil.which('nvidia-smi') else []
    return ', '.join(filter(None, [processor, *gpus]))
