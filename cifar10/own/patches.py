"""Substitutes for attributes of TensorFlow and other modules while a user's code runs."""
import collections
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

_substitutes = collections.defaultdict(list)  # (object, name) -> the original, then the substitutes in force


@contextlib.contextmanager
def patched(substitutes: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Context in which attributes have substitutes.

    Contexts may overlap and end in any order, as in the threads of a strategy's replicas.

    Args:
      substitutes: by (object, name of its attribute).
    """
    entries = [(owner, name, [substitute]) for (owner, name), substitute in substitutes.items()]
    for owner, name, entry in entries:
        stack = _substitutes[id(owner), name]
        if not stack:
            stack.append([getattr(owner, name)])
        stack.append(entry)
        setattr(owner, name, entry[0])
    try:
        yield
    finally:
        for owner, name, entry in entries:
            stack = _substitutes[id(owner), name]
            stack[:] = [each for each in stack if each is not entry]
            setattr(owner, name, stack[-1][0])
            if len(stack) == 1:
                del _substitutes[id(owner), name]
