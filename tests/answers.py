"""Right and wrong answers to the exercises of the lessons. Each answer is a whole file for the checkers.

tests/exercises/<exercise>.py has all answers to one exercise. It is not imported. An answer's file has the answer,
under the name of the exercise, after its imports and helper definitions. Prefixes distinguish right from wrong answers:

    accepted_<name>     a right answer: a function, or anything else that can be called
    refused_<name>      a wrong answer; its docstring is a part of the expected counterexample
    variants_of_<name>  {name: edits}: more right answers, each made from accepted_<name> by edits
    mistakes_in_<name>  {name: (counterexample, *edits)}: more wrong answers, made in the same way

Edits are pairs (old text, new text); the old text occurs once in the answer. From their second line on, they are
indented relative to the first. If accepted_<name> or refused_<name> is a class, its body is the whole file, for answers
that do more than define a function.
"""
import ast
import functools
import re
import textwrap
from typing import NamedTuple

from tests.helpers import ROOT


class Answer(NamedTuple):
    """A file that a reader might write for an exercise.

    Attributes:
      text: the text of the file.
      counterexample: a part of the counterexample that the checker must give; None if the answer is right.
    """
    text: str
    counterexample: str | None


@functools.cache
def answers_to(exercise):
    """Returns {name: Answer} for an exercise."""
    text = (ROOT / 'tests' / 'exercises' / f'{exercise}.py').read_text()
    shared, functions, answers = [], {}, {}

    def add(name, text, counterexample):
        assert name not in answers, f'{exercise} has two answers {name}'
        answers[name] = Answer(text, counterexample)

    for node in ast.parse(text).body[1:]:  # after the docstring
        names = _names(node)
        match = re.fullmatch('(accepted|refused|variants_of|mistakes_in)_(.+)', names[0])
        if not match:
            shared.append((set(names), _lines(text, node)))
            continue
        kind, name = match.groups()
        if kind in ('variants_of', 'mistakes_in'):
            for edited, row in ast.literal_eval(node.value).items():
                counterexample, edits = (None, row) if kind == 'variants_of' else (row[0], row[1:])
                add(edited, _with_what_it_uses(_edited(functions[name], edits), shared), counterexample)
            continue
        counterexample = ast.get_docstring(node) if kind == 'refused' else None
        if isinstance(node, ast.ClassDef):
            add(name, _body(text, node), counterexample)
        else:
            functions[name] = re.sub(rf'\b{names[0]}\b', exercise, _lines(text, node))
            add(name, _with_what_it_uses(functions[name], shared), counterexample)
    return answers


def _names(node):
    """Returns the names that a statement of a file defines."""
    if isinstance(node, ast.Assign):
        return [node.targets[0].id]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name.split('.')[0] for each in node.names]
    return [node.name]


def _lines(text, node):
    """Returns the lines of a statement, with its decorators."""
    first = min(each.lineno for each in [node, *getattr(node, 'decorator_list', [])])
    return '\n'.join(text.splitlines()[first - 1:node.end_lineno]) + '\n'


def _body(text, node):
    """Returns the body of a class, without its docstring, as the lines of a file."""
    first = node.body[1 if ast.get_docstring(node) else 0]
    return textwrap.dedent('\n'.join(text.splitlines()[first.lineno - 1:node.end_lineno])) + '\n'


def _edited(text, edits):
    """Returns the text of an answer after edits."""
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        first = old.splitlines()[0]
        indent = next(re.match(' *', line)[0] for line in text.splitlines() if first in line)
        old, new = (each.replace('\n', f'\n{indent}') for each in (old, new))
        assert text.count(old) == 1, f'{old!r} is not in one place only'
        text = text.replace(old, new)
    return text


def _with_what_it_uses(text, shared):
    """Returns the text after its dependencies among the statements of `shared`, each a pair (names, source)."""
    for names, source in reversed(shared):
        if names & {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}:
            text = f'{source}\n\n{text}'
    return text
