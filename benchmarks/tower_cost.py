#!/usr/bin/env python3
"""Measures the cost of towers on one device: seconds to the first step and peak memory over the number of towers.

    python benchmarks/tower_cost.py --dataset=shapes --data_dir=/tmp/shapes_data
    python benchmarks/tower_cost.py --dataset=shapes --batch_size=128 --towers=1,32

Each cell trains for three steps in a new process; all cells are measured in turn, for several rounds. Prints medians
with the lowest and highest figures.
"""
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402


def measure(options, towers):
    """Trains once; returns (seconds from the command to the end of the first step, peak memory in MiB)."""
    with tempfile.TemporaryDirectory() as train_dir:
        command = [sys.executable, *harness.trainer(options, train_dir), '--tower_device=cpu', '--num_gpus=1',
                   f'--num_towers={towers}', f'--batch_size={options.batch_size}', '--max_steps=3', '--log_frequency=1']
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   cwd=harness.ROOT)
        first = None
        for line in process.stdout:
            if ': step 1, ' in line:
                first = time.perf_counter() - begin
        _, status, usage = os.wait4(process.pid, 0)  # with the memory of only this process
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or first is None:
        raise harness.Failed(f'the run ended with status {process.returncode}')
    return first, usage.ru_maxrss / 1024


def table(results):
    """Returns the lines of a Markdown table of results {towers: [(seconds, MiB)]}."""
    rows = []
    for towers, figures in results.items():
        seconds, mebibytes = ([figure and figure[i] for figure in figures] for i in (0, 1))
        rows.append([towers, harness.spread(seconds, 1), harness.spread(mebibytes)])
    return harness.table(['towers', 'seconds to the first step', 'peak MiB'], rows)


def main():
    """Measures all cells and reports them."""
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument('--towers', type=harness.listed(flags.at_least(1)), default=[1, 4, 16, 64], metavar='N,...',
                        help='tower counts (default: 1,4,16,64)')
    parser.add_argument('--batch_size', type=flags.at_least(1), default=2, metavar='N',
                        help='images of each tower in a step (default: %(default)s)')
    options = parser.parse_args()
    harness.check(options)
    harness.measure(options, options.towers, lambda towers, _: measure(options, towers), table)


if __name__ == '__main__':
    sys.exit(program.run(main))
