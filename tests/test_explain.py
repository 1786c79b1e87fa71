"""`--explain`: the parts of a step add up, causes that were planted are named and their forecasts come true."""
import os
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
from cifar10.tools.explain import ablations, report
from cifar10.tools.explain.forecast import Measured, forecast, over_a_link
from cifar10.tools.explain.parts import ALL_REDUCE, AVERAGING, BETWEEN, INPUT, TOWERS, TRANSFERS, UPDATE
from cifar10.tools.explain.program import explain
from cifar10.tools.explain.report import Timing, Would
from cifar10.training import loop
from tests.helpers import ROOT, WITH_GPUS, Tasks, patient, plan_of, update_mode
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


def files_of(folder):
    """Returns (name, modification time) of each file in a folder."""
    return sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder))


@pytest.mark.stress
def test_a_slow_tower_of_a_run_is_named_and_the_run_stays_as_it_is(settings, capsys):
    config = settings(num_gpus=2, batch_size=4, network=f'{CAUSES}:slow_tower', summary_steps=0)
    loop.train(config)
    files = files_of(config.run.train_dir)
    capsys.readouterr()
    explain(config.replace(max_steps=1000000, explain=True), seconds=1)
    output = capsys.readouterr().out
    assert files_of(config.run.train_dir) == files
    seconds, parts = parts_of(output)
    assert seconds > 0.03 and parts[TOWERS] > 0.024  # the slow tower sleeps for 30 ms, the other for 10
    assert sum(parts.values()) == pytest.approx(seconds, abs=0.003)  # 'gap' is what the others miss
    assert list(parts) == [INPUT, TOWERS, AVERAGING, UPDATE, BETWEEN, 'gap']
    before, after = output.split('\nmeasuring  ')
    assert '\na step' not in before and re.match('steps .* in turn: \\d+ s at most', after)
    would = benchmark.WOULD.search(output)
    assert would[5] == 'if /cpu:1 were as fast as the others (computed)' and 0.005 < float(would[1]) < 0.8 * seconds
    assert 'advice     slow tower: ' in output and '--variable_update=replicated' in output
    assert re.search(r'^forecast .* with 4 such devices here: ', output, re.M)


def test_what_contradicts_explain_is_refused():
    with pytest.raises(UsageError, match='--plot=step.png draws what --explain measures; add --explain'):
        train_settings(plot='step.png')
    with pytest.raises(UsageError, match='--explain reads clocks, which --deterministic forbids'):
        train_settings(explain=True, deterministic=True)
    with pytest.raises(UsageError, match='--plot=step.png draws the towers of a step, which async does not take'):
        train_settings(explain=True, plot='step.png', variable_update='async')


def test_copies_are_averaged_in_steps_of_several_copies_only(settings, data_dir):
    data, costs = records.prepare('shapes', data_dir), {report.COPIES: 0.25, report.SUMMARIES: 0.5}

    def cost(mode, count):
        cpus = devices.choose(count, 'cpu')
        return ablations.cost_of(costs, plan_of(settings(), data, cpus, update_mode(mode, cpus)))
    assert (cost('local', 2), cost('local', 1), cost('replicated', 2)) == (0.75, 0.5, 0.5)


# ------------------------------------------------------------------------------------------------- what is computed

def measured(devices, towers=0.1, averaging=0.0, between=0.01, cpu=0.0, **others):
    """Returns a step with some parts."""
    parts = {INPUT: 0.0, TOWERS: towers, UPDATE: 0.005, BETWEEN: between, **others}
    if averaging:
        parts[AVERAGING] = averaging
    return Measured(devices, sum(parts.values()), parts, cpu)


def test_devices_that_share_nothing_add_only_what_grows_with_them():
    one, two = measured(1), measured(2, averaging=0.004, between=0.012)
    assert forecast(one, two, 2, cores=2) == pytest.approx(two.seconds)
    assert forecast(one, two, 8, cores=2) == pytest.approx(0.1 + 0.005 + 0.01 + 7 * 0.002 + 4 * 0.004)
    four = measured(4, all_reduce=0)
    four.parts[ALL_REDUCE] = 0.03
    expected = 0.1 + 0.005 + 0.01 + 0.03 * (7 / 8) / (3 / 4)
    assert forecast(one, four._replace(seconds=four.seconds + 0.03), 8, cores=2) == pytest.approx(expected)


def test_devices_that_share_the_cores_are_no_faster_together():
    one, two = measured(1, cpu=0.2), measured(2, towers=0.2, cpu=0.4)
    assert forecast(one, two, 4, cores=2) == pytest.approx(2 * two.seconds)
    assert forecast(one, two, 4, cores=2, in_turns=True) == pytest.approx(0.8 / 2)
    assert forecast(one, two, 4, cores=2, machines=2) == pytest.approx(two.seconds)


def test_a_link_carries_variables_out_and_gradients_back_or_less_than_that():
    assert over_a_link(0.1, 2, 2, 4.0, 100.0, all_reduces=False) == pytest.approx(0.1 + 2 * 4 * 2 / 100)
    assert over_a_link(0.1, 2, 2, 4.0, 100.0, all_reduces=True) == pytest.approx(0.1 + 1.5 * 2 * 4 * (3 / 4) / 100)


def test_the_report_names_first_what_saves_most_an_image():
    woulds = [Would(report.MODE, Timing(0.09, 0.08, 0.1), 1, 'with the other'),
              Would(report.BATCH, Timing(0.12, 0.11, 0.13), 2, 'with a larger batch'),
              Would(report.PRECISION, Timing(0.11, 0.101, 0.12), 1, 'with another type')]
    assert report.would_lines(0.1, woulds) == [
        'would be   0.120 (-40% per image; 0.110-0.130)  with a larger batch',
        '           0.090 (-10%; 0.080-0.100)  with the other',
        '           0.110 (+10%; 0.101-0.120)  with another type']
    assert report.advice(0.1, woulds, 0.5).startswith('advice     small batch: ')
    assert 'the towers are busy 95% of it' in report.advice(0.1, woulds[2:], 0.95)
    assert report.step_lines(0.1, 256, {TOWERS: (0.09, 'busy'), BETWEEN: (0.02, '')}) == [
        'a step     0.100 s, 2,560 images/s', '  towers     0.090  90%   busy', '  between    0.020  20%',
        '  gap        -0.010 -10%   from the sum of the parts, measured in steps with a trace, to the step']


def test_what_the_repeats_disagree_on_is_uncertain_and_last_and_no_advice():
    woulds = [Would(report.UPDATE, Timing(0.1, 0.098, 0.103).without(Timing.of([0.03, 0.06, -0.001])), 1, 'without'),
              Would(report.PRECISION, Timing(0.09, 0.08, 0.099), 1, 'with another type')]
    assert report.would_lines(0.1, woulds) == [
        'would be   0.090 (-10%; 0.080-0.099)  with another type',
        '           0.070 (-30%; 0.040-0.101, uncertain)  without']
    assert report.advice(0.1, woulds, 0.5).startswith('advice     precision: ')
    assert report.advice(0.1, woulds[:1], 0.5).startswith('advice     nothing that was tried certainly saves 5% of ')


def test_the_forecast_does_not_scale_an_input_that_is_the_limit():
    one, two = measured(1), measured(2, towers=0.1)
    for count, machines, expected in ((2, 1, 0.6), (4, 1, 1.2), (4, 2, 0.6)):
        assert forecast(one, two, count, 8, False, machines, input_seconds=0.3) == pytest.approx(expected)


def test_a_loss_that_is_not_finite_ends_it(settings, tmp_path):
    (tmp_path / 'mine.py').write_text(DIVERGING)
    with pytest.raises(RunError, match=r'^step 6: the loss of tower 0 is nan; '):
        explain(settings(network=f"{tmp_path / 'mine.py'}:network", explain=True, max_steps=1000000), seconds=1)


@pytest.mark.stress
def test_asynchronous_towers_that_do_not_disturb_each_other_are_not_stale(settings, capsys):
    explain(settings(network=f'{CAUSES}:sleeping', num_gpus=1, variable_update='async', explain=True), seconds=1)
    output = capsys.readouterr().out
    assert '  staleness  0.0 updates' in output and 'gradients are' not in output
    assert 'advice     none of the gradients was stale' in output


# ------------------------------------------------------------------------------------------- minutes each: real causes

@pytest.fixture
def options(data_dir, tmp_path):
    """The options of the benchmark, for the built-in images."""
    parser = harness.parser('')
    options = parser.parse_args(['--dataset=shapes', f'--data_dir={data_dir}'])
    options.rounds = 3
    options.train_dir = str(tmp_path / 'train')
    return options


@pytest.mark.timing
@pytest.mark.parametrize('name', benchmark.CASES)
def test_a_cause_is_named_first_and_its_forecast_comes_true(name, options):
    row, = benchmark.rows(options, [name])
    if 'no network namespaces' in row:
        pytest.skip(row)
    _, right, _, would, found, off = (cell.strip() for cell in row.strip('|').split('|'))
    assert right == 'yes', row
    low, high = map(float, would.split(', ')[1].split('-'))
    assert abs(int(off.rstrip('%'))) <= 10 or low <= float(found.split(',')[0]) <= high, row


@pytest.mark.timing
@pytest.mark.parametrize('mode, part', [('parameter_server', AVERAGING), ('replicated', ALL_REDUCE),
                                        ('mirrored', 'replicas'), ('local', 'between')])
def test_the_parts_of_every_mode_add_up(mode, part, settings, capsys):
    explain(settings(num_gpus=2, variable_update=mode, explain=True), seconds=3)
    seconds, parts = parts_of(capsys.readouterr().out)
    assert part in parts and sum(parts.values()) == pytest.approx(seconds, rel=0.05)


@pytest.mark.timing
def test_asynchronous_towers_have_rates_and_staleness(settings, capsys):
    explain(settings(num_gpus=3, variable_update='async', explain=True), seconds=3)
    output = capsys.readouterr().out
    rates = [float(rate) for rate in re.findall(r'^  /cpu:\d +([\d.]+) updates a second', output, re.M)]
    update, images = re.search(r'^an update +([\d.]+) s, ([\d,]+) images/s', output, re.M).groups()
    assert len(rates) == 3 and sum(rates) == pytest.approx(1 / float(update), rel=0.1)
    assert float(images.replace(',', '')) == pytest.approx(8 * sum(rates), rel=0.1)
    assert re.search(r'^  staleness  [\d.]+ updates', output, re.M) and 'would be ' in output and 'advice ' in output


@pytest.mark.timing
def test_a_cluster_is_explained_by_its_chief(data_dir, tmp_path):
    with Tasks(2, 0, dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train', batch_size=8,
               explain='true', network=f'{CAUSES}:sleeping') as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    seconds, parts = parts_of(ends['worker 0'][1])
    assert parts[TRANSFERS] > 0 and sum(parts.values()) == pytest.approx(seconds, rel=0.05)
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
    assert sum(parts.values()) == pytest.approx(seconds, rel=0.05)
