"""Lessons 1 to 7: their pages show their output, which has NumPy's numbers; user errors in any lesson."""
import multiprocessing
import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

from cifar10.base.errors import RunError, UsageError
from lessons import diagnosis, how_fast, parts
from lessons.solutions import parts as solutions
from tests.helpers import ROOT, mostly_stress, python
from tests.learn_pages import assert_on_page
from tests.stubs import write_stubs

LESSONS = ROOT / 'lessons'
PROGRAMS = [str(path.relative_to(ROOT)) for path in sorted([*LESSONS.rglob('*.py'), *ROOT.glob('examples/*.py')])
            if "__name__ == '__main__'" in path.read_text()]


@pytest.mark.parametrize('command', [
    'towers.py --towers=2', 'all_reduce.py --devices=4', 'by_hand.py --towers=1', 'by_hand.py --towers=4',
    'by_hand.py --order'])
def test_the_page_shows_the_output(command, output_of):
    # The last digit of a loss may differ on another processor.
    assert_on_page(f'python lessons/{command}', output_of(*command.split(), '--device=cpu'),
                   r'(?<=loss = \d\.\d{3})\d')


@pytest.mark.parametrize('count', [1, 4])
def test_the_mean_of_the_towers_gradients_is_the_gradient_of_the_whole_batch(count, output_of):
    text = output_of('towers.py', '--device=cpu', f'--towers={count}')
    x, y = np.array([[1, 2], [2, 1], [3, 0], [0, 3]]), np.array([1, 2, 3, -1])
    gradient = np.mean(2 * (x @ [1, -1] - y)[:, None] * np.column_stack([x, np.ones(4)]), 0)
    after = re.search(r'^  after +(.*)$', text, re.M)[1]
    found = [float(number) for number in re.findall(r'-?[\d.]+', after)]
    np.testing.assert_allclose(found, np.array([1, -1, 0]) - 0.1 * gradient, atol=0.006)


def test_two_devices_sum_around_the_ring_as_tensorflow_does(output_of):
    text = output_of('all_reduce.py', '--device=cpu', '--devices=2')
    for heading in ('After the naive', 'Step 2', 'After CollectiveReduce'):
        found = re.findall(r'^  .*? ((?: +\d+){8})', text.split('\n' + heading)[1], re.M)[:2]
        assert [row.split() for row in found] == [[str(11 * number) for number in range(1, 9)]] * 2


@pytest.mark.stress
def test_a_split_batch_is_complete_and_trains_alike_on_one_device_and_two(output_of):
    text = output_of('split_batch.py', '--device=cpu', '--data_dir=/nowhere')
    assert_on_page('python lessons/split_batch.py', text, r'because \S+', r' +\S+ seconds, test accuracy \S+',
                   r'\de-\d\d$')
    accuracies = [float(value) for value in re.findall(r'accuracy (\d\.\d+)', text)]
    assert len(accuracies) == 6 and accuracies[1] > 2 * accuracies[0]
    np.testing.assert_allclose(accuracies[:3], accuracies[3:], atol=0.02)
    # A plain mean of shares of 31 and 32 differs by 1e-5 after the first update, and hardly in accuracy.
    differences = {int(updates): float(size) for updates, size in re.findall(r'after +(\d+) updates? +(\de-\d+)$', text,
                                                                             re.M)}
    assert list(differences) == [1, 16, 32, 48] and 0 <= differences[1] < 1e-6


# The fit of lesson 5: its four parameters and its points.
PARAMETERS, X = [np.ones([1, 5]), np.zeros(5), np.ones([5, 1]), np.zeros(1)], np.linspace(-2, 2, 50)[:, None]


@pytest.mark.stress
def test_processes_return_their_points_gradients_to_a_master_that_averages_them(output_of):
    text = output_of('processes.py', '--device=cpu')
    assert_on_page('python lessons/processes.py', text, r'pid \d+')
    assert len(set(re.findall(r'^process \d has pid (\d+)$', text, re.M))) == 3
    differences = re.findall(r'The largest difference between the last two rows is ([\d.]+)\.$', text, re.M)
    assert differences == ['0.0000000000'] * 3


def test_a_dead_process_is_reported():
    lesson = runpy.run_path(str(LESSONS / 'processes.py'))
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    pipes[1][1].close()
    with pytest.raises(RunError, match='process 1 ended before it answered'):
        lesson['collect']([ours for ours, _ in pipes], PARAMETERS, X, X ** 2)


@pytest.mark.stress
def test_the_page_shows_stale_gradients_and_every_update_is_counted(output_of):
    text = output_of('stale.py', '--device=cpu')
    assert_on_page('python lessons/stale.py', text, r' +\d+ updates, ', r' *[\d.]+ stale on average',
                   r'(?<=#)loss [\d.]+', r' +[\d.]+ ms (?=for the)', r'started at \d+, applied at \d+: \d+ stale$')
    counts = dict(re.findall(r'^(synchronous|asynchronous) +(\d+) updates', text, re.M))
    assert 0 < int(counts['synchronous']) < int(counts['asynchronous'])
    by_tower = re.findall(r'^ +tower (\d) +(\d+) updates', text, re.M)
    assert [k for k, _ in by_tower] == list('0123')
    assert sum(int(count) for _, count in by_tower) == int(counts['asynchronous'])


@pytest.mark.parametrize('script', mostly_stress(
    ['towers.py', 'all_reduce.py', 'split_batch.py', 'processes.py', 'stale.py', 'parts.py', 'by_hand.py',
     'sharding.py', 'larger_batch.py', 'diagnosis.py --fault=none', 'how_fast.py'], 'towers.py'))
def test_the_pictures_are_drawn(script, output_of, tmp_path):
    pytest.importorskip('matplotlib')
    path = tmp_path / 'picture.png'
    text = output_of(*script.split(), *['--device=cpu'] * (script != 'how_fast.py'), f'--plot={path}')
    assert text.endswith(f'\nwritten {path}\n')
    assert path.read_bytes().startswith(b'\x89PNG')


TIMES = (r'^/cpu:\d  [FB|\d.=]{72}$', r'0 s +\d+\.\d\d s', r'measured \d+%')  # lesson 7


def gradients_of_parts(count):
    """Returns the weights' gradients of lesson 7 for a number of parts, in NumPy."""
    x = np.arange(48.0).reshape(24, 2) % 7 - 3
    weights = np.array([[1, 0.5], [-0.5, 1]])
    inputs = [x]
    for _ in range(count - 1):
        inputs.append(np.maximum(inputs[-1] @ weights + 0.5, 0))
    back = 2 * (inputs[-1] @ weights + 0.5 - x[:, ::-1]) / 24
    found = []
    for each in reversed(inputs):
        found.append(each.T @ back)
        back = (back @ weights.T) * (each > 0)
    return found[::-1]


def test_parts_wait_less_with_micro_batches(output_of):
    text = output_of('parts.py', '--device=cpu')
    assert_on_page('python lessons/parts.py', text, *TIMES)
    lines = re.findall(r'^/cpu:\d  ([FB\d.=]{72})$', text, re.M)
    works = [re.findall(r'[FB]\d', line) for line in lines]
    assert works == [['F0', 'B0']] * 2 + [[f'{kind}{m}' for kind in 'FB' for m in range(4)]] * 2
    first, second, micro_first, micro_second = lines
    assert first.index('F0') < second.index('F0') < second.index('B0') < first.index('B0')
    assert micro_second.index('F0') < micro_first.index('F3'), 'both parts work at the same time'
    one, several = map(int, re.findall(r'measured (\d+)%', text))
    assert 5 < several < one and one >= 49


def test_parts_work_in_the_order_of_the_readers_function(monkeypatch, capsys):
    monkeypatch.setattr(parts, 'EXERCISE', solutions.__file__)
    monkeypatch.setattr(sys, 'argv', ['parts.py', '--device=cpu', '--exercise'])
    parts.main()
    assert_on_page('python lessons/parts.py --exercise', capsys.readouterr().out, *TIMES)


def test_three_parts_compute_numpys_gradients_in_1f1b_order(monkeypatch):
    monkeypatch.setattr(parts, 'SECONDS', dict(forward=0.01, backward=0.01))
    orders = [solutions.order_of_1f1b(p, 3, 6) for p in range(3)]
    values, timeline = parts.run([f'/cpu:{p}' for p in range(3)], orders, 6)
    for (weights, biases), expected in zip(values, gradients_of_parts(3)):
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        assert biases.shape == (2,)
    for row, order in zip(timeline, orders):
        assert [bar.name for bar in row.bars] == [kind[0].upper() + str(m) for kind, m in order]


@pytest.mark.parametrize('lesson, function', [
    (parts, parts.written_order), (how_fast, how_fast.show_table),
    pytest.param(diagnosis, diagnosis.written_diagnosis, marks=pytest.mark.stress)])
def test_a_lesson_does_not_call_an_unwritten_function(lesson, function, tmp_path, monkeypatch):
    write_stubs(tmp_path)
    path = tmp_path / pathlib.Path(lesson.EXERCISE).name
    monkeypatch.setattr(lesson, 'EXERCISE', str(path))
    with pytest.raises(UsageError, match=f'^--exercise: not written yet: .*/{path.name}'):
        function()


@pytest.mark.parametrize('script, argument, said', [
    ('towers.py', '--towers=3', 'choose from 1, 2, 4'),
    ('towers.py', '--device=gpu', '--device=gpu: this takes 2 GPUs, but TensorFlow finds 0; use --device=cpu'),
    ('split_batch.py', '--epoch=1', 'unknown flag --epoch (did you mean --epochs?)'),
    ('processes.py', '--processes=51', '--processes=51, but 50 points can be split over at most 50; use fewer'),
    ('stale.py', '--rate=-1', "'-1' is not a number above 0"),
    ('parts.py', '--micro_batches=5', '--micro_batches=5 does not divide the batch of 24; use a divisor of 24'),
    ('by_hand.py', '--towers=7', 'cannot share 1200 points evenly'),
    ('diagnosis.py', '--fault=slow', "invalid choice: 'slow'"),
    ('noise_scale.py', '--after=5,3', "'5,3' is not a list of increasing numbers, such as 100,500"),
    ('check.py', '13', 'choose from 1, 2, 3'),
    ('check.py', 'towers', "invalid int value: 'towers'")])
def test_user_errors_are_reported_in_one_line(script, argument, said, call_lesson):
    status, text, error = call_lesson(script, argument)
    line, = error.splitlines()
    assert (status, text) == (2, '') and said in line


@pytest.mark.parametrize('script', PROGRAMS)
def test_without_the_environment_one_line_says_to_activate_it(script):
    done = python('-S', '-E', script)  # without the installed packages
    line, = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, '')
    assert line.startswith(f'{pathlib.Path(script).name}: error: {sys.executable} has no ')
    assert ('python -m pip install ' if 'in_other_words' in script else 'source .venv/bin/activate') in line
