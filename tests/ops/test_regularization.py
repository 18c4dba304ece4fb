"""Regularization terms, checked against sums written from the formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import arrays

from rljax.ops import regularization

ROWS, TOKENS = 3, 4

jit_weights = jax.jit(regularization.positive_example_weights)
jit_likelihood = jax.jit(regularization.negative_log_likelihood)
jit_dynamic = jax.jit(regularization.dynamic_fine_tuning_loss)


masks = hnp.arrays(bool, (ROWS, TOKENS))


# Positive examples


@given(hnp.arrays(bool, ROWS), masks)
def test_positive_example_weights_match_formula(correct, mask):
    with jax.enable_x64(True):
        total = sum(mask[i].sum() for i in range(ROWS) if correct[i])
        expected = [[1 / total if m and c else 0.0 for m in row] for c, row in zip(correct, mask, strict=True)]
        np.testing.assert_allclose(jit_weights(jnp.array(correct), jnp.array(mask)), expected, rtol=1e-12)
        np.testing.assert_allclose(jit_weights(jnp.array(correct), jnp.array(mask.astype(float))), expected, rtol=1e-12)


@given(arrays(ROWS, TOKENS, elements=st.floats(-9, 0)), masks)
def test_negative_log_likelihood_matches_formula(logp, mask):
    with jax.enable_x64(True):
        actual = jit_likelihood(jnp.array(np.where(mask, logp, np.nan)), jnp.array(mask))
        np.testing.assert_array_equal(
            actual, [[-x if m else 0.0 for x, m in zip(*row, strict=True)] for row in zip(logp, mask, strict=True)]
        )


@given(arrays(ROWS, TOKENS, elements=st.floats(-30, 0, allow_subnormal=False)), masks)  # XLA treats subnormal numbers as 0
def test_dynamic_fine_tuning_loss_and_gradient(logp, mask):
    """Eq. 9 as loops. The weight has no gradient, so the loss's gradient is -π. Values outside the mask are not read."""
    with jax.enable_x64(True):
        dirty, inside = jnp.array(np.where(mask, logp, np.nan)), jnp.array(mask)
        pairs = [zip(*row, strict=True) for row in zip(logp, mask, strict=True)]
        expected = np.array([[-math.exp(x) * x if m else 0.0 for x, m in row] for row in pairs])
        np.testing.assert_allclose(jit_dynamic(dirty, inside), expected, rtol=1e-12)
        slope = jax.grad(lambda x: regularization.dynamic_fine_tuning_loss(x, inside).sum())(dirty)
        np.testing.assert_allclose(slope, np.where(mask, -np.exp(logp), 0.0), rtol=1e-12)


def test_dynamic_fine_tuning_maximizes_the_probability(x64):
    """With respect to the logits, the loss's gradient is that of -π, which is π times the plain loss's gradient."""
    logits, mask = jnp.array([[0.3, -1.2, 2.0], [-4.0, 1.0, 0.5]]), jnp.ones((1, 2))

    def logit_gradient(loss):
        return jax.grad(lambda x: loss(jax.nn.log_softmax(x)[:, 0][None], mask).sum())(logits)

    probability = jax.nn.softmax(logits)[:, :1]
    np.testing.assert_allclose(
        logit_gradient(regularization.dynamic_fine_tuning_loss),
        probability * logit_gradient(regularization.negative_log_likelihood),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        logit_gradient(regularization.dynamic_fine_tuning_loss),
        jax.grad(lambda x: -jax.nn.softmax(x)[:, 0].sum())(logits),
        rtol=1e-12,
    )


def test_positive_example_loss_is_a_mean_over_correct_tokens():
    # The correct responses have 1 and 3 tokens, and every token counts the same, so this is not a mean of means.
    logp = jnp.array([[-8.0, jnp.nan, jnp.nan], [-1.0, -2.0, -3.0], [-5.0, -5.0, jnp.inf]])
    mask, correct = jnp.array([[1, 0, 0], [1, 1, 1], [1, 1, 0]]), jnp.array([True, True, False])

    def loss(logp):
        weights = regularization.positive_example_weights(correct, mask)
        return (weights * regularization.negative_log_likelihood(logp, mask)).sum()

    out, slope = jax.jit(jax.value_and_grad(loss))(logp)
    assert out == pytest.approx((8 + 1 + 2 + 3) / 4)
    np.testing.assert_array_equal(slope, [[-0.25, 0, 0], [-0.25] * 3, [0, 0, 0]])


def test_without_correct_responses_all_weights_are_0():
    assert not regularization.positive_example_weights(jnp.array([False, False]), jnp.ones((2, 3))).any()


def test_positive_example_weights_take_any_leading_axes():
    correct, mask = jnp.array([[True, False], [True, True]]), jnp.ones((2, 2, 3))
    expected = np.full((2, 2, 3), 1 / 9)
    expected[0, 1] = 0
    np.testing.assert_allclose(regularization.positive_example_weights(correct, mask), expected, rtol=1e-6)


# Fisher anchor


def random_trees(seed=0):
    rng = np.random.default_rng(seed)
    tree = lambda: {"w": rng.normal(size=(2, 3)), "layer": [rng.normal(size=2), rng.normal()]}  # noqa: E731
    params, anchor, fisher = tree(), tree(), jax.tree.map(np.abs, tree())
    return [jax.tree.map(jnp.array, t) for t in (params, anchor, fisher)]


@pytest.mark.usefixtures("x64")
def test_fisher_anchor_and_gradient_match_formula():
    params, anchor, fisher = random_trees()
    expected, slopes = 0.0, []
    for theta, star, importance in zip(*map(jax.tree.leaves, (params, anchor, fisher)), strict=True):
        for t, s, f in zip(np.ravel(theta), np.ravel(star), np.ravel(importance), strict=True):
            expected += 1.7 / 2 * f * (t - s) ** 2
            slopes.append(1.7 * f * (t - s))
    value, slope = jax.jit(jax.value_and_grad(lambda p: regularization.fisher_anchor(p, anchor, fisher, coefficient=1.7)))(
        params
    )
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(np.concatenate([np.ravel(x) for x in jax.tree.leaves(slope)]), slopes, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_fisher_anchor_gradient_matches_central_differences():
    params, anchor, fisher = random_trees()

    @jax.jit
    def penalty(w):
        return regularization.fisher_anchor({**params, "w": w}, anchor, fisher, coefficient=0.6)

    slope, x = np.zeros((2, 3)), np.asarray(params["w"])
    for at in np.ndindex(2, 3):
        shift = np.zeros((2, 3))
        shift[at] = 1e-6
        slope[at] = (penalty(jnp.array(x + shift)) - penalty(jnp.array(x - shift))) / 2e-6
    np.testing.assert_allclose(jax.jit(jax.grad(penalty))(params["w"]), slope, rtol=1e-6)


def test_fisher_anchor_is_0_at_the_anchor_and_sums_in_float32():
    _, anchor, fisher = random_trees()
    assert regularization.fisher_anchor(anchor, anchor, fisher, coefficient=3.0) == 0
    many = {"w": jnp.ones(4096, jnp.bfloat16)}
    origin = {"w": jnp.zeros(4096, jnp.bfloat16)}
    penalty = regularization.fisher_anchor(many, origin, {"w": jnp.full(4096, 1.0078125, jnp.bfloat16)}, coefficient=2.0)
    assert penalty.dtype == jnp.float32
    assert penalty == 4096 * 1.0078125


@given(arrays(5, 2, 3, elements=st.floats(-3, 3)))
def test_diagonal_fisher_matches_formula(gradients):
    with jax.enable_x64(True):
        expected = np.zeros((2, 3))
        for gradient in gradients:
            expected += gradient**2 / 5
        actual = regularization.diagonal_fisher({"a": jnp.array(gradients), "b": [jnp.array(gradients[:, 0, 0])]})
        np.testing.assert_allclose(actual["a"], expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(actual["b"][0], expected[0, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_diagonal_fisher_of_a_logistic_model_is_the_curvature():
    # For p(y=1) = σ(θ x) the Fisher information is E_y[(d log p / dθ)²] = x² p (1 - p), the Hessian of -log p.
    theta, x = 0.7, 1.3
    p = 1 / (1 + math.exp(-theta * x))
    outcomes = jnp.array([1.0] * 10_000 + [0.0] * round(10_000 * (1 - p) / p))  # in the model's proportions

    def log_likelihood(theta, y):
        return y * jax.nn.log_sigmoid(theta * x) + (1 - y) * jax.nn.log_sigmoid(-theta * x)

    gradients = jax.jit(jax.vmap(jax.grad(log_likelihood), (None, 0)))(jnp.array(theta), outcomes)
    assert regularization.diagonal_fisher([gradients])[0] == pytest.approx(x**2 * p * (1 - p), rel=1e-3)


# Invalid arguments


X, M = jnp.ones((2, 3)), jnp.ones((2, 3))
W = {"w": X}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: regularization.positive_example_weights(jnp.ones(2), M), "correct must be a boolean array"),
        (
            lambda: regularization.positive_example_weights([True, False], M),
            r"correct must be a boolean array .* got \[True, False\]",
        ),
        (
            lambda: regularization.positive_example_weights(jnp.ones(3, bool), M),
            r"correct must contain one value per row \[2\], got shape \[3\]",
        ),
        (
            lambda: regularization.positive_example_weights(jnp.ones(2, bool), jnp.ones((2, 2, 3))),
            r"correct must contain one value per row \[2, 2\], got shape \[2\]",
        ),
        (lambda: regularization.positive_example_weights(jnp.ones(2, bool), 2 * M), "mask must contain only 0 and 1"),
        (
            lambda: regularization.negative_log_likelihood(X.astype(int), M),
            r"logp must be a floating-point array, got int32\[2, 3\]",
        ),
        (lambda: regularization.negative_log_likelihood(X, M[:1]), "mask must have the shape of x"),
        (
            lambda: regularization.fisher_anchor({}, {}, {}, coefficient=1.0),
            "params must contain at least one array, got {}",
        ),
        (
            lambda: regularization.fisher_anchor(W, {"v": X}, W, coefficient=1.0),
            "anchor_params must have the structure of params",
        ),
        (lambda: regularization.fisher_anchor(W, W, [X], coefficient=1.0), "fisher must have the structure of params"),
        (
            lambda: regularization.fisher_anchor(W, {"w": X[:1]}, W, coefficient=1.0),
            r"anchor_params\['w'\] must have the shape of",
        ),
        (
            lambda: regularization.fisher_anchor({"w": X.astype(int)}, W, W, coefficient=1.0),
            r"params\['w'\] must be a floating",
        ),
        (
            lambda: regularization.fisher_anchor(W, W, {"w": X.astype(int)}, coefficient=1.0),
            r"fisher\['w'\] must be a floating",
        ),
        (lambda: regularization.fisher_anchor(W, W, {"w": -X}, coefficient=1.0), r"fisher\['w'\] must not be negative"),
        (lambda: regularization.fisher_anchor(W, W, W, coefficient=-1.0), "coefficient must not be negative, got -1.0"),
        (lambda: regularization.diagonal_fisher([]), "per_example_gradients must contain at least one array"),
        (
            lambda: regularization.diagonal_fisher([X, X[:1]]),
            r"must have the same number of examples on each first axis, at least 1, got \[\(1,\), \(2,\)\]",
        ),
        (lambda: regularization.diagonal_fisher([X[:0]]), "must have the same number of examples on each first axis"),
        (lambda: regularization.diagonal_fisher([X[0, 0]]), "must have the same number of examples on each first axis"),
        (lambda: regularization.diagonal_fisher([X.astype(int)]), r"per_example_gradients\[0\] must be a floating"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
