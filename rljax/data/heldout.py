"""Selection of held-out prompts.

Whether a prompt is held out depends only on a hash of its text, so the prompt is in the same split for all seeds and difficulties.
"""

import hashlib
from collections.abc import Callable
from random import Random

from rljax.data.problem import Problem
from rljax.errors import InputError

HELDOUT_PERIOD = 8  # one prompt in eight is held out
TRIES = 40
"""Samples per requested problem before a generator counts as exhausted; eight times as many per held-out problem."""

Parts = tuple[list[Problem], list[Problem]]
"""The training problems, and the held-out problems."""


def is_heldout(prompt: str) -> bool:
    """Decide by a prompt's hash whether the prompt is held out.

    Args:
        prompt: the full prompt; in arithmetic, this includes the final `=`.

    Returns:
        True for about one prompt in eight.

    Example:
        >>> [prompt for prompt in (f"{a}+1=" for a in range(20)) if is_heldout(prompt)]
        ['1+1=', '11+1=', '14+1=']
    """
    return _hash(prompt) % HELDOUT_PERIOD == 0


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def hash_to_unit_interval(text: str) -> float:
    """Map a text to a number in [0, 1); equal texts give equal numbers.

    Example:
        >>> hash_to_unit_interval("3+4=") == hash_to_unit_interval("3+4="), 0 <= hash_to_unit_interval("3+5=") < 1
        (True, True)
    """
    return (_hash(text) >> 11) / 2**53


def sample_parts(make: Callable[[Random], Problem], *, train: int, heldout: int, seed: int) -> Parts:
    """Sample distinct problems until the training and held-out sets are full.

    Args:
        make: a function that makes a problem from a source of random numbers.
        train: number of problems to train on.
        heldout: number of held-out problems.
        seed: the same seed gives the same problems in the same order.

    Returns:
        The training problems and the held-out problems. `is_heldout` assigns each prompt to one of them, whatever the seed.

    Raises:
        InputError: the generator has too few distinct problems.

    Example:
        >>> train, heldout = sample_parts(lambda random: Problem(f"{random.randrange(99)}=", ""), train=5, heldout=2, seed=0)
        >>> len({problem.prompt for problem in [*train, *heldout]}), any(is_heldout(problem.prompt) for problem in train)
        (7, False)
    """
    random, wanted = Random(seed), {False: train, True: heldout}
    found: dict[bool, dict[str, Problem]] = {False: {}, True: {}}
    for _ in range(TRIES * (train + HELDOUT_PERIOD * heldout)):
        if all(len(found[part]) == count for part, count in wanted.items()):
            break
        problem = make(random)
        part = is_heldout(problem.prompt)
        if len(found[part]) < wanted[part]:
            found[part].setdefault(problem.prompt, problem)
    for part, name, setting in ((False, "training", "train_problems"), (True, "held-out", "heldout_problems")):
        if len(found[part]) < wanted[part]:
            raise InputError(
                f"{setting} is {wanted[part]}, but the task with these settings has only {len(found[part])} distinct {name} "
                f"problems; lower {setting}, or change the task's difficulty."
            )
    return list(found[False].values()), list(found[True].values())
