"""Estimators, losses and gradients against another library's, computed in float64 on the same inputs.

Its losses are minimised, ours are `-Σ weights · surrogate`; its arrays are 24 rows of 33 tokens. Each difference of convention
is named where it is met. It adds 1e-8 to every count of tokens it divides by, hence 1e-9 and not 1e-12 throughout.
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
        pytest.skip(f"another library's numbers, {path}, are not on this machine")
    with np.load(path) as values:
        return dict(values)


def assert_equals(peer, name, surrogates, loss_weights):
    """Compare `-Σ weights · surrogates(logp)` and its gradient with the peer's, at the peer's log-probabilities."""
    compiled = jax.jit(jax.value_and_grad(lambda logp: -(loss_weights * surrogates(logp)).sum()))
    loss, gradient = compiled(jnp.array(peer["in_logp"]))
    np.testing.assert_allclose(loss, peer[f"out_{name}__loss"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(gradient, peer[f"out_{name}__grad"], rtol=0, atol=1e-9)


def sequence_sum(mask):
    """Sum over tokens, mean over responses; no weighting of ours, since it favours long responses by their length."""
    return mask / mask.shape[0]


AGGREGATIONS = {
    "token-mean": weights.token_mean,
    "seq-mean-token-mean": weights.sequence_mean,
    "seq-mean-token-sum": sequence_sum,
}


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_divergence_estimators(peer, name):
    """It leaves 0 outside the mask, where ours does not look."""
    estimate = getattr(divergence, name)(jnp.array(peer["in_logp"]), jnp.array(peer["in_ref_logp"]))
    np.testing.assert_allclose(np.where(peer["in_mask"], estimate, 0.0), peer[f"out_kl_{name}"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_clipped_loss(peer, aggregation):
    """Its ordinary loss has the dual clip switched on, with c = 3, and ranges 0.2 and 0.28."""
    mask = jnp.array(peer["in_mask"])

    def surrogates(logp):
        log_ratio = ratio.token_log_ratio(logp, jnp.array(peer["in_old_logp"]), mask)
        return surrogate.dual_clipped(log_ratio, jnp.array(peer["in_token_advantages"]), low=0.2, high=0.28, cap=3.0)

    assert_equals(peer, f"vanilla__{aggregation}", surrogates, AGGREGATIONS[aggregation](mask))


@pytest.mark.parametrize("log_ratio", [ratio.sequence_log_ratio, ratio.sequence_token_log_ratio])
def test_gspo(peer, log_ratio):
    """It computes the token form, with ranges 0.02 and 0.03; for an advantage constant over a row ours agree in both forms."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_seq_advantages"])

    def surrogates(logp):
        return surrogate.clipped(log_ratio(logp, jnp.array(peer["in_old_logp"]), mask), advantage, low=0.02, high=0.03)

    assert_equals(peer, "gspo__seq-mean-token-mean", surrogates, weights.sequence_mean(mask))


def test_cispo(peer):
    """Its weight is clipped to [0.8, 1.28] and it multiplies log π; ours multiplies log ρ, less by weight · A · log π_old."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_token_advantages"])
    behaviour = jnp.array(peer["in_old_logp"])

    def surrogates(logp):
        weight = jax.lax.stop_gradient(jnp.clip(jnp.exp(logp - behaviour), 0.8, 1.28))
        ours = surrogate.cispo(ratio.token_log_ratio(logp, behaviour, mask), advantage, low=0.2, high=0.28)
        return ours + weight * advantage * behaviour

    assert_equals(peer, "cispo__token-mean", surrogates, weights.token_mean(mask))


def test_sapo(peer):
    """The peer ignores the aggregation of its settings (a token mean): it takes the mean over responses of token means."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_token_advantages"])

    def surrogates(logp):
        return surrogate.sapo(ratio.token_log_ratio(logp, jnp.array(peer["in_old_logp"]), mask), advantage)

    assert_equals(peer, "sapo__token-mean", surrogates, weights.sequence_mean(mask))


def test_geometric_mean(peer):
    """It clips at 0.28 for A > 0 and at -0.2 for A < 0, the paper (and ours) at ±0.4; it too averages over responses."""
    mask, advantage = jnp.array(peer["in_mask"]), jnp.array(peer["in_seq_advantages"])

    def surrogates(logp):
        log_ratio = ratio.token_log_ratio(logp, jnp.array(peer["in_old_logp"]), mask)
        good, bad = (surrogate.gmpo(log_ratio, advantage, mask, clip=clip) for clip in (0.28, 0.2))
        return jnp.where(advantage > 0, good, bad)

    assert_equals(peer, "geo_mean__token-mean", surrogates, weights.sequence_mean(mask))
