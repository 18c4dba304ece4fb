"""A bonus for responses that differ from the other responses to their prompt."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from rljax.errors import InputError
from rljax.text import shingles_of


def diversity(scale: float | int) -> Callable:
    """Make a reward: a bonus for the distance of a response from the other responses to its prompt.

    ::

        b(y) = c (1 - mean_{y' ≠ y} J(y, y'))

    J is the Jaccard similarity of `rljax.data.diversity.similarity`, by runs of three words; the mean is over the other responses
    to the prompt in this rollout. Equal responses get 0, and responses with nothing in common get c. A response without others
    gets 0.

    Args:
        scale: c, positive. Keep it well below what a right answer is worth, because noise is diverse, too.

    Returns:
        A reward that takes `prompts` and `completions`. All hosts call it with all responses, because it compares them.

    Raises:
        InputError: `scale` is not positive and finite.

    Example:
        >>> diversity(0.1)(prompts=["1+2="] * 3, completions=["1 + 2 is 3", "1 + 2 is 3", "it is 3"])
        [0.05, 0.05, 0.1]
    """
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"the scale of the diversity bonus is {scale}; it must be a positive number, e.g. diversity:0.1.")

    def bonus(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        groups: dict[str, list[int]] = defaultdict(list)
        for place, prompt in enumerate(prompts):
            groups[str(prompt)].append(place)
        runs = [shingles_of(completion) for completion in completions]
        return [scale * _distance(place, groups[str(prompt)], runs) for place, prompt in enumerate(prompts)]

    bonus.__qualname__ = "diversity"
    bonus.on_all_hosts = True  # pyright: ignore[reportFunctionMemberAccess]  a function holds attributes
    return bonus


def _distance(place: int, group: Sequence[int], runs: Sequence[frozenset[str]]) -> float:
    """Return the mean of 1 minus the similarity to the others of a group; 0 without others."""
    own = runs[place]
    distances = [1 - len(own & runs[other]) / len(own | runs[other]) for other in group if other != place]
    return sum(distances) / len(distances) if distances else 0.0


def read_diversity(scale: str) -> Callable:
    """Make the bonus of a scale that is written as text.

    Raises:
        InputError: the text is not a positive number.
    """
    try:
        number = float(scale)
    except ValueError as error:
        raise InputError(
            f"the scale of the diversity bonus is {scale!r}; it must be a positive number, e.g. 0.1."
        ) from error
    return diversity(number)
