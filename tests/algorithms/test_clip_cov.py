"""Token selection in Clip-Cov and KL-Cov, Clip-Cov's random numbers, and GDPO with weights or an abstaining reward."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.algorithms.clip_cov import sample_uniform
from rljax.ops.batch import batch_normalized

P, G, T = 3, 4, 25
RNG = np.random.default_rng(0)
LOGP = -np.abs(RNG.normal(size=(P, G, T))).astype(np.float32)
REWARDS = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1]], np.float32)


def make_rollout(logp):
    return Rollout(mask=jnp.ones((P, G, T), bool), behaviour_logp=jnp.array(logp), rewards=jnp.array(REWARDS))


def compute_covariance(logp):
    centered = REWARDS - REWARDS.mean(-1, keepdims=True)
    advantage = centered / (REWARDS.std(-1, ddof=1, keepdims=True) + 1e-6)
    return (logp - logp.mean()) * (advantage - advantage.mean())[..., None]


def find_cut_tokens(logp):
    batch = prepare(BY_NAME["clip_cov"](share=0.05, lower=0.1, upper=1.0), make_rollout(logp))
    return np.asarray(batch.advantage == 0).reshape(P, G, T)


def test_clip_cov_cuts_a_fraction_between_the_bounds():
    covariance, chosen = compute_covariance(LOGP), find_cut_tokens(LOGP)
    assert chosen.sum() == round(0.05 * LOGP.size)
    assert ((covariance[chosen] > 0.1) & (covariance[chosen] < 1.0)).all()
    assert ((covariance > 0.1) & (covariance < 1.0)).sum() > 2 * chosen.sum(), (
        "the random numbers choose among these tokens"
    )


def test_random_numbers_depend_on_logp_but_not_on_order():
    assert (find_cut_tokens(LOGP) != find_cut_tokens(LOGP * np.float32(1.001))).any()
    mask = jnp.ones((G, T), bool)
    original, reversed_order = (np.asarray(sample_uniform(jnp.array(logp), mask)) for logp in (LOGP[0], LOGP[0, ::-1]))
    np.testing.assert_array_equal(reversed_order, original[::-1])


def test_random_numbers_differ_for_equal_logp():
    """Half of the tokens have log-probability 0, so their covariances within a response are equal."""
    certain = np.where(np.random.default_rng(1).random(LOGP.shape) < 0.5, 0, LOGP).astype(np.float32)
    assert len(np.unique(sample_uniform(jnp.array(certain), jnp.ones(LOGP.shape, bool)))) == LOGP.size
    assert find_cut_tokens(certain).sum() == round(0.05 * LOGP.size)


def test_random_numbers_ignore_masked_positions():
    mask = np.arange(T) % 3 != 1
    wide = jnp.array(np.where(mask, LOGP[0], np.nan))
    tight = sample_uniform(jnp.array(LOGP[0][:, mask]), jnp.ones((G, mask.sum()), bool))
    spread = np.asarray(sample_uniform(wide, jnp.broadcast_to(mask, (G, T))))
    np.testing.assert_array_equal(spread[:, mask], tight)
    assert not spread[:, ~mask].any()


def test_random_numbers_are_stable_across_versions():
    """The values follow from no formula, but changing them would break the resumption of older runs."""
    logp, mask = jnp.array([[-0.5, -1.25, jnp.nan], [-2.0, -0.75, -3.0]]), jnp.array([[1, 1, 0], [1, 1, 1]])
    expected = [[0.15157294, 0.64719045, 0.0], [0.65393102, 0.47218394, 0.46465504]]
    np.testing.assert_allclose(sample_uniform(logp, mask), expected, rtol=1e-6)


def test_random_numbers_are_uniform():
    samples = np.asarray(sample_uniform(jnp.array(-np.linspace(0.01, 5, 4000, dtype=np.float32)), jnp.ones(4000, bool)))
    assert ((samples >= 0) & (samples < 1)).all()
    shares = np.histogram(samples, bins=5, range=(0, 1))[0] / samples.size
    np.testing.assert_allclose(shares, 0.2, atol=0.03)


def test_kl_cov_penalizes_the_highest_covariances():
    batch = prepare(BY_NAME["kl_cov"](share=0.05), make_rollout(LOGP))
    (weights,) = batch.term_weights
    chosen = np.asarray(weights > 0).reshape(P, G, T)
    covariance = compute_covariance(LOGP)
    assert chosen.sum() == round(0.05 * LOGP.size)
    assert covariance[chosen].min() > covariance[~chosen].max()
    shifted = batch.policy_logp + jnp.float32(0.1)
    penalty = loss(BY_NAME["kl_cov"](share=0.05), shifted, batch)[1].numbers()["kl_cov"]
    assert penalty == pytest.approx(0.1 * 0.05, rel=1e-4)


def test_kl_cov_chooses_by_the_algorithms_advantage():
    """Tokens are chosen once per rollout, whatever the number of minibatches, by the algorithm's own advantage."""
    plain = BY_NAME["kl_cov"](share=0.05)
    negated = plain._replace(advantage=lambda rewards: -plain.advantage(rewards))

    def choose_tokens(algorithm, minibatches):
        (weights,) = prepare(algorithm, make_rollout(LOGP), minibatches=minibatches).term_weights
        return np.asarray(weights > 0).reshape(P, G, T)

    covariance, chosen = -compute_covariance(LOGP), choose_tokens(negated, 1)
    assert chosen.sum() == round(0.05 * LOGP.size)
    assert covariance[chosen].min() > covariance[~chosen].max()
    np.testing.assert_array_equal(choose_tokens(negated, 3), chosen)


def test_normalization_keeps_cut_tokens_at_0():
    algorithm = BY_NAME["clip_cov"](share=0.05, lower=0.1, upper=1.0)._replace(normalize=batch_normalized)
    lengths = np.arange(3, 3 + P * G).reshape(P, G, 1)
    batch = prepare(algorithm, make_rollout(LOGP)._replace(mask=jnp.array(np.arange(T) < lengths)))
    assert (batch.advantage[batch.mask] == 0).sum() == round(0.05 * int(batch.mask.sum()))


def gdpo_advantage(parts, **options):
    algorithm = BY_NAME["gdpo"]()
    if options:
        credit = algorithm.advantage
        algorithm = algorithm._replace(advantage=credit._replace(function=partial(credit.function, **options)))
    rollout = make_rollout(LOGP)._replace(reward_parts={name: jnp.array(part) for name, part in parts.items()})
    return np.asarray(prepare(algorithm, rollout).advantage).reshape(P, G, T)[..., 0]


def test_gdpo_negative_weight_is_a_penalty():
    parts = {"answer": REWARDS, "length": RNG.random((P, G)).astype(np.float32)}
    penalized = gdpo_advantage(parts, weights={"answer": 1.0, "length": -1.0})
    np.testing.assert_allclose(penalized, gdpo_advantage({**parts, "length": -parts["length"]}), rtol=1e-5)
    alone = gdpo_advantage(parts, weights={"answer": 0.0, "length": -0.3})
    longest = parts["length"] == parts["length"].max(-1, keepdims=True)
    assert (alone[longest] < 0).all()
    with pytest.raises(ValueError, match="weights must have the names of the rewards answer, length, got answer"):
        gdpo_advantage(parts, weights={"answer": 1.0})


def test_gdpo_abstaining_reward_adds_nothing():
    parts = {"answer": REWARDS, "form": REWARDS[:, ::-1].copy()}
    parts["form"][0, 3] = np.nan
    rollout = make_rollout(LOGP)._replace(reward_parts={name: jnp.array(part) for name, part in parts.items()})
    advantage = np.asarray(prepare(BY_NAME["gdpo"](), rollout).advantage).reshape(P, G, T)[..., 0]
    assert np.isfinite(advantage).all()

    def zscores(judged):
        return (judged - judged.mean()) / (judged.std(ddof=1) + 1e-6)

    total = np.stack([zscores(group) for group in parts["answer"]])
    for p in range(P):
        judged = ~np.isnan(parts["form"][p])
        total[p, judged] += zscores(parts["form"][p, judged])
    np.testing.assert_allclose(advantage, zscores(total), rtol=1e-4, atol=1e-5)
    fewer = prepare(BY_NAME["gdpo"](), rollout._replace(valid=jnp.ones((P, G), bool).at[0, 3].set(False)))
    assert not np.asarray(fewer.advantage).reshape(P, G, T)[0, 3].any()
