"""Clip-Cov's draw, and what its tokens and those of KL-Cov are; GDPO where a reward has no opinion."""

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.algorithms.clip_cov import uniform_of

P, G, T = 3, 4, 25
RNG = np.random.default_rng(0)
LOGP = -np.abs(RNG.normal(size=(P, G, T))).astype(np.float32)
REWARDS = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1]], np.float32)


def rollout_of(logp):
    return Rollout(mask=jnp.ones((P, G, T), bool), behaviour_logp=jnp.array(logp), rewards=jnp.array(REWARDS))


def covariance_of(logp):
    away = REWARDS - REWARDS.mean(-1, keepdims=True)
    advantage = away / (REWARDS.std(-1, ddof=1, keepdims=True) + 1e-6)
    return (logp - logp.mean()) * (advantage - advantage.mean())[..., None]


def cut(logp):
    batch = prepare(BY_NAME["clip_cov"](share=0.05, lower=0.1, upper=1.0), rollout_of(logp))
    return np.asarray(batch.advantage == 0).reshape(P, G, T)


def test_a_share_of_the_tokens_between_the_bounds_is_cut():
    covariance, chosen = covariance_of(LOGP), cut(LOGP)
    assert chosen.sum() == round(0.05 * LOGP.size)
    assert ((covariance[chosen] > 0.1) & (covariance[chosen] < 1.0)).all()
    assert ((covariance > 0.1) & (covariance < 1.0)).sum() > 2 * chosen.sum(), "the draw decides"


def test_other_log_probabilities_draw_other_tokens_and_another_order_the_same():
    assert (cut(LOGP) != cut(LOGP * np.float32(1.001))).any()
    np.testing.assert_array_equal(cut(LOGP[..., ::-1].copy()), cut(LOGP)[..., ::-1])


def test_the_draw_is_uniform():
    draws = np.asarray(uniform_of(jnp.array(-np.linspace(0.01, 5, 4000, dtype=np.float32))))
    assert ((draws >= 0) & (draws < 1)).all()
    shares = np.histogram(draws, bins=5, range=(0, 1))[0] / draws.size
    np.testing.assert_allclose(shares, 0.2, atol=0.03)


def test_the_penalty_of_kl_cov_is_on_the_tokens_of_highest_covariance():
    batch = prepare(BY_NAME["kl_cov"](share=0.05), rollout_of(LOGP))
    (weights,) = batch.term_weights
    chosen = np.asarray(weights > 0).reshape(P, G, T)
    covariance = covariance_of(LOGP)
    assert chosen.sum() == round(0.05 * LOGP.size)
    assert covariance[chosen].min() > covariance[~chosen].max()
    away = batch.policy_logp + jnp.float32(0.1)
    penalty = loss(BY_NAME["kl_cov"](share=0.05), away, batch)[1].numbers()["kl_cov"]
    assert penalty == pytest.approx(0.1 * 0.05, rel=1e-4)


def test_a_response_that_one_reward_cannot_judge_is_left_out_of_the_comparison():
    parts = {"answer": REWARDS, "form": REWARDS[:, ::-1].copy()}
    parts["form"][0, 3] = np.nan
    rollout = rollout_of(LOGP)._replace(reward_parts={name: jnp.array(part) for name, part in parts.items()})
    advantage = np.asarray(prepare(BY_NAME["gdpo"](), rollout).advantage).reshape(P, G, T)[..., 0]
    assert np.isfinite(advantage).all()
    assert advantage[0, 3] == 0
    fewer = rollout._replace(valid=jnp.ones((P, G), bool).at[0, 3].set(False))
    np.testing.assert_array_equal(
        advantage, np.asarray(prepare(BY_NAME["gdpo"](), fewer).advantage).reshape(P, G, T)[..., 0]
    )
