#!/usr/bin/env python3
"""Compares a run that is killed and moved to different devices with an unbroken run: same losses, same variables.

    python benchmarks/elastic.py --data_dir=/tmp/cifar10_data --plot=elastic.png

Trains 8 towers of 16 images on one device to the end. Then trains them on 4 devices, kills the process (SIGKILL) and
continues on 1 device, on 3, on two workers with 2 each, and on 1 again, each time after a kill. Prints the last loss
and the SHA-256 of all variables of both runs. The exit status is 1 unless all losses and variables are equal.
"""
import os
import subprocess
import sys
import tempfile
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.base.errors import RunError  # noqa: E402
from cifar10.programs import flags, local_cluster, program  # noqa: E402
from cifar10.run import metrics  # noqa: E402


class Stage(NamedTuple):
    """The hardware of a part of a run: the devices of each worker, or with 0 workers, of a single process."""
    devices: int
    workers: int = 0

    def __str__(self):
        count = f"{self.devices} device{'s' * (self.devices > 1)}"
        return f'{self.workers} workers x {count}' if self.workers else count


MOVES = [Stage(4), Stage(1), Stage(3), Stage(2, 2), Stage(1)]


def train(options, train_dir, stage, until=None):
    """Trains on a stage's hardware to the end, or to step `until`; then kills all processes.

    Raises:
      harness.Failed: the chief failed, or ended before step `until`.
    """
    command = [sys.executable, *harness.trainer(options, train_dir), '--tower_device=cpu',
               f'--num_gpus={stage.devices}', f'--max_steps={options.steps}', f'--save_steps={options.steps // 20}',
               '--summary_steps=0', '--log_frequency=1']
    # A resumed run keeps its towers and its batch size, so only the first start gets these flags.
    if not os.path.exists(os.path.join(train_dir, 'checkpoint')):
        command += ['--num_towers=8', '--batch_size=16']
    with local_cluster.free_addresses(stage.workers) as addresses:
        _run(local_cluster.commands(command, addresses, stage.workers) or {'worker 0': command}, stage, until)


def _run(commands, stage, until):
    tasks = {}
    for name, task_command in commands.items():
        output = subprocess.PIPE if name == 'worker 0' else subprocess.DEVNULL
        tasks[name] = subprocess.Popen(task_command, stdout=output, stderr=subprocess.STDOUT, text=True,
                                       cwd=harness.ROOT)
    chief = tasks['worker 0']
    line = ''
    try:
        for line in chief.stdout:
            if until and f'step {until},' in line:
                return
        if until or chief.wait():
            raise harness.Failed(f'on {stage}: {line.strip()}')
    finally:
        for task in tasks.values():
            task.kill()
            task.wait()


def losses(train_dir):
    """Returns {step: loss} of a run."""
    return {record['step']: record['loss'] for record in metrics.read(train_dir, metrics.TRAIN)}


def draw(path, whole, moved, ends):
    """Plots 60 losses of both runs to a PNG, with the devices in use; `ends` are the last steps of the stages."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    begin = 0
    for i, (stage, end) in enumerate(zip(MOVES, ends)):
        axes.axvspan(begin, end, color='C0', alpha=0.06 + 0.1 * (i % 2), linewidth=0)
        axes.text((begin + end) / 2, 1.02, str(stage).replace(' x ', '\nx ') if stage.workers else stage,
                  transform=axes.get_xaxis_transform(), ha='center', fontsize=8)
        if i:
            axes.axvline(begin, color='C3', linewidth=1)
        begin = end
    steps = list(whole)[::len(whole) // 60]
    axes.plot(steps, [whole[step] for step in steps], color='C1', linewidth=4, alpha=0.5,
              label='one device, never stopped')
    axes.plot(steps, [moved.get(step) for step in steps], color='black', linewidth=1, label='killed (red) and moved')
    axes.set_xlim(0, ends[-1])
    axes.set_xlabel('step')
    axes.set_ylabel('loss')
    axes.legend(loc='upper right')
    figure.savefig(path, dpi=120, bbox_inches='tight', format='png')


def main():
    """Trains both runs, and prints and plots a comparison."""
    parser = harness.parser(__doc__)
    parser.add_argument('--steps', type=flags.at_least(60), default=600, metavar='N',
                        help='steps of each run, divided evenly over its five parts (default: %(default)s)')
    parser.add_argument('--plot', metavar='FILE', help='PNG file for a plot of the two curves')
    options = parser.parse_args()
    harness.check(options)
    ends = [options.steps * (i + 1) // len(MOVES) for i in range(len(MOVES))]
    with tempfile.TemporaryDirectory() as folder:
        whole_dir = os.path.join(folder, 'whole')
        moved_dir = os.path.join(folder, 'moved')
        print(f'{options.steps} steps on 1 device', file=sys.stderr, flush=True)
        train(options, whole_dir, Stage(1))
        for stage, end in zip(MOVES, ends):
            print(f'to step {end} on {stage}', file=sys.stderr, flush=True)
            # Kills come between two checkpoints, so each part repeats some steps of the previous part.
            train(options, moved_dir, stage, end + options.steps // 40 if end < options.steps else None)
        whole = losses(whole_dir)
        moved = losses(moved_dir)
        hashes = [metrics.last(directory, metrics.CHECKPOINT)['sha256'] for directory in (whole_dir, moved_dir)]
    harness.report(options, harness.table(['run', 'last loss', 'SHA-256 of the variables'], [
        ['never stopped', whole[options.steps], hashes[0]], ['killed and moved', moved.get(options.steps), hashes[1]],
    ]), dict(whole=whole, moved=moved, hashes=hashes))
    if options.plot:
        draw(options.plot, whole, moved, ends)
    if hashes[0] != hashes[1] or whole != moved:
        raise RunError('the runs differ')


if __name__ == '__main__':
    sys.exit(program.run(main))
