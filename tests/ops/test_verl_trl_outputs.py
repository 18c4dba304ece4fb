"""Corrections, masks, baselines and losses, checked against verl's and TRL's own functions (see `make_verl_trl_outputs.py`).

The arrays are `[6, 5]`: two prompts with three responses each. A comment or docstring names each difference in convention.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms.clip_cov import sample_uniform
from rljax.ops import baseline, correction, gae, off_policy, ratio, surrogate, token_choice, weights

PEER = json.loads(Path(__file__).with_name("verl_trl_outputs.json").read_text())
PEER_OUTPUTS = PEER["outputs"]
(LOW, HIGH), TOKEN_SHARE, DIVERGENCE = (PEER["settings"][name] for name in ("bounds", "share", "divergence"))
TOKEN_MASK = np.array(PEER["inputs"]["mask"]) > 0
PRECISIONS = {"single": (jnp.float32, 1e-6), "double": (jnp.float64, 1e-9)}
"""Name -> dtype and tolerance of our results; the peers' are float64. A float32 has a relative rounding error of up to 6e-8, in
the inputs and in each of a dozen steps, so single precision can only reach 1e-6."""


class Inputs:
    """The file's inputs in one precision, and the tolerance of our results in that precision."""

    def __init__(self, dtype, tolerance):
        self.tolerance = tolerance
        self.mask = jnp.array(TOKEN_MASK)
        for name in PEER["inputs"].keys() - {"mask"}:
            setattr(self, name, jnp.array(PEER["inputs"][name], dtype))

    def by_group(self, name):
        """One of the arrays, grouped by prompt: `[2, 3, 5]`."""
        return getattr(self, name).reshape(2, 3, 5)

    def assert_same(self, ours, theirs):
        """Assert that the values inside the mask agree."""
        ours, theirs = (np.where(TOKEN_MASK, np.asarray(x, float).reshape(6, 5), 0.0) for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=self.tolerance, atol=self.tolerance)


@pytest.fixture(params=PRECISIONS)
def inputs(request):
    dtype, tolerance = PRECISIONS[request.param]
    with jax.enable_x64(dtype == jnp.float64):
        yield Inputs(dtype, tolerance)


CORRECTIONS = {
    "token_truncated": lambda *logp: correction.truncated_importance_weight(*logp, cap=HIGH),
    "token_masked": lambda *logp: correction.masked_importance_weight(*logp, low=LOW, high=HIGH),
    "sequence_truncated": lambda *logp: correction.sequence_truncated_importance_weight(*logp, cap=HIGH),
    "sequence_masked": lambda *logp: correction.sequence_masked_importance_weight(*logp, low=LOW, high=HIGH),
    # verl's ratio is sampler over learner, so its bounds are the reciprocals of ours.
    "geometric": lambda *logp: correction.geometric_rejection(*logp, low=0.95, high=1.05),
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections_match_verl(inputs, name):
    ours = CORRECTIONS[name](inputs.logp, inputs.old, inputs.mask)
    inputs.assert_same(ours, PEER_OUTPUTS[name])
    assert len(set(np.array(PEER_OUTPUTS[name])[TOKEN_MASK].tolist())) > 1, "some weights must be cut and others not"


def test_baselines_match_verl(inputs):
    rewards, mask = inputs.by_group("token_rewards"), inputs.mask.reshape(2, 3, 5)
    inputs.assert_same(baseline.length_weighted_returns(rewards, mask), PEER_OUTPUTS["opo"])
    returns = gae.monte_carlo_returns(rewards, mask, gamma=1.0)
    ours = baseline.optimal_token_baseline(returns, inputs.by_group("old"), inputs.by_group("square_sum"), mask)
    # verl allows negative norms, which some tokens here have, so each group is compared only before its first negative norm.
    norms = jnp.where(mask, 1 - 2 * jnp.exp(inputs.by_group("old")) + inputs.by_group("square_sum"), 0.0)
    comparable = np.logical_and.accumulate((np.asarray(norms) >= 0).all(1), -1)[:, None] & np.asarray(mask)
    assert 4 <= comparable.sum() < np.asarray(mask).sum()
    theirs = np.where(comparable.reshape(-1, 5), PEER_OUTPUTS["otb"], 0.0)
    inputs.assert_same(jnp.where(comparable, ours, 0.0), theirs)
    greedy = baseline.greedy_centered(rewards.sum(-1), inputs.greedy.reshape(2, 3)[:, 0])
    inputs.assert_same(jnp.broadcast_to(greedy[..., None], mask.shape), PEER_OUTPUTS["remax"])


def token_mean_loss(objective):
    def loss(logp, inputs):
        return -(weights.token_mean(inputs.mask) * jnp.where(inputs.mask, objective(logp, inputs), 0.0)).sum()

    return loss


def log_ratio(logp, inputs):
    return ratio.token_log_ratio(logp, inputs.old, inputs.mask)


def dppo(divergence):
    """verl caps the ratio at 20, which no ratio here reaches."""

    def objective(logp, inputs):
        gap = log_ratio(logp, inputs)
        keep = off_policy.in_trust_region(gap, inputs.advantage, divergence(logp, inputs.old), threshold=DIVERGENCE)
        weight = jax.lax.stop_gradient(jnp.where(keep, jnp.exp(gap), 0.0))
        return surrogate.reinforce(logp, weight * inputs.advantage)

    return token_mean_loss(objective)


def sequence_mean_loss(objective):
    """verl divides by the length + 1e-8."""
    lengths = TOKEN_MASK.sum(-1, keepdims=True)

    def loss(logp, inputs):
        gain = objective(logp, inputs)
        return -(weights.sequence_mean(inputs.mask) * jnp.array(lengths / (lengths + 1e-8), gain.dtype) * gain).sum()

    return loss


@sequence_mean_loss
def gspo(logp, inputs):
    """verl uses GSPO's token form."""
    gap = ratio.sequence_token_log_ratio(logp, inputs.old, inputs.mask)
    return surrogate.clipped(gap, inputs.advantage, low=0.02, high=0.03)


@sequence_mean_loss
def sapo(logp, inputs):
    return surrogate.sapo(log_ratio(logp, inputs), inputs.advantage)


@token_mean_loss
def clip_cov(logp, inputs):
    """All candidates are selected, so no random number matters. Tokens that PPO already clips are not candidates."""
    gap = log_ratio(logp, inputs)
    value, slope = jax.jvp(
        lambda x: surrogate.clipped(x, inputs.advantage, low=0.1, high=0.15), (gap,), (jnp.ones_like(gap),)
    )
    covariance = jax.lax.stop_gradient(token_choice.token_covariance(logp, inputs.advantage, inputs.mask))
    candidates = inputs.mask & (slope != 0)
    cut = token_choice.clip_cov_tokens(
        covariance, sample_uniform(inputs.old, inputs.mask), candidates, lower=0.05, upper=0.6, share=1.0
    )
    return jnp.where(cut, 0.0, value)


@token_mean_loss
def kl_cov(logp, inputs):
    gap = log_ratio(logp, inputs)
    covariance = jax.lax.stop_gradient(token_choice.token_covariance(logp, inputs.advantage, inputs.mask))
    penalized = token_choice.kl_cov_tokens(covariance, inputs.mask, share=TOKEN_SHARE)
    return surrogate.clipped(gap, inputs.advantage, low=1.0, high=jnp.inf) - jnp.where(penalized, 0.7 * jnp.abs(gap), 0.0)


LOSSES = {
    "dppo_tv": dppo(off_policy.binary_total_variation),
    "dppo_kl": dppo(off_policy.binary_kl),
    "gspo": gspo,
    "sapo": sapo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_match_verl(inputs, name):
    loss, gradient = jax.value_and_grad(LOSSES[name])(inputs.logp, inputs)
    np.testing.assert_allclose(loss, PEER_OUTPUTS[name]["loss"], rtol=inputs.tolerance, atol=inputs.tolerance)
    inputs.assert_same(gradient, PEER_OUTPUTS[name]["gradient"])
    assert (np.array(PEER_OUTPUTS[name]["gradient"])[TOKEN_MASK] == 0).any() == (
        name in {"dppo_tv", "dppo_kl", "gspo", "clip_cov"}
    )


def test_masks_and_weights_match_trl(inputs):
    ours = token_choice.high_entropy_tokens(inputs.entropy, inputs.mask, share=TOKEN_SHARE)
    inputs.assert_same(ours, PEER_OUTPUTS["high_entropy"])
    ours = correction.off_policy_sequence_mask(inputs.logp, inputs.old, inputs.advantage, inputs.mask, delta=0.02)
    inputs.assert_same(ours, PEER_OUTPUTS["off_policy_sequence"])
    assert not ours[inputs.mask].all()
    gap = off_policy.whole_response_token_log_ratio(inputs.logp, inputs.old, inputs.mask)
    slope = jax.grad(lambda x: off_policy.gamma_weighted(x, inputs.advantage).sum())(gap)
    inputs.assert_same(slope / inputs.advantage, PEER_OUTPUTS["gamma"])
