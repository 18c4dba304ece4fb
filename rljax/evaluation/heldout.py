"""Evaluation on held-out prompts: one answer per prompt, greedy if the worker's temperature is 0."""

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
from rljax.rollout.groups import concatenate, correctness_masks, mean_parts_and_metrics, take

PER_SET_METRICS = ("accuracy", "reward", "judged", "response_length", "truncated_share")
"""Metrics that are reported for each extra held-out set NAME, for example as `accuracy_on_NAME`."""
SHORTEST_RANGE = 16
"""Number of tokens in the first range of lengths."""


class Evaluation(NamedTuple):
    """Answers to every held-out prompt."""

    groups: Groups
    """One response per prompt."""
    extra_sets: Mapping[str, "Evaluation"] = MappingProxyType({})
    """Name of an extra held-out set -> the answers to its prompts."""

    @property
    def best_metric(self) -> str:
        """Metric that selects the best checkpoint by default: the accuracy if correctness is known, else the reward."""
        return "reward" if self.groups.rollout.correct is None else "accuracy"

    def metrics(self) -> dict[str, float]:
        """Return counts of answers and averages over responses, such as the accuracy, the reward and the parts of the reward."""
        rollout = self.groups.rollout
        rewards, lengths = rollout.rewards[required(rollout.valid, "rollout.valid")], self.groups.attention.sum(-1)
        right, known = correctness_masks(rollout)
        return {
            "accuracy": float(right[known].mean()) if known.any() else math.nan,
            "reward": float(rewards.mean(dtype=np.float64)) if rewards.size else math.nan,
            "judged": int(known.sum()),
            "answers": known.size,
            "response_length": float(lengths.mean()),
            "truncated_share": float(required(rollout.truncated, "rollout.truncated").mean()),
            **accuracy_by_length(right[known], lengths[known]),
            **mean_parts_and_metrics(self.groups),
            **self._extra_set_metrics(),
        }

    def _extra_set_metrics(self) -> dict[str, float]:
        found = {name: evaluation.metrics() for name, evaluation in self.extra_sets.items()}
        return {f"{metric}_on_{name}": metrics[metric] for name, metrics in found.items() for metric in PER_SET_METRICS}

    def rows(self, worker: RolloutWorker, step: int, *, max_answers: int) -> list[dict[str, Any]]:
        """Make rows of `heldout.jsonl`; rows of an extra set carry its name in the column `set`.

        Args:
            worker: the worker that sampled the answers.
            step: number of RL steps done.
            max_answers: maximum number of answers per set; answers to later problems are left out.
        """
        valid = required(self.groups.rollout.valid, "rollout.valid")[:max_answers, 0]
        rows = answer_rows(worker.sample_rows(self.groups, max_answers), valid.tolist(), step)
        for name, evaluation in self.extra_sets.items():
            own = evaluation.rows(worker.extra_sets[name], step, max_answers=max_answers)
            rows += [{**row, "set": name} for row in own]
        return rows


def accuracy_by_length(right: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Compute the accuracy by response length: up to 16 tokens, then in ranges that double. Empty ranges are omitted.

    Example:
        >>> accuracy_by_length(np.array([True, False, True]), np.array([3, 16, 40]))
        {'accuracy_to_16_tokens': 0.5, 'accuracy_to_64_tokens': 1.0}
    """
    last = last_of_range(lengths)
    return {f"accuracy_to_{most}_tokens": float(right[last == most].mean()) for most in np.unique(last)}


def last_of_range(lengths: np.ndarray) -> np.ndarray:
    """Return the last length of the range that contains each length. The first ends at 16 tokens; then each ends at twice the last.

    Example:
        >>> last_of_range(np.array([1, 16, 17, 100])).tolist()
        [16, 16, 32, 128]
    """
    return SHORTEST_RANGE * 2 ** np.ceil(np.log2(np.maximum(lengths, SHORTEST_RANGE) / SHORTEST_RANGE)).astype(int)


def evaluate(worker: RolloutWorker, params: Params, *, batch: int = 256) -> Evaluation:
    """Generate one answer to every prompt of the worker and of its extra sets.

    Args:
        worker: the worker that samples the answers; set its temperature to 0 for greedy answers.
        params: parameters of the policy.
        batch: maximum number of prompts per call. The last call is padded with repeated prompts, whose answers are dropped.
    """
    count = len(worker.prompts.tokens)
    rows = min(count, batch)
    key = jax.random.key(0)
    parts = []
    for begin in range(0, count, rows):
        wanted = np.arange(begin, begin + rows)
        answered = worker.generate(params, (wanted % count).tolist(), 1, key)
        parts.append(take(answered, wanted < count))
    extra_sets = {name: evaluate(each, params, batch=batch) for name, each in worker.extra_sets.items()}
    return Evaluation(concatenate(parts), extra_sets)
