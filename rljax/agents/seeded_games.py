"""What the adapters of other packages share: the seed of an episode, its random generator, and a game that is closed at its end."""

import random
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rljax.data.problem import Problem
from rljax.errors import InputError

RANDOM = threading.Lock()
"""Held while Python's global random generator is that of one episode."""


def read_seed(problem: Problem) -> int:
    """Read the seed of an episode, which is the answer of its problem.

    Raises:
        InputError: the answer is not a whole number of at most 9 digits.

    Example:
        >>> read_seed(Problem("", "17"))
        17
    """
    if not (problem.answer.isdecimal() and problem.answer.isascii() and len(problem.answer) <= 9):
        raise InputError(
            "the answer of a problem is the seed of its game, a whole number of at most 9 digits; "
            f"got {problem.answer!r:.80}. Give each row of the dataset a number as its answer."
        )
    return int(problem.answer)


class OpenGame:
    """The game of one episode. It is closed once: by `close`, or when the episode is given up and nothing refers to it any more.

    Args:
        game: the package's own object, which is changed by each step.
        close: closes it.

    Attributes:
        game: the package's own object.
        close: closes it, unless it is closed already.

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
def own_random(generator: random.Random) -> Generator[None]:
    """Let Python's global random generator continue one generator; others that use this function wait.

    Example:
        >>> generator, expected = random.Random(3), random.Random(3)
        >>> with own_random(generator):
        ...     first = random.random()
        >>> [first, generator.random()] == [expected.random(), expected.random()]
        True
    """
    with RANDOM:
        before = random.getstate()
        random.setstate(generator.getstate())
        try:
            yield
        finally:
            generator.setstate(random.getstate())
            random.setstate(before)
