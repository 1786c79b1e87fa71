"""The shape of the code, and that README, help and code agree."""
import ast
import pathlib
import re

import pytest

import cifar10
from cifar10.config import EvalConfig, TrainConfig
from tests.conftest import ROOT

ORDER = re.findall(r'^    (\w+) ', cifar10.__doc__, re.M)
FILES = sorted((ROOT / 'cifar10').rglob('*.py'))
SOURCES = FILES + sorted(ROOT.glob('*.py')) + sorted((ROOT / 'tests').glob('*.py'))


def module_of(path):
    """Returns the first name below cifar10 of a file."""
    return path.relative_to(ROOT / 'cifar10').parts[0].removesuffix('.py')


def imports_of(path):
    """Returns the modules of cifar10 that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == 'cifar10':
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or '').startswith('cifar10.'):
            found.add(node.module.split('.')[1])
    return found - {module_of(path)} if path in FILES else found


def test_every_module_is_in_the_list():
    assert {module_of(path) for path in FILES} - {'__init__'} == set(ORDER)


@pytest.mark.parametrize('path', FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_import_only_what_is_above_them(path):
    if path == ROOT / 'cifar10' / '__init__.py':
        assert not imports_of(path)
    else:
        assert imports_of(path) <= set(ORDER[:ORDER.index(module_of(path))])


def test_towers_and_updates_know_nothing_of_images_or_networks():
    assert imports_of(ROOT / 'cifar10' / 'towers.py') == set()
    assert imports_of(ROOT / 'cifar10' / 'updates.py') == {'towers', 'packing'}
    for name in ('towers', 'updates'):
        text = (ROOT / 'cifar10' / (name + '.py')).read_text()
        assert not re.search(r'cifar(?!10\.(?:towers|packing))|records|inference', text)


def test_nothing_under_cifar10_reads_flags_or_private_tensorflow():
    for path in FILES:
        text = path.read_text()
        # local_cluster is a program of its own.
        assert 'FLAGS' not in text and ('sys.argv[1' not in text or path.name == 'local_cluster.py'), path
        assert not re.search(r'tensorflow\.(python|contrib)|tf\.(keras|estimator|contrib)|queue_runner', text), path


def code_lines(path):
    """Returns how many lines of a file are code: no blank line, no comment, no docstring."""
    tree = ast.parse(path.read_text())
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(path.read_text().splitlines(), 1)
    return sum(1 for i, line in lines if line.strip() and not line.strip().startswith('#') and i not in documented)


def test_the_default_path_reads_in_one_sitting():
    path = [ROOT / 'cifar10' / name for name in ('towers.py', 'updates.py', 'training.py')]
    assert sum(map(code_lines, path)) < 250
    for each in path:
        assert not re.search(r'replica[^t]|cluster|all-reduce', each.read_text()), each


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short_and_documented(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 320
    assert not re.search('TODO|FIXME|XXX'.replace('|', '[:( ]|'), text) or path.name == 'test_layout.py'
    if text.strip():
        assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name
    if path in FILES:
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
                assert ast.get_docstring(node), node.name


def table(section):
    """Returns the (flag, default) rows of the README's table of flags of a script."""
    text = (ROOT / 'README.md').read_text().split('### `%s`' % section)[1].split('\n### ')[0].split('\n## ')[0]
    return dict(re.findall(r'^\| `--(\w+)` \| (.*?) \|', text, re.M))


@pytest.mark.parametrize('script, config', [('multi_gpu_train.py', TrainConfig), ('cifar10_eval.py', EvalConfig)])
def test_the_readme_has_every_flag_with_its_default(script, config):
    rows = table(script)
    fields = {name: field for name, field in config.__dataclass_fields__.items() if field.metadata['group']}
    assert set(rows) == set(fields)
    for name, field in fields.items():
        if field.default is not None:
            shown = str(field.default).lower() if field.type is bool else str(field.default)
            assert rows[name] == '`%s`' % shown, name


def test_links_and_files_of_the_readme_are_there():
    text = (ROOT / 'README.md').read_text()
    for target in re.findall(r'\]\(([^)#:]+)\)', text):
        assert (ROOT / target).exists(), target
    for name in re.findall(r'`((?:cifar10/|tests/)[\w/]+\.py)`', text):
        assert pathlib.Path(ROOT / name).exists(), name
