#!/usr/bin/env python3
"""Checks `--explain`: makes steps slow in known ways, and compares what it says with what happens.

    python benchmarks/explain.py --data_dir=/tmp/cifar10_data

For each cause it runs `multi_gpu_train.py --explain` with the cause, and prints which cause is named and what a step
would take without it; then it trains without the cause. The slow network needs the rights to make network namespaces,
and is left out without them.
"""
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

_NETWORKS = 'benchmarks/causes.py:'
_SLOW_LINK = '200mbit'
_NEVER = 10 ** 6  # steps between checkpoints: a report would count them, and short trainings have none
_GUESS = 0.02  # seconds of a step
_HOSTS = ['10.98.0.1', '10.98.0.2']
WOULD = re.compile(r'^would be +([\d.]+) \(\S+ ?(per image)?.*?; ([\d.]+)-([\d.]+)(?:, uncertain)?\)  (.*)$', re.M)


class Case(NamedTuple):
    """A cause of long steps.

    Attributes:
      causes: the names that the report may give it.
      slow: flags of a training that has it.
      removed: flags of the same training without it.
      script: the program that runs the training that has it; the other always runs multi_gpu_train.py.
      scale: how many times as many images a step has without it.
      workers: 2 for a cluster over a link, which is slow only in the training that has the cause; 0 for one process.
    """
    causes: list[str]
    slow: list[str]
    removed: list[str]
    script: str = 'multi_gpu_train.py'
    scale: int = 1
    workers: int = 0


_TWO_SLEEPING = ['--num_gpus=2', '--batch_size=8', f'--network={_NETWORKS}sleeping']
_TWO_LONG = ['--num_gpus=2', '--batch_size=96', '--summary_steps=0']
_CLASSIC = ['--num_gpus=2', '--summary_steps=0']
CASES = {
    'a slow tower': Case(['slow tower'], [*_TWO_SLEEPING[:2], f'--network={_NETWORKS}slow_tower'], _TWO_SLEEPING),
    'slow input': Case(['slow input'], _TWO_SLEEPING, _TWO_SLEEPING, script='benchmarks/causes.py'),
    'a slow tower of long steps': Case(
        ['slow tower'], [*_TWO_LONG, f'--network={_NETWORKS}slow_tower'],
        [*_TWO_LONG, f'--network={_NETWORKS}sleeping']),
    'slow input behind long steps': Case(
        ['slow input'], *2 * [[*_TWO_LONG, f'--network={_NETWORKS}sleeping']], script='benchmarks/causes.py'),
    'a slow tower, and summaries': Case(
        ['slow tower'], [*_TWO_SLEEPING[:2], '--summary_steps=10', f'--network={_NETWORKS}slow_tower'],
        [*_TWO_SLEEPING, '--summary_steps=10']),
    # Without a network between them, the two devices belong to one machine.
    'a slow network': Case(['transfers'], _TWO_SLEEPING[1:], _TWO_SLEEPING, workers=2),
    'a tiny batch': Case(['small batch'], [*_CLASSIC, '--learning_rate=0.001', '--batch_size=2'],
                         [*_CLASSIC, '--learning_rate=0.001', '--batch_size=4'], scale=2),
    'a heavy update': Case(
        ['heavy update'], [*_CLASSIC, '--batch_size=16', '--optimizer=muon', '--auxiliary_learning_rate=0.01',
                           f'--network={_NETWORKS}large_filters'],
        [*_CLASSIC, '--batch_size=16', f'--network={_NETWORKS}large_filters']),
    'summaries in every step': Case(
        ['summaries'], ['--num_gpus=2', '--batch_size=16', '--summary_steps=1'], [*_CLASSIC, '--batch_size=16'])}


class Found(NamedTuple):
    """What a report says first: the cause, and the seconds of a step without it, for as many images as before."""
    cause: str
    seconds: float
    low: float
    high: float
    how: str


@contextlib.contextmanager
def link(rate=None):
    """Context with two network namespaces and a link between them, limited to a rate such as '200mbit'."""
    names = ['explain0', 'explain1']
    pair = ['link', 'add', 'xlink0', 'netns', names[0], 'type', 'veth', 'peer', 'xlink1', 'netns', names[1]]
    try:
        for name in names:
            _ip('netns', 'add', name)
        _ip(*pair)
        for k, name in enumerate(names):
            _ip('-n', name, 'addr', 'add', f'{_HOSTS[k]}/24', 'dev', f'xlink{k}')
            _ip('-n', name, 'link', 'set', f'xlink{k}', 'up')
            _ip('-n', name, 'link', 'set', 'lo', 'up')
            if rate:
                _run('ip', 'netns', 'exec', name, 'tc', 'qdisc', 'replace', 'dev', f'xlink{k}', 'root', 'tbf', 'rate',
                     rate, 'burst', '256kb', 'latency', '100ms')
        yield names
    finally:
        for name in names:
            subprocess.run(['ip', 'netns', 'delete', name], capture_output=True)


def _ip(*arguments):
    _run('ip', *arguments)


def _run(*command):
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise harness.Failed(f'no network namespaces here: {error}') from error


def output_of(options, script, arguments, workers, rate):
    """Runs the trainer with flags, in one process or in two over a link; returns the (chief's) output."""
    command = [script, *harness.trainer(options, options.train_dir)[1:], '--tower_device=cpu', *arguments]
    if not workers:
        return harness.output_of(*command)
    with link(rate) as names:
        hosts = '--worker_hosts=' + ','.join(f'{host}:2222' for host in _HOSTS)
        tasks = [subprocess.Popen(['ip', 'netns', 'exec', name, sys.executable, *command, '--job_name=worker', hosts,
                                   f'--task_index={k}'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  cwd=harness.ROOT) for k, name in enumerate(names)]
        outputs = [task.communicate()[0] for task in tasks]
    if any(task.returncode for task in tasks):
        raise harness.Failed(outputs[0].strip().splitlines()[-1])
    return outputs[0]


def explained(options, case):
    """Returns (what `--explain` says of a case: a Found, its whole output)."""
    text = output_of(
        options, case.script, [*case.slow, '--explain', f'--save_steps={_NEVER}'], case.workers, _SLOW_LINK)
    would = WOULD.search(text)
    cause = re.search(r'^advice +([^:]*)', text, re.M)[1]
    if would is None:
        return Found(cause, 0, 0, 0, ''), text
    scale = case.scale if would[2] else 1
    return Found(cause, *(float(would[i]) / scale for i in (1, 3, 4)), would[5]), text


def step_seconds(options, arguments, workers=0, rate=None, seconds=10.0, guess=_GUESS):
    """Returns the seconds of a step of a training with these flags, in the second half of some seconds."""
    half = max(round(seconds / guess / 2), 10)  # the first of them may find batches that were made ahead
    with tempfile.TemporaryDirectory() as train_dir:
        options.train_dir = train_dir
        output_of(options, 'multi_gpu_train.py', [
            *arguments, f'--max_steps={2 * half}', f'--save_steps={_NEVER}'], workers, rate)
        records = harness.metrics.read(train_dir, harness.metrics.TRAIN)
        return statistics.mean(record['global_batch'] / record['images_per_sec']
                               for record in records if record['step'] > half)


def rows(options, names):
    """Yields a row of the table for each case."""
    for name in names:
        case = CASES[name]
        options.train_dir = os.path.join(tempfile.gettempdir(), 'never-written')
        try:
            # The first training is before the report, in case that the machine changes its speed.
            after = [step_seconds(options, case.removed) / case.scale]
            found, text = explained(options, case)
            print(text, file=sys.stderr)
            now = float(re.search(r'^a step +([\d.]+)', text, re.M)[1])
            after += [step_seconds(options, case.removed, guess=after[0]) / case.scale
                      for _ in range(options.rounds - 1)]
        except harness.Failed as error:
            yield f'| {name} | failed: {error} | | | | |'
            continue
        median = sorted(after)[len(after) // 2]
        right = 'yes' if found.cause in case.causes else f'no: {found.cause}'
        yield (f'| {name} | {right} | {now:.4f} | {found.seconds:.4f}, {found.low:.4f}-{found.high:.4f} | '
               f'{median:.4f}, {min(after):.4f}-{max(after):.4f} | {found.seconds / median - 1:+.0%} |')


def main():
    """Measures all cases and prints the tables."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=flags.at_least(1), default=3, metavar='N',
                        help='trainings without each cause (default: %(default)s)')
    parser.add_argument('--causes', type=harness.listed(str, CASES), default=list(CASES), metavar='CAUSE,...',
                        help='causes (default: all)')
    options = parser.parse_args()
    harness.check(options)
    print(harness.machine())
    print('| cause | named first | s/step with it | would be | found | off by |\n|---|---|---|---|---|---|')
    for row in rows(options, options.causes):
        print(row, flush=True)


if __name__ == '__main__':
    sys.exit(program.run(main))
