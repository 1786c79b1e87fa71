"""The exceptions that end a program with one line, and the wording of such lines."""
import errno
import re
import textwrap
from collections.abc import Sequence

_RELAYED = re.compile(r'grpc_message:"((?:[^"\\]|\\.)*)"')


class UsageError(Exception):
    """An invalid flag, configuration or input: reported in one line with the remedy, exit status 2."""


class RunError(Exception):
    """A failure during the run: reported in one line, exit status 1."""


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Returns how names have changed, as a phrase short enough for a line."""
    parts = [(word, ', '.join(name for name in names if name not in others))
             for word, names, others in (('without', before, now), ('with', now, before))]
    return ' and '.join(f"{word} {textwrap.shorten(names, 80, placeholder=' ...')}" for word, names in parts
                        if names) or 'in another order'


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
