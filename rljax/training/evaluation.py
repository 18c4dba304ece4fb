"""Held-out accuracy under greedy decoding."""

import json
import math
from pathlib import Path
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
            "reward": float(rewards.mean()) if rewards.size else math.nan,
            "response_length": float(lengths.mean()),
            "truncated_share": float(self.groups.truncated.mean()),
            **accuracy_by_length(rewards > 0, lengths[self.groups.valid]),
        }

    def summary(self) -> str:
        """One line for a person."""
        judged = int(self.groups.valid.sum())
        low, high = wilson_interval(int((self.groups.rewards > 0)[self.groups.valid].sum()), judged)
        metrics = self.metrics()
        return (
            f"accuracy {metrics['accuracy']:.1%} (95 % interval {low:.1%} to {high:.1%}) on {judged} of {self.groups.count} "
            f"problems, mean reward {metrics['reward']:.3f}, mean response {metrics['response_length']:.1f} tokens, "
            f"{metrics['truncated_share']:.1%} truncated"
        )


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


def write_answers(path: Path, rows: list[dict]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
