"""`--explain`: the parts of a step add up, planted causes show in them and in steps that leave something out."""
import re
import subprocess
import sys

import numpy as np
import pytest

from cifar10.base.errors import RunError, UsageError
from cifar10.data import records
from cifar10.parallel import devices
from cifar10.settings.training import train_settings
from cifar10.tools.explain.measure import NO_UPDATE, SAME_BATCH, STEP, Measurement, Timing
from cifar10.tools.explain.moments import ALL_REDUCE, AVERAGING, BETWEEN, INPUT, TOWERS, TRANSFERS, UPDATE, Lap
from cifar10.tools.explain.program import explain, step_lines, variant_lines
from cifar10.training import trainer
from tests.helpers import ROOT, WITH_GPUS, Tasks, patient, plan_of, slow_input, state_of, update_mode
from tests.standin_gpu import Unavailable, environment

pytestmark = pytest.mark.classic
SLOW = str(ROOT / 'tests' / 'slow.py')
DIVERGING = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    weights = tf.get_variable('weights', [3, num_classes], initializer=tf.zeros_initializer())
    late = tf.cast(tf.train.get_or_create_global_step() >= 5, tf.float32)
    return tf.reduce_mean(images, [1, 2]) @ weights + tf.log(1 - 2 * late)
'''


def parts_of(output):
    """Returns (the seconds of a step, {part: seconds}) of a report."""
    seconds = float(re.search(r'^(?:.*\| )?a step +([\d.]+) s', output, re.M)[1])
    parts = re.findall(r'^(?:.*\| )?  ([\w-]+) +(-?[\d.]+) +-?\d+%', output, re.M)
    return seconds, {name: float(part) for name, part in parts}


def assert_they_add_up(seconds, parts, share):
    """Asserts that the parts of a step are as long as the step, up to a gap of at most this share of it."""
    gap = parts.pop('gap')
    assert sum(parts.values()) + gap == pytest.approx(seconds, abs=0.003)  # they are rounded
    assert abs(gap) <= share * seconds


def variants_of(output):
    """Returns {what a line says: seconds} of the steps that leave something out, and of the devices alone."""
    found = re.findall(r'^(?:.*\| )?(?:same batch|no update|one device) +([\d.]+) \([^)]*\)  (\S+)', output, re.M)
    return {what: float(seconds) for seconds, what in found}


@pytest.mark.stress
def test_a_slow_tower_is_slow_alone_too_and_the_run_stays_as_it_is(settings, capsys):
    config = settings(num_gpus=2, batch_size=4, network=f'{SLOW}:slow_tower', summary_steps=0)
    trainer.train(config)
    files = state_of(config.run.train_dir)
    capsys.readouterr()
    explain(config.replace(max_steps=1000000, explain=True), seconds=1)
    output = capsys.readouterr().out
    assert state_of(config.run.train_dir) == files
    seconds, parts = parts_of(output)
    assert seconds > 0.03 and parts[TOWERS] > 0.024  # the slow tower sleeps for 30 ms, the other for 10
    assert_they_add_up(seconds, parts, 0.5)  # other programs may run meanwhile
    assert list(parts) == [INPUT, TOWERS, AVERAGING, UPDATE, BETWEEN]
    before, after = output.split('\nmeasuring  ')
    assert '\na step' not in before and re.match('steps .* in turn, for about \\d+ s', after)
    assert '(slowest: /cpu:1, ' in output
    alone = variants_of(output)
    assert list(alone) == ['one', 'without', '/cpu:0', '/cpu:1'] and alone['/cpu:1'] > 0.03 > alone['/cpu:0'] > 0.01


@pytest.mark.stress
def test_slow_input_shows_and_is_gone_with_one_batch_again_and_again(settings, capsys, monkeypatch):
    slow_input(monkeypatch, 0.1)
    explain(settings(num_gpus=1, batch_size=4, network=f'{SLOW}:sleeping', explain=True), seconds=1)
    output = capsys.readouterr().out
    seconds, parts = parts_of(output)
    assert seconds > 0.1 and parts[INPUT] > 0.05 and variants_of(output)['one'] < 0.7 * seconds
    assert 'one device' not in output


def test_what_contradicts_explain_is_refused():
    with pytest.raises(UsageError, match='--explain reads clocks, which --deterministic forbids'):
        train_settings(explain=True, deterministic=True)
    for mode in ('async', 'mirrored'):
        with pytest.raises(UsageError, match=f'--explain is incompatible with --variable_update={mode}, whose steps'):
            train_settings(explain=True, variable_update=mode)


# -------------------------------------------------------------------------------------------------- what is reported

@pytest.fixture
def measured(settings, data_dir):
    """A function that returns a Measurement of two devices whose steps with a trace take some seconds, in repeats."""
    def measurement(*traced):
        cpus = devices.choose(2, 'cpu')
        plan = plan_of(settings(batch_size=128), records.prepare('shapes', data_dir), cpus,
                       update_mode('parameter_server', cpus))
        laps = [Lap({TOWERS: seconds - 0.02, BETWEEN: 0.02}, np.array([0.06, 0.09])) for seconds in traced]
        timings = {STEP: Timing(0.1, 0.09, 0.11), SAME_BATCH: Timing(0.08, 0.07, 0.085),
                   NO_UPDATE: Timing(0.101, 0.1, 0.102), '/cpu:0': Timing(0.05, 0.05, 0.06),
                   '/cpu:1': Timing(0.09, 0.08, 0.1)}
        return Measurement(plan, 0, timings, laps)
    return measurement


def test_the_report_has_the_parts_the_gap_and_the_steps_that_leave_something_out(measured):
    measurement = measured(0.12, 0.11, 0.105)
    assert step_lines(measurement) == [
        'a step     0.100 s, 2,560 images/s',
        '  towers     0.090  90%   /cpu:0 0.060  /cpu:1 0.090  (slowest: /cpu:1, 50% above the median of the others)',
        '  between    0.020  20%   session calls',
        '  gap        -0.010 -10%   from the sum of the parts (0.105-0.120 in steps with a trace) to the step '
        '(0.090-0.110)']
    assert variant_lines(measurement) == [
        'same batch 0.080 (-20%; 0.070-0.085)  one batch again and again, so without input',
        'no update  0.101 (+1%; 0.100-0.102)  without the update',
        'one device 0.050 (-50%; 0.050-0.060)  /cpu:0 alone, without averaging and update',
        'one device 0.090 (-10%; 0.080-0.100)  /cpu:1 alone, without averaging and update']


def test_parts_that_contradict_the_step_are_said_to(measured):
    wrong = 'to the step (0.090-0.110): too much to rely on the parts; try again while nothing else uses'
    assert wrong in step_lines(measured(0.12, 0.114, 0.13))[-1]
    assert wrong not in step_lines(measured(0.12, 0.105, 0.13))[-1]  # the repeats overlap


@pytest.mark.stress
def test_a_loss_that_is_not_finite_ends_it(settings, tmp_path):
    (tmp_path / 'mine.py').write_text(DIVERGING)
    with pytest.raises(RunError, match=r'^step 6: the loss of tower 0 is nan; '):
        explain(settings(network=f"{tmp_path / 'mine.py'}:network", explain=True, max_steps=1000000), seconds=1)


# ----------------------------------------------------------------------------------------------------- minutes each

@pytest.mark.timing
@pytest.mark.parametrize('mode, part', [('parameter_server', AVERAGING), ('replicated', ALL_REDUCE),
                                        ('local', BETWEEN)])
def test_the_parts_of_every_mode_add_up(mode, part, settings, capsys):
    explain(settings(num_gpus=2, variable_update=mode, explain=True), seconds=3)
    seconds, parts = parts_of(capsys.readouterr().out)
    assert_they_add_up(seconds, parts, 0.3)
    assert part in parts


@pytest.mark.timing
def test_a_cluster_is_explained_by_its_chief(data_dir, tmp_path):
    with Tasks(2, 0, dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train', batch_size=8,
               explain='true', network=f'{SLOW}:sleeping') as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    seconds, parts = parts_of(ends['worker 0'][1])
    assert_they_add_up(seconds, parts, 0.3)
    assert parts[TRANSFERS] > 0
    assert 'MB a step' in ends['worker 0'][1] and not (tmp_path / 'train').exists()


@pytest.mark.timing
def test_on_gpus_variables_and_gradients_travel(data_dir, tmp_path):
    try:
        gpus = environment(2)
    except Unavailable as error:
        pytest.skip(str(error))
    command = [sys.executable, 'multi_gpu_train.py', '--explain', '--num_gpus=2', '--batch_size=16', '--dataset=shapes',
               f'--data_dir={data_dir}', f"--train_dir={tmp_path / 'train'}"]
    result = subprocess.run(command, capture_output=True, text=True, env=dict(WITH_GPUS, **gpus), cwd=ROOT,
                            timeout=patient(400))
    assert result.returncode == 0, result.stderr
    seconds, parts = parts_of(result.stdout)
    assert '/gpu:1' in result.stdout and TRANSFERS in parts and ' 17.1 MB a step' in result.stdout
    assert_they_add_up(seconds, parts, 0.3)
