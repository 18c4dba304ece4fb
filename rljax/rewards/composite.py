"""Rewards built from other rewards. Each part is computed, weighted and logged under its own name."""

from collections.abc import Callable, Mapping

from rljax.rewards import resolve
from rljax.rewards.reward_scores import Weighted


def weighted(rewards: Mapping[str, Callable | str], weights: Mapping[str, float | int]) -> Weighted:
    """Combine rewards into a weighted sum. With one reward per objective, this is multi-objective reinforcement learning.

    ::

        R = Σ_i λ_i R_i

    Args:
        rewards: R_i by names of your choice, each a function or a name that `rljax.rewards.resolve` accepts.
        weights: λ_i by the same names, positive or negative.

    Returns:
        One reward, whose parts `rljax.rewards.reward_scores.judge` reports separately. A part that abstains contributes nothing.

    Raises:
        InputError: there is no reward, the weights do not match, or a reward is not found.

    Example:
        >>> both = weighted({"right": "exact", "form": "format"}, {"right": 1.0, "form": 0.5})
        >>> both(prompts=["1+1="] * 2, completions=["#2", "#3"], answer=["2"] * 2)
        [1.5, 0.5]

    Source:
        Rule-based reward of DeepSeek-R1, arXiv:2501.12948, Section 2.2.2 (answer plus format). The sum of arrays is
        `rljax.ops.shaping.weighted_composite`.
    """
    return Weighted({name: resolve(reward) for name, reward in rewards.items()}, dict(weights))
