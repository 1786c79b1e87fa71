"""The activities of this process's threads, and the time of their last progress, for the watch in `stuck`.

    with doing('step 1,204'):
        take_the_step()
"""
import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Sequence

OF_FIRST_STEP = 5  # patience for a first step: TensorFlow optimises the graph, and may compile it

seconds_run = 0.0  # the running time of this process, counted by the watch
_current: dict[int, 'Activity'] = {}  # the innermost Activity of each thread, by the thread's identifier


class Activity:
    """A thread's activity; `since` is the value of `seconds_run` at its last progress."""

    def __init__(self, what: str, patience: float):
        self.what = what
        self.patience = patience
        self.since = seconds_run


def current() -> Sequence[Activity]:
    """Returns the innermost activity of each thread that has one."""
    return list(_current.values())


def moved() -> None:
    """Notes progress of this thread or, if it has no activity, of all threads."""
    own = _current.get(threading.get_ident())
    for activity in [own] if own else current():
        activity.since = seconds_run


@contextlib.contextmanager
def doing(what: str, patience: float = 1) -> Iterator[None]:
    """Context that sets the activity of this thread.

    Args:
      what: 'start', 'save', 'evaluation' or a step.
      patience: factor for the usual time limit.
    """
    thread = threading.get_ident()
    outer = _current.get(thread)
    _current[thread] = Activity(what, patience)
    try:
        yield
    finally:
        if outer:
            outer.since = seconds_run
            _current[thread] = outer
        else:  # the identifier from above: garbage collection may end this context in another thread
            _current.pop(thread, None)


unlimited = functools.partial(doing, 'waiting', math.inf)  # waiting for a person or a process, without a limit
