"""Numbers of a prepared rollout before its updates."""

import jax.numpy as jnp
import numpy as np

from rljax.algorithms import Batch, Rollout
from rljax.ops.divergence import k3


def cut_share(batch: Batch[np.ndarray]) -> float | None:
    """Share of the trained tokens that the correction capped or left out; None without a correction, or without such a token."""
    if batch.correction_cut is None or not batch.mask.any():
        return None
    return float(batch.correction_cut[batch.mask].mean())


def teacher_kl(rollout: Rollout[np.ndarray]) -> float | None:
    """Estimate of the divergence from the teacher: mean of log π - log π_T over the response tokens, nats; None without one."""
    if rollout.teacher_logp is None or rollout.policy_logp is None or not rollout.mask.any():
        return None
    return float((rollout.policy_logp - rollout.teacher_logp)[rollout.mask].mean())


def measured_batch(
    rollout: Rollout[np.ndarray], batch: Batch[np.ndarray], kl_coefficient: float | None = None
) -> dict[str, float | None]:
    """Numbers of a prepared rollout before its updates, by their names in `LearnMetrics`."""
    advantage = batch.advantage[batch.mask]
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is the guard's to answer
        variance = float(advantage.var(dtype=np.float64)) if advantage.size else None
    return {
        "correction_cut": cut_share(batch),
        "teacher_kl": teacher_kl(rollout),
        "kl_to_reference": kl_to_reference(rollout),
        "kl_coefficient": kl_coefficient,
        "advantage_variance": variance,
    }


def kl_to_reference(rollout: Rollout[np.ndarray]) -> float | None:
    """Estimate of the divergence from the reference: mean of k3 over the response tokens, nats; None without its scores."""
    if rollout.ref_logp is None or not rollout.mask.any():
        return None
    logp = rollout.behaviour_logp if rollout.policy_logp is None else rollout.policy_logp
    return float(np.asarray(k3(jnp.asarray(logp), jnp.asarray(rollout.ref_logp)))[rollout.mask].mean())
