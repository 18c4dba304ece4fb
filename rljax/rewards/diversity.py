"""A bonus for responses that differ from the other responses to their prompt."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from rljax.rewards.bonus_scale import read_scale
from rljax.text import shingles_of


def diversity(scale: float | int | str) -> Callable:
    """Make a reward: a bonus for the distance between a response and the other responses to its prompt.

    ::

        b(y) = c (1 - mean_{y' ≠ y} J(y, y'))

    J is the Jaccard similarity of two responses, each taken as its set of three-word sequences (`rljax.data.diversity.similarity`);
    the mean is over the other responses to the prompt in this rollout. Equal responses get 0, and responses with nothing in common
    get c. If a prompt has only one response, that response gets 0.

    Args:
        scale: c, positive, as a number or as text. Keep it well below the reward for a right answer, because noise is also diverse.

    Returns:
        A reward that takes `prompts` and `completions`. All hosts call it with all responses, because it compares responses.

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
        for position, prompt in enumerate(prompts):
            groups[str(prompt)].append(position)
        shingles = [shingles_of(completion) for completion in completions]
        return [factor * _mean_distance(i, groups[str(prompt)], shingles) for i, prompt in enumerate(prompts)]

    bonus.__qualname__ = "diversity"
    bonus.on_all_hosts = True  # pyright: ignore[reportFunctionMemberAccess]  functions have attributes
    return bonus


def _mean_distance(position: int, group: Sequence[int], shingles: Sequence[frozenset[str]]) -> float:
    """Return the mean of 1 minus the similarity to each other response in the group; 0 if there is no other response."""
    own = shingles[position]
    distances = [1 - len(own & shingles[other]) / len(own | shingles[other]) for other in group if other != position]
    return sum(distances) / len(distances) if distances else 0.0
