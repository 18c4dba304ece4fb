"""Helpers for adapters to other packages: a seed, a random generator, and a game that is closed when its episode ends."""

import random
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rljax.data.problem import Problem
from rljax.errors import InputError

RANDOM_LOCK = threading.Lock()
"""Lock that is held while Python's global random generator has the state of one episode's generator."""


def read_seed(problem: Problem) -> int:
    """Read the seed of an episode, which is stored as the answer of its problem.

    Raises:
        InputError: the answer is not a whole number of at most 9 digits.

    Example:
        >>> read_seed(Problem("", "17"))
        17
    """
    if not (problem.answer.isdecimal() and problem.answer.isascii() and len(problem.answer) <= 9):
        raise InputError(
            "the answer of a problem must be a whole number of at most 9 digits: the seed of its game, or the index of its task; "
            f"got {problem.answer!r:.80}. Give each row of the dataset a number as its answer."
        )
    return int(problem.answer)


class OpenGame:
    """The game of one episode. It is closed once: by `close`, or when an abandoned episode's object is garbage-collected.

    Args:
        game: the package's own game object, which each step changes.
        close: function that closes the game.

    Attributes:
        close: function that closes the game, unless it is already closed.

    Example:
        >>> closed = []
        >>> game = OpenGame("chess", lambda: closed.append("chess"))
        >>> _ = game.close()
        >>> del game
        >>> closed
        ['chess']
    """

    def __init__(self, game: Any, close: Callable[[], object]):
        self.game, self.close = game, weakref.finalize(self, close)


@contextmanager
def use_generator(generator: random.Random) -> Generator[None]:
    """Use a generator as Python's global random generator inside this context, which only one thread can be in at a time.

    Example:
        >>> generator, expected = random.Random(3), random.Random(3)
        >>> with use_generator(generator):
        ...     first = random.random()
        >>> [first, generator.random()] == [expected.random(), expected.random()]
        True
    """
    with RANDOM_LOCK:
        before = random.getstate()
        random.setstate(generator.getstate())
        try:
            yield
        finally:
            generator.setstate(random.getstate())
            random.setstate(before)
