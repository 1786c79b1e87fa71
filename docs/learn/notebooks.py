#!/usr/bin/env python3
"""Makes the notebooks of lessons 1 to 4 from their pages and programs.

    python docs/learn/notebooks.py

A notebook needs NumPy and TensorFlow, and nothing of this repository. It has the text of the page without pictures,
links, and the sections that need the repository. Its code comes from the program. If the page shows some lines, a cell
has the whole function; a folded cell before it has the rest of the program. If the page shows a command, a cell has the
call that does the same, with the output on the page.
"""
import ast
import json
import os
import re
import sys
import textwrap

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
COMMON = {'lessons/common.py': ('session', 'numbers')}  # file -> the functions that programs take from it
# Page -> its program, the functions from other files, and a call for each command of the page.
NOTEBOOKS = {
    '01-towers': ('lessons/towers.py', {}, {
        'python lessons/towers.py': 'tell(cpus(2))',
        'python lessons/towers.py --towers=2': 'tell(cpus(2))',
        'python lessons/towers.py --towers=4': 'tell(cpus(4))'}),
    '02-by-hand': (
        'lessons/by_hand.py',
        {'cifar10/parallel/towers.py': ('shared_variables', 'build_towers', 'average_gradients',
                                        'gradients_by_variable', 'mean_gradient')},
        {'python lessons/by_hand.py --towers=1': 'train(cpus(1), steps=500)',
         'python lessons/by_hand.py --towers=4': 'train(cpus(4), steps=500)',
         'python lessons/by_hand.py --towers=1 --steps=100': 'train(cpus(1), steps=100)',
         'python lessons/by_hand.py --towers=4 --steps=100': 'train(cpus(4), steps=100)',
         'python lessons/by_hand.py --order': 'show_order()'}),
    '03-all-reduce': ('lessons/all_reduce.py', {}, {'python lessons/all_reduce.py --devices=4': 'tell(cpus(4))'}),
    '04-splitting': (
        'lessons/split_batch.py', {'examples/fashion_mnist.py': ('generate',)},
        {'python lessons/split_batch.py': 'show_shares(cpus(2))\n'
                                          'compare(generate(IMAGES, IMAGES // 2), cpus(2), epochs=3)',
         'python lessons/split_batch.py --epochs=1': 'compare(generate(IMAGES, IMAGES // 2), cpus(2), epochs=1)'})}
SECTIONS = ('Goals', 'Predict', 'Read', 'Run', 'Look')  # and Try; the others need the repository
LEFT_OUT = ('main', 'draw')  # of the programs

ABOUT = """\
This notebook is made from the page `docs/learn/{page}.md` of *Learn data parallelism* and its program, `{program}`. It
needs NumPy and TensorFlow 2.16 or later, but no GPU: all devices are parts of the processor. Run its cells from top to
bottom. The outputs in it come from the page; a line `...` stands for omitted lines. If you change a function, run its
cell again, then the cell with the call. For another command of the page, change the call:
"""
SET_UP = """\
{imports}

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'  # without TensorFlow's log lines

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()  # graph mode
tf.logging.set_verbosity(tf.logging.ERROR)


def cpus(count):
    return [f'/cpu:{{k}}' for k in range(count)]  # TensorFlow can divide one processor into any number of devices
"""
REST = '#@title The rest of the program: its data, and what prints the tables\n'
NAMESPACE = 'common = types.SimpleNamespace(session=session, numbers=numbers)'


def read(path):
    """Returns the text of a file in the repository."""
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def definitions(path):
    """Returns {name: lines} of the definitions in a Python file, with the comments above, and its imports as nodes."""
    lines, found, imports = read(path).splitlines(), {}, []
    for node in ast.parse(read(path)).body:
        first = node.lineno - 1
        while lines[first - 1].startswith('#'):
            first -= 1
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)):
            name = getattr(node, 'name', None) or ast.unparse(node.targets[0])
            found[name] = '\n'.join(lines[first:node.end_lineno])
    return found, imports


def joined(texts):
    """Returns definitions as the text of a cell: constants in one block, functions apart."""
    whole, was_constant = '', True
    for text in texts:
        is_constant = not re.search('^(def|class) ', text, re.M)
        whole += ('\n' if is_constant and was_constant else '\n\n\n') + text
        was_constant = is_constant
    return whole.strip()


def imports_for(code, nodes):
    """Returns the lines that import what some code needs of Python's library, chosen from `nodes`."""
    found = {'import os', 'import types'}
    for node in nodes:
        module = getattr(node, 'module', None) or node.names[0].name
        used = [alias for alias in node.names if re.search(rf'\b{alias.name.partition(".")[0]}\b', code)]
        if used and module.partition('.')[0] in sys.stdlib_module_names:
            node.names = used
            found.add(ast.unparse(node))
    return '\n'.join(sorted(found, key=lambda line: (line.startswith('from'), line)))


def plain(text):
    """Returns Markdown without pictures and the lines that announce them, notebooks, and links into the repository."""
    text = re.sub(r'(^[^\n]+:\n\n)?^!\[.*\n', '', text, flags=re.M)
    text = re.sub(r'^[^\n]*\.ipynb\).*\n', '', text, flags=re.M)
    return re.sub(r'\[([^\]]+)\]\((?!https?:)[^)]+\)', r'\1', text).strip()


def markdown(text):
    """Returns a cell of text."""
    return dict(cell_type='markdown', metadata={}, source=text.splitlines(keepends=True))


def code(text, output='', folded=False):
    """Returns a cell of code, with its output."""
    outputs = [dict(name='stdout', output_type='stream', text=output.splitlines(keepends=True))] if output else []
    metadata = dict(cellView='form', jupyter=dict(source_hidden=True)) if folded else {}
    return dict(cell_type='code', execution_count=None, metadata=metadata, outputs=outputs,
                source=text.strip().splitlines(keepends=True))


def cells_of(section, defined, shown, calls):
    """Returns the cells of a section, and adds to `shown` the names of the definitions that have one."""
    made = []
    for part in re.split(r'^(```\w*\n.*?^```\n)', section, flags=re.M | re.S):
        block = re.fullmatch(r'```(\w*)\n(.*)```\n', part, re.S)
        if not block:
            made += [markdown(plain(part))] * bool(plain(part))
        elif block[1] == 'python':
            lines = {line.strip() for line in block[2].splitlines()} - {'', '...'}
            name = next(name for name, text in defined.items() if lines <= {line.strip() for line in text.splitlines()})
            shown.append(name)
            made.append(code(defined[name]))
        else:
            for command, output in re.findall(r'^\$ (.*)\n((?:(?!\$ ).*\n)*)', block[2], re.M):
                in_a_graph = 'with tf.Graph().as_default():\n' + textwrap.indent(calls[command], '    ')
                made.append(code(in_a_graph, output))
    return made


def questions_of(section, calls):
    """Returns a cell for each question of `Try` that needs the lesson only, with calls instead of commands."""
    items = [plain(item) for item in re.split(r'^(?=\d+\. )', section, flags=re.M)[1:] if 'examples/' not in item]
    return [markdown(re.sub(r'^( *)\$ (.*)$', lambda match: f'{match[1]}>>> {calls[match[2]].splitlines()[-1]}', item,
                            flags=re.M)) for item in items]


def notebook(page):
    """Returns the notebook of a lesson, as nbformat 4 has it."""
    program, others, calls = NOTEBOOKS[page]
    opening, *_ = read(f'docs/learn/{page}.md').partition('\n## ')
    sections = dict(re.findall(r'^## ([^\n]*)\n\n(.*?)(?=^## |\Z)', read(f'docs/learn/{page}.md'), re.M | re.S))
    words = re.findall(r'^\*\*(?:Graph mode|Letters).*?(?=\n\n)', read('docs/learn/index.md'), re.M | re.S)
    defined, imports = definitions(program)
    taken = {}
    for path, names in {**COMMON, **others}.items():
        found, more = definitions(path)
        taken[path] = [found[name] for name in names]
        imports += more
    shown, body = [], []
    for name in SECTIONS:
        body += cells_of(f'## {name}\n\n{sections[name]}', defined, shown, calls)
    of_package = {path: texts for path, texts in taken.items() if path.startswith('cifar10/')}
    folded = [text for path, texts in taken.items() if path not in of_package for text in texts]
    rest = [text for name, text in defined.items() if name not in (*shown, *LEFT_OUT)]
    everything = '\n'.join([*defined.values(), *(text for texts in taken.values() for text in texts)])
    table = '\n'.join(['| on the page | here |', '|---|---|', *(
        f'| `{command}` | `{call.splitlines()[-1]}` |' for command, call in calls.items())])
    head = [markdown('\n\n'.join([plain(opening), ABOUT.format(page=page, program=program).strip(), table, *words])),
            code(SET_UP.format(imports=imports_for(everything, imports))),
            code(REST + joined([*folded, NAMESPACE, *rest]), folded=True)]
    for path, texts in of_package.items():
        head += [markdown(f'From `{path}`:'), code(joined(texts))]
    kernel = dict(display_name='Python 3', language='python', name='python3')
    return dict(cells=[*head, *body, markdown('## Try'), *questions_of(sections['Try'], calls)], nbformat=4,
                nbformat_minor=4, metadata=dict(kernelspec=kernel, language_info=dict(name='python')))


def text_of(page):
    """Returns the text of the file of a lesson's notebook."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False, sort_keys=True) + '\n'


def main():
    """Writes the notebooks beside their pages."""
    for page in NOTEBOOKS:
        with open(os.path.join(FOLDER, f'{page}.ipynb'), 'w') as file:
            file.write(text_of(page))


if __name__ == '__main__':
    main()
