#!/usr/bin/env python3
"""Checks the exercises of the lessons; for a wrong answer, prints a counterexample in numbers and a hint.

    python lessons/check.py 4                # the exercises of lesson 4, in lessons/exercises/split_batch.py
    python lessons/check.py                  # all
    python lessons/check.py 4 --seed=7       # with the cases drawn from this seed
    python lessons/check.py --solutions      # the solutions, in lessons/solutions

The exit status is 0 if all checked exercises are right, 1 if one is not, and 2 if nothing could be checked.
"""
import contextlib
import glob
import json
import multiprocessing
import multiprocessing.forkserver
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

from cifar10.base import startup  # noqa: E402
from cifar10.base.errors import UsageError  # noqa: E402
from cifar10.programs import flags, program  # noqa: E402

if status := program.run(startup.require_tensorflow):
    sys.exit(status)

from lessons.checkers import COMMON_HINTS, WRONG_TYPE, child, counted  # noqa: E402

# Lesson -> the name of its files, and the functions that the reader writes.
LESSONS = {1: ('towers', ('mean_of_sparse_gradients', 'build_step')),
           2: ('by_hand', ('clip_mean_gradients', 'training_step')),
           3: ('all_reduce', ('all_gather', 'replicated_step')),
           4: ('split_batch', ('weighted_mean', 'weighted_step')),
           5: ('processes', ('split_points',)),
           6: ('stale', ('staleness_aware_rate', 'step_with_losses')),
           7: ('parts', ('order_of_1f1b',)),
           8: ('sharding', ('shards', 'zero_step', 'tensor_parallel')),
           9: ('how_fast', ('serial_fraction', 'overlapped', 'read_row')),
           10: ('larger_batch', ('noise_scale', 'scaled_rate', 'updates_and_epochs')),
           11: ('diagnosis', ('diagnose', 'is_right')),
           12: ('other_words', ('divide', 'after_update', 'examples_computed'))}

# Function -> the section of the lesson's page that helps most; the default is Predict.
SECTIONS = dict.fromkeys(
    ('mean_of_sparse_gradients', 'all_gather', 'replicated_step', 'weighted_mean', 'weighted_step', 'tensor_parallel',
     'diagnose', 'is_right', 'divide', 'after_update', 'examples_computed', 'training_step'), 'Look') | dict.fromkeys(
    ('step_with_losses', 'order_of_1f1b', 'read_row', 'updates_and_epochs'), 'Exercises') | {
        'clip_mean_gradients': 'Try'}

SECONDS = 10  # time limit for loading a file, and again for all cases of a function
_STARTING = 120  # seconds that a process may take for its imports
_GRACE = 2  # further seconds for a process to stop by itself
_LINES = 10  # of a reader's output, only the last lines are shown
_READ_AGAIN = 3  # from this number of wrong answers on, the page is the best hint


class Verdict(NamedTuple):
    """The result of checking a function.

    Attributes:
      text: 'right', 'wrong: COUNTEREXAMPLE', 'does not run: REASON' or 'not written yet: FILE'.
      hints: the hints of its checker, in the form that lessons/checkers/__init__.py describes.
      printed: the output of the file and the function.
    """
    text: str
    hints: list[str | tuple[str, str]]
    printed: str


def verdict(number: int, name: str, path: str, seed: int = 0, seconds: float = SECONDS) -> Verdict:
    """Checks a function in a separate process.

    Args:
      number: the lesson, from 1.
      name: the function's name.
      path: the Python file with the function.
      seed: the seed for drawing the cases.
      seconds: the time limit for loading the file, and again for checking the function.

    Raises:
      UsageError: the checker itself does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, 'output')
        reading, writing = multiprocessing.Pipe(duplex=False)
        process = forking([number]).Process(
            target=child.run, args=(writing, LESSONS[number][0], name, path, seed, seconds, output))
        process.start()
        writing.close()
        try:
            hints = _hints(reading, output)
            text = _received(reading, process, seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        with open(output, errors='replace') as printed:
            return Verdict(text, hints, printed.read())


def _hints(reading, output):
    """Returns the first message of a process, the hints; raises a UsageError if none comes."""
    if not reading.poll(_STARTING):
        raise UsageError(f'the checker does not start within {_STARTING} seconds, so nothing is checked; '
                         'start it again when the machine is less busy')
    try:
        return reading.recv()
    except EOFError:
        with open(output, errors='replace') as printed:
            *_, last = ['no message', *printed.read().split('\n')[:-1]]
        raise UsageError(f'the checker cannot start, so nothing is checked: {last}') from None


def _received(reading, process, seconds):
    """Returns the verdict of a process; after the hints, it sends None when it has the file, then the verdict."""
    try:
        for _ in range(2):
            if not reading.poll(seconds + _GRACE):
                return f'does not run: it does not end within {seconds:g} seconds'
            message = reading.recv()
            if message:
                return message
    except EOFError:
        process.join()
    return f'wrong: its process ended before the check, with exit status {process.exitcode}'


def forking(numbers: Iterable[int]) -> multiprocessing.context.ForkServerContext:
    """Returns a context whose processes are forked from a server that has imported the checkers of some lessons.

    The server imports TensorFlow only once, for all processes. The first call starts it; processes of lessons that a
    later call adds import their checker themselves.
    """
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['__main__', *(f'lessons.checkers.{LESSONS[number][0]}' for number in numbers)])
    path = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join([ROOT, *([path] if path else [])])
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ['PYTHONPATH']
        else:
            os.environ['PYTHONPATH'] = path
    return context


def wrong_answers(path: str, name: str, is_wrong: bool) -> int:
    """Counts a reader's wrong answers to an exercise since the last right one, in a file in the user's home.

    Args:
      path: the file with the reader's function.
      name: the function's name.
      is_wrong: whether the latest answer is wrong.

    Returns:
      The new number of wrong answers: at least 1 if this answer is wrong, even if the file cannot be written.
    """
    home = os.environ.get('XDG_STATE_HOME') or os.path.expanduser('~/.local/state')
    file = os.path.join(home, 'cifar10', 'exercises.json')
    key = f'{os.path.abspath(path)}:{name}'
    try:
        with open(file) as stream:
            counts = {str(each): int(count) for each, count in json.load(stream).items()}
    except (OSError, ValueError, TypeError, AttributeError):  # the file is missing or damaged
        counts = {}
    counts[key] = counts.get(key, 0) + 1 if is_wrong else 0
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, 'w') as stream:
            json.dump(counts, stream)
    return counts[key]


def help_after(number: int, name: str, found: Verdict, count: int) -> list[str]:
    """Returns the lines of help after some wrong answers: hints, and from the third on the section to read again.

    The first hint for this counterexample is shown each time. The general hints follow one by one: from the first
    wrong answer on, or from the second if there is a hint for this counterexample.

    Args:
      number: the lesson, from 1.
      name: the function's name.
      found: the verdict on the function, 'wrong: COUNTEREXAMPLE'.
      count: the number of wrong answers so far.
    """
    fitting = [hint[1] for hint in found.hints if not isinstance(hint, str) and re.search(hint[0], found.text)][:1]
    general = [hint for hint in found.hints if isinstance(hint, str)][:max(0, count - len(fitting))]
    lines = [f'hint: {hint}' for hint in fitting + general[-1:]]
    pages = glob.glob(os.path.join(ROOT, 'docs', 'learn', f'{number:02}-*.md'))
    if count >= _READ_AGAIN and pages:
        lines.append(f'read again: {os.path.relpath(pages[0], ROOT)}, the section {SECTIONS.get(name, "Predict")}')
    return lines


def check(number: int, name: str, path: str, seed: int) -> str:
    """Prints the verdict on a function, a hint if it is wrong, and its output; returns the verdict's text."""
    found = verdict(number, name, path, seed)
    print(f'lesson {number} {name} {found.text}')
    is_answer = not (found.text.startswith('does not run') or WRONG_TYPE.search(found.text))
    count = wrong_answers(path, name, found.text.startswith('wrong')) if is_answer else 0
    for line in help_after(number, name, found if count else found._replace(hints=COMMON_HINTS), count):
        print(f'  {line}')
    lines = found.printed.splitlines()
    if lines:
        print(f'  it printed {counted(len(lines), "line")}' + ('; the last lines:' if lines[_LINES:] else ':'))
    for line in lines[-_LINES:]:
        print(f'    {line}')
    return found.text


def main() -> None:
    """Reads the flags and checks; ends with status 1 if an exercise is not right."""
    parser = flags.Parser(__doc__.splitlines()[0])
    parser.add_argument('lesson', nargs='?', type=int, choices=LESSONS, metavar='N',
                        help=f'the lesson, 1 to {max(LESSONS)}; without it, all')
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(10 ** 6), metavar='SEED',
                        help='seed for drawing the cases (default: a new one each time)')
    parser.add_argument('--folder', default=os.path.join(ROOT, 'lessons', 'exercises'), metavar='DIR',
                        help='folder of your files (default: lessons/exercises)')
    parser.add_argument('--solutions', dest='folder', action='store_const',
                        const=os.path.join(ROOT, 'lessons', 'solutions'), help='check lessons/solutions instead')
    arguments = parser.parse_args()
    print(f'cases drawn with --seed={arguments.seed}')
    numbers = [arguments.lesson] if arguments.lesson else list(LESSONS)
    forking(numbers)
    texts = []
    for number in numbers:
        for name in LESSONS[number][1]:
            texts.append(check(number, name, os.path.join(arguments.folder, f'{LESSONS[number][0]}.py'),
                               arguments.seed))
            if child.NOT_LOADED in texts[-1]:  # the reason is the same for the file's other functions
                break
    if {*texts} != {'right'}:
        sys.exit(1)


if __name__ == '__main__':
    sys.exit(program.run(main))
