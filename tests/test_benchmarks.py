"""The benchmarks: they measure real runs, and they compute what they print. No timed assertions."""
import argparse
import json
import os
import re
import shlex

import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from benchmarks import convergence, generated_photos, harness, throughput, time_to_accuracy
from cifar10.base.errors import RunError
from cifar10.model import fast
from cifar10.run.metrics import EVAL, TRAIN, Log
from tests.helpers import LINEAR, python, train


def run(script, *arguments):
    return python(f'benchmarks/{script}', *arguments)


def numbers(found):
    """Returns all numbers in an object that was read as JSON."""
    if isinstance(found, (dict, list)):
        return [number for each in (found.values() if isinstance(found, dict) else found) for number in numbers(each)]
    return [found] if isinstance(found, (int, float)) else []


SMALL = '--tower_device=cpu --towers=2 --steps=4 --rounds=1'


@pytest.mark.stress
@pytest.mark.parametrize('script, arguments', [
    ('scaling.py', f'{SMALL} --modes=replicated,async --processes'),
    ('elastic.py', '--steps=100'),
    ('on_gpus.py', '--tower_device=cpu --steps=4 --rounds=1 "--cells=replicated,four towers + local,Keras"'),
    ('throughput.py', '--steps=4 --rounds=1 "--cells=bf16,four towers,Keras"'),
    ('tower_cost.py', '--towers=2 --rounds=1'),
    ('convergence.py', '--images=1280 --every=640 --seeds=1'),
    ('local.py', '--workers=2 --links=0 --seconds=0.1'),
    ('photos.py', '--sets=shapes --count=500 --seeds=1 "--setting=--image_size=65 --epochs=5"')])
def test_a_benchmark_measures_real_runs(script, arguments, data_dir, tmp_path):
    path = tmp_path / 'out.json'
    result = run(script, *shlex.split(arguments), '--dataset=shapes', '--data_dir=' + data_dir, f'--json={path}')
    assert result.returncode == 0, result.stderr
    assert min(numbers(json.loads(path.read_text()))) >= 0 and '\n|---|' in result.stdout


@pytest.mark.stress
def test_pipeline_measures_the_bubbles_of_the_formula():
    result = run('pipeline.py', '--steps=1')
    rows = [line.strip('| ').split(' | ') for line in result.stdout.splitlines()[2:]]
    assert result.returncode == 0 and len(rows) == 8, result.stderr
    for _, _, measured, expected in rows:
        assert float(measured.split()[0]) > float(expected) - 1  # sleep never ends early


@pytest.mark.stress
def test_time_to_accuracy_trains_evaluates_and_draws(data_dir, settings, tmp_path):
    pytest.importorskip('matplotlib')
    train(settings(network=LINEAR, eval_steps=2))
    result = run('time_to_accuracy.py', '--dataset=shapes', '--data_dir=' + data_dir, '--seeds=1',
                 '--setting=--epochs=0.1', '--setting=--epochs=0.05 --batch_size=64',
                 '--classic_dir=' + settings().run.train_dir, f"--json={tmp_path / 'out.json'}",
                 f"--plot={tmp_path / 'out.png'}")
    assert result.returncode == 0, result.stderr
    (speed,), (one,), (other,) = json.loads((tmp_path / 'out.json').read_text())['figures'].values()
    one, other = time_to_accuracy.Run(*one), time_to_accuracy.Run(*other)
    assert (one.images, other.images) == (1024, 512) and one.teraflop == pytest.approx(2 * other.teraflop)
    assert speed > 0 and (tmp_path / 'out.png').stat().st_size > 5000


def test_generated_photos_follow_from_their_number(tmp_path):
    for folder, count, first in (('all', 12, 0), ('later', 6, 6)):
        generated_photos.write(str(tmp_path / folder), count, first)
    found, again = ({path.relative_to(tmp_path / folder): path.read_bytes()
                     for path in (tmp_path / folder).rglob('*.jpg')} for folder in ('all', 'later'))
    assert len(found) == 12 and len(again) == 6 and again.items() <= found.items()
    assert {path.parent.name for path in found} == set(generated_photos.PATTERNS)
    assert len(set(found.values())) == 12 and len({Image.open(tmp_path / 'all' / path).size for path in found}) > 6


def test_the_speed_is_that_of_the_second_half(tmp_path):
    records = Log(str(tmp_path))
    records.write(TRAIN, 10, images_per_sec=1384.0)
    with pytest.raises(harness.Failed, match='no speed'):
        harness.second_half(str(tmp_path))
    records.write(EVAL, 10, accuracy=0.5)
    records.write(TRAIN, 20, images_per_sec=1500.5)
    assert harness.second_half(str(tmp_path)) == 1500.5


def test_operations_are_counted_as_tensorflow_counts_them(graph):
    fast.inference(tf.zeros([1, 28, 28, 3]))
    options = tf.profiler.ProfileOptionBuilder(tf.profiler.ProfileOptionBuilder.float_operation())
    node, counted = tf.profiler.profile(graph, cmd='op', options=options.with_empty_output().build()), {}
    while node.children:  # a kind of operation below the other
        node = node.children[0]
        counted[node.name] = node.float_ops
    expected = time_to_accuracy.layers(28)
    assert counted['Conv2D'] + counted['MatMul'] == 2 * sum(operations for operations, _ in expected)
    assert time_to_accuracy.flop_of_image(28) == sum(2 * n * times for n, times in expected)


def train_peer(data_dir, script, *extra, **environment):
    """Returns the finished process of a peer's four steps; skips the test where its framework is not installed."""
    result = python(f'benchmarks/peers/{script}', f'--data_dir={data_dir}', '--steps=2', '--batch_size=8', *extra,
                    environment={**os.environ, **environment}, seconds=240)
    if result.returncode == 3:
        pytest.skip(result.stderr.strip())
    return result


def assert_trained(result):
    """Asserts that a peer succeeded and that its last line has its speed and a loss."""
    assert result.returncode == 0, result.stderr
    rate, loss = re.fullmatch(r'images_per_sec=([\d.]+) loss=([\d.]+)', result.stdout.splitlines()[-1]).groups()
    assert float(rate) > 0 and 2 < float(loss) < 7


@pytest.mark.stress
@pytest.mark.parametrize('peer', [cell for cell in throughput.PEERS if 'compiled' not in cell])
def test_a_peer_trains_and_says_how_fast(peer, data_dir):
    assert_trained(train_peer(data_dir, *throughput.PEERS[peer]))


@pytest.mark.stress
@pytest.mark.parametrize('peer', [cell for cell in throughput.PEERS if 'compiled' in cell])
def test_a_compiled_peer_trains_or_says_in_a_line_why_not(peer, data_dir, tmp_path):
    cache = str(tmp_path)  # where nothing was compiled earlier
    result = train_peer(data_dir, *throughput.PEERS[peer], PATH='', TORCHINDUCTOR_CACHE_DIR=cache)
    line, = result.stderr.splitlines()
    assert result.returncode == 1 and line.startswith('pytorch.py: torch.compile: ') and 'compiler' in line
    assert_trained(train_peer(data_dir, *throughput.PEERS[peer], TORCHINDUCTOR_CACHE_DIR=cache))


def measure(cells, one, rounds=2):
    options = argparse.Namespace(rounds=rounds, json=None, plot=None)
    harness.measure(options, cells, one, lambda results: [f'{cell}: {harness.spread(results[cell])}' for cell in cells])


def test_a_failure_leaves_the_other_measurements(capsys):
    def one(cell, k):
        if cell == 'broken' or k and cell == 'now and then':
            raise harness.Failed('it broke')
        return 100.0 * (k + 1)
    with pytest.raises(RunError, match='3 measurements failed'):
        measure(['base', 'now and then', 'broken'], one)
    output = capsys.readouterr()
    assert output.out.splitlines() == ['base: 150 (100-200)', 'now and then: 100 (100-100)', 'broken: failed']
    assert output.err.splitlines()[4] == 'round 2 of 2, now and then: failed: it broke'


def test_an_interrupt_leaves_what_was_measured(capsys):
    def one(cell, k):
        if cell == 'second' and k:
            raise KeyboardInterrupt
        if cell == 'third':
            raise harness.Failed('it broke')
        return 100.0 * (k + 1)
    with pytest.raises(KeyboardInterrupt):
        measure(['first', 'second', 'third'], one)
    assert capsys.readouterr().out.splitlines() == ['first: 150 (100-200)', 'second: 100 (100-100)', 'third: failed']
    with pytest.raises(KeyboardInterrupt):
        measure(['second', 'third'], lambda cell, k: one(cell, 1))
    assert capsys.readouterr().out.splitlines() == ['second: not measured', 'third: not measured']


def test_ratios_are_of_the_same_round():
    assert harness.ratio([110.0, None, 660.0], [100.0, 200.0, 300.0]) == pytest.approx(1.65)
    assert harness.ratio([None], [1.0]) is None


@pytest.mark.parametrize('script, argument, part', [
    ('scaling.py', '--towers=3', 'cannot be shared by 3 towers'),
    ('scaling.py', '--json=/nowhere/out.json', '/nowhere/out.json'),
    ('convergence.py', '--images=1000', 'not a multiple of 128')])
def test_invalid_flags_are_refused_before_measuring(script, argument, part, data_dir, call_lesson):
    status, text, error = call_lesson(f'../benchmarks/{script}', '--dataset=shapes', f'--data_dir={data_dir}', argument)
    line, = error.splitlines()
    assert (status, text) == (2, '') and part in line


def test_convergence_interpolates_between_evaluations():
    assert convergence.accuracy_at([(100, 2.0, 0.3), (200, 4.0, 0.5)], 3.0) == pytest.approx(0.4)
