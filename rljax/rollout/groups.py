"""Sampled and judged groups, as host arrays: what dynamic sampling keeps, drops and carries over."""

from typing import NamedTuple

import jax
import numpy as np


class Groups(NamedTuple):
    """P groups of G responses. L prompt slots (left-padded), T response slots (right-padded)."""

    problem: np.ndarray
    """Index of the prompt among the training prompts, `[P]`; -1 for a group that only fills up."""
    prompt_tokens: np.ndarray
    """`[P, L]`."""
    prompt_mask: np.ndarray
    """`[P, L]`."""
    tokens: np.ndarray
    """`[P, G, T]`."""
    mask: np.ndarray
    """`[P, G, T]`, EOS included."""
    behaviour_logp: np.ndarray
    """Under the distribution that was sampled from, `[P, G, T]`, nats."""
    policy_logp: np.ndarray
    """Under the policy that sampled, before top-k and top-p, `[P, G, T]`, nats."""
    truncated: np.ndarray
    """`[P, G]`."""
    rewards: np.ndarray
    """`[P, G]`."""
    valid: np.ndarray
    """Whether the reward had an opinion, `[P, G]`."""
    failed: np.ndarray
    """How the reward failed to judge it, `[P, G]`: 0 did not, else the place in `rewards.failure.Failures`, from 1."""
    parts: dict[str, np.ndarray] | None = None
    """What each part of the reward said, unweighted, `[P, G]`, NaN where it said nothing; for a reward that has several."""
    step_rewards: np.ndarray | None = None
    """Reward of the reasoning step that ends at a token, `[P, G, T]`; for process supervision."""
    step_end: np.ndarray | None = None
    """Where a reasoning step ends, `[P, G, T]`."""

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.problem)


def concatenate(parts: list[Groups]) -> Groups:
    """Join groups in order."""
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def take(groups: Groups, index: np.ndarray | slice) -> Groups:
    """Select groups."""
    return jax.tree.map(lambda array: array[index], groups)


def pad(groups: Groups, count: int) -> Groups:
    """Append groups without tokens, which weigh nothing, up to `count`."""
    missing = count - groups.count

    def extend(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

    padded = jax.tree.map(extend, groups)
    padded.prompt_mask[groups.count :, -1] = True
    padded.valid[groups.count :] = True
    padded.problem[groups.count :] = -1
    return padded
