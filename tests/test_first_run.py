"""docs/first-run.md: its commands, and its statements that hold on any processor."""
import json
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest

from cifar10 import train
from cifar10.data.shapes import CLASSES
from cifar10.programs import flags
from cifar10.settings import evaluation, training
from tests.helpers import ROOT, Forked, patient, read_until, run_forked

PAGE = (ROOT / 'docs' / 'first-run.md').read_text()
# A command ends with its line, unless the line ends with a backslash or within quotes.
COMMANDS = re.findall(r'^\$ ((?:[^\n"\\]|\\\n|"[^"]*")*)$', PAGE, re.M)
TRAIN, TABLE, DRAW, CLASSIFY, CONTINUE, MOVE, WHOLE, HASHES = COMMANDS


def words_of(command):
    return shlex.split(command.replace('\\\n', ' '))


def test_the_programs_have_the_flags_of_the_page():
    groups = {'multi_gpu_train.py': training.GROUPS, 'cifar10_eval.py': evaluation.GROUPS}
    given = [flags.parse(groups[script], '', rest) for _, script, *rest in map(words_of, COMMANDS) if script in groups]
    assert len(given) == 6
    whole = {**given[0], 'max_steps': given[3]['max_steps'], 'train_dir': given[-1]['train_dir']}
    assert given[-1] == whole  # the two runs that the page compares differ in nothing else


@pytest.mark.stress
@pytest.mark.parametrize('precision', ['fp32', 'bf16'])
def test_the_commands_of_the_page_produce_its_output(tmp_path, precision):
    scripts = {name: str(ROOT / name) for name in ('multi_gpu_train.py', 'cifar10_eval.py')}

    def command(text):
        python, script, *rest = words_of(text.replace('/tmp', str(tmp_path)))
        assert python == 'python'
        if script == 'multi_gpu_train.py':
            rest += [f"--data_dir={tmp_path / 'data'}", f'--precision={precision}']
        return [sys.executable, scripts[script], *rest, '--tower_device=cpu']

    def output(text):
        result = run_forked(command(text))
        assert result.returncode == 0, result.stderr
        return result.stdout

    def accuracies(text):
        return [float(each) for each in re.findall(r'precision @ 1 = ([\d.]+)', text)]

    promised = int(re.search(r'classifies more than (\d+)%', PAGE).group(1)) / 100
    shown = output(TRAIN)
    assert accuracies(shown)[-1] > promised
    assert 'towers     2 on 1 CPU device' in shown
    table = output(TABLE)
    rows = re.findall(rf"^({'|'.join(CLASSES)}) +(\d+) +200 +([\d.]+) +([\d.]+)", table, re.M)
    assert [row[0] for row in rows] == list(CLASSES)
    assert sum(int(row[1]) for row in rows) / 2000 == pytest.approx(max(accuracies(shown)), abs=1e-3)
    counts = np.array([row.split() for row in re.findall(r'^ +\d \w+ +((?: +\d+){10})$', table, re.M)], int)
    confused = counts + counts.T - 2 * np.diag(np.diag(counts))
    for pair in (('disc', 'square'), ('plus', 'star'), ('checkers', 'dots')):
        assert confused[tuple(map(CLASSES.index, pair))] > confused.sum() / 90
    draw = DRAW.replace('/tmp', str(tmp_path)).replace('python', sys.executable, 1)
    subprocess.run(['bash', '-ec', draw], check=True)
    assert re.search(rf"disc\.png(  ({'|'.join(CLASSES)}) 0\.\d+){{3}}$", output(CLASSIFY), re.M)
    process = Forked(command(CONTINUE))
    read_until(process, 'resumed')
    read_until(process, ', loss = ')
    process.send_signal(signal.SIGINT)
    assert re.search(r'saved .* start again to continue', process.communicate(patient(60))[0])
    moved = output(MOVE)
    assert 'towers     2 on 2 CPU devices' in moved and 'the run used 1 before' in moved
    assert accuracies(moved)[-1] > promised
    output(WHOLE)
    last = [json.loads((tmp_path / name / 'metrics.jsonl').read_text().splitlines()[-1])
            for name in re.findall(r'/tmp/(\w+)/metrics.jsonl', HASHES)]
    assert len(last) == 2 and last[0]['sha256'] == last[1]['sha256'] and last[0]['step'] == last[1]['step']


@pytest.mark.stress
@pytest.mark.parametrize('precision', ['fp32', 'bf16'])
def test_the_loss_stays_at_its_start_or_falls(tmp_path, precision):
    train(dataset='shapes', data_dir=str(tmp_path), train_dir=str(tmp_path / 'run'), tower_device='cpu', max_steps=300,
          precision=precision, log_frequency=1)
    records = map(json.loads, (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines())
    losses = [record['loss'] for record in records if record['kind'] == 'train']
    assert len(losses) == 300 and losses[-1] < 4
    assert max(losses) < 1.01 * losses[0]  # batches differ by as much before the network learns
