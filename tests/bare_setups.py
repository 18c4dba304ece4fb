"""A minimal training setup around one score function, for tests of single updates."""

from typing import Any

import optax
from bigram import BIGRAM
from jax.sharding import Mesh

from rljax.algorithms import BY_NAME, Algorithm
from rljax.models.adapters import Base
from rljax.training.config import TrainConfig
from rljax.training.scoring import Score, scores_alone
from rljax.training.setup import Setup, plan_setup


def bare_setup(
    algorithm: Algorithm | None,
    score: Score,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    base: Base | None = None,
    **fields: Any,
) -> Setup:
    """Return a setup without data or tokenizer, with a placeholder policy; its updates score tokens with `score`."""
    setup = plan_setup(TrainConfig(), BY_NAME["grpo"]() if algorithm is None else algorithm, mesh, BIGRAM, optimizer)
    frozen = {} if base is None else {"base": base}
    return setup._replace(base=base, frozen=frozen, forward=scores_alone(score), supervised_score=score, **fields)
