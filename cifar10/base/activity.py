"""What each thread of this process reports that it is doing, and since when, so that a watch can notice a hang.

    with doing('in step 1,204'):
        take_the_step()
"""
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

OF_FIRST_STEP = 5  # the patience with a first step: TensorFlow optimises the graph, and may compile it


class Doing(NamedTuple):
    """Something that a thread is doing; the parameters of `doing`."""
    what: str
    patience: float
    folder: str | None
    silent: Callable[[], str] | None


seconds_run = 0.0  # by this process, as the watch counts them
_threads = {}  # by their identifiers


class Thread:
    """A thread that reports what it is doing.

    Attributes:
      doing: a list of `Doing`s, each within the one before. Read it before `since`.
      since: the value of `seconds_run` when the thread last made progress.
    """

    def __init__(self):
        self.doing = []
        self.since = seconds_run


def threads() -> Sequence[Thread]:
    """Returns the threads that are doing something."""
    return list(_threads.values())


def moved() -> None:
    """Notes progress: of this thread or, if it does not report what it is doing, of all threads that do."""
    own = _threads.get(threading.get_ident())
    for thread in [own] if own else threads():
        thread.since = seconds_run


@contextlib.contextmanager
def doing(what: str, patience: float = 1, folder: str | None = None,
          silent: Callable[[], str] | None = None) -> Iterator[None]:
    """Context in which this thread is doing something.

    Args:
      what: a phrase: 'in step 1,204'.
      patience: how many times as long as usual it may take; `math.inf` if something else limits it.
      folder: where the watch leaves the stacks of the threads.
      silent: function that returns which of the processes that it may wait for do not answer, as a phrase; or ''.
    """
    identifier = threading.get_ident()
    thread = _threads.setdefault(identifier, Thread())
    moved()  # before the change: what has just begun is not as old as what was there before
    thread.doing.append(Doing(what, patience, folder, silent))
    try:
        yield
    finally:
        moved()
        thread.doing.pop()
        if not thread.doing:  # by its own number: what a thread has left open may end in another, as garbage
            _threads.pop(identifier, None)
