"""The pages of the course, docs/learn/: their sections, and checks of their outputs and excerpts against programs."""
import ast
import re
import textwrap

from tests.helpers import ROOT

FOLDER = ROOT / 'docs' / 'learn'
PAGES = sorted(FOLDER.glob('*.md'))
LESSON_PAGES = sorted(FOLDER.glob('[0-9][0-9]-*.md'))
HEADINGS = ['Goals', 'Predict', 'Read', 'Run', 'Look', 'Try', 'Exercises', 'In the package']


def blocks_of(text):
    """Returns the (command, output) pairs of the fenced blocks in a page; a block may have several commands."""
    found = []
    for _, block in re.findall(r'^( *)```\w*\n(.*?)^\1```', text, re.M | re.S):
        block = textwrap.dedent(block)
        if block.startswith('$ '):
            found += [tuple(each.split('\n', 1)) for each in re.split(r'^\$ ', block, flags=re.M)[1:]]
    return found


def excerpts_of(text):
    """Returns (program, lines) pairs of a page's Python blocks; the program is the last one linked before the block."""
    found = []
    for match in re.finditer(r'^( *)```python\n(.*?)^\1```', text, re.M | re.S):
        program = re.findall(r'\((?:\.\./)+(lessons/[\w/]+\.py)\)', text[:match.start()])[-1]
        found.append((program, textwrap.dedent(match[2])))
    return found


def without_docstrings(source):
    """Returns the text of a program without its docstrings."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            for line in range(node.body[0].lineno - 1, node.body[0].end_lineno):
                lines[line] = None
    return '\n'.join(line for line in lines if line is not None) + '\n'


def is_excerpt(shown, source):
    """Returns whether lines of a page are in a program, at any indentation; a line '...' stands for omitted lines."""
    pieces = re.split(r'^ *\.\.\.\n', shown, flags=re.M)
    for depth in range(7):
        indented = [re.escape(textwrap.indent(piece, '    ' * depth)) for piece in pieces]
        if re.search('^' + '(?:.*\n)*?'.join(indented), without_docstrings(source), re.M):
            return True
    return False


def section_of(text, name):
    """Returns a section of a lesson's page, without its heading."""
    return re.search(rf'^## {name}\n(.*?)^## ', text, re.M | re.S).group(1)


def try_items(text):
    """Returns the numbered items of a lesson's section `Try`."""
    return re.split(r'^(?=\d+\. )', section_of(text, 'Try'), flags=re.M)[1:]


def edits_of(item):
    """Returns the (text, its replacement) pairs of an item that asks the reader to change the lesson's program."""
    return re.findall(r'[Rr]eplace\s+`([^`]+)`\s+with\s+`([^`]+)`', item)


def shown_outputs(command):
    """Returns the outputs that the pages show for a command, except in `Try` items that change the program first."""
    found = []
    for page in PAGES:
        text = page.read_text()
        if page in LESSON_PAGES:
            for item in try_items(text):
                if edits_of(item):
                    text = text.replace(item, '')
        found += [output for each, output in blocks_of(text) if each == command]
    return found


def assert_on_page(command, printed, *varying):
    """Asserts that every page that shows a command shows its printed output.

    Args:
      command: the command after '$ ' on a page. A line '...' below it stands for omitted lines.
      printed: the whole output of the command.
      varying: patterns of text that varies between runs or machines.
    """
    outputs = shown_outputs(command)
    assert outputs, f'no page shows $ {command}'
    for shown in outputs:
        assert_shown(shown, printed, *varying)


def assert_shown(shown, printed, *varying):
    """Asserts that a block of a page shows the printed text; see `assert_on_page`."""
    for pattern in varying:
        shown, printed = (re.sub(pattern, '#', text, flags=re.M) for text in (shown, printed))
    pieces = re.split(r'^\.\.\.\n', shown, flags=re.M)
    if len(pieces) == 1:
        assert printed == shown
    assert re.fullmatch('.*'.join(map(re.escape, pieces)), printed, re.S), printed


def anchors_of(text):
    """Returns the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r'^#+ (.*)$', re.sub(r'^( *)```.*?^\1```', '', text, flags=re.M | re.S), re.M)
    return [re.sub(r'[^\w -]', '', heading).lower().replace(' ', '-') for heading in headings]
