"""Held-out accuracy under greedy decoding."""

import math
from typing import NamedTuple

import jax
import numpy as np

from rljax.models import Params
from rljax.records import required
from rljax.rollout import Groups, RolloutWorker
from rljax.rollout.groups import concatenate, part_means, right_and_known, take


class Evaluation(NamedTuple):
    """Greedy answers to every prompt."""

    groups: Groups
    """One response per prompt."""

    @property
    def best_metric(self) -> str:
        """Metric that selects the best checkpoint by default: the accuracy if correctness is known, else the reward."""
        return "reward" if self.groups.rollout.correct is None else "accuracy"

    def metrics(self) -> dict[str, float]:
        """Average over the responses: the accuracy where it is known, and the reward and its parts where there is one."""
        rollout = self.groups.rollout
        rewards, lengths = rollout.rewards[required(rollout.valid, "rollout.valid")], self.groups.attention.sum(-1)
        right, known = right_and_known(rollout)
        return {
            "accuracy": float(right[known].mean()) if known.any() else math.nan,
            "reward": float(rewards.mean(dtype=np.float64)) if rewards.size else math.nan,
            "judged": int(known.sum()),
            "answers": known.size,
            "response_length": float(lengths.mean()),
            "truncated_share": float(required(rollout.truncated, "rollout.truncated").mean()),
            **accuracy_by_length(right[known], lengths[known]),
            **part_means(self.groups),
        }


def accuracy_by_length(right: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Accuracy by response length: up to 16 tokens, then in ranges that double. Empty ranges are omitted.

    Example:
        >>> accuracy_by_length(np.array([True, False, True]), np.array([3, 16, 40]))
        {'accuracy_to_16_tokens': 0.5, 'accuracy_to_64_tokens': 1.0}
    """
    bucket = 16 * 2 ** np.ceil(np.log2(np.maximum(lengths, 16) / 16)).astype(int)
    return {f"accuracy_to_{most}_tokens": float(right[bucket == most].mean()) for most in np.unique(bucket)}


def evaluate(worker: RolloutWorker, params: Params, *, batch: int = 256) -> Evaluation:
    """Generate one answer to every prompt of the worker.

    Args:
        worker: its sampling should be greedy (temperature 0).
        params: parameters of the policy.
        batch: largest number of prompts per call. The last call is padded with repeats that do not count.
    """
    count = len(worker.prompts.tokens)
    rows = min(count, batch)
    key = jax.random.key(0)
    parts = []
    for begin in range(0, count, rows):
        wanted = np.arange(begin, begin + rows)
        answered = worker.generate(params, (wanted % count).tolist(), 1, key)
        parts.append(take(answered, wanted < count))
    return Evaluation(concatenate(parts))
