"""Generated files of the course: the notebooks of lessons 1 to 4, and the drawings."""
import json
import re
import runpy

import pytest

from tests.helpers import mostly_stress, python
from tests.learn_pages import FOLDER, LESSON_PAGES, assert_shown, blocks_of, section_of
from tests.test_learn import VARYING

MAKER = runpy.run_path(str(FOLDER / 'notebooks.py'))
PAGES = list(MAKER['NOTEBOOKS'])
# Runs the cells of a notebook in order, as a kernel does, and prints a zero byte before each cell's output.
KERNEL = """
import json, sys
names = {'__name__': '__main__'}
for cell in json.load(open(sys.argv[1]))['cells']:
    if cell['cell_type'] == 'code':
        print('\\0', end='')
        exec(compile(''.join(cell['source']), 'cell', 'exec'), names)
assert not {'cifar10', 'lessons', 'examples'} & sys.modules.keys()
"""


def cells_of(page, kind):
    """Returns the cells of one kind in the notebook of a page."""
    return [cell for cell in json.loads((FOLDER / f'{page}.ipynb').read_text())['cells'] if cell['cell_type'] == kind]


@pytest.mark.parametrize('page', PAGES)
def test_a_notebook_is_up_to_date_and_linked_from_its_page(page):
    assert (FOLDER / f'{page}.ipynb').read_text() == MAKER['text_of'](page), 'run docs/learn/notebooks.py'
    assert f'({page}.ipynb)' in (FOLDER / f'{page}.md').read_text()


@pytest.mark.parametrize('page', mostly_stress(PAGES, '02-by-hand'))
def test_a_notebook_runs_from_top_to_bottom_and_prints_the_pages_output(page):
    done = python('-I', '-c', KERNEL, FOLDER / f'{page}.ipynb')
    assert done.returncode == 0, done.stderr
    program = MAKER['NOTEBOOKS'][page][0].removeprefix('lessons/')
    shown = []
    for cell, printed in zip(cells_of(page, 'code'), done.stdout.split('\0')[1:], strict=True):
        for output in cell['outputs']:
            shown.append(''.join(output['text']))
            assert_shown(shown[-1], printed, *VARYING.get(program, ()), r'test accuracy \S+')
    assert shown == [output for _, output in blocks_of(section_of((FOLDER / f'{page}.md').read_text(), 'Run'))]


@pytest.fixture(scope='module')
def drawings():
    """The names in docs/learn/drawings.py."""
    pytest.importorskip('matplotlib')
    return runpy.run_path(str(FOLDER / 'drawings.py'))


def test_the_drawings_are_up_to_date(drawings, tmp_path):
    drawings['main'](str(tmp_path))
    for path in tmp_path.glob('*.svg'):
        drawn, kept = path.read_text(), (FOLDER / path.name).read_text()
        versions = [re.search(r'Matplotlib v[\d.]+', each)[0] for each in (drawn, kept)]
        assert drawn == kept or versions[0] != versions[1], 'run docs/learn/drawings.py'
        assert sum(f']({path.name})' in page.read_text() for page in LESSON_PAGES) == 1
