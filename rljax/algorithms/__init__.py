"""Floor 2: published algorithms, each a record of equations."""

from collections.abc import Callable

from rljax.algorithms.algorithm import Algorithm, Batch, Policy, Rollout, Term, loss, prepare
from rljax.algorithms.dapo import dapo
from rljax.algorithms.dr_grpo import dr_grpo
from rljax.algorithms.grpo import grpo
from rljax.algorithms.rloo import rloo

BY_NAME: dict[str, Callable[..., Algorithm]] = {
    "dapo": dapo,
    "dr_grpo": dr_grpo,
    "grpo": grpo,
    "rloo": rloo,
}

__all__ = ["BY_NAME", "Algorithm", "Batch", "Policy", "Rollout", "Term", "loss", "prepare", *BY_NAME]
