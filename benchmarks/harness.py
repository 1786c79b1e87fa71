"""What the benchmarks share: flags, processes to measure, rounds over all cells, medians, a JSON file."""
import json
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
from cifar10.data import records  # noqa: E402
from cifar10.programs import flags  # noqa: E402
from cifar10.run import metrics  # noqa: E402


class Failed(RunError):
    """A process failed; the message says why in one line."""


def parser(description, rounds=None):
    """Returns an argument parser with the flags that every benchmark takes.

    Args:
      description: what the benchmark measures, in a line.
      rounds: the default of --rounds; None: the benchmark does not measure all cells in turn.
    """
    result = flags.Parser(description)
    result.add_argument('--data_dir', default=DATA_DIR, type=os.path.abspath,
                        help='directory of the data set, which is fetched if absent (default: %(default)s)')
    result.add_argument('--dataset', default=next(iter(DATASETS)), choices=tuple(DATASETS),
                        help='data set; shapes is built in and needs no download (default: %(default)s)')
    result.add_argument('--json', metavar='FILE', help='file to which all single figures are written')
    if rounds:
        result.add_argument('--rounds', type=flags.at_least(1), default=rounds, metavar='N',
                            help='measurements of each cell (default: %(default)s)')
    return result


def listed(kind, choices=None):
    """Returns an argparse type for comma-separated values of a type, which must be in `choices` if given."""
    def parse(text):
        values = [kind(part) for part in text.split(',')]
        for value in values:
            if choices and value not in choices:
                raise UsageError(f"{value} is unknown; choose from: {', '.join(choices)}")
        return values
    parse.__name__ = 'list'
    return parse


def check(options):
    """Checks, before hours of measuring, that the data set exists and the result files can be written."""
    records.prepare(options.dataset, options.data_dir)
    if options.json and not os.path.isdir(os.path.dirname(os.path.abspath(options.json))):
        raise UsageError(f'the folder of {options.json} does not exist; create it, or name another file')
    if getattr(options, 'plot', None):
        directories.check_plot(options.plot)


def output_of(*arguments, timeout=None):
    """Runs Python with these arguments in the repository's root; returns its standard output.

    Raises:
      Failed: its exit status is not 0, or it took more than `timeout` seconds.
    """
    try:
        result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise Failed(f'{arguments[0]} did not end within {timeout} s') from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise Failed(lines[-1] if lines else f'{arguments[0]} ended with status {result.returncode}')
    return result.stdout


def trainer(options, train_dir):
    """Returns the trainer's script, in the repository's root, with the flags that all benchmarks use."""
    return ['multi_gpu_train.py', f'--dataset={options.dataset}', f'--data_dir={options.data_dir}',
            f'--train_dir={train_dir}']


def start_up(options, *arguments):
    """Trains in a process of its own, to measure its start and its memory.

    Returns:
      (seconds from the command to the end of the first step, peak memory of the process in MiB).
    """
    with tempfile.TemporaryDirectory() as train_dir:
        command = [sys.executable, *trainer(options, train_dir), '--log_frequency=1', *arguments]
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
        first = None
        for line in process.stdout:
            if first is None and ': step 1, ' in line:
                first = time.perf_counter() - begin
        _, status, usage = os.wait4(process.pid, 0)  # the memory of this process alone
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or first is None:
        raise Failed(f'the run ended with status {process.returncode}')
    return first, usage.ru_maxrss / 1024


def second_half(train_dir):
    """Returns the images/s of the second half of a run; its --log_frequency must be half of its steps."""
    rates = [record['images_per_sec'] for record in metrics.read(train_dir, metrics.TRAIN)]
    if len(rates) < 2:
        raise Failed(f'no speed in its {metrics.NAME}')
    return rates[1]


def training_speed(options, steps, *extra):
    """Trains in a process of its own; returns the images/s of the second half of its steps."""
    half = steps // 2
    with tempfile.TemporaryDirectory() as train_dir:
        output_of(*trainer(options, train_dir), f'--max_steps={2 * half}', f'--log_frequency={half}',
                  f'--save_steps={half}', *extra)
        return second_half(train_dir)


def measure(cells, rounds, measure_cell):
    """Measures all cells in turn, for several rounds, so that a drift of the machine affects all cells alike.

    Args:
      cells: hashable names, in order.
      rounds: how many times each cell is measured.
      measure_cell: function cell -> float or tuple of floats; may raise Failed.

    Returns:
      {cell: [one figure per round; None if it failed]}; after a KeyboardInterrupt of the rounds so far.
    """
    results = {cell: [] for cell in cells}
    try:
        for k in range(rounds):
            for cell in cells:
                label = ' '.join(map(str, cell)) if isinstance(cell, tuple) else cell
                try:
                    figure = measure_cell(cell)
                    numbers = figure if isinstance(figure, tuple) else (figure,)
                    outcome = ', '.join(f'{number:.0f}' for number in numbers)
                except Failed as error:
                    figure = None
                    outcome = f'failed: {error}'
                results[cell].append(figure)
                print(f'round {k + 1} of {rounds}, {label}: {outcome}', file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print('interrupted: the following figures are from the rounds so far', file=sys.stderr)
    return results


def spread(figures, decimals=0):
    """Returns 'median, lowest-highest' of the figures that are not None; 'failed' if there are none."""
    valid = [figure for figure in figures if figure is not None]
    if not valid:
        return 'failed'
    return f'{statistics.median(valid):.{decimals}f}, {min(valid):.{decimals}f}-{max(valid):.{decimals}f}'


def mean_spread(figures, decimals, unit=''):
    """Returns 'mean (lowest-highest)' of figures, with a unit after the mean."""
    return (f'{statistics.mean(figures):.{decimals}f}{unit} '
            f'({min(figures):.{decimals}f}-{max(figures):.{decimals}f})')


def ratio(figures, base):
    """Returns the median of figure / base over the rounds that have both; None if no round has."""
    ratios = [a / b for a, b in zip(figures, base) if a is not None and b is not None]
    return statistics.median(ratios) if ratios else None


def table(header, rows):
    """Returns the lines of a Markdown table; `header` and each row are lists of cells."""
    def line(cells):
        return f"| {' | '.join(map(str, cells))} |"
    return [line(header), '|' + '---|' * len(header), *map(line, rows)]


def report(options, lines, **content):
    """Prints lines and, with --json, writes the flags, the machine and other content to a file.

    Args:
      options: of the command line.
      lines: for people.
      content: values for JSON; of a dict whose keys are tuples, each key becomes a string.
    """
    print('\n'.join(lines))
    if options.json:
        values = {name: _with_names(value) for name, value in content.items()}
        with open(options.json, 'w') as stream:
            json.dump(dict(flags=vars(options), **values, machine=machine()), stream, indent=1)


def _with_names(value):
    """Returns a value, or a dict whose keys were tuples with names as keys."""
    if not isinstance(value, dict):
        return value
    return {' '.join(map(str, key)) if isinstance(key, tuple) else key: each for key, each in value.items()}


# Prints the names of the GPUs that a process which is started now uses.
_GPUS = """
from cifar10.base import startup; startup.start_tensorflow()
import tensorflow as tf
from cifar10.parallel import gpus
for gpu in tf.config.list_physical_devices('GPU'):
    print(tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name))
print(gpus.selection())
"""


def machine():
    """Returns a description of this machine: its processor, how many cores and which GPUs this process may use."""
    names = [line.split(':', 1)[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')]
    processor = f"{(names[0] if names else 'unknown processor')}, {len(os.sched_getaffinity(0))} cores"
    gpus = output_of('-c', _GPUS).splitlines() if shutil.which('nvidia-smi') else []
    return ', '.join(filter(None, [processor, *gpus]))


def end(results):
    """Raises a RunError if any measurement failed; call it last, when the results are printed and written."""
    failed = sum(figure is None for figures in results.values() for figure in figures)
    if failed or not any(results.values()):
        raise RunError(f'{failed} measurements failed; the lines above say why')
