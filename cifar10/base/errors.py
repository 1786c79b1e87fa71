"""The exceptions that end a program with one line instead of a traceback, and the wording of such lines.

Any module may raise them. `programs.program.run` catches them, prints 'PROGRAM: error: MESSAGE' on standard error
and returns their exit status. Other exceptions, apart from an OSError or an interrupt, are bugs and show their
traceback.
"""
import difflib
import errno
import os
import re
import textwrap
from collections.abc import Iterable, Sequence

# What a session puts before the message of an operation: where the operation was built, and the number of messages if
# several operations failed.
_PREAMBLE = re.compile(r"Graph execution error:\s*(.*\nNode: '[^\n]*\n)?"
                       r'(\d+ root error\(s\) found\.\s*\(0\) [\w ]+: |=+\n[A-Z_]+: )?', re.DOTALL)
# Where the operation was: in a cluster its task, in a dataset the way to its function.
_PLACE = re.compile(r'^(?:From /job:(\w+)/replica:\d+/task:(\d+):\n)?'
                    r'(?:Error in user-defined function passed to \S+ transformation with iterator: \S+: )?')
# What an assertion puts before its message, and the values that may follow.
_ASSERTION = re.compile(r'^assertion failed: \[(.*?)\](?= \[|$).*')
# What the operating system says of a file; TensorFlow writes it after the name and a semicolon.
_OS_CAUSES = {os.strerror(number) for number in errno.errorcode}
# An error of another process, as gRPC quotes it inside its own, and which process that is.
_REMOTE = re.compile(r'remote target /job:(\w+)/replica:\d+/task:(\d+)')
_RELAYED = re.compile(r'grpc_message:"((?:[^"\\]|\\.)*)"')


class UsageError(Exception):
    """The user can correct it: a flag, a combination of flags, a file or the environment. Exit status 2.

    It is raised where the mistake is found, usually before the first step, so that no training time is lost.
    A wrong call of this package's functions is a ValueError instead.

    The message is one line. It says what is wrong, starting with the flag as the user wrote it
    (`--flag=value`) if there is one, and after a semicolon what to do: '--xla compiles for GPUs, but the
    towers are on CPU devices; leave it out'.
    """
    status = 2


class RunError(Exception):
    """The settings are valid, but the run failed: a loss is NaN, a peer is lost, a disk is full. Exit status 1.

    The message is one line. It names the step, task or file that failed and, where a run can be resumed, the
    checkpoint or the remedy: starting the same command again resumes from the newest checkpoint.
    """
    status = 1


class TemporaryError(RunError):
    """The run failed, but the same command may succeed when it is started again: a process or a device was lost.

    Exit status 75, which sysexits.h calls EX_TEMPFAIL, so that a scheduler can tell it from other failures.
    """
    status = 75


def shortened(text: str) -> str:
    """Returns a caller's value, which may be long, as at most 200 characters: without its middle."""
    return text if len(text) <= 200 else f'{text[:150]} ... {text[-45:]}'


def listed(names: Sequence[str]) -> str:
    """Returns names as text, shortened if there are many."""
    return textwrap.shorten(', '.join(names), 80, placeholder=' ...')


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Returns a phrase for how a list of names has changed: 'without a, b and with c', or 'in another order'."""
    removed = [name for name in before if name not in now]
    added = [name for name in now if name not in before]
    phrases = [f'{word} {listed(names)}' for word, names in (('without', removed), ('with', added)) if names]
    return ' and '.join(phrases) or 'in another order'


def describe_os_error(error: OSError) -> str:
    """Returns an OSError as a phrase: the file and what went wrong with it."""
    cause, file = error.strerror or str(error), error.filename
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause += '; free some space and start again'
        file = error.filename2 or file  # of a copy, the one that is written
    return f'{file}: {cause}' if file else cause


def reason(error: Exception, with_task: bool = False) -> str:
    """Returns the sentence of a TensorFlow error that says what happened, without the trace of graph nodes.

    Args:
      with_task: whether the sentence begins with the task where it happened, in a cluster: 'worker 1: '.
    """
    text = str(error)
    relayed = _RELAYED.search(text)
    if relayed:
        text = relayed.group(1).replace('\\n', '\n').replace('\\t', '\t').replace('\\"', '"')
    text = re.split(r'\n\t \[\[|\n\nOriginal stack trace|\s*; NodeDef: |\s*goo\.gle/debug', text)[0].strip()
    text = _PREAMBLE.sub('', text, count=1)
    place = _PLACE.match(text)
    text = text[place.end():]
    # The cause comes first; advice may follow it.
    text = _ASSERTION.sub(r'\1', text.partition('\n')[0])
    file, _, cause = text.rpartition('; ')
    if cause in _OS_CAUSES:  # a semicolon of ours comes before a remedy
        text = f'{file}: {cause}'
    where = _REMOTE.search(str(error)) or place
    task = f'{where[1]} {where[2]}: ' if with_task and where[1] else ''
    return task + (text or type(error).__name__)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns a hint for messages about a mistyped name; '' if no name is like it.

    It gives up to three names in which a word begins with the mistyped name, or else the one that is most like it.
    """
    word = name.strip('-').lower()
    similar = [each for each in names if len(word) > 2 and re.search(f'(^|_|-){re.escape(word)}', each)]
    if not 1 <= len(similar) <= 3:
        similar = difflib.get_close_matches(name.lower(), names, 1, cutoff=0.8 if name.startswith('-') else 0.7)
    return f" (did you mean {' or '.join(similar)}?)" if similar else ''
