"""`--kl-limit`: stop updating on a rollout once the policy is too far from the policy that sampled it."""

from collections.abc import Sequence

import numpy as np

from rljax.records import required
from rljax.training.metrics import LearnMetrics, UpdateMetrics
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates


def install(setup: Setup) -> Setup:
    """Install the option that stops updating on a rollout once the KL exceeds the limit, and reports how many updates were made."""
    limit = required(setup.config.optimization.kl_limit, "kl_limit")
    return setup.with_option(
        Option("kl_limit", stop=lambda updates: exceeds_limit(limit, updates), after_updates=count_updates)
    )


def exceeds_limit(limit: float, updates: Sequence[UpdateMetrics]) -> bool:
    """Return True if the mean KL from the sampling policy, over the updates so far, exceeds the limit.

    ::

        (1/n) Σ_i KL_i > δ        KL_i = mean_t k3(log π_sampled, log π_i)

    π_sampled is the policy that sampled, before top-k and top-p, and π_i the policy before update i.

    Args:
        limit: δ, in nats per token.
        updates: metrics of the updates so far; skipped updates do not count.

    Returns:
        Whether the mean exceeds the limit; False before the first update.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import LossMetrics
        >>> updates = [UpdateMetrics(LossMetrics(*jnp.full(6, kl), terms={}), 1.0) for kl in (0.0, 0.03)]
        >>> exceeds_limit(0.02, updates), exceeds_limit(0.01, updates), exceeds_limit(0.01, updates[:1])
        (False, True, False)
    """
    kls = [float(update.loss.kl) for update in updates if update.loss is not None and not update.skipped_updates]
    return bool(kls) and float(np.mean(kls)) > limit


def count_updates(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
    """Report how many of the planned updates were made."""
    del metrics
    return state, {"updates": float(len(updates.metrics)), "planned_updates": float(updates.planned)}
