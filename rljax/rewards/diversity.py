"""A bonus for responses that differ from the other responses to their prompt."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from rljax.rewards.bonus_scale import read_scale
from rljax.text import shingles_of


def diversity(scale: float | int | str) -> Callable:
    """Make a reward: a bonus for the distance of a response from the other responses to its prompt.

    ::

        b(y) = c (1 - mean_{y' ≠ y} J(y, y'))

    J is the Jaccard similarity of `rljax.data.diversity.similarity`, by runs of three words; the mean is over the other responses
    to the prompt in this rollout. Equal responses get 0, and responses with nothing in common get c. A response without others
    gets 0.

    Args:
        scale: c, a positive number, or its text. Keep it well below what a right answer is worth, because noise is diverse, too.

    Returns:
        A reward that takes `prompts` and `completions`. All hosts call it with all responses, because it compares them.

    Raises:
        InputError: `scale` is not positive and finite.

    Example:
        >>> diversity(0.1)(prompts=["1+2="] * 3, completions=["1 + 2 is 3", "1 + 2 is 3", "it is 3"])
        [0.05, 0.05, 0.1]
    """
    factor = read_scale("diversity", scale)

    def bonus(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[float]:
        del columns
        groups: dict[str, list[int]] = defaultdict(list)
        for place, prompt in enumerate(prompts):
            groups[str(prompt)].append(place)
        runs = [shingles_of(completion) for completion in completions]
        return [factor * _distance(place, groups[str(prompt)], runs) for place, prompt in enumerate(prompts)]

    bonus.__qualname__ = "diversity"
    bonus.on_all_hosts = True  # pyright: ignore[reportFunctionMemberAccess]  a function holds attributes
    return bonus


def _distance(place: int, group: Sequence[int], runs: Sequence[frozenset[str]]) -> float:
    """Return the mean of 1 minus the similarity to the others of a group; 0 without others."""
    own = runs[place]
    distances = [1 - len(own & runs[other]) / len(own | runs[other]) for other in group if other != place]
    return sum(distances) / len(distances) if distances else 0.0
