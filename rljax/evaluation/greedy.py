"""Held-out accuracy under greedy decoding."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.evaluation.comparison import answer_rows
from rljax.models import Params
from rljax.records import required
from rljax.rollout import Groups, RolloutWorker
from rljax.rollout.groups import concatenate, part_means, right_and_known, take

OF_A_SET = ("accuracy", "reward", "judged", "response_length", "truncated_share")
"""Metrics that are reported for each further held-out set NAME, for example as `accuracy_on_NAME`."""
SHORTEST_RANGE = 16
"""Number of tokens in the first range of lengths."""


class Evaluation(NamedTuple):
    """Greedy answers to every prompt."""

    groups: Groups
    """One response per prompt."""
    further: Mapping[str, "Evaluation"] = MappingProxyType({})
    """Name of a further held-out set -> the answers to its prompts."""

    @property
    def best_metric(self) -> str:
        """Metric that selects the best checkpoint by default: the accuracy if correctness is known, else the reward."""
        return "reward" if self.groups.rollout.correct is None else "accuracy"

    def metrics(self) -> dict[str, float]:
        """Return averages over responses, such as the accuracy, the reward and the reward's parts, and counts of answers."""
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
            **self._of_further_sets(),
        }

    def _of_further_sets(self) -> dict[str, float]:
        found = {name: evaluation.metrics() for name, evaluation in self.further.items()}
        return {f"{metric}_on_{name}": metrics[metric] for name, metrics in found.items() for metric in OF_A_SET}

    def rows(self, worker: RolloutWorker, step: int, *, most: int) -> list[dict[str, Any]]:
        """Make rows of `heldout.jsonl` from the first `most` answers per set; in a further set, `set` is the set's name.

        Args:
            worker: the worker that sampled the answers.
            step: number of RL steps done.
            most: largest number of answers per set.
        """
        valid = required(self.groups.rollout.valid, "rollout.valid")[:most, 0]
        rows = answer_rows(worker.sample_rows(self.groups, most), valid.tolist(), step)
        for name, evaluation in self.further.items():
            rows += [{**row, "set": name} for row in evaluation.rows(worker.further[name], step, most=most)]
        return rows


def accuracy_by_length(right: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Accuracy by response length: up to 16 tokens, then in ranges that double. Empty ranges are omitted.

    Example:
        >>> accuracy_by_length(np.array([True, False, True]), np.array([3, 16, 40]))
        {'accuracy_to_16_tokens': 0.5, 'accuracy_to_64_tokens': 1.0}
    """
    last = last_of_range(lengths)
    return {f"accuracy_to_{most}_tokens": float(right[last == most].mean()) for most in np.unique(last)}


def last_of_range(lengths: np.ndarray) -> np.ndarray:
    """Return the last length of the range that each length is in: up to 16 tokens, then in ranges that double.

    Example:
        >>> last_of_range(np.array([1, 16, 17, 100])).tolist()
        [16, 16, 32, 128]
    """
    return SHORTEST_RANGE * 2 ** np.ceil(np.log2(np.maximum(lengths, SHORTEST_RANGE) / SHORTEST_RANGE)).astype(int)


def evaluate(worker: RolloutWorker, params: Params, *, batch: int = 256) -> Evaluation:
    """Generate one answer to every prompt of the worker and of its further sets.

    Args:
        worker: the worker that samples the answers; set its temperature to 0 for greedy answers.
        params: parameters of the policy.
        batch: largest number of prompts per call. The last call is padded with repeated prompts, whose answers are dropped.
    """
    count = len(worker.prompts.tokens)
    rows = min(count, batch)
    key = jax.random.key(0)
    parts = []
    for begin in range(0, count, rows):
        wanted = np.arange(begin, begin + rows)
        answered = worker.generate(params, (wanted % count).tolist(), 1, key)
        parts.append(take(answered, wanted < count))
    further = {name: evaluate(each, params, batch=batch) for name, each in worker.further.items()}
    return Evaluation(concatenate(parts), further)
