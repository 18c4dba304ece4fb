"""Estimators, losses and gradients, compared in float64 with another library (the peer) on the same inputs.

The peer minimizes its losses; ours are `-Σ weights · surrogate`. The arrays have 24 responses of 33 tokens. Each test's docstring
names the differences in convention. The peer adds 1e-8 to every token count that it divides by, so no tolerance below 1e-9 works.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import divergence, ratio, surrogate, weights

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module")
def peer(shared_data):
    path = shared_data.parent / "oracles" / "peer_values.npz"
    if not path.is_file():
        pytest.skip(f"{path.name}, with another library's outputs, is not on this machine")
    with np.load(path) as values:
        return dict(values)


def assert_matches_peer(peer, name, surrogates, loss_weights):
    """Compare `-Σ weights · surrogates(logp)` and its gradient with the peer's, at the peer's log-probabilities."""
    compiled = jax.jit(jax.value_and_grad(lambda logp: -(loss_weights * surrogates(logp)).sum()))
    loss, gradient = compiled(jnp.array(peer["in_logp"]))
    np.testing.assert_allclose(loss, peer[f"out_{name}__loss"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(gradient, peer[f"out_{name}__grad"], rtol=0, atol=1e-9)


def sequence_sum(mask):
    """Sum over tokens, mean over responses. rljax has no such weights, because they favor long responses."""
    return mask / mask.shape[0]


AGGREGATIONS = {
    "token-mean": weights.token_mean,
    "seq-mean-token-mean": weights.sequence_mean,
    "seq-mean-token-sum": sequence_sum,
}


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_divergence_estimators(peer, name):
    """The peer returns 0 outside the mask; our estimators take no mask."""
    estimate = getattr(divergence, name)(jnp.array(peer["in_logp"]), jnp.array(peer["in_ref_logp"]))
    np.testing.assert_allclose(np.where(peer["in_mask"], estimate, 0.0), peer[f"out_kl_{name}"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_clipped_loss(peer, aggregation):
    """The peer's default loss includes the dual clip, with c = 3, and clips at 1 - 0.2 and 1 + 0.28."""
    mask = jnp.array(peer["in_mask"])

    def surrogates(logp):
        log_ratio = ratio.token_log_ratio(logp, jnp.array(peer["in_old_logp"]), mask)
        return surrogate.dual_clipped(log_ratio, jnp.array(peer["in_token_advantages"]), low=0.2, high=0.28, cap=3.0)

    assert_matches_peer(peer, f"vanilla__{aggregation}", surrogates, AGGREGATIONS[aggregation](mask))


@pytest.mark.parametrize("log_ratio", [ratio.sequence_log_ratio, ratio.sequence_token_log_ratio])
def test_gspo(peer, log_ratio):
    """The peer uses the token form; if each response has one advantage, both of our forms match it."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_seq_advantages"])

    def surrogates(logp):
        return surrogate.clipped(log_ratio(logp, jnp.array(peer["in_old_logp"]), mask), advantage, low=0.02, high=0.03)

    assert_matches_peer(peer, "gspo__seq-mean-token-mean", surrogates, weights.sequence_mean(mask))


def test_cispo(peer):
    """The peer's weight, clipped to [0.8, 1.28], multiplies log π; ours multiplies log ρ. The test adds the difference."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_token_advantages"])
    behaviour = jnp.array(peer["in_old_logp"])

    def surrogates(logp):
        weight = jax.lax.stop_gradient(jnp.clip(jnp.exp(logp - behaviour), 0.8, 1.28))
        ours = surrogate.cispo(ratio.token_log_ratio(logp, behaviour, mask), advantage, low=0.2, high=0.28)
        return ours + weight * advantage * behaviour

    assert_matches_peer(peer, "cispo__token-mean", surrogates, weights.token_mean(mask))


def test_sapo(peer):
    """The peer ignores its aggregation setting (a token mean) and averages over each response, then over the responses."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_token_advantages"])

    def surrogates(logp):
        return surrogate.sapo(ratio.token_log_ratio(logp, jnp.array(peer["in_old_logp"]), mask), advantage)

    assert_matches_peer(peer, "sapo__token-mean", surrogates, weights.sequence_mean(mask))


def test_geometric_mean(peer):
    """The peer clips at 0.28 if A > 0 and at -0.2 if A < 0; the paper and our default clip at ±0.4. Both average over responses."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_seq_advantages"])

    def surrogates(logp):
        log_ratio = ratio.token_log_ratio(logp, jnp.array(peer["in_old_logp"]), mask)
        good, bad = (surrogate.gmpo(log_ratio, advantage, mask, clip=clip) for clip in (0.28, 0.2))
        return jnp.where(advantage > 0, good, bad)

    assert_matches_peer(peer, "geo_mean__token-mean", surrogates, weights.sequence_mean(mask))
