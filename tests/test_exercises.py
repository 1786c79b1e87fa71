"""The exercises of the lessons: each checker accepts the solution, and answers a wrong function in one line."""
import inspect
import runpy

import numpy as np
import pytest

from lessons import check, solutions
from lessons.checkers import all_reduce, by_hand, parts, processes, split_batch, stale, towers
from tests.helpers import ROOT

LESSONS = ROOT / 'lessons'
FILES = {number: LESSONS / 'exercises' / f'{name}.py' for number, (name, _) in check.LESSONS.items()}


def test_all_solutions_are_right(call_lesson):
    assert call_lesson('check.py', '--solutions') == (0, ''.join(f'lesson {n} right\n' for n in range(1, 8)), '')


def test_no_exercise_is_written_yet(call_lesson):
    lines = [f'lesson {number} not written yet: {path.relative_to(ROOT)}\n' for number, path in FILES.items()]
    assert call_lesson('check.py') == (1, ''.join(lines), '')
    assert call_lesson('check.py', '5') == (1, lines[4], '')


@pytest.mark.parametrize('number', check.LESSONS)
def test_solutions_have_the_parameters_of_the_exercises(number):
    _, function = check.LESSONS[number]
    exercise, solution = runpy.run_path(str(FILES[number]))[function], getattr(solutions, function)
    assert list(inspect.signature(exercise).parameters) == list(inspect.signature(solution).parameters)
    assert solution.__doc__.startswith(f'Lesson {number}: ')


@pytest.mark.parametrize('text, said', [
    ('def weighted_mean(', 'cannot be loaded: SyntaxError'),
    ('def mean(gradients, sizes): pass', 'has no function weighted_mean'),
    ('def weighted_mean(gradients): pass', 'it raises TypeError: weighted_mean() takes 1 positional argument but 2'),
    ('def weighted_mean(gradients, sizes):\n    return 1 / 0', 'it raises ZeroDivisionError in line 2: division by'),
    (None, 'does not exist')])
def test_a_broken_exercise_is_reported_in_one_line(text, said, tmp_path):
    path = tmp_path / 'split_batch.py'
    if text is not None:
        path.write_text(text)
    verdict = check.verdict(3, str(path))
    assert verdict.startswith('wrong: ') and said in verdict and '\n' not in verdict


def test_the_page_shows_a_verdict_as_the_checker_gives_it():
    wrong = split_batch.check(lambda gradients, sizes: np.mean(gradients, 0))
    assert f'\nlesson 3 wrong: {wrong}\n' in (ROOT / 'docs' / 'learn' / 'index.md').read_text()


def changed(value):
    """Returns a function that returns a value whatever its arguments are."""
    return lambda *arguments: value


def dense_mean(gradients):
    """A wrong mean of sparse gradients: it forgets that another tower may have the same row."""
    rows = {row: value / len(gradients) for values, indices in gradients for value, row in zip(values, indices)}
    return np.array(list(rows.values())).reshape(-1, 2), list(rows)


def own_chunk_always(num_devices):
    """A wrong all-gather: each device sends the next chunk number, whether it has that chunk or not."""
    return [[(device + step + 1) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


def by_ceiling(points, count):
    """A wrong split: each share rounded up, so the last ones get too few points."""
    size = -(-points // count)
    borders = [min(p * size, points) for p in range(count + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]


def without_the_rest(points, count):
    """A wrong split: what does not divide is lost."""
    size = points // count
    return [(p * size, (p + 1) * size, 1 / count) for p in range(count)]


def all_forward(part, parts, micro_batches):
    """A wrong order: that of the lesson."""
    return [(kind, m) for kind in ('forward', 'backward') for m in range(micro_batches)]


def one_too_few(part, parts, micro_batches):
    """A wrong order: in turns from the first micro-batch on, so part 0 waits for all others."""
    return [(kind, m) for m in range(micro_batches) for kind in ('forward', 'backward')]


def beyond_the_last(part, parts, micro_batches):
    """A wrong order: more forwards than there are micro-batches, if there are few."""
    order = solutions.order_of_1f1b(part, parts, max(micro_batches, parts - part))
    return [(kind, m) for kind, m in order if kind == 'forward' or m < micro_batches]


def clipped_each(tower_gradients, limit):
    """A wrong clipping: that of each tower."""
    clipped = [by_norm(tower, limit) for tower in tower_gradients]
    return [np.mean(each, 0) for each in zip(*clipped)]


def by_norm(gradients, limit):
    """Returns the gradients of one tower, clipped."""
    norm = np.sqrt(sum(np.sum(gradient ** 2) for gradient in gradients))
    return [gradient * min(1, limit / max(norm, 1e-9)) for gradient in gradients]


def means(tower_gradients):
    """Returns the mean gradient of each variable."""
    return [np.mean(each, 0) for each in zip(*tower_gradients)]


def always_scaled(tower_gradients, limit):
    """A wrong clipping: gradients that are short enough are made longer."""
    norm = np.sqrt(sum(np.sum(mean ** 2) for mean in means(tower_gradients)))
    return [mean * limit / norm for mean in means(tower_gradients)]


def divided_by_zero(tower_gradients, limit):
    """A wrong clipping: a gradient of zeros has the norm 0."""
    norm = np.sqrt(sum(np.sum(mean ** 2) for mean in means(tower_gradients)))
    return [mean * np.minimum(norm, limit) / norm for mean in means(tower_gradients)]


@pytest.mark.parametrize('checker, function, said', [
    (towers, dense_mean, 'for two towers with the same row ([[2, 4]] for rows [1]; [[6, 0]] for rows [1]) the mean of '
                         'row 1 is [3, 0]; [4, 2] is right'),
    (towers, lambda gradients: gradients[0], 'for two towers with different rows'),
    (towers, lambda gradients: np.zeros([6, 2]), 'it returns ndarray; a pair (values, indices) is right'),
    (towers, changed(([[1, 2]], [7])), 'it returns row 7, which no tower looked up'),
    (towers, changed(([1, 2], [0])),
     'it returns values of shape (2,) and indices of shape (1,); (1, 2) and (1,) are right'),
    (towers, changed(('a', 'b')), 'a pair that is not two arrays of numbers'),
    (all_reduce, own_chunk_always, 'for 2 devices device 0 sends chunk 1 in step 1, which it does not have yet; it has '
                                   'chunk 0'),
    (all_reduce, lambda count: [list(range(count))] * (count - 1), 'for 3 devices device 0 ends with chunks 0 and 1 '
                                                                   'only; all 3 are right'),
    (all_reduce, lambda count: [list(range(count))], 'for 3 devices the number of steps is 1; 2 is right'),
    (all_reduce, lambda count: [[count] * count] * (count - 1), 'sends chunk 2 in step 1; there are chunks 0 to 1'),
    (all_reduce, changed(None), 'for 2 devices it returns NoneType; a list of steps is right'),
    (all_reduce, changed([[0.5, 1]]), 'step 1 is not 2 whole numbers'),
    (split_batch, lambda gradients, sizes: np.mean(gradients, 0),
     'for shares 3 and 1 with gradients 2 and 6 it returns 4; 3 is right'),
    (split_batch, lambda gradients, sizes: np.average(gradients, 0, sizes),
     'for shares 2 and 0 and 1 with gradients 4 and nan and 10 it returns nan; 6 is right'),
    (split_batch, changed('2'), "it returns '2', which is not a number"),
    (split_batch, lambda gradients, sizes: gradients, 'of shape (2,); shape () is right'),
    (processes, without_the_rest, 'for 5 points and 2 processes point 4 is in no share'),
    (processes, by_ceiling, 'for 50 points and 4 processes share 0 has 13 points and share 3 has 11; at most one more '
                            'is right'),
    (processes, lambda points, count: [(first, end, 1 / count) for first, end, _ in solutions.split_points(
        points, count)], 'for 5 points and 2 processes share 0, of 2 points, has the weight 0.5; 2/5 = 0.4 is right'),
    (processes, lambda points, count: [(p * points // count, (p + 1) * points // count + 1, 0) for p in range(count)],
     'for 50 points and 5 processes share 4 is from 40 to 51; 0 <= first <= end <= 50 is right'),
    (processes, lambda points, count: [(0, points, 1 / count)] * count,
     'for 50 points and 5 processes point 0 is in the shares 0 and 1'),
    (processes, changed([(0, 50, 1)]), 'for 50 points and 5 processes it returns 1 share instead of 5'),
    (processes, changed([(0, 10)] * 5), 'share 0 is (0, 10); a tuple (first, end, weight) is right'),
    (processes, changed([(0, 0.5, 1)] * 5), 'share 0 is from 0 to 0.5; whole numbers are right'),
    (processes, changed([(0, np.nan, 1)] * 5), 'share 0 is from 0 to nan; whole numbers are right'),
    (processes, changed(None), 'it returns NoneType; a list of shares is right'),
    (stale, lambda rate, started, applied: rate / (applied - started + 1),
     'for rate 0.7, started at 1342 and applied at 1349, it returns 0.0875; 0.1 is right'),
    (stale, lambda rate, started, applied: rate / (applied - started),
     'for rate 0.1, started at 3 and applied at 3, it raises ZeroDivisionError in line'),
    (parts, all_forward,
     'for part 0 of 2 with 4 micro-batches it returns F0 F1 F2 F3 B0 B1 B2 B3; F0 F1 B0 F2 B1 F3 B2 B3'),
    (parts, one_too_few, 'it returns F0 B0 F1 B1 F2 B2 F3 B3; F0 F1 B0'),
    (parts, beyond_the_last, 'for part 0 of 4 with 2 micro-batches it returns F0 F1 F2 F3 B0 B1; F0 F1 B0 B1 is right'),
    (parts, lambda part, parts, micro_batches: None, 'it returns None'),
    (parts, lambda part, parts, micro_batches: [1], 'it returns [1]'),
    (parts, lambda *arguments: (each for each in solutions.order_of_1f1b(*arguments)), 'which is not a list'),
    (parts, lambda part, parts, micro_batches: [], 'it returns nothing'),
    (parts, lambda part, parts, micro_batches: part / 0, 'it raises ZeroDivisionError'),
    (by_hand, clipped_each,
     'for tower 0 with [2] and [8], tower 1 with [4] and [0] and the limit 1, it returns [0.6213]; [0.6] is right'),
    (by_hand, lambda towers, limit: by_norm([sum(each) for each in zip(*towers)], limit),
     'for tower 0 with [0.3] and [0], tower 1 with [0.3] and [0.8] and the limit 1, it returns [0.6]; [0.3] is right'),
    (by_hand, lambda towers, limit: [by_norm([mean], limit)[0] for mean in means(towers)],
     'it returns [1]; [0.6] is right'),
    (by_hand, always_scaled, 'it returns [0.6]; [0.3] is right'),
    (by_hand, divided_by_zero,
     'tower 1 with [0, 0] and the limit 1, it returns [nan, nan]; [0, 0] is right for variable 0'),
    (by_hand, lambda towers, limit: None, 'it returns None; a list of 2 arrays is right'),
    (by_hand, lambda towers, limit: towers['a'], 'it raises TypeError')])
def test_checkers_give_the_first_counterexample(checker, function, said):
    assert said in checker.check(function)
