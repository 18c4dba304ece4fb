"""Metrics of prepared rollouts: the fraction of tokens that the correction cuts, and the KL from the reference."""

import jax.numpy as jnp
import numpy as np

from rljax.algorithms import Batch, Rollout
from rljax.ops.divergence import k3
from rljax.training.setup import Setup
from rljax.training.state import Option


def install(setup: Setup) -> Setup:
    """Add the metrics that can be computed from the algorithm's batches."""
    if setup.algorithm.correction is not None:
        setup = setup.with_option(Option("correction", measure=cut_fraction))
    if setup.algorithm.needs("ref_logp"):
        setup = setup.with_option(Option("reference", measure=kl_to_reference))
    return setup


def cut_fraction(rollout: object, batch: Batch[np.ndarray]) -> dict[str, float]:
    """Return the fraction of trained tokens that the correction capped or left out; empty if no token is trained."""
    del rollout
    if batch.correction_cut is None or not batch.mask.any():
        return {}
    return {"correction_cut": float(batch.correction_cut[batch.mask].mean())}


def kl_to_reference(rollout: Rollout[np.ndarray], batch: object) -> dict[str, float]:
    """Estimate the KL from the reference policy before the updates: the mean of k3 over response tokens, in nats per token."""
    del batch
    if rollout.ref_logp is None or not rollout.mask.any():
        return {}
    logp = rollout.behaviour_logp if rollout.policy_logp is None else rollout.policy_logp
    return {"kl_to_reference": float(np.asarray(k3(jnp.asarray(logp), jnp.asarray(rollout.ref_logp)))[rollout.mask].mean())}
