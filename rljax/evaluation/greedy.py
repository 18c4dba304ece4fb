"""Held-out accuracy under greedy decoding."""

import math
from typing import NamedTuple

import jax
import numpy as np

from rljax.models import Params
from rljax.rollout import Engine, Groups
from rljax.rollout.groups import concatenate, take


class Evaluation(NamedTuple):
    """What greedy decoding of every prompt gave."""

    groups: Groups
    """One response a prompt."""

    def metrics(self) -> dict[str, float]:
        """Averages; rewards over the responses that the reward had an opinion on."""
        rewards = self.groups.rewards[self.groups.valid]
        lengths = self.groups.mask.sum(-1)
        return {
            "accuracy": float((rewards > 0).mean()) if rewards.size else math.nan,
            "reward": float(rewards.mean(dtype=np.float64)) if rewards.size else math.nan,
            "response_length": float(lengths.mean()),
            "truncated_share": float(self.groups.truncated.mean()),
            **accuracy_by_length(rewards > 0, lengths[self.groups.valid]),
        }


def accuracy_by_length(right: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Accuracy of the responses of each range of lengths, the ranges doubling from 1 to 16 tokens on; empty ones left out.

    Example:
        >>> accuracy_by_length(np.array([True, False, True]), np.array([3, 16, 40]))
        {'accuracy_to_16_tokens': 0.5, 'accuracy_to_64_tokens': 1.0}
    """
    bucket = 16 * 2 ** np.ceil(np.log2(np.maximum(lengths, 16) / 16)).astype(int)
    return {f"accuracy_to_{most}_tokens": float(right[bucket == most].mean()) for most in np.unique(bucket)}


def wilson_interval(successes: int, trials: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Score interval of a share (Wilson 1927); [0, 1] without trials.

    Example:
        >>> low, high = wilson_interval(8, 10)
        >>> round(low, 3), round(high, 3)
        (0.49, 0.943)
    """
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return middle - half, middle + half


def evaluate(engine: Engine, params: Params, *, batch: int = 256) -> Evaluation:
    """Answer every prompt of the engine once.

    Args:
        engine: its sampling should be greedy (temperature 0).
        params: of the policy.
        batch: most prompts a call. The last call is filled up with repeats that do not count.
    """
    count, devices = len(engine.prompts.tokens), engine.mesh.size
    rows = -(-min(count, batch) // devices) * devices
    key = jax.random.key(0)
    parts = []
    for begin in range(0, count, rows):
        wanted = np.arange(begin, begin + rows)
        answered = engine.generate(params, (wanted % count).tolist(), 1, key)
        parts.append(take(answered, wanted < count))
    return Evaluation(concatenate(parts))
