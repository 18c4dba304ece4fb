"""Preference algorithms, trained on a choice of four responses until they reach the policy that theory predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare

REWARDS = np.array([1.0, 0.75, 0.25, 0.0])
REFERENCE = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
PROMPTS, GROUP = 64, 16


def train(algorithm, steps, rate):
    """Train on one-token responses from the reference; return the mean policy of the second half of the steps."""

    def step(logits, key):
        logp = jax.nn.log_softmax(logits)
        actions = jax.random.categorical(key, logp, shape=(PROMPTS, GROUP))

        def gather(values):
            return jnp.asarray(values)[actions][..., None]

        rollout = Rollout(
            mask=jnp.ones((PROMPTS, GROUP, 1), bool),
            behaviour_logp=gather(logp),
            rewards=gather(REWARDS.astype(np.float32))[..., 0],
            ref_logp=gather(REFERENCE.astype(np.float32)),
        )
        batch = prepare(algorithm, rollout)

        def objective(logits):
            return loss(algorithm, gather(jax.nn.log_softmax(logits)).reshape(-1, 1), batch)[0]

        logits = logits - rate * jax.grad(objective)(logits)
        return logits, jax.nn.softmax(logits)

    start, keys = jnp.array(REFERENCE, jnp.float32), jax.random.split(jax.random.key(0), steps)
    _, policies = jax.jit(lambda start, keys: jax.lax.scan(step, start, keys))(start, keys)
    return np.asarray(policies[steps // 2 :].mean(0))


def tilt_reference(scores):
    weights = np.exp(REFERENCE + scores)
    return weights / weights.sum()


def test_a_star_po_reaches_the_kl_regularized_optimum():
    policy = train(BY_NAME["a_star_po"](beta1=0.5, beta2=0.5), 800, 1.0)
    np.testing.assert_allclose(policy, tilt_reference(REWARDS / 0.5), atol=0.01)


@pytest.mark.parametrize("mixture", [0.0, 0.5, 1.0])
def test_nash_md_reaches_the_best_response_to_its_mixture(mixture):
    """π ∝ π_ref exp(P(y ≻ π^c) / τ), where π^c is the geometric mixture of π and π_ref."""
    tau = 0.5
    wins = (1 + np.sign(REWARDS[:, None] - REWARDS)) / 2
    policy = np.exp(REFERENCE)
    for _ in range(200):
        opponent = policy ** (1 - mixture) * np.exp(mixture * REFERENCE)
        policy = tilt_reference(wins @ (opponent / opponent.sum()) / tau)
    np.testing.assert_allclose(train(BY_NAME["nash_md"](mixture=mixture, tau=tau), 800, 1.0), policy, atol=0.01)


def test_online_dpo_ranks_responses_by_their_rewards():
    policy = train(BY_NAME["online_dpo"](beta=0.5), 400, 1.0)
    assert policy[0] > 0.9
    assert policy[-1] < 0.01
    margins = np.log(policy) - REFERENCE
    assert margins[0] > margins[1] > margins[2:].max(), "a response with less reward gains less"


def test_xpo_optimism_moves_away_from_the_reference():
    """The most likely response of the reference loses more probability than with preferences alone."""
    plain, optimistic = (train(BY_NAME["xpo"](beta=0.5, alpha=alpha), 400, 1.0) for alpha in (0.0, 0.05))
    common = int(np.argmax(REFERENCE))
    assert optimistic[common] < 0.9 * plain[common]
