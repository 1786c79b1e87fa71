"""Lessons 1 to 7: what they print is what their pages show, with NumPy's numbers; mistakes in any lesson."""
import heapq
import multiprocessing
import os
import pathlib
import re
import runpy
import sys
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError, UsageError
from lessons import diagnosis, how_fast, parts
from lessons.solutions import parts as solutions
from tests.helpers import ROOT, mostly_stress, python
from tests.learn_pages import assert_on_page
from tests.stubs import write_stubs

LESSONS = ROOT / 'lessons'
# The programs of the lessons and the examples.
PROGRAMS = [str(path.relative_to(ROOT)) for path in sorted([*LESSONS.rglob('*.py'), *ROOT.glob('examples/*.py')])
            if "__name__ == '__main__'" in path.read_text()]


def rows(text, heading):
    """Returns {name: numbers} of the indented lines below the line that starts with a heading."""
    block = text.split('\n' + heading, 1)[1].split('\n', 1)[1]
    found = {}
    for line in block.splitlines():
        if not line.startswith('  '):
            break
        name, numbers = re.fullmatch(r'  (.*?) {2,}((?:-?[\d.]+[ \]\[]*)+)', line.replace('[', ' ')).groups()
        found[name] = [float(number) for number in re.findall(r'-?[\d.]+', numbers)]
    return found


def test_towers_have_gradients_whose_mean_is_that_of_the_whole_batch(output_of):
    text = output_of('towers.py', '--device=cpu')
    assert_on_page('python lessons/towers.py --towers=2', text)
    assert len(re.findall(r'^  linear/weights +on ', text, re.M)) == 1 and text.count('/product/MatMul') == 2
    own = text.split('With tf.Variable instead of tf.get_variable')[1]
    assert re.findall(r'^  (\S+)$', own, re.M) == [f'tower_{k}/linear/{name}' for k in range(2)
                                                   for name in ('weights', 'bias')]
    x, y = np.array([[1, 2], [2, 1], [3, 0], [0, 3]]), np.array([1, 2, 3, -1])
    errors = x @ [1, -1] - y
    gradients = 2 * errors[:, None] * np.column_stack([x, np.ones(4)])  # of each example
    printed = rows(text, 'The gradient of the two weights')
    np.testing.assert_allclose([printed['tower 0'], printed['tower 1']], gradients.reshape(2, 2, 3).mean(1))
    np.testing.assert_allclose([printed['mean'], printed['whole batch']], [gradients.mean(0)] * 2)
    losses = rows(text, "Each tower's loss")
    np.testing.assert_allclose(np.ravel([losses['tower 0'], losses['tower 1']]), (errors ** 2).reshape(2, 2).mean(1))
    np.testing.assert_allclose([losses['mean'], losses['whole batch']], np.mean(errors ** 2))
    after = rows(text, 'The variables before and after')['after']
    np.testing.assert_allclose(after, np.array([1, -1, 0]) - 0.1 * gradients.mean(0), atol=0.006)


def test_the_number_of_towers_does_not_change_the_update(output_of):
    one, four = (output_of('towers.py', '--device=cpu', f'--towers={count}') for count in (1, 4))
    assert len(re.findall(r'^  linear/weights +on ', four, re.M)) == 1 and four.count('/product/MatMul') == 4
    for heading in ('The gradient of the two weights', 'The variables before and after'):
        for name in {'mean', 'after'} & set(rows(four, heading)):
            assert rows(one, heading)[name] == rows(four, heading)[name]


@pytest.mark.parametrize('count', [2, 4])
def test_the_ring_sums_as_the_naive_all_reduce_and_as_tensorflow(count, output_of):
    text = output_of('all_reduce.py', '--device=cpu', f'--devices={count}')
    if count == 4:
        assert_on_page('python lessons/all_reduce.py --devices=4', text)
    total = np.arange(1, 9) * int('1' * count)
    for heading in ('After the naive', f'Step {2 * (count - 1)}', 'After CollectiveReduce'):
        printed = rows(text, heading)
        assert len(printed) == count
        for values in printed.values():
            np.testing.assert_array_equal(values, total)
    # After the first half, each device has the sum of one chunk, and what it had received of the others.
    half = np.array(list(rows(text, f'Step {count - 1}').values()))
    assert (half == total).sum() == 8
    for d in range(count):
        chunk = slice((d + 1) % count * 8 // count, ((d + 1) % count + 1) * 8 // count)
        np.testing.assert_array_equal(half[d, chunk], total[chunk])
    table = np.array(re.findall(r'^ +D = (\d+) +(\d+) +(\d+) +(\d+)$', text, re.M), int)
    assert len(table) == 3
    for devices, naive, ring, link in table:
        assert naive == 2 * (devices - 1) * 32 and ring == 2 * link and link == 2 * 32 * (devices - 1) / devices
    for values in rows(text, 'The parameters after').values():
        np.testing.assert_allclose(values, np.arange(1, 9) - 0.001 * total / count, atol=0.006)


@pytest.mark.stress
def test_a_split_batch_is_complete_and_trains_alike_on_one_device_and_two(output_of):
    text = output_of('split_batch.py', '--device=cpu', '--data_dir=/nowhere')
    assert_on_page('python lessons/split_batch.py', text, r'because \S+', r' +\S+ seconds, test accuracy \S+',
                   r'\de-\d\d$')
    batches = re.split(r'A batch of \d rows:\n', text)[1:]
    for batch, sizes in zip(batches, ([2, 2], [2, 3])):
        whole, *shares = re.split(r'  on .*, (\d) rows:\n', batch.split('\n\n')[0] + '\n')
        assert [int(size) for size in shares[::2]] == sizes
        assert ''.join(shares[1::2]) == whole
        np.testing.assert_array_equal(np.array(whole.split(), int), np.arange(5 * sum(sizes)))
    printed = re.findall(r'^  (\S.*?) {2,}(\d+\.\d+)$', text, re.M)
    assert [float(value) for _, value in printed] == [2, 7, 4.5, 5, 5]
    accuracies = [float(value) for value in re.findall(r'accuracy (\d\.\d+)', text)]
    assert len(accuracies) == 6 and accuracies[1] > 2 * accuracies[0]
    np.testing.assert_allclose(accuracies[:3], accuracies[3:], atol=0.02)
    # A plain mean of the shares of 31 and 32 differs by 1e-5 after the first update, and its accuracies hardly.
    differences = {int(updates): float(size) for updates, size in re.findall(r'after +(\d+) updates? +(\de-\d+)$', text,
                                                                             re.M)}
    assert list(differences) == [1, 16, 32, 48] and 0 <= differences[1] < 1e-6


# The fit of lessons 5 and 6 in NumPy.
X = np.linspace(-2, 2, 50)[:, None]


def initial_parameters():
    """Returns [w1, b1, w2, b2], float64, from the seeds of the lessons."""
    with tf.Graph().as_default(), tf.Session() as session:
        return [session.run(tf.random.stateless_normal(shape, [0, zlib.crc32(name)])).astype(np.float64)
                for name, shape in ((b'w1', [1, 5]), (b'b1', [5]), (b'w2', [5, 1]), (b'b2', [1]))]


def loss_of(parameters):
    """Returns the mean squared error over the 50 points."""
    w1, b1, w2, b2 = parameters
    return np.mean((np.tanh(X @ w1 + b1) @ w2 + b2 - X ** 2) ** 2)


def gradients_of(parameters, x):
    """Returns the gradients of the mean squared error over the points x, by hand."""
    w1, b1, w2, b2 = parameters
    hidden = np.tanh(x @ w1 + b1)
    error = 2 * (hidden @ w2 + b2 - x ** 2) / len(x)
    back = (error @ w2.T) * (1 - hidden ** 2)
    return [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


def moved(parameters, rate, gradients):
    """Returns the parameters after a step."""
    return [parameter - rate * gradient for parameter, gradient in zip(parameters, gradients)]


@pytest.mark.stress
def test_processes_return_the_gradients_of_their_points_to_a_master_that_takes_the_mean(output_of):
    text = output_of('processes.py', '--device=cpu')
    assert_on_page('python lessons/processes.py', text, r'pid \d+')
    pids = re.findall(r'^process (\d) has pid (\d+)$', text, re.M)
    assert [p for p, _ in pids] == list('012') and len({pid for _, pid in pids}) == 3
    parameters = initial_parameters()
    blocks = re.findall(r'^after (\d+) updates, loss ([\d.]+)\n(.*?)\n(The largest[^\n]*)$', text, re.M | re.S)
    assert [updates for updates, *_ in blocks] == ['0', '50', '100']
    for updates, loss, table, difference in blocks:
        if updates != '0':
            for _ in range(50):
                parameters = moved(parameters, 0.01, gradients_of(parameters, X))
        assert float(loss) == pytest.approx(loss_of(parameters), abs=1e-6)
        shares = [(f'process {p}, {len(x)}/50', x) for p, x in enumerate((X[:16], X[16:33], X[33:]))]
        for row, x in [*shares, ('mean', X), ('all 50 points', X)]:
            printed = np.array(' '.join(re.findall(rf'^{row} (.*)$', table, re.M)).split(), float)
            expected = np.hstack([gradient.ravel() for gradient in gradients_of(parameters, x)])
            np.testing.assert_allclose(printed, expected, atol=0.006)
        assert difference == 'The largest difference between the last two rows is 0.0000000000.'
    losses = re.findall(r'^ +(\d+) +(\S+) +(\S+) +(\S+)$', text[text.index('P = 1'):], re.M)
    assert losses == [(updates, *[loss] * 3) for updates, loss, *_ in blocks], 'equal for 1, 2 and 3 processes'


def test_the_master_sends_and_receives_as_many_bytes_as_the_page_says():
    messages = []

    class Process:
        def send(self, message):
            messages.append(message[0])  # the parameters; the points follow

        def recv(self):
            messages.append(gradients_of(initial_parameters(), X))
            return messages[-1]

    lesson = runpy.run_path(str(LESSONS / 'processes.py'))
    lesson['collect']([Process(), Process(), Process()], initial_parameters(), X, X ** 2)
    assert [sum(np.asarray(each).nbytes for each in message) for message in messages] == [128] * 6
    page = ' '.join((ROOT / 'docs' / 'learn' / '05-processes.md').read_text().split())
    assert 'takes 2 P messages' in page and 'n is 128' in page
    assert 'sends 384 bytes of parameters and receives 384 of gradients' in page


def test_a_process_that_has_ended_is_reported():
    lesson = runpy.run_path(str(LESSONS / 'processes.py'))
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    pipes[1][1].close()
    with pytest.raises(RunError, match='process 1 ended before it answered'):
        lesson['collect']([ours for ours, _ in pipes], initial_parameters(), X, X ** 2)


def synchronous(rate, durations):
    """Returns the (milliseconds, loss) after each update, as lesson 6 simulates it."""
    parameters, found = initial_parameters(), []
    for ms in range(max(durations), 1001, max(durations)):
        batches = range(4 * len(found), 4 * len(found) + 4)
        towers = [gradients_of(parameters, X[batch % 5::5]) for batch in batches]
        parameters = moved(parameters, rate, [np.mean(each, 0) for each in zip(*towers)])
        found.append((ms, loss_of(parameters)))
    return found


def asynchronous(rate, durations):
    """Returns what `synchronous` returns."""
    parameters, found = initial_parameters(), []
    pending = [(ms, k, k, parameters) for k, ms in enumerate(durations)]
    for batch in range(4, 500):
        ms, k, own_batch, read = heapq.heappop(pending)
        if ms > 1000:
            return found
        parameters = moved(parameters, rate, gradients_of(read, X[own_batch % 5::5]))
        found.append((ms, loss_of(parameters)))
        heapq.heappush(pending, (ms + durations[k], k, batch, parameters))


@pytest.mark.stress
def test_gradients_are_as_stale_as_printed_and_the_losses_are_those_of_numpy(output_of):
    text = output_of('stale.py', '--device=cpu')
    assert_on_page('python lessons/stale.py', text, r' +\d+ updates, ', r' *[\d.]+ stale on average',
                   r'(?<=#)loss [\d.]+', r' +[\d.]+ ms (?=for the)', r'started at \d+, applied at \d+: \d+ stale$')
    updates = re.findall(r'^ +\d+ ms  tower (\d): started at +(\d+), applied at +(\d+): +(\d+) stale (.*)$', text, re.M)
    made = {}  # update -> b2 after it
    for _, started, applied, staleness, numbers in updates:
        read, gradient, before, after = map(float, numbers.split())
        assert int(applied) - int(started) == int(staleness)
        assert after == pytest.approx(before - 0.025 * gradient, abs=1.1e-4)
        assert made.get(int(started) - 1, read) == read and made.get(int(applied) - 1, before) == before
        made[int(applied)] = after
    assert ('3', '0', '12', '12') in [update[:4] for update in updates], 'the slow tower started at 0'

    tables = re.findall(r'^Loss of (.*) \(simulated\).*\n.*\n.*\n((?:.+\n){3})', text, re.M)
    for (title, table), durations in zip(tables, ([10] * 4, [10] * 3 + [40]), strict=True):
        assert title.endswith(f'{max(durations)} ms')
        for line, found in zip(table.splitlines(), (synchronous(0.1, durations), asynchronous(0.025, durations))):
            losses = [loss for _, loss in found]
            expected = [losses[count - 1] if count <= len(losses) else None for count in (10, 25, 100)]
            expected += [[loss for ms, loss in found if ms <= until][-1] for until in (100, 250, 500, 1000)]
            printed = [None if cell == '-' else float(cell) for cell in line[22:].split()]
            assert printed == pytest.approx(expected, abs=1e-4)

    # At twice the rates, as the page says, stale gradients of equal towers diverge.
    assert synchronous(0.2, [10] * 4)[-1][1] < 0.03 < 1 < asynchronous(0.05, [10] * 4)[-1][1]

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


TIMES = (r'^/cpu:\d  [FB|\d.=]{72}$', r'0 s +\d+\.\d\d s', r'measured \d+%')  # of lesson 7


def gradients_of_parts(count):
    """Returns the gradients of the weights of lesson 7 with a number of parts, in NumPy."""
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


def test_parts_wait_less_with_micro_batches_and_compute_the_gradients_of_numpy(output_of):
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
    for bubble, drawn in ((one, first + second), (several, micro_first + micro_second)):
        assert bubble == pytest.approx(100 * drawn.count('.') / len(drawn), abs=5)

    found = np.array([line.split()[2:] for line in re.findall(r'^part \d  .*', text, re.M)], float)
    np.testing.assert_allclose(found, [np.tile(each.ravel(), 2) for each in gradients_of_parts(2)], atol=0.006)
    memory = re.findall(r'^ +(\d) +24 B +(\d+) B +(\d) x +(\d+) B +(\d+) B$', text, re.M)
    # Six examples in a micro-batch, with an input and an output of two numbers of four bytes.
    assert memory == [(str(p), '96', '4', '96', str(24 + 4 * 96)) for p in range(2)]

    ways = ['towers', 'towers, 4 turns', 'parts', 'parts, 1F1B', 'more devices']
    table = re.findall(r'^ +([\d.]+)e9 +(\d+)' + r' +([\d.]+) GB' * 4 + '  (.*)$', text, re.M)
    assert [choice for *_, choice in table] == ways
    for *numbers, choice in table:
        parameters, examples, *needs = map(float, numbers)
        state, activations = 16 * parameters, 0.02 * examples / 2
        expected = [state + activations, state + activations / 4, state / 2 + activations, state / 2 + activations / 2]
        np.testing.assert_allclose(needs, expected, atol=0.051)
        assert choice == ways[[need <= 16 for need in [*expected, 0]].index(True)]


def test_parts_work_in_the_order_that_the_reader_has_written(monkeypatch, capsys):
    monkeypatch.setattr(parts, 'EXERCISE', solutions.__file__)
    monkeypatch.setattr(sys, 'argv', ['parts.py', '--device=cpu', '--exercise'])
    parts.main()
    assert_on_page('python lessons/parts.py --exercise', capsys.readouterr().out, *TIMES)


def test_three_parts_compute_the_gradients_of_numpy_in_the_order_of_1f1b(monkeypatch):
    monkeypatch.setattr(parts, 'SECONDS', dict(forward=0.01, backward=0.01))
    orders = [solutions.order_of_1f1b(p, 3, 6) for p in range(3)]
    values, timeline = parts.run([f'/cpu:{p}' for p in range(3)], orders, 6)
    for (weights, biases), expected in zip(values, gradients_of_parts(3)):
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        assert biases.shape == (2,)
    for row, order in zip(timeline, orders):
        assert [bar.name for bar in row.bars] == [kind[0].upper() + str(m) for kind, m in order]


@pytest.mark.parametrize('count', [1, 4])
def test_towers_by_hand_print_the_losses_of_the_page(count, output_of):
    text = output_of('by_hand.py', '--device=cpu', f'--towers={count}')
    # The last digit may be rounded otherwise on another processor.
    assert_on_page(f'python lessons/by_hand.py --towers={count}', text, r'(?<=loss = \d\.\d{3})\d')


def test_a_late_reader_sees_the_update_unless_the_update_waits_for_it(output_of):
    text = output_of('by_hand.py', '--device=cpu', '--order')
    assert_on_page('python lessons/by_hand.py --order', text)
    assert [float(value) for value in re.findall(r'the loss is +(\S+)$', text, re.M)] == [3 * (1 - 0.5 * 3), 3]


@pytest.mark.parametrize('lesson, function', [
    (parts, parts.written_order), (how_fast, how_fast.show_table),
    pytest.param(diagnosis, diagnosis.written_diagnosis, marks=pytest.mark.stress)])
def test_a_lesson_does_not_use_a_function_that_is_not_written(lesson, function, tmp_path, monkeypatch):
    write_stubs(tmp_path)
    path = tmp_path / pathlib.Path(lesson.EXERCISE).name
    monkeypatch.setattr(lesson, 'EXERCISE', str(path))
    with pytest.raises(UsageError, match=f'^--exercise: not written yet: .*/{path.name}'):
        function()


@pytest.mark.parametrize('script, argument, said', [
    ('towers.py', '--towers=3', 'choose from 1, 2, 4'),
    ('towers.py', '--device=gpu', '--device=gpu: this takes 2 GPUs, but TensorFlow finds 0; use --device=cpu'),
    ('all_reduce.py', '--devices=5', 'choose from 2, 4'),
    ('split_batch.py', '--epochs=0', 'the minimum is 1'),
    ('split_batch.py', '--epoch=1', 'unknown flag --epoch (did you mean --epochs?)'),
    ('processes.py', '--processes=0', '0 is too small; the minimum is 1'),
    ('processes.py', '--processes=51', '--processes=51, but 50 points can be split over at most 50; use fewer'),
    ('processes.py', '--device=gpu', 'this takes 3 GPUs, but TensorFlow finds 0; use --device=cpu'),
    ('stale.py', '--slow=0', '0 is too small; the minimum is 1'),
    ('stale.py', '--rate=-1', "'-1' is not a number above 0"),
    ('parts.py', '--micro_batches=5', '--micro_batches=5 does not divide the batch of 24; use a divisor of 24'),
    ('parts.py', '--parts=1', 'the minimum is 2'),
    ('parts.py', '--device=gpu', 'use --device=cpu'),
    ('by_hand.py', '--towers=7', 'cannot share 1200 points evenly'),
    ('how_fast.py', '--delay=-1', '-1 is too small; the minimum is 0'),
    ('diagnosis.py', '--fault=slow', "invalid choice: 'slow'"),
    ('noise_scale.py', '--after=5,3', "'5,3' is not a list of growing numbers, such as 100,500"),
    ('noise_scale.py', '--after=', "'' is not a list of growing numbers"),
    ('noise_scale.py', '--dataset=none', "invalid choice: 'none'"),
    ('sharding.py', '--devices=3', 'choose from 2, 4, 8'),
    ('tensor_parallel.py', '--devices=1', 'choose from 2, 4, 8'),
    ('check.py', '13', 'choose from 1, 2, 3'),
    ('check.py', 'towers', "invalid int value: 'towers'")])
def test_a_mistake_is_reported_in_one_line(script, argument, said, call_lesson):
    status, text, error = call_lesson(script, argument)
    line, = error.splitlines()
    assert (status, text) == (2, '') and said in line


@pytest.mark.parametrize('script', PROGRAMS)
def test_without_the_environment_one_line_says_to_activate_it(script):
    done = python('-S', '-E', script)  # without the packages that are installed
    line, = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, '')
    assert line.startswith(f'{pathlib.Path(script).name}: error: {sys.executable} has no ')
    assert ('python -m pip install ' if 'in_other_words' in script else 'source .venv/bin/activate') in line


def test_an_answer_is_not_wrong_because_tensorflow_cannot_be_imported(tmp_path):
    (tmp_path / 'numpy').symlink_to(pathlib.Path(np.__file__).parent)
    (tmp_path / 'numpy.libs').symlink_to(pathlib.Path(np.__file__).parent.with_name('numpy.libs'))
    (tmp_path / 'tensorflow').mkdir()
    (tmp_path / 'tensorflow' / '__init__.py').write_text("raise ImportError('libcudart.so is missing')\n")
    (tmp_path / 'split_batch.py').write_text('def weighted_mean(gradients, sizes):\n    return 0\n')
    done = python('-S', 'lessons/check.py', '4', f'--folder={tmp_path}',
                  environment=dict(os.environ, PYTHONPATH=str(tmp_path)))
    line, = done.stderr.splitlines()
    assert (done.returncode, 'weighted_mean' in done.stdout) == (2, False)
    assert line == ('check.py: error: the checker cannot start, so nothing is checked: ImportError: libcudart.so is '
                    'missing')
