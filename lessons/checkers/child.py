"""The process, separate from check.py, that loads and checks one function of a reader."""
import contextlib
import importlib
import importlib.util
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from zlib import crc32

import numpy as np

from cifar10.base import startup
from lessons.checkers import COMMON_HINTS, DOES_NOT_RUN, Fault, OutOfTime, readers_functions

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BYTES = 2 << 30  # the memory limit of a reader's code
PRINTED = 16 << 20  # the limit of its output, and of each file that it writes, in bytes
SOLUTIONS = 'lessons.solutions'
NOT_LOADED = 'cannot be loaded: '  # in a verdict


def run(connection: Connection, lesson: str, name: str, path: str, seed: int, seconds: float, output: str) -> None:
    """Checks a function and ends this process.

    It sends the hints when it is ready, None after it loads the reader's file, and finally the verdict.

    Args:
      lesson: the name of the lesson's files, such as 'towers'.
      name: the function's name.
      path: the reader's file.
      seed: the seed for drawing the cases.
      seconds: the time limit for loading, and again for checking.
      output: the file for the output of the reader's code.
    """
    os.setsid()  # so that check.py can end this process together with its children
    with open(output, 'wb') as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors='backslashreplace')
    checker = importlib.import_module(f'lessons.checkers.{lesson}')
    _limit_memory()
    connection.send(COMMON_HINTS + checker.HINTS[name])
    with startup.quiet_stderr():
        connection.send(_verdict(connection, checker, name, path, seed, seconds))
    os._exit(0)  # even if threads of the reader's code still run


def short(path: str) -> str:
    """Returns a path inside the repository relative to its root, and any other path unchanged."""
    found = os.path.relpath(path, ROOT)
    return path if found.startswith(os.pardir) else found


def load(path: str, name: str) -> Callable:
    """Loads a Python file; returns its function, or other callable, with the given name.

    Raises:
      Fault: the file has no such callable, cannot be loaded, or imports the solutions.
    """
    file = short(path)
    spec = importlib.util.spec_from_file_location('written', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules['written'] = module  # dataclasses and pickle look for it there
    sys.path.append(os.path.dirname(os.path.abspath(path)))  # the reader's file may import others in its folder
    try:
        with readers_functions():
            spec.loader.exec_module(module)
    except FileNotFoundError as error:
        said = 'it does not exist' if error.filename == path else str(error)
        raise Fault(f'{file} {NOT_LOADED}{said}') from error
    except BaseException as error:
        if isinstance(error, ImportError) and (error.name or '').startswith(SOLUTIONS):
            raise Fault(f'{file} imports the solution; write your own') from error
        message = str(error) if isinstance(error, OutOfTime) else f'{type(error).__name__}: {error}'
        if isinstance(error, SyntaxError):
            message = f'{type(error).__name__} in line {error.lineno}: {error.msg}'
        raise Fault(f'{file} {NOT_LOADED}{message}') from error
    function = getattr(module, name, None)
    if not callable(function):
        raise Fault(f'{file} has no function {name}')
    return function


def is_stub(function: Callable) -> bool:
    """Returns whether a function only raises NotImplementedError."""
    def stub():
        raise NotImplementedError

    code = getattr(function, '__code__', None)
    return bool(code) and (code.co_code, code.co_names) == (stub.__code__.co_code, stub.__code__.co_names)


def _verdict(connection, checker, name, path, seed, seconds):
    """Returns the text of a `check.Verdict`; sends None when the file is loaded."""
    for module in [each for each in sys.modules if each.startswith(SOLUTIONS)] + [SOLUTIONS]:
        sys.modules[module] = None  # makes its import fail
    try:
        with _time_limit(seconds):
            function = load(path, name)
    except (Fault, OutOfTime) as fault:
        return _in_one_line('does not run', fault)
    connection.send(None)
    try:
        if is_stub(function):
            return f'not written yet: {short(path)}'
        with _time_limit(seconds):
            random = np.random.default_rng([seed, crc32(name.encode())])
            counterexample = getattr(checker, f'check_{name}')(function, random)
    except (Fault, OutOfTime) as fault:
        counterexample = str(fault)
    except Exception as error:  # for example in a method of the returned object
        traceback.print_exc()
        counterexample = f'its result cannot be checked: {type(error).__name__}: {error}'
    if not counterexample:
        return 'right'
    return _in_one_line('does not run' if DOES_NOT_RUN.search(counterexample) else 'wrong', counterexample)


def _in_one_line(verdict, why):
    return f'{verdict}: {" ".join(str(why).split())}'


@contextlib.contextmanager
def _time_limit(seconds):
    """Context that raises OutOfTime after this many seconds, and again if the reader's code catches it."""
    def stop(number, frame):
        files = getattr(sys.modules.get('written'), '__file__', None)
        lines = [line for each, line in traceback.walk_stack(frame) if each.f_code.co_filename == files]
        where = f'; it was in line {lines[0]}' if lines else ''
        raise OutOfTime(f'it does not end within {seconds:g} seconds{where}')

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory():
    """Limits this process to BYTES more memory than it has now; beyond that, Python raises a MemoryError."""
    with open('/proc/self/status') as status:
        data = next(int(line.split()[1]) << 10 for line in status if line.startswith('VmData'))
    resource.setrlimit(resource.RLIMIT_DATA, (data + BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED, resource.RLIM_INFINITY))
