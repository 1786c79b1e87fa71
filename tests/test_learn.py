"""The course in docs/learn/: the form of its pages, and answers that match the output of the programs."""
import os
import re
import subprocess
import sys
import traceback

import pytest

from tests.helpers import ROOT, patient
from tests.learn_pages import (
    HEADINGS,
    LESSON_PAGES,
    assert_shown,
    blocks_of,
    edits_of,
    excerpts_of,
    is_excerpt,
    try_items,
)

# Text that varies between runs or machines in the outputs below questions.
VARYING = {'parts.py': (r'^/cpu:\d  [FB|\d.=]{72}$', r'0 s +\d+\.\d\d s', r'measured \d+%'),
           'split_batch.py': (r'because \S+', r' +\d+\.\d+ seconds', r'\de-\d\d$'),
           'diagnosis.py': (r'^tower \d +\d\.\d{3} +\d\.\d{3}$',),
           'by_hand.py': (r'(?<=loss = \d\.\d{3})\d',),
           'how_fast.py': (r' +\d+\.\d+', r' +\d+%', r'^/cpu:\d  .{72}$', r'0 s +# s')}
CHEAP = ('towers.py', 'by_hand.py')  # programs whose questions are tried in the default run
OWN_PROCESS = ('other_words.py',)  # programs that use TensorFlow eagerly, unlike the tests


def rows_of_index():
    """Returns (title, page, needed lessons, minutes, program, its link) of each row of the table of lessons."""
    return re.findall(
        r'^\| \[(.*)\]\((.*)\) \| .*\?.* \| (-|[\d, ]+) \| (\d+, \d+, \d+) \| \[`(.*)`\]\((.*)\) \|$',
        (ROOT / 'docs' / 'learn' / 'index.md').read_text(), re.M)


def name_of(path):
    """Returns the name of a page, as a test id."""
    return path.stem


def minutes_to_read(prose):
    """Returns the minutes to read a text at 200 words a minute."""
    return len(prose.split()) / 200


@pytest.mark.parametrize('page', LESSON_PAGES, ids=name_of)
def test_a_lesson_has_the_sections_of_all_lessons(page):
    text = re.sub(r'^( *)```.*?^\1```', '', page.read_text(), flags=re.M | re.S)
    number = int(page.stem[:2])
    assert re.match(rf'# {number}\. \S.*\n\n\S', text), 'a title with the number, and the question that it answers'
    assert re.findall(r'^## (.*)$', text, re.M) == HEADINGS
    sections = dict(re.findall(r'^## ([^\n]*)\n\n(.*?)(?=^## |\Z)', text, re.M | re.S))
    assert sections['Goals'].startswith('After this lesson you can predict')
    minutes, = [minutes for _, name, _, minutes, *_ in rows_of_index() if name == page.name]
    assert int(minutes.split(', ')[0]) == pytest.approx(minutes_to_read(text), abs=1.5)
    assert f'python lessons/check.py {number}' in re.sub(r'\s+', ' ', page.read_text())
    assert re.search(r'!\[[^\]]+\]\(\w+\.png\)', text)


@pytest.mark.parametrize('page', LESSON_PAGES, ids=name_of)
def test_a_lesson_shows_the_relevant_lines_of_its_program(page):
    excerpts = excerpts_of(page.read_text())
    for program, shown in excerpts:
        assert is_excerpt(shown, (ROOT / program).read_text()), f'not in {program}:\n{shown}'
    lines = [line for _, shown in excerpts for line in shown.splitlines() if line.strip() not in ('', '...')]
    assert 10 <= len(lines) <= 30
    assert max(map(len, lines)) <= 96  # GitHub's width without a scroll bar


def test_the_index_has_every_lesson():
    rows = rows_of_index()
    assert [int(title.split('.')[0]) for title, *_ in rows] == list(range(1, 13))
    assert {page.name for page in LESSON_PAGES} <= {page for _, page, *_ in rows}
    for number, (title, page, needs, _, name, program) in enumerate(rows, 1):
        assert needs == '-' or all(int(each) < number for each in needs.split(', '))
        assert program == f'../../lessons/{name}'
        if (ROOT / 'docs' / 'learn' / page).exists():
            assert (ROOT / 'docs' / 'learn' / page).read_text().startswith(f'# {title}\n')


def questions():
    """Returns (page, number, item) of each item of `Try` whose answer shows an output."""
    found = []
    for page in LESSON_PAGES:
        for number, item in enumerate(try_items(page.read_text()), 1):
            commands = [command for command, _ in blocks_of(item)]
            if commands:
                cheap = all(any(f'lessons/{name}' in command for name in CHEAP) for command in commands)
                found.append(pytest.param(item, id=f'{page.stem}-{number}', marks=[] if cheap else pytest.mark.stress))
    return found


@pytest.mark.parametrize('page', LESSON_PAGES, ids=name_of)
def test_every_question_has_a_folded_answer(page):
    items = try_items(page.read_text())
    assert items
    for item in items:
        assert '?' not in item or re.search(r'<details><summary>Answer</summary>\n\n.*</details>\n', item, re.S), item


@pytest.mark.parametrize('item', questions())
def test_answers_match_the_output_of_the_programs(item, tmp_path, call_lesson, capsys, monkeypatch):
    """Each block below a question is the output of its command, after the change that the question asks for.

    Each number of the answer, except one-digit integers, occurs in the output of these commands or in the page's
    formula in the same answer.
    """
    monkeypatch.setattr(sys, 'path', [*sys.path])  # a lesson adds its parent folder
    blocks = blocks_of(item)
    program = tmp_path / 'lessons' / re.search(r'lessons/(\w+\.py)', blocks[0][0])[1]
    program.parent.mkdir()
    text = (ROOT / 'lessons' / program.name).read_text()
    for old, new in edits_of(item):
        old, new = (re.sub(r'\s+', ' ', each) for each in (old, new))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    program.write_text(text)
    printed = ''
    for command, shown in blocks:
        if program.name in OWN_PROCESS:
            result = subprocess.run([sys.executable, str(program), *command.split()[2:]], capture_output=True,
                                    env=dict(os.environ, PYTHONPATH=str(ROOT)), text=True, timeout=patient(120))
            output, errors = result.stdout, result.stderr
        else:
            try:
                _, output, errors = call_lesson(str(program), *command.split()[2:])
            except Exception:
                output, errors = capsys.readouterr().out, traceback.format_exc()
        assert_shown(shown, output + errors, *VARYING.get(program.name, ()))
        printed += output + errors
    answer = re.sub(r'^( *)```.*?^\1```|`[^`]*`|\]\([^)]*\)', '', item.partition('</summary>')[2], flags=re.M | re.S)
    numbers = set(re.findall(r'\d+\.\d+|\d\d+', printed))
    for number in re.findall(r'\d+\.\d+|\d\d+', answer.replace(',', '')):
        assert number in numbers, f'{number} in the answer, but not in the output'
