"""The exceptions that end a program with one line, and the wording of other people's errors."""
import errno
import re
import textwrap
from collections.abc import Iterable

_RELAYED = re.compile(r'grpc_message:"((?:[^"\\]|\\.)*)"')


class UsageError(Exception):
    """An invalid flag, configuration or input: reported in one line with the remedy, exit status 2."""


class RunError(Exception):
    """A failure during the run: reported in one line, exit status 1."""


def short(names: Iterable[str]) -> str:
    """Returns names, with commas between them, in a length that leaves a line readable."""
    return textwrap.shorten(', '.join(names), 80, placeholder=' ...')


def describe_os_error(error: OSError) -> str:
    """Returns an OSError as a phrase: the file that it concerns and what happened."""
    cause = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause += '; free some space and start again'
    return f'{error.filename}: {cause}' if error.filename else cause


def reason(error: Exception) -> str:
    """Returns the sentence in a TensorFlow error, without the trace of graph nodes around it."""
    text = str(error)
    relayed = _RELAYED.search(text)
    if relayed:  # what another process answered, as gRPC quotes it
        text = relayed.group(1).replace('\\n', '\n').replace('\\t', '\t').replace('\\"', '"')
    text = re.split(r'\n\t \[\[|\n\nOriginal stack trace|\s*; NodeDef: ', text)[0].strip()
    lines = text.splitlines() or [type(error).__name__]
    return lines[-1] if lines[0].startswith('Graph execution error') else lines[0]
