#!/usr/bin/env python3
"""Says whether the exercises of the lessons are right, with a counterexample in numbers where one is not.

    python lessons/check.py 3              # the exercise of lesson 3, in lessons/exercises/split_batch.py
    python lessons/check.py                # all seven
    python lessons/check.py --solutions    # the solutions, in lessons/solutions.py

The exit status is 0 if all that were checked are right, else 1.
"""
import importlib.util
import os
import sys
from types import FunctionType

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from cifar10.programs import flags, program  # noqa: E402
from lessons.checkers import Fault  # noqa: E402

# Lesson -> the name of its files, and the function that the reader writes.
LESSONS = {1: ('towers', 'mean_of_sparse_gradients'),
           2: ('all_reduce', 'all_gather'),
           3: ('split_batch', 'weighted_mean'),
           4: ('processes', 'split_points'),
           5: ('stale', 'staleness_aware_rate'),
           6: ('parts', 'order_of_1f1b'),
           7: ('by_hand', 'clip_mean_gradients')}


def verdict(number: int, path: str) -> str:
    """Returns 'right', 'wrong: COUNTEREXAMPLE' or 'not written yet: FILE' for the function of a lesson.

    Args:
      number: the lesson, from 1.
      path: the Python file with the function.
    """
    name, function_name = LESSONS[number]
    check = importlib.import_module(f'lessons.checkers.{name}').check
    file = os.path.relpath(path, ROOT)
    try:
        function = load(path, function_name)
        counterexample = check(function)
    except NotImplementedError:
        return f'not written yet: {file}'
    except Fault as fault:
        counterexample = str(fault)
    return f'wrong: {counterexample}' if counterexample else 'right'


def load(path: str, name: str) -> FunctionType:
    """Returns the function with a name from a Python file; raises a Fault if there is none."""
    file = os.path.relpath(path, ROOT)
    spec = importlib.util.spec_from_file_location('written', path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise Fault(f'{file} does not exist') from None
    except Exception as error:
        message = ' '.join(str(error).split())
        raise Fault(f'{file} cannot be loaded: {type(error).__name__}: {message}') from error
    function = getattr(module, name, None)
    if not isinstance(function, FunctionType):
        raise Fault(f'{file} has no function {name}')
    return function


def main() -> None:
    """Reads the flags and checks; ends with status 1 if an exercise is not right."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('lesson', nargs='?', type=int, choices=LESSONS, metavar='N',
                        help=f'the lesson, 1 to {len(LESSONS)}; without it, all')
    parser.add_argument('--solutions', action='store_true', help='check lessons/solutions.py instead')
    arguments = parser.parse_args()
    verdicts = []
    for number in [arguments.lesson] if arguments.lesson else LESSONS:
        file = 'solutions.py' if arguments.solutions else f'exercises/{LESSONS[number][0]}.py'
        verdicts.append(verdict(number, os.path.join(ROOT, 'lessons', file)))
        print(f'lesson {number} {verdicts[-1]}')
    if any(each != 'right' for each in verdicts):
        sys.exit(1)


if __name__ == '__main__':
    sys.exit(program.run(main))
