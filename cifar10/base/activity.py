"""What each thread of this process is doing, and since when, so that the watch of `stuck` notices a hang.

    with doing('step 1,204'):
        take_the_step()
"""
import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Sequence

OF_FIRST_STEP = 5  # the patience with a first step: TensorFlow optimises the graph, and may compile it

seconds_run = 0.0  # by this process, as the watch counts them
_current = {}  # the innermost Activity of each thread, by the thread's identifier


class Activity:
    """Something that a thread is doing; `since` is the value of `seconds_run` when the thread last made progress."""

    def __init__(self, what: str, patience: float):
        self.what = what
        self.patience = patience
        self.since = seconds_run


def current() -> Sequence[Activity]:
    """Returns the innermost activity of each thread that is doing something."""
    return list(_current.values())


def moved() -> None:
    """Notes progress: of this thread or, if it does not report what it is doing, of all threads that do."""
    own = _current.get(threading.get_ident())
    for each in [own] if own else current():
        each.since = seconds_run


@contextlib.contextmanager
def doing(what: str, patience: float = 1) -> Iterator[None]:
    """Context in which this thread is doing something.

    Args:
      what: 'start', 'save', 'evaluation' or a step.
      patience: how many times as long as usual it may take.
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
        else:  # by its own number: what a thread has left open may end in another, as garbage
            _current.pop(thread, None)


unlimited = functools.partial(doing, 'waiting', math.inf)  # for a person or a process, as long as that takes
