"""Perturbed prompts of the same problems, to test whether answers depend on how a prompt is written."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from types import MappingProxyType

from rljax.data.cells import join_contents
from rljax.data.problem import Problem
from rljax.errors import InputError

_MINUS = r"(?<=[\d)}\]])(?=-(?![^\W\d_]{2}))|(?<=[\d)}\]]-)(?![^\W\d_]{2})(?=.)"  # a minus, but not a hyphen or a sign
_GAP = re.compile(rf"(?<=\s)(?=\S)|(?=[+*/=<>])|(?<=[+*/=<>])(?=.)|{_MINUS}")
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{3,}(?!\w)")
_SUM = re.compile(r"(?<![\w+*/^.(){}\[\]-])\d+(?:\+\d+){1,4}(?![\w+*/^.(){}\[\]-])")
_SHARE = 0.5  # of the gaps or words
_TYPO_SHARE = 0.1  # of the words


def add_spaces(text: str, rng: random.Random) -> str:
    """Add a space at about half of the positions between words and around operators.

    Example:
        >>> add_spaces("What is 3+4= ?", random.Random(0))
        'What is 3 + 4=  ?'
    """
    return _GAP.sub(lambda _: " " * (rng.random() < _SHARE), text)


def change_case(text: str, rng: random.Random) -> str:
    r"""Write about half of the words with at least three letters in upper case. One-letter names and LaTeX commands stay unchanged.

    Example:
        >>> change_case(r"Find the value of x in \frac{x}{2} = 3.", random.Random(0))
        'Find the VALUE of x in \\frac{x}{2} = 3.'
    """
    return _WORD.sub(lambda word: word.group().upper() if rng.random() < _SHARE else word.group(), text)


def add_typos(text: str, rng: random.Random) -> str:
    """Swap two adjacent inner letters in about a tenth of the words with at least four letters, and in at least one word.

    Example:
        >>> add_typos("Find the value of this sum", random.Random(0))
        'Find the vaule of this sum'
    """
    words = [word for word in _WORD.finditer(text) if _swappable_indices(word.group())]
    chosen = {word.start() for word in words if rng.random() < _TYPO_SHARE}
    if words and not chosen:
        chosen = {rng.choice(words).start()}

    def swap_letters(word: re.Match[str]) -> str:
        if word.start() not in chosen:
            return word.group()
        letters, index = list(word.group()), rng.choice(_swappable_indices(word.group()))
        letters[index], letters[index + 1] = letters[index + 1], letters[index]
        return "".join(letters)

    return _WORD.sub(swap_letters, text)


def shuffle_sums(text: str, rng: random.Random) -> str:
    """Shuffle the terms of every sum of whole numbers that is not part of a longer expression; no character is added.

    Example:
        >>> shuffle_sums("3+4+12=", random.Random(0)), shuffle_sums("2*3+4=", random.Random(0))
        ('12+3+4=', '2*3+4=')
    """

    def shuffle(match: re.Match[str]) -> str:
        summands = match.group().split("+")
        others = [new for new in permutations(summands) if list(new) != summands]
        return "+".join(rng.choice(others)) if others else match.group()

    return _SUM.sub(shuffle, text)


def _swappable_indices(word: str) -> list[int]:
    """Return the indices of inner letters that differ from the next inner letter."""
    return [index for index in range(1, len(word) - 2) if word[index] != word[index + 1]]


PERTURBATIONS: MappingProxyType[str, Callable[[str, random.Random], str]] = MappingProxyType(
    {"spaces": add_spaces, "case": change_case, "typos": add_typos, "order": shuffle_sums}
)
"""Name of a perturbation -> function of a text and a random source that returns the changed text; the answer stays the same."""


_NEEDS = MappingProxyType(
    {
        "spaces": "words or operators",
        "case": "words of at least three letters",
        "typos": "words of at least four letters",
        "order": "sums of different whole numbers",
    }
)
"""Name of a perturbation -> what a prompt must contain for the perturbation to change it."""


def perturb(problems: Sequence[Problem], name: str, *, seed: int = 0) -> list[Problem]:
    """Change the prompts of problems; for a chat, the user's messages. Answers and columns stay unchanged.

    Args:
        problems: the problems.
        name: one of `PERTURBATIONS`.
        seed: random seed; the same prompt is always changed in the same way.

    Raises:
        InputError: the name is unknown, or no prompt has anything to change.

    Example:
        >>> [problem.prompt for problem in perturb([Problem("3+4=", "7")], "spaces")]
        ['3 +4 =']
    """
    if name not in PERTURBATIONS:
        raise InputError(f"There is no perturbation {name!r}; choose one of {', '.join(PERTURBATIONS)}.")
    changed = [_perturb_one(problem, name, seed) for problem in problems]
    if not _differ(changed, problems):
        others = [
            other
            for other in PERTURBATIONS
            if _differ([_perturb_one(problem, other, seed) for problem in problems], problems)
        ]
        raise InputError(
            f"--perturb {name} changes no prompt of these problems, such as {problems[0].prompt[:60]!r}, because it needs "
            f"{_NEEDS[name]}; perturbations that would change some of these prompts: {', '.join(others) or 'none'}."
        )
    return changed


def _differ(changed: Sequence[Problem], problems: Sequence[Problem]) -> bool:
    return any(new.prompt != old.prompt for new, old in zip(changed, problems, strict=True))


def _perturb_one(problem: Problem, name: str, seed: int) -> Problem:
    def write(text: str) -> str:
        return PERTURBATIONS[name](text, random.Random(f"{seed} {text}"))

    if problem.messages is None:
        return replace(problem, prompt=write(problem.prompt))
    messages = tuple(
        {**message, "content": write(message["content"])} if message["role"] == "user" else message
        for message in problem.messages
    )
    return replace(problem, prompt=join_contents(messages), messages=messages)
