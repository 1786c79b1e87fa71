"""The exceptions that end a program with one line instead of a traceback, and helpers for the lines.

Any module may raise them. `programs.program.run` catches them, prints 'PROGRAM: error: MESSAGE' to standard error
and returns their exit status. All other exceptions except OSErrors and interrupts are bugs and show a traceback.
"""
import difflib
import errno
import os
import re
import textwrap
from collections.abc import Iterable, Sequence

# A session's prefix of an operation's message: the place of its creation, and the number of failed operations.
_PREAMBLE = re.compile(r"Graph execution error:\s*(.*\nNode: '[^\n]*\n)?"
                       r'(\d+ root error\(s\) found\.\s*\(0\) [\w ]+: |=+\n[A-Z_]+: )?', re.DOTALL)
# The operation's place: in a cluster its task, in a dataset its iterator.
_PLACE = re.compile(r'^(?:From /job:(\w+)/replica:\d+/task:(\d+):\n)?'
                    r'(?:Error in user-defined function passed to \S+ transformation with iterator: \S+: )?')
# An assertion's prefix, its message and optional values.
_ASSERTION = re.compile(r'^assertion failed: \[(.*?)\](?= \[|$).*')
# The operating system's messages about files; TensorFlow appends them to the name and a semicolon.
_OS_CAUSES = {os.strerror(number) for number in errno.errorcode}
# The process of a remote error, and gRPC's quotation of its message.
_REMOTE = re.compile(r'remote target /job:(\w+)/replica:\d+/task:(\d+)')
_RELAYED = re.compile(r'grpc_message:"((?:[^"\\]|\\.)*)"')


class UsageError(Exception):
    """A mistake that the user can correct: in flags, files or the environment. Exit status 2.

    It is usually raised before the first step, so no training time is lost. A wrong call of this package's functions
    is a ValueError instead.

    The message is one line. It states the problem, starting with the flag as the user wrote it (`--flag=value`) if
    there is one, and after a semicolon the remedy: '--xla compiles for GPUs, but the towers are on CPU devices; leave
    it out'.
    """
    status = 2


class RunError(Exception):
    """A failure of a run with valid settings: a loss is NaN, a peer is lost, a disk is full. Exit status 1.

    The message is one line. It names the step, task or file that failed and, if the run can be resumed, the checkpoint
    or the remedy: starting the same command again resumes from the newest checkpoint.
    """
    status = 1


class TemporaryError(RunError):
    """A failure after which the same command may succeed: a process or a device was lost.

    With exit status 75, EX_TEMPFAIL in sysexits.h, a scheduler can distinguish it from other failures.
    """
    status = 75


def shortened(text: str) -> str:
    """Shortens a text to at most 200 characters by removing its middle."""
    return text if len(text) <= 200 else f'{text[:150]} ... {text[-45:]}'


def listed(names: Sequence[str]) -> str:
    """Joins names with commas, shortened if there are many."""
    return textwrap.shorten(', '.join(names), 80, placeholder=' ...')


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Describes the change of a list of names: 'without a, b and with c', or 'in a different order'."""
    removed = [name for name in before if name not in now]
    added = [name for name in now if name not in before]
    phrases = [f'{word} {listed(names)}' for word, names in (('without', removed), ('with', added)) if names]
    return ' and '.join(phrases) or 'in a different order'


def describe_os_error(error: OSError) -> str:
    """Describes an OSError: the file and the cause."""
    cause, file = error.strerror or str(error), error.filename
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause += '; free some space and start again'
        file = error.filename2 or file  # the target of a copy
    return f'{file}: {cause}' if file else cause


def reason(error: Exception, with_task: bool = False) -> str:
    """Returns the message of a TensorFlow error, without the trace of graph nodes.

    Args:
      with_task: whether to prefix the task that failed in a cluster: 'worker 1: '.
    """
    text = str(error)
    relayed = _RELAYED.search(text)
    if relayed:
        text = relayed.group(1).replace('\\n', '\n').replace('\\t', '\t').replace('\\"', '"')
    text = re.split(r'\n\t \[\[|\n\nOriginal stack trace|\s*; NodeDef: |\s*goo\.gle/debug', text)[0].strip()
    text = _PREAMBLE.sub('', text, count=1)
    if place := _PLACE.match(text):
        text = text[place.end():]
    # The cause comes first; advice may follow it.
    text = _ASSERTION.sub(r'\1', text.partition('\n')[0])
    file, _, cause = text.rpartition('; ')
    if cause in _OS_CAUSES:  # in our messages, a semicolon precedes the remedy
        text = f'{file}: {cause}'
    where = _REMOTE.search(str(error)) or place
    task = f'{where[1]} {where[2]}: ' if with_task and where and where[1] else ''
    return task + (text or type(error).__name__)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns a hint for messages about a mistyped name; '' if no name is similar.

    The hint has up to three names with a word that begins with the mistyped name, or else the most similar name.
    """
    word = name.strip('-').lower()
    similar = [known for known in names if len(word) > 2 and re.search(f'(^|_|-){re.escape(word)}', known)]
    if not 1 <= len(similar) <= 3:
        similar = difflib.get_close_matches(name.lower(), names, 1, cutoff=0.8 if name.startswith('-') else 0.7)
    return f" (did you mean {' or '.join(similar)}?)" if similar else ''
