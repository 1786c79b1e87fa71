"""What the threads of this process are doing, as they say themselves, so that a watch notices when nothing moves.

    with doing('in step 1,204', questions=whom_it_waits_for):
        take_the_step()
"""
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

OF_FIRST_STEP = 5  # the patience with a first step: TensorFlow optimises the graph, and may compile it


class Question(NamedTuple):
    """Something that a thread may wait for, and how to find out whether it answers.

    Attributes:
      subject: what it is: 'worker 1 (10.0.0.7:2222)'.
      ask: function that returns once it has answered, or False if it does not answer. It may wait for ever.
      silence: function that says what it means if it does not answer: 'worker 1 (10.0.0.7:2222) does not answer'.
      is_final: whether nothing can go on after it was asked.
    """
    subject: str
    ask: Callable[[], Any]
    silence: Callable[[], str]
    is_final: bool = False


class Doing(NamedTuple):
    """Something that a thread is doing; the parameters of `doing`."""
    what: str
    patience: float
    questions: Callable[[], list[list[Question]]] | None
    folder: str | None


class Thread:
    """A thread that says what it is doing.

    Attributes:
      doing: a list of `Doing`s, each within the one before.
      moves: how often it has come further.
    """

    def __init__(self):
        self.doing = []
        self.moves = 0


_threads = {}  # by their identifiers


def threads() -> Sequence[Thread]:
    """Returns the threads that are doing something."""
    return list(_threads.values())


def present() -> str:
    """Returns what the first thread that is doing something is doing, as a phrase; '' if none is."""
    return next((levels[-1].what for thread in threads() if (levels := list(thread.doing))), '')


def moved() -> None:
    """Notes that something has come further: this thread; or, if it says of itself nothing, those that wait for it."""
    own = _threads.get(threading.get_ident())
    for thread in [own] if own else threads():
        thread.moves += 1


@contextlib.contextmanager
def doing(what: str, patience: float = 1, questions: Callable[[], list[list[Question]]] | None = None,
          folder: str | None = None) -> Iterator[None]:
    """Context in which this thread is doing something.

    Args:
      what: a phrase: 'in step 1,204'.
      patience: how many times as long as usual it may take; `math.inf` if something else limits it.
      questions: function that returns Questions in groups; each of a group is asked only about what those of the
        groups before it do not explain.
      folder: a folder that it may wait for, in which the watch leaves its findings.
    """
    thread = _threads.setdefault(threading.get_ident(), Thread())
    thread.doing.append(Doing(what, patience, questions, folder))
    thread.moves += 1
    try:
        yield
    finally:
        thread.doing.pop()
        thread.moves += 1
        if not thread.doing:
            del _threads[threading.get_ident()]
