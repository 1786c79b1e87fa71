"""What the benchmarks share: cells measured in turn as processes, their medians, a table, a file, a picture.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from cifar10.cli import flags, plots  # noqa: E402
from cifar10.data import records  # noqa: E402
from cifar10.directories import DATA_DIR  # noqa: E402
from cifar10.errors import RunError, UsageError  # noqa: E402
from cifar10.registry import DATASETS  # noqa: E402
from cifar10.run import metrics  # noqa: E402


class Failed(RunError):
    """A process failed; its text says why in a line."""


def parser(description):
    """Returns an argument parser with the flags that every benchmark takes."""
    result = flags.Parser(description)
    result.add_argument('--data_dir', default=DATA_DIR, type=os.path.abspath,
                        help='where the data set is, or is put (default: %(default)s)')
    result.add_argument('--dataset', default=next(iter(DATASETS)), choices=tuple(DATASETS),
                        help='shapes is built in and needs no network (default: %(default)s)')
    result.add_argument('--json', metavar='FILE', help='write every single figure there')
    return result


def listed(kind, choices=None):
    """Returns an argparse type: comma-separated values of a type, from `choices` where there are any."""
    def parse(text):
        values = [kind(part) for part in text.split(',')]
        for value in values:
            if choices and value not in choices:
                raise UsageError(f"{value} is unknown; choose from: {', '.join(choices)}")
        return values
    parse.__name__ = 'list'
    return parse


def check(given):
    """Looks before hours of measuring that the data are there and the files can be written.

    Raises:
      UsageError: they are not, or cannot.
    """
    records.prepare(given.dataset, given.data_dir)
    if given.json and not os.path.isdir(os.path.dirname(os.path.abspath(given.json))):
        raise UsageError(f'the folder of {given.json} does not exist')
    if getattr(given, 'plot', None):
        plots.check_plot(given.plot)


def output_of(*arguments, timeout=None):
    """Runs Python in this repository's root with these arguments; returns what it prints.

    Raises:
      Failed: its status is not 0, or it took more than `timeout` seconds.
    """
    try:
        result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise Failed(f'{arguments[0]} did not end within {timeout} s') from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise Failed(lines[-1] if lines else f'{arguments[0]} ended with status {result.returncode}')
    return result.stdout


def trainer(given, train_dir):
    """Returns the trainer's script and the flags that every benchmark gives it, to be run in this repository's root."""
    return ['multi_gpu_train.py', f'--dataset={given.dataset}', f'--data_dir={given.data_dir}',
            f'--train_dir={train_dir}']


def start_up(given, *arguments):
    """Trains as a process; returns (seconds from the command to the end of the first step, its peak memory in MiB).

    Raises:
      Failed: the process failed.
    """
    with tempfile.TemporaryDirectory() as train_dir:
        command = [sys.executable, *trainer(given, train_dir), '--tower_device=cpu', '--log_frequency=1', *arguments]
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
    """Returns the images/s of the second half of a run whose --log_frequency is half of its steps.

    Raises:
      Failed: its metrics do not tell it.
    """
    rates = [record['images_per_sec'] for record in metrics.read(train_dir, metrics.TRAIN)]
    if len(rates) < 2:
        raise Failed(f'no speed in its {metrics.NAME}')
    return rates[1]


def training_speed(given, steps, *extra):
    """Trains as a process; returns the images/s of the second half of its steps.

    Raises:
      Failed: the process failed, or does not tell its speed.
    """
    half = steps // 2
    with tempfile.TemporaryDirectory() as train_dir:
        output_of(*trainer(given, train_dir), f'--max_steps={2 * half}', f'--log_frequency={half}',
                  f'--save_steps={half}', *extra)
        return second_half(train_dir)


def measure(cells, rounds, one):
    """Measures all cells in turn, several rounds, so that the machine's drift meets all of them alike.

    Args:
      cells: hashable names, in order.
      rounds: int.
      one: function cell -> float or tuple of floats; may raise Failed.

    Returns:
      {cell: [a figure a round; None where it failed]}; of the rounds so far after a KeyboardInterrupt.
    """
    results = {cell: [] for cell in cells}
    try:
        for k in range(rounds):
            for cell in cells:
                label = ' '.join(map(str, cell)) if isinstance(cell, tuple) else cell
                try:
                    results[cell].append(one(cell))
                    figure = results[cell][-1]
                    said = ', '.join(f'{part:.0f}' for part in (figure if isinstance(figure, tuple) else [figure]))
                except Failed as error:
                    results[cell].append(None)
                    said = f'failed: {error}'
                print(f'round {k + 1} of {rounds}, {label}: {said}', file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print('interrupted: the following figures are those of the rounds so far', file=sys.stderr)
    return results


def spread(figures, decimals=0):
    """Returns 'median, lowest-highest' of figures with so many decimals, or 'failed' if there is none."""
    good = [figure for figure in figures if figure is not None]
    if not good:
        return 'failed'
    return f'{statistics.median(good):.{decimals}f}, {min(good):.{decimals}f}-{max(good):.{decimals}f}'


def mean_spread(figures, decimals, unit=''):
    """Returns 'mean (lowest-highest)' of figures with so many decimals and a unit after the mean."""
    return (f'{statistics.mean(figures):.{decimals}f}{unit} '
            f'({min(figures):.{decimals}f}-{max(figures):.{decimals}f})')


def ratio(figures, base):
    """Returns the median over the rounds of figure / base in the same round, or None if no round has both."""
    ratios = [a / b for a, b in zip(figures, base) if a is not None and b is not None]
    return statistics.median(ratios) if ratios else None


def write_json(path, **content):
    """Writes what was measured, with the machine that it was measured on."""
    with open(path, 'w') as stream:
        json.dump(dict(content, machine=machine()), stream, indent=1)


def machine():
    """Returns a phrase for this machine: its processor and how many of its cores this process may use."""
    names = [line.split(':', 1)[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')]
    return f"{(names[0] if names else 'unknown processor')}, {len(os.sched_getaffinity(0))} cores"


def end(results):
    """Raises a RunError if any cell failed in any round, once everything was printed."""
    failed = sum(figure is None for figures in results.values() for figure in figures)
    if failed or not any(results.values()):
        raise RunError(f'{failed} measurements failed; the lines above say why')
