"""Replaces attributes of TensorFlow and other modules while user code runs."""
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def patched(substitutes: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Replaces attributes within the context.

    Args:
      substitutes: new values by (object, attribute name).
    """
    originals = {(owner, name): getattr(owner, name) for owner, name in substitutes}
    try:
        for (owner, name), substitute in substitutes.items():
            setattr(owner, name, substitute)
        yield
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)
