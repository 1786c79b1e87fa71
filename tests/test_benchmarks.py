"""The benchmarks measure real runs and compute the figures that they print. No timed assertions."""
import json
import shlex

import pytest
import tensorflow.compat.v1 as tf

from benchmarks import time_to_accuracy
from cifar10.model import fast
from tests.helpers import python


def run(script, *arguments):
    return python(f'benchmarks/{script}', *arguments)


def numbers(found):
    """Returns all numbers in a parsed JSON object."""
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


def test_operation_counts_match_tensorflows(graph):
    fast.inference(tf.zeros([1, 28, 28, 3]))
    options = tf.profiler.ProfileOptionBuilder(tf.profiler.ProfileOptionBuilder.float_operation())
    node, counted = tf.profiler.profile(graph, cmd='op', options=options.with_empty_output().build()), {}
    while node.children:  # one type of operation below the other
        node = node.children[0]
        counted[node.name] = node.float_ops
    expected = time_to_accuracy.layers(28)
    assert counted['Conv2D'] + counted['MatMul'] == 2 * sum(operations for operations, _ in expected)
    assert time_to_accuracy.flop_of_image(28) == sum(2 * n * times for n, times in expected)


@pytest.mark.parametrize('script, argument, part', [
    ('scaling.py', '--towers=3', 'cannot be shared by 3 towers'),
    ('scaling.py', '--json=/nowhere/out.json', '/nowhere/out.json'),
    ('convergence.py', '--images=1000', 'not a multiple of 128')])
def test_invalid_flags_are_refused_before_measuring(script, argument, part, data_dir, call_lesson):
    status, text, error = call_lesson(f'../benchmarks/{script}', '--dataset=shapes', f'--data_dir={data_dir}', argument)
    line, = error.splitlines()
    assert (status, text) == (2, '') and part in line
