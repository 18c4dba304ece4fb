"""Value heads: the values that they compute from the critic's outputs, and the loss of a categorical head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, prepare, value_loss
from rljax.algorithms.parts import with_parts
from rljax.algorithms.value_head import HEADS, mixture

P, G, T = 2, 2, 3
MASK = jnp.ones((P, G, T), bool).at[0, 0, 2:].set(False)
RNG = np.random.default_rng(0)
ROLLOUT = Rollout(
    mask=MASK,
    behaviour_logp=jnp.asarray(RNG.normal(size=(P, G, T)), jnp.float32),
    rewards=jnp.array([[1.0, 0.0], [0.0, 1.0]]),
    values=jnp.asarray(RNG.uniform(size=(P, G, T)), jnp.float32),
)


def with_head(head):
    algorithm = BY_NAME["vapo"]()
    return algorithm._replace(critic=algorithm.critic._replace(head=head))


@pytest.mark.parametrize("name", HEADS)
def test_head_computes_one_value_per_token(name):
    head = HEADS[name]()
    outputs = jnp.asarray(RNG.normal(size=(P, T, head.size)), jnp.float32)
    values = head.value(outputs)
    assert values.shape == (P, T)
    assert (head.distribution is None) == (head.support is None)
    assert np.ptp(np.asarray(values)) > 0


def test_mixture_is_the_weighted_mean_of_its_heads():
    outputs = jnp.asarray(RNG.normal(size=(50, 6)), jnp.float32)
    values = mixture(heads=3).value(outputs)
    weights = np.exp(outputs[:, 3:]) / np.exp(outputs[:, 3:]).sum(-1, keepdims=True)
    np.testing.assert_allclose(values, (weights * outputs[:, :3]).sum(-1), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="heads must be at least 2, got 1"):
        mixture(heads=1)


@pytest.mark.parametrize("name", ["two_hot", "hl_gauss"])
def test_categorical_head_minimizes_cross_entropy(name):
    head = HEADS[name](low=-1.0, high=2.0, bins=7)
    algorithm = with_head(head)
    batch = prepare(algorithm, ROLLOUT)
    outputs = jnp.asarray(RNG.normal(size=(P * G, T, 7)), jnp.float32)

    def total(outputs):
        return value_loss(algorithm, head.value(outputs), batch, outputs=outputs)[0]

    logp = jax.nn.log_softmax(outputs, -1)
    expected = 0.0
    for row in range(P * G):
        for t in range(T):
            if batch.mask[row, t]:
                target = np.asarray(head.distribution(batch.value_target[row, t][None]))[0]
                expected -= float(batch.value_weights[row, t]) * (target * np.asarray(logp[row, t])).sum()
    np.testing.assert_allclose(total(outputs), expected, rtol=1e-5)
    fitted, gradient = outputs, jax.jit(jax.grad(total))
    for _ in range(400):
        fitted = fitted - 5.0 * gradient(fitted)
    errors = np.abs(np.asarray(head.value(fitted) - batch.value_target))[np.asarray(batch.mask)]
    assert errors.max() < 0.1


def test_categorical_head_needs_outputs():
    algorithm = with_head(HEADS["two_hot"]())
    batch = prepare(algorithm, ROLLOUT)
    with pytest.raises(
        ValueError, match=r"outputs must be the logits of the categorical head, of shape \[4, 3, 21\], got None"
    ):
        value_loss(algorithm, jnp.zeros((4, 3)), batch)
    for bins in (20, 22):
        with pytest.raises(ValueError, match=rf"of shape \[4, 3, 21\], got \[4, 3, {bins}\]"):
            value_loss(algorithm, jnp.zeros((4, 3)), batch, outputs=jnp.zeros((4, 3, bins)))


@pytest.mark.parametrize(
    ("hyperparameters", "initial", "decay", "eta"), [("", 0.8, 2.0, 1.0), (",initial=0.6,decay=1,eta=3", 0.6, 1.0, 3.0)]
)
def test_pretrained_value_weight_decays(hyperparameters, initial, decay, eta):
    """Checked against w V_pretrained + (1 - w) V_current, where w = w_0 exp(-κ t) / (1 + η max(EV, 0))."""
    blend = with_parts(BY_NAME["vapo"](), [f"critic.blend=pretrained_value{hyperparameters}"]).critic.blend
    rng = np.random.default_rng(0)
    pretrained, current = rng.normal(size=(2, P, G, T)).astype(np.float32)
    for progress, explained in ((0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (0.0, 1.0), (0.3, 0.4), (0.0, -3.0)):
        weight = initial * np.exp(-decay * progress) / (1 + eta * max(explained, 0.0))
        found = blend(jnp.asarray(pretrained), jnp.asarray(current), jnp.array(progress), jnp.array(explained))
        np.testing.assert_allclose(found, weight * pretrained + (1 - weight) * current, rtol=1e-5, atol=1e-6)
