"""`--explain`: the parts of a step add up, and planted causes are named with what a step takes without them."""
import re
import subprocess
import sys

import pytest

from benchmarks import explain as benchmark
from benchmarks import harness
from cifar10.base.errors import RunError, UsageError
from cifar10.data import records
from cifar10.parallel import devices
from cifar10.settings.training import train_settings
from cifar10.tools.explain import causes, report
from cifar10.tools.explain.causes import Would
from cifar10.tools.explain.measure import Timing
from cifar10.tools.explain.moments import ALL_REDUCE, AVERAGING, BETWEEN, INPUT, TOWERS, TRANSFERS, UPDATE
from cifar10.tools.explain.program import explain
from cifar10.training import trainer
from tests.helpers import ROOT, WITH_GPUS, Tasks, patient, plan_of, state_of, update_mode
from tests.standin_gpu import Unavailable, environment

pytestmark = pytest.mark.classic
CAUSES = str(ROOT / 'benchmarks' / 'causes.py')
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


@pytest.mark.stress
def test_a_slow_tower_of_a_run_is_named_and_the_run_stays_as_it_is(settings, capsys):
    config = settings(num_gpus=2, batch_size=4, network=f'{CAUSES}:slow_tower', summary_steps=0)
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
    assert '\na step' not in before and re.match('steps .* in turn: \\d+ s at most', after)
    would = benchmark.WOULD.search(output)
    assert would[5] == 'if /cpu:1 were as fast as the others (computed)' and 0.005 < float(would[1]) < 0.8 * seconds
    assert 'advice     slow tower: ' in output and '--variable_update=replicated' in output
    assert re.search(r'^one device .* 2 devices train ', output, re.M)


def test_what_contradicts_explain_is_refused():
    with pytest.raises(UsageError, match='--plot=step.png draws what --explain measures; add --explain'):
        train_settings(plot='step.png')
    with pytest.raises(UsageError, match='--explain reads clocks, which --deterministic forbids'):
        train_settings(explain=True, deterministic=True)
    for mode in ('async', 'mirrored'):
        with pytest.raises(UsageError, match=f'--explain is incompatible with --variable_update={mode}, whose steps'):
            train_settings(explain=True, variable_update=mode)


def test_copies_are_averaged_in_steps_of_several_copies_only(settings, data_dir):
    data, costs = records.prepare('shapes', data_dir), {causes.COPIES: 0.25, causes.CHECKPOINTS: 0.5}

    def cost(mode, count):
        cpus = devices.choose(count, 'cpu')
        return causes.cost_of(costs, plan_of(settings(), data, cpus, update_mode(mode, cpus)))
    assert (cost('local', 2), cost('local', 1), cost('replicated', 2)) == (0.75, 0.5, 0.5)


# -------------------------------------------------------------------------------------------------- what is reported

def test_the_report_names_first_what_saves_most_an_image():
    woulds = [Would(causes.MODE, Timing(0.09, 0.08, 0.1), 1, 'with the other'),
              Would(causes.SMALL_BATCH, Timing(0.12, 0.11, 0.13), 2, 'with a larger batch'),
              Would(causes.PRECISION, Timing(0.11, 0.101, 0.12), 1, 'with another type')]
    assert report.would_lines(0.1, woulds) == [
        'would be   0.120 (-40% per image; 0.110-0.130)  with a larger batch',
        '           0.090 (-10%; 0.080-0.100)  with the other',
        '           0.110 (+10%; 0.101-0.120)  with another type']
    assert report.advice(0.1, woulds).startswith('advice     small batch: ')
    parts = {TOWERS: (0.09, 'busy'), BETWEEN: (0.02, '')}
    assert report.step_lines(Timing(0.1, 0.09, 0.11), Timing(0.11, 0.105, 0.12), 256, parts) == [
        'a step     0.100 s, 2,560 images/s', '  towers     0.090  90%   busy', '  between    0.020  20%',
        '  gap        -0.010 -10%   from the sum of the parts (0.105-0.120 in steps with a trace) to the step '
        '(0.090-0.110)']


def test_what_the_repeats_disagree_on_is_uncertain_and_last_and_no_advice():
    saved = Timing.of([0.03, 0.06, -0.001])
    woulds = [Would(causes.HEAVY_UPDATE, Timing(0.1, 0.098, 0.103).without(saved), 1, 'without'),
              Would(causes.PRECISION, Timing(0.09, 0.08, 0.099), 1, 'with another type')]
    assert report.would_lines(0.1, woulds) == [
        'would be   0.090 (-10%; 0.080-0.099)  with another type',
        '           0.070 (-30%; 0.040-0.101, uncertain)  without']
    assert report.advice(0.1, woulds).startswith('advice     precision: ')
    assert report.advice(0.1, woulds[:1]).startswith('advice     nothing that was tried certainly saves 5% of ')


def test_parts_that_contradict_the_step_are_said_to_and_lead_to_no_advice():
    step = Timing(0.1, 0.09, 0.11)
    assert Timing(0.12, 0.114, 0.13).differs(step, 0.05)
    assert not Timing(0.12, 0.105, 0.13).differs(step, 0.05)  # the repeats overlap
    wrong = Would(causes.SLOW_TOWER, Timing(0.05, 0.04, 0.06), 1, 'computed', from_right_parts=False)
    assert report.advice(0.1, [wrong]) == 'advice     nothing that was tried certainly saves 5% of a step'
    assert 'uncertain' in report.would_lines(0.1, [wrong])[0]
    line = report.step_lines(step, Timing(0.12, 0.114, 0.13), 256, {TOWERS: (0.12, '')})[-1]
    assert 'to the step (0.090-0.110): too much to rely on the parts; try again while nothing else uses' in line


@pytest.mark.stress
def test_a_loss_that_is_not_finite_ends_it(settings, tmp_path):
    (tmp_path / 'mine.py').write_text(DIVERGING)
    with pytest.raises(RunError, match=r'^step 6: the loss of tower 0 is nan; '):
        explain(settings(network=f"{tmp_path / 'mine.py'}:network", explain=True, max_steps=1000000), seconds=1)


# ------------------------------------------------------------------------------------------- minutes each: real causes

@pytest.fixture
def options(data_dir, tmp_path):
    """The options of the benchmark, for the built-in images."""
    parser = harness.parser('The options of the benchmark.')
    options = parser.parse_args(['--dataset=shapes', f'--data_dir={data_dir}'])
    options.rounds = 3
    options.train_dir = str(tmp_path / 'train')
    return options


@pytest.mark.timing
@pytest.mark.parametrize('name', benchmark.CASES)
def test_a_cause_is_named_first_and_a_step_without_it_takes_as_long_as_it_says(name, options):
    row, = benchmark.rows(options, [name])
    if 'no network namespaces' in row:
        pytest.skip(row)
    _, right, now, would, found, off = (cell.strip() for cell in row.strip('|').split('|'))
    assert right == 'yes', row
    said, limits = would.split(', ')
    low, high = map(float, limits.split('-'))
    found = float(found.split(',')[0])
    # It is read as a share of the step as it is.
    assert abs(int(off.rstrip('%'))) <= 10 or abs(float(said) - found) <= 0.1 * float(now) or low <= found <= high, row


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
               explain='true', network=f'{CAUSES}:sleeping') as tasks:
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
