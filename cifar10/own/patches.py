"""Substitutes for attributes of TensorFlow and other modules while a user's code runs."""
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def patched(substitutes: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Context in which attributes have substitutes.

    Args:
      substitutes: by (object, name of its attribute).
    """
    originals = {(owner, name): getattr(owner, name) for owner, name in substitutes}
    try:
        for (owner, name), substitute in substitutes.items():
            setattr(owner, name, substitute)
        yield
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)
