"""Passes over a rollout: the order of the policy's updates, and the divergence beyond which they stop."""

from collections.abc import Sequence

import numpy as np

from rljax.training.metrics import UpdateMetrics


def update_order(minibatches: int, passes: int, *, seed: int, step: int) -> list[int]:
    """Mini-batches of a rollout in the order of their updates.

    The first pass goes through them as they lie. Each later one has a random order of its own, which depends on the seed and on
    the step alone: a resumed run needs nothing else to draw it again.

    Args:
        minibatches: number of mini-batches.
        passes: number of passes over all of them.
        seed: of the run.
        step: RL steps done.

    Returns:
        An index for each of the `minibatches * passes` updates.

    Example:
        >>> update_order(4, 3, seed=0, step=7)
        [0, 1, 2, 3, 1, 3, 2, 0, 3, 2, 0, 1]
    """
    later = [np.random.default_rng((seed, step, number)).permutation(minibatches) for number in range(1, passes)]
    return np.concatenate([np.arange(minibatches), *later]).tolist()


def is_beyond(limit: float | None, updates: Sequence[UpdateMetrics]) -> bool:
    """True if the policy has moved further from the one that sampled than a limit, in the mean over the updates so far.

    ::

        (1/n) Σ_i KL_i > δ        KL_i = mean_t k3(log π_behaviour, log π_i), π_i the policy as update i found it

    Args:
        limit: δ, nats a token; None: there is none.
        updates: metrics of the updates so far; those that were skipped do not count.

    Returns:
        False before the first update.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import LossMetrics
        >>> found = [UpdateMetrics(LossMetrics(*jnp.full(6, kl), terms={}), 1.0) for kl in (0.0, 0.03)]
        >>> is_beyond(0.02, found), is_beyond(0.01, found), is_beyond(0.01, found[:1])
        (False, True, False)
    """
    found = [float(update.loss.kl) for update in updates if update.loss is not None and not update.skipped_updates]
    return limit is not None and bool(found) and float(np.mean(found)) > limit
