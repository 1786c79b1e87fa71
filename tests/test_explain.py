"""`--explain`: planted slowdowns show up in the steps that omit something."""
import re

import pytest

from cifar10.base.errors import UsageError
from cifar10.settings.training import train_settings
from cifar10.tools.explain import NO_AVERAGE, NO_UPDATE, SAME_BATCH, STEP, explain, lines
from cifar10.training import trainer
from tests.helpers import ROOT, slow_input, slow_towers, state_of

pytestmark = pytest.mark.classic
SLOW = str(ROOT / 'tests' / 'slow.py')
COSTLY = '''
import time
import numpy as np
import tensorflow.compat.v1 as tf
def optimizer(rate):
    return Costly(rate)
class Costly(tf.train.GradientDescentOptimizer):
    def _resource_apply_dense(self, gradient, variable):
        with tf.control_dependencies([gradient]):
            slept = tf.numpy_function(lambda: time.sleep(0.03) or np.float32(0), [], tf.float32)
        with tf.control_dependencies([slept]):
            return super()._resource_apply_dense(gradient, variable)
'''


def seconds_of(output):
    """Returns {kind of steps, or one device: seconds} of a report."""
    found = re.findall(r'^(?:.*\| )?(a step|same batch|no update|no average|one device) +([\d.]+) s'
                       r'(?:.*, (\S+) alone,)?', output, re.M)
    return {what if kind == 'one device' else kind: float(seconds) for kind, seconds, what in found}


@pytest.mark.stress
def test_a_slow_tower_is_slow_alone_too_and_the_run_is_unchanged(settings, capsys, monkeypatch):
    slow_towers(monkeypatch, lambda k: 0.03 if k else 0.01)
    config = settings(num_gpus=2, batch_size=4, network='linear', summary_steps=0)
    trainer.train(config)
    files = state_of(config.run.train_dir)
    capsys.readouterr()
    explain(config.replace(max_steps=1000000, explain=True), seconds=1)
    output = capsys.readouterr().out
    assert state_of(config.run.train_dir) == files
    before, after = output.split('\nmeasuring  ')
    assert '\na step' not in before and re.match(r'.* in turn, for about \d+ s', after)
    seconds = seconds_of(output)
    assert list(seconds) == [STEP, SAME_BATCH, NO_UPDATE, NO_AVERAGE, '/cpu:0', '/cpu:1']
    slow, = re.findall(r'^slow       each step waits ([\d.]+) s for (\S+) ', output, re.M)
    assert slow[1] == '/cpu:1' and 0.01 < float(slow[0]) < 0.03
    # The slow tower sleeps for 30 ms, the other one for 10.
    assert seconds[STEP] > 0.03 and seconds['/cpu:1'] > 0.03 > seconds['/cpu:0'] > 0.01


@pytest.mark.stress
def test_slow_input_disappears_when_one_batch_is_repeated(settings, capsys, monkeypatch):
    slow_input(monkeypatch, 0.1)
    explain(settings(num_gpus=1, batch_size=4, network=f'{SLOW}:sleeping', explain=True), seconds=1)
    seconds = seconds_of(capsys.readouterr().out)
    assert list(seconds) == [STEP, SAME_BATCH, NO_UPDATE, NO_AVERAGE]
    assert seconds[STEP] > 0.1 and seconds[SAME_BATCH] < 0.7 * seconds[STEP]


def test_conflicts_with_explain_are_refused():
    for mode in ('async', 'mirrored'):
        with pytest.raises(UsageError, match=f'--explain is incompatible with --variable_update={mode}; use'):
            train_settings(explain=True, variable_update=mode)


def test_the_report_compares_full_steps_with_steps_that_omit_something():
    measured = {STEP: [0.1, 0.09, 0.2], SAME_BATCH: [0.08, 0.07, 0.16], NO_UPDATE: [0.0999, 0.091, 0.202],
                NO_AVERAGE: [0.1, 0.09, 0.21], '/cpu:0': [0.05, 0.06, 0.05], '/gpu:0+/gpu:1': [0.09, 0.08, 0.1]}
    found = [str(line) for line in lines(measured, 256, towers=3)]
    assert found == [
        'a step     0.100 s (0.090-0.200), 2,560 images/s',
        'same batch 0.080 s, -20% (-22% to -20%), without input',
        'no update  0.101 s, +1% (+0% to +1%), without update',
        'no average 0.100 s, +0% (+0% to +5%), without averaging and update',
        'one device 0.050 s, -50% (-75% to -33%), /cpu:0 alone, without input, averaging and update',
        'one device 0.089 s, -11% (-50% to -10%), /gpu:0+/gpu:1 alone, without input, averaging and update',
        'efficiency 2,560 images/s of the 4,373 that these devices reach alone: 59%',
        'slow       each step waits 0.065 s for /gpu:0+/gpu:1 (a tower takes 0.090 s alone, 3.6 times the other '
        'devices); end other programs there, use another device, or try --variable_update=async']
    # Three towers, two of them on the first device: 171 images in 0.05 s, and 85 in 0.089 s.
    for line in found[1:-2]:  # the change of the seconds on its line
        seconds, change = re.search(r'([\d.]+) s, ([+-]\d+)%', line).groups()
        assert 100 * (float(seconds) / 0.1 - 1) == pytest.approx(int(change), abs=1)
    assert len(lines({STEP: [0.1], SAME_BATCH: [0.1]}, 256, towers=1)) == 2


@pytest.mark.parametrize('second, is_slow', [
    ([0.1, 0.1, 0.1, 0.1, 0.1], False), ([0.119] * 5, False), ([0.12, 0.13, 0.12, 0.15, 0.13], True),
    ([0.3, 0.3, 0.3, 0.3, 0.09], False)])
def test_a_device_is_slow_only_if_its_towers_are_slower_in_each_round(second, is_slow):
    towers, counts = 3, (2, 1)
    measured = {STEP: [1.0] * 5, '/gpu:0': [counts[0] * 0.1] * 5, '/gpu:1': [counts[1] * each for each in second]}
    slow = [line for line in map(str, lines(measured, 256, towers)) if line.startswith('slow ')]
    assert [' /gpu:1 ' in line and ' takes 0.130 s ' in line for line in slow] == [True] * is_slow
    assert [f' waits {counts[1] * 0.03:.3f} s ' in line for line in slow] == [True] * is_slow


# ----------------------------------------------------------------------------------------------------- minutes each

@pytest.mark.timing
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'local'])
def test_a_costly_update_disappears_without_updates_in_every_mode(mode, settings, own, capsys):
    explain(settings(num_gpus=2, batch_size=1, variable_update=mode, optimizer=own(COSTLY, 'optimizer'),
                     learning_rate=0.01, explain=True), seconds=3)
    seconds = seconds_of(capsys.readouterr().out)
    assert seconds[NO_UPDATE] < 0.7 * seconds[STEP]
    assert (NO_AVERAGE in seconds) == (mode != 'local')
