"""Held-out accuracy under greedy decoding."""

from typing import NamedTuple

import jax
import numpy as np

from rljax.models import Params
from rljax.rollout import Engine, Groups
from rljax.rollout.groups import concatenate, take


class Evaluation(NamedTuple):
    """What greedy decoding of every held-out prompt gave."""

    groups: Groups
    """One response a prompt."""

    def metrics(self) -> dict[str, float]:
        """Averages over the prompts whose response the reward had an opinion on."""
        valid = self.groups.valid
        lengths = self.groups.mask.sum(-1)
        return {
            "accuracy": float((self.groups.rewards > 0)[valid].mean()) if valid.any() else float("nan"),
            "reward": float(self.groups.rewards[valid].mean()) if valid.any() else float("nan"),
            "response_length": float(lengths.mean()),
            "truncated_share": float(self.groups.truncated.mean()),
        }


def evaluate(engine: Engine, params: Params, *, batch: int) -> Evaluation:
    """Answer every prompt of the engine once, `batch` at a time.

    Args:
        engine: its sampling should be greedy (temperature 0).
        params: of the policy.
        batch: prompts a call, a multiple of the mesh's devices; the last call is filled up with repeats that do not count.
    """
    count = len(engine.prompts.tokens)
    key = jax.random.key(0)
    parts = []
    for begin in range(0, count, batch):
        wanted = np.arange(begin, begin + batch)
        answered = engine.generate(params, (wanted % count).tolist(), 1, key)
        parts.append(take(answered, wanted < count))
    return Evaluation(concatenate(parts))
