"""The structure of the code, and agreement of documentation, help and code."""
import ast
import functools
import re

import pytest

import cifar10
from cifar10.settings import evaluation, training
from cifar10.settings.definition import Kind, fields
from cifar10.settings.presets import PRESETS
from tests.helpers import ROOT
from tests.learn_pages import anchors_of

PACKAGE = ROOT / 'cifar10'
FILES = sorted(PACKAGE.rglob('*.py'))
SOURCES = FILES + [*sorted(ROOT.glob('*.py')), *sorted((ROOT / 'tests').glob('*.py')),
                   *sorted((ROOT / 'lessons').rglob('*.py'))]
DOCUMENTS = sorted({*ROOT.glob('*.md'), *ROOT.glob('[!.]*/README.md'), *(ROOT / 'docs').rglob('*.md')})
# The layers, lowest last, in the order of the package's docstring.
LAYERS = [re.split(r' {2,}', line.strip())[0].split() for line in re.findall(r'^    \w.*', cifar10.__doc__, re.M)]
ROOMS = [room for layer in LAYERS for room in layer]
_PROGRAMS = ('train.py', 'eval.py', 'local_cluster.py', 'flags.py', '__main__.py')


def room_of(path):
    """Returns the room of a file: its first name below cifar10."""
    return path.relative_to(PACKAGE).parts[0].removesuffix('.py')


@functools.cache
def imports_of(path):
    """Returns the rooms of cifar10 from which a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == 'cifar10':
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or '').startswith('cifar10.'):
            found.add(node.module.split('.')[1])
    return found


def test_every_file_has_a_room():
    assert {room_of(path) for path in FILES} - {'__init__', '__main__'} == set(ROOMS)


def test_imports_point_downwards():
    for path in FILES:
        if path.parent == PACKAGE:
            below = {'base', 'programs', 'settings'} if path.name == '__main__.py' else set()
        else:
            layer = next(i for i, layer in enumerate(LAYERS) if room_of(path) in layer)
            below = {room for layer in LAYERS[layer + 1:] for room in layer} | {room_of(path)}
        assert imports_of(path) <= below, path


def files_imported_by(path):
    """Returns the files of cifar10 that a file imports, except imports for type checking only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, 'id', '') == 'TYPE_CHECKING':
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('cifar10'):
            place = ROOT.joinpath(*node.module.split('.'))
            modules = [place / f'{alias.name}.py' for alias in node.names] if place.is_dir() else []
            found |= {file for file in (*modules, place.with_suffix('.py')) if file.exists()}
    return found - {path}


def test_there_are_no_import_cycles():
    left = {path: files_imported_by(path) for path in FILES}
    while leaves := [path for path, imported in left.items() if not imported & left.keys()]:
        for path in leaves:
            del left[path]
    assert not left


def test_only_the_door_opens_training_sessions():
    making = {str(path.relative_to(PACKAGE)) for path in FILES if re.search(r'\bSession\(', path.read_text())}
    # `Run`, the CPU session for small graphs, a trained model, and the tasks' servers.
    assert making == {'training/run.py', 'base/graphs.py', 'evaluation/trained.py', 'cluster/server.py'}


def test_only_one_file_reads_the_folder_of_a_run():
    """In rooms that know runs: code that lists a folder, parses a JSON file, or has the name of a run's record."""
    reading, settings, records = set(), set(), set()
    for path in FILES:
        if room_of(path) not in ('run', 'training', 'evaluation', 'tools', 'programs'):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        words = {ast.unparse(node) for node in nodes if isinstance(node, (ast.Attribute, ast.Constant))}
        name = str(path.relative_to(PACKAGE))
        if words & {'os.listdir', 'os.scandir', 'os.walk', 'glob.glob', 'glob.iglob', 'json.load'}:
            reading.add(name)
        if "'config.json'" in words:
            settings.add(name)
        if "'metrics.jsonl'" in words:
            records.add(name)
    assert reading == {'run/folder.py', 'evaluation/export.py'}  # export.py lists the folder that it will write
    assert settings == {'run/folder.py'} and records == {'run/metrics.py'}


def test_update_modes_know_neither_images_nor_networks():
    for path in (PACKAGE / 'parallel').glob('*.py'):
        assert imports_of(path) <= {'parallel', 'base'}, path
        assert not re.search(r'inference|[Cc]ifar(?!10\.)|CIFAR', path.read_text()), path


def test_the_package_reads_neither_flags_nor_private_tensorflow():
    for path in FILES:
        text = path.read_text()
        reads_flags = re.search(r'\bFLAGS', text) and path.name != 'code.py'  # code.py keeps the flags of users' files
        assert not reads_flags and ('sys.argv[1' not in text or path.name in _PROGRAMS)
        assert not re.search(r'tensorflow\.python|tf\.keras|queue_runner', text), path
        assert 'multiprocessing.pool' not in text, path  # it needs shared memory
        assert 'contrib' not in text or path.name == 'tf1.py', path  # tf1.py emulates parts of contrib


def test_files_and_functions_are_documented():
    for path in SOURCES:
        text = path.read_text()
        tree = ast.parse(text)
        assert not re.search('TODO|FIXME|XXX'.replace('|', '[:( ]|'), text) or path.name == 'test_layout.py', path
        assert ast.get_docstring(tree) or not text.strip(), path
        for node in tree.body if path in FILES else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
                assert ast.get_docstring(node), (path, node.name)


def test_the_readme_sets_up_with_two_commands_in_the_first_blocks_of_the_section():
    # .ci/run extracts and runs them.
    section = (ROOT / 'README.md').read_text().split('\n## Set up\n')[1].split('\n## ')[0]
    set_up, tests, _ = re.findall(r'^```\n(.*?)^```$', section, re.M | re.S)
    assert tests == '.venv/bin/python -m pytest\n'
    steps = re.sub(r' \\\n +', ' ', set_up).removesuffix('\n').split(' &&\n')
    assert not any('\n' in step for step in steps)  # a failure ends a single command
    # TensorBoard's command, which the program prints, works in the first command's terminal.
    assert steps[0].startswith('python3 -m venv .venv && source .venv/bin/activate && pip install -e ')
    folders = [re.search(r' --train_dir=(\S+)', step)[1] for step in steps[1:]]
    assert len(folders) == 2 and len(set(folders)) == 1 and f' {folders[0]} ' in (ROOT / '.ci' / 'run').read_text()


def table(section):
    """Returns the (flag, default) rows of the table of a script's flags in docs/flags.md."""
    text = (ROOT / 'docs' / 'flags.md').read_text().split(f'## `{section}`')[1].split('\n## ')[0]
    return dict(re.findall(r'^\| `--(\w+)` \| (.*?) \|', text, re.M))


@pytest.mark.parametrize('script, groups', [
    ('multi_gpu_train.py', training.GROUPS), ('cifar10_eval.py', evaluation.GROUPS)])
def test_the_documentation_has_every_flag_with_its_default(script, groups):
    rows = table(script)
    by_name = {field.name: field for field in fields(*groups)}
    assert set(rows) == set(by_name)
    for name, field in by_name.items():
        if field.default is not None:
            of_presets = {preset: values[name] for preset, values in PRESETS.items()
                          if name in values and script == 'multi_gpu_train.py'}
            shown = {name: str(value).lower() if field.type is bool else str(value)
                     for name, value in {None: field.default, **of_presets}.items()}
            assert rows[name] == '; '.join(f'`{preset}`: `{value}`' if preset else f'`{value}`'
                                           for preset, value in shown.items()), name


def test_the_documentation_lists_the_flags_that_belong_to_the_run():
    text = (ROOT / 'docs' / 'flags.md').read_text().split('## Belongs to the run')[1].split(' define a run')[0]
    never = {field.name for field in fields(*training.GROUPS) if field.metadata['kind'] is Kind.FIXED}
    assert set(re.findall(r'`--(\w+)`', text)) == never


@pytest.mark.parametrize('path', DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files_in_the_documentation_exist(path):
    text = path.read_text()
    for target, anchor in re.findall(r'\]\(([^)#:]*)(?:#([^)]+))?\)', text):
        linked = path.parent / target if target else path
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors_of(linked.read_text()), anchor
    for name in re.findall(r'`((?:cifar10/|tests/)[\w/]+\.py)`', text):
        assert (ROOT / name).exists(), name


def test_all_lines_are_printed_by_one_function():
    """Only it, and the two functions for errors and processes' output, escape control characters of a terminal."""
    for path in FILES:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [node.func.id for node in calls if isinstance(node.func, ast.Name)]
        assert 'print' not in names or path.name in ('console.py', 'program.py'), path
        for node in calls:  # a word and a text, or a complete line
            if getattr(node.func, 'id', getattr(node.func, 'attr', None)) == 'say' and path.name != 'console.py':
                assert len(node.args) >= 2 or isinstance(node.args[0], ast.Starred), (path, node.lineno)
