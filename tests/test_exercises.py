"""The exercises of the lessons: checkers accept right answers, and refuse wrong answers with a counterexample.

The answers are in tests/exercises/<function>.py; tests/answers.py describes their form.
"""
import importlib
import inspect
import re
import runpy
import shutil

import pytest

from lessons import check
from tests.answers import answers_to
from tests.helpers import ROOT, mostly_stress, patient
from tests.stubs import write_stubs

FUNCTIONS = {name: number for number, (_, names) in check.LESSONS.items() for name in names}
# Tests that build many graphs take seconds for each exercise, so the default run tries only some exercises.
NAMES = mostly_stress(list(FUNCTIONS), 'divide', 'shards')

NOT_RIGHT = 'wrong: ', 'does not run: '

# Phrases that occur only in the page's section about a function.
SUBJECTS = {'clip_mean_gradients': 'the clipped mean', 'order_of_1f1b': '1F1B', 'all_gather': 'all-gather',
            'divide': 'Who divides', 'after_update': 'Means are added', 'read_row': 'sec/batch',
            'updates_and_epochs': 'epochs', 'shards': 'divided by D'}


@pytest.fixture(scope='module', autouse=True)
def forking():
    """Starts the process that has imported all checkers, before the first test needs it."""
    check.forking(check.LESSONS)


def verdict_on(name, answer, folder, seed=0):
    """Writes an answer to a file in a folder; returns the checker's verdict on it."""
    path = folder / f'{answer}.py'
    path.write_text(answers_to(name)[answer].text)
    # Answers that never end get a short limit.
    seconds = 1 if 'endless' in answer else patient(check.SECONDS)
    return check.verdict(FUNCTIONS[name], name, str(path), seed, seconds)


def verdicts(name, is_right, folder, seed=0):
    """Returns {answer: text of the verdict} for all right or all wrong answers to an exercise."""
    return {answer: verdict_on(name, answer, folder, seed).text
            for answer, (_, counterexample) in answers_to(name).items() if (counterexample is None) == is_right}


def hints_of(name):
    """Returns the hints of an exercise."""
    return importlib.import_module(f'lessons.checkers.{check.LESSONS[FUNCTIONS[name]][0]}').HINTS[name]


@pytest.mark.parametrize('name', NAMES)
def test_right_answers_are_accepted(name, tmp_path):
    found = verdicts(name, True, tmp_path)
    assert len(found) >= 2
    assert found == dict.fromkeys(found, 'right')


@pytest.mark.parametrize('name', NAMES)
def test_wrong_answers_are_refused_with_their_counterexample(name, tmp_path):
    found = verdicts(name, False, tmp_path)
    assert len(found) >= 4
    others = {answer: text for answer, text in found.items()
              if not text.startswith(NOT_RIGHT) or answers_to(name)[answer].counterexample not in text}
    assert not others
    patterns = [hint[0] for hint in hints_of(name) if not isinstance(hint, str)]
    assert [each for each in patterns if not any(re.search(each, text) for text in found.values())] == []


def test_an_answer_may_import_a_file_beside_it(tmp_path):
    (tmp_path / '_rows.py').write_text('import numpy as np\n\n\ndef joined(rows):\n    return np.concatenate(rows)\n')
    path = tmp_path / 'towers.py'
    path.write_text('import _rows\n\n\ndef mean_of_sparse_gradients(gradients):\n'
                    '    values, indices = zip(*gradients)\n'
                    '    return _rows.joined(values) / len(gradients), _rows.joined(indices)\n')
    assert check.verdict(1, 'mean_of_sparse_gradients', str(path), seconds=patient(check.SECONDS)).text == 'right'


@pytest.mark.parametrize('name', FUNCTIONS)
def test_every_exercise_has_a_general_hint_and_a_section_to_reread(name):
    assert [hint for hint in hints_of(name) if isinstance(hint, str)]
    *_, line = check.help_after(FUNCTIONS[name], name, check.Verdict('wrong: x', hints_of(name), ''), 3)
    page, section = re.fullmatch('read again: (.*), the section (.*)', line).groups()
    text = re.search(rf'^## {section}\n(.*?)^## ', (ROOT / page).read_text(), re.M | re.S)[1]
    assert SUBJECTS.get(name, '') in text


def test_the_first_hint_fits_the_mistake_and_a_general_hint_follows(tmp_path):
    found = verdict_on('weighted_mean', 'empty_share_is_nan', tmp_path)
    first, second = (check.help_after(FUNCTIONS['weighted_mean'], 'weighted_mean', found, count) for count in (1, 2))
    assert len(first) == 1 and '0 * NaN is NaN' in first[0]
    assert second[-1] not in first


@pytest.mark.stress
@pytest.mark.parametrize('seed', range(1, 4))
@pytest.mark.parametrize('name', FUNCTIONS)
def test_verdicts_do_not_depend_on_the_seed(name, seed, tmp_path):
    accepted, refused = verdicts(name, True, tmp_path, seed), verdicts(name, False, tmp_path, seed)
    assert accepted == dict.fromkeys(accepted, 'right')
    assert not {answer: text for answer, text in refused.items() if not text.startswith(NOT_RIGHT)}


@pytest.mark.parametrize('number', mostly_stress(check.LESSONS, 4, 5))
def test_solutions_are_right_and_have_the_exercises_parameters(number):
    lesson, names = check.LESSONS[number]
    exercises, solutions = (ROOT / 'lessons' / kind / f'{lesson}.py' for kind in ('exercises', 'solutions'))
    for name in names:
        assert check.verdict(number, name, str(solutions), seconds=patient(10)).text == 'right'
        exercise, solution = (runpy.run_path(str(path))[name] for path in (exercises, solutions))
        assert list(inspect.signature(exercise).parameters) == list(inspect.signature(solution).parameters)
        assert solution.__doc__ and exercise.__doc__


@pytest.mark.stress
def test_a_stub_is_reported_as_not_written(tmp_path, call_lesson):
    write_stubs(tmp_path)
    status, text, error = call_lesson('check.py', f'--folder={tmp_path}', '--seed=7')
    seed, *lines = text.splitlines()
    assert (status, seed, error) == (1, 'cases drawn with --seed=7', '')
    assert [line.split(': ')[0] for line in lines] == [
        f'lesson {number} {name} not written yet' for name, number in FUNCTIONS.items()]


def test_check_exits_with_status_0_if_all_answers_are_right(call_lesson):
    status, text, error = call_lesson('check.py', '5', '--solutions', '--seed=7')
    assert (status, text, error) == (0, 'cases drawn with --seed=7\nlesson 5 split_points right\n', '')


@pytest.mark.parametrize('text, said', [
    ('def weighted_mean(', 'cannot be loaded: SyntaxError in line 1: '),
    ('x = 1\nprnit(x)', "cannot be loaded: NameError: name 'prnit' is not defined"),
    ('import numpy\n\ndef weighted_mean(gradients, sizes):\n    return numpy.sunm(gradients)',
     "it raises AttributeError in line 4: module 'numpy' has no attribute 'sunm'"),
    ('def weighted_mean(gradients, sizes):\n    while True:\n        sizes',
     'does not end within 1 seconds; it was in line '),
    ('def mean(gradients, sizes): pass', 'has no function weighted_mean'),
    ('weighted_mean = 3', 'has no function weighted_mean'),
    ('import sys\nsys.exit(0)', 'cannot be loaded: SystemExit: 0'),
    ('open("data.txt")', "cannot be loaded: [Errno 2] No such file or directory: 'data.txt'"),
    ('while True: pass', 'cannot be loaded: it does not end within 1 seconds; it was in line 1'),
    (None, 'does not exist')])
def test_code_that_does_not_run_is_reported_in_one_line_without_a_hint(text, said, tmp_path, capsys, monkeypatch):
    path = tmp_path / 'split_batch.py'
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path))
    found = check.verdict(4, 'weighted_mean', str(path), seconds=1 if text and 'while' in text else patient(10))
    assert found.text.startswith('does not run: ') and said in found.text
    monkeypatch.setattr(check, 'verdict', lambda *arguments: found)
    for _ in range(4):
        check.check(4, 'weighted_mean', str(path), 0)
    assert capsys.readouterr().out == f'lesson 4 weighted_mean {found.text}\n' * 4


def test_a_file_that_cannot_be_loaded_is_reported_once(tmp_path, call_lesson):
    (tmp_path / 'split_batch.py').write_text('def weighted_mean(')
    status, text, error = call_lesson('check.py', '4', f'--folder={tmp_path}')
    assert (status, error, text.count('SyntaxError in line 1')) == (1, '', 1)


def test_a_tensorflow_2_import_gets_a_hint(tmp_path, call_lesson):
    (tmp_path / 'split_batch.py').write_text(
        'import tensorflow as tf\n\n\ndef weighted_mean(gradients, sizes):\n    return tf.train.get_global_step()\n')
    text = call_lesson('check.py', '4', f'--folder={tmp_path}')[1]
    assert 'weighted_mean does not run: ' in text and text.count('hint: the lessons use `import tensorflow.compat') == 1


@pytest.mark.parametrize('number, returned', [(1, '3'), (4, 'None'), (4, '"text"')])
def test_a_result_of_a_wrong_type_gets_no_hint(number, returned, tmp_path, call_lesson, monkeypatch):
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path))
    lesson, names = check.LESSONS[number]
    (tmp_path / f'{lesson}.py').write_text('\n'.join(f'def {name}(*given): return {returned}' for name in names))
    text = call_lesson('check.py', str(number), f'--folder={tmp_path}')[1]
    assert text.count(' wrong: ') == text.count(f'it returns {returned}'.replace('"', "'")) == len(names) == 2
    assert 'hint' not in text


@pytest.mark.parametrize('text, status', [('import os\nos._exit(0)', 0), ('import os\nos.abort()', -6)])
def test_an_answer_that_ends_its_process_early_is_wrong(text, status, tmp_path):
    (tmp_path / 'split_batch.py').write_text(text)
    verdict = check.verdict(4, 'weighted_mean', str(tmp_path / 'split_batch.py'), seconds=patient(10)).text
    assert verdict == f'wrong: its process ended before the check, with exit status {status}'


@pytest.mark.parametrize('returned, shown', [
    ('losses, [update]', '([a tensor, a tensor], [an operation])'),
    ('tf.stack(losses), update', '(a tensor, an operation)'),
    ('update', 'an operation'), ('None', 'None'), ('[*losses, update]', '[a tensor, a tensor, an operation]'),
    ('losses[:1], update', '([a tensor], an operation)')])
def test_the_checker_describes_the_right_form_of_a_result(returned, shown, tmp_path):
    text = answers_to('build_step')['one_loop'].text.replace(
        'return losses, update', f'update = tf.group(update)\n    return {returned}')
    (tmp_path / 'towers.py').write_text(text)
    found = check.verdict(1, 'build_step', str(tmp_path / 'towers.py'), seconds=patient(10))
    assert f'it returns {shown}; a pair (losses, update) is right: a list of 2 losses, and one operation' in found.text
    assert found.text.startswith('wrong: ') and not found.printed


def write_plain_mean(folder):
    """Writes a wrong answer to the exercise of lesson 4, which prints its arguments."""
    (folder / 'split_batch.py').write_text(
        'import numpy as np\n\n\ndef weighted_mean(gradients, sizes):\n    print("sizes", sizes)\n'
        '    return np.mean(gradients, 0)\n')


def test_hints_follow_wrong_answers_until_one_is_right(tmp_path, call_lesson, monkeypatch):
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path))
    hints = [hint for hint in hints_of('weighted_mean') if isinstance(hint, str)]
    write_plain_mean(tmp_path)
    texts = [call_lesson('check.py', '4', f'--folder={tmp_path}')[1] for _ in range(3)]
    assert [re.findall('hint: (.*)', text)[0] for text in texts] == [*hints, hints[-1]]
    pages = [re.findall('read again: (.*), the section Look', text) for text in texts]
    assert pages[:2] == [[], []]
    for page in pages[2]:
        assert '\n## Look\n' in (ROOT / page).read_text()
    shutil.copy(ROOT / 'lessons' / 'solutions' / 'split_batch.py', tmp_path)
    assert 'hint' not in call_lesson('check.py', '4', f'--folder={tmp_path}')[1]
    write_plain_mean(tmp_path)
    assert hints[0] in call_lesson('check.py', '4', f'--folder={tmp_path}')[1]


def test_printed_output_of_an_answer_is_separated_from_the_verdict(tmp_path, call_lesson):
    write_plain_mean(tmp_path)
    status, text, error = call_lesson('check.py', '4', f'--folder={tmp_path}', '--seed=1')
    lines = text.splitlines()
    assert (status, error) == (1, '')
    assert lines[1] == ('lesson 4 weighted_mean wrong: for shares 3 and 1 with gradients 2 and 6 it returns 4; 3 is '
                        'right')
    assert lines[3:8] == ['  it printed 4 lines:', *['    sizes [2, 2]'] * 2, *['    sizes [3, 1]'] * 2]


def test_the_same_seed_draws_the_same_cases(tmp_path):
    path = tmp_path / 'stale.py'
    path.write_text('def staleness_aware_rate(*arguments):\n    print(arguments)\n    return arguments[0] / max(1, '
                    'arguments[2] - arguments[1])\n')
    printed = [check.verdict(6, 'staleness_aware_rate', str(path), seed).printed for seed in (3, 3, 4)]
    assert printed[0] == printed[1] != printed[2]
    assert len(set(printed[0].splitlines())) > 24
