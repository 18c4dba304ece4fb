"""Advantages whose λ depends on the offset, checked against sums, and an unpublished design document's claims about them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import (
    ROWS,
    TOKENS,
    central_differences,
    fixed_gae_case,
    gae_by_hand,
    gae_cases,
    poisoned,
    td_by_hand,
    unit,
    weighted_errors_by_hand,
)

from rljax.ops.gae import length_adaptive_lambda
from rljax.ops.unpublished import offset_gae as ops

EXACT = {"rtol": 1e-9, "atol": 1e-11}


jit_offset = jax.jit(ops.offset_decayed_gae)
jit_complexity = jax.jit(ops.complexity_weighted_gae, static_argnames="chunk")


offset_settings = st.fixed_dictionaries(
    {"gamma": unit, "lambda_base": unit, "alpha": st.floats(0, 4), "max_length": st.floats(1, 20)}
)


def decayed_factor(settings, offset):
    lambda_l = settings["lambda_base"] * np.exp(-settings["alpha"] * offset / settings["max_length"])
    return settings["gamma"] * lambda_l


@given(gae_cases, offset_settings)
def test_offset_decayed_gae_matches_formula(case, settings):
    with jax.enable_x64(True):
        mask, td = case["mask"], case["rewards"]
        actual = jit_offset(poisoned(td, mask), jnp.array(mask), **settings)
        expected = weighted_errors_by_hand(td, mask, lambda _, offset, __: decayed_factor(settings, offset) ** offset)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-10)


@given(gae_cases, offset_settings, unit, st.sampled_from([1, 4, 100]))
def test_complexity_weighted_gae_matches_formula(case, settings, beta, chunk):
    with jax.enable_x64(True):
        mask, td, complexity = case["mask"], case["rewards"], case["values"]
        by_complexity = {"beta": beta, "max_complexity": 3.0, "chunk": chunk}
        actual = jit_complexity(
            poisoned(td, mask), poisoned(complexity, mask), jnp.array(mask), **settings, **by_complexity
        )

        def weight(i, offset, u):
            return (decayed_factor(settings, offset) * (1 - beta * abs(complexity[i, u]) / 3.0)) ** offset

        np.testing.assert_allclose(actual, weighted_errors_by_hand(td, mask, weight), rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("wrt", [0, 1])
def test_offset_gradients_with_lambda_0_match_central_differences(wrt):
    case, settings = fixed_gae_case(), {"gamma": 0.9, "lambda_base": 0.0, "alpha": 0.7, "max_length": 5}
    mask, pair = jnp.array(case["mask"]), (case["rewards"], case["values"])
    cotangent = jnp.array(np.random.default_rng(1).normal(size=(ROWS, TOKENS)))

    @jax.jit
    def total(td, complexity):
        plain = ops.offset_decayed_gae(td, mask, **settings)
        full = ops.complexity_weighted_gae(td, complexity, mask, **settings, beta=0.5, max_complexity=4.0, chunk=4)
        return (cotangent * (plain + 2 * full)).sum()

    clean, dirty = [jnp.array(x) for x in pair], [poisoned(x, case["mask"]) for x in pair]
    slope = jax.jit(jax.grad(total, wrt))(*dirty)
    expected = central_differences(lambda x: total(*clean[:wrt], x, *clean[wrt + 1 :]), pair[wrt])
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-8)


@given(gae_cases)
def test_offset_decay_with_alpha_0_is_gae(case):
    with jax.enable_x64(True):
        mask = jnp.array(case["mask"])
        case = {**case, "bootstrap": np.zeros(ROWS)}
        base = case["lambda_"][0]
        settings = {"gamma": case["gamma"], "lambda_base": base, "alpha": 0.0, "max_length": 5.0}
        expected = gae_by_hand(case, [base] * ROWS)
        td = jnp.array(td_by_hand(case))
        np.testing.assert_allclose(jit_offset(td, mask, **settings), expected, **EXACT)
        unweighted = jit_complexity(td, td, mask, **settings, beta=0.0, max_complexity=9.0, chunk=4)
        np.testing.assert_allclose(unweighted, expected, **EXACT)


@given(gae_cases, unit)
def test_constant_complexity_is_gae_with_a_smaller_lambda(case, beta):
    with jax.enable_x64(True):
        mask = jnp.array(case["mask"])
        case = {**case, "bootstrap": np.zeros(ROWS)}
        settings = {"gamma": case["gamma"], "lambda_base": 0.9, "alpha": 0.0, "max_length": 5.0}
        td = jnp.array(td_by_hand(case))
        actual = jit_complexity(td, jnp.full_like(td, -2.0), mask, **settings, beta=beta, max_complexity=4.0, chunk=4)
        np.testing.assert_allclose(actual, gae_by_hand(case, [0.9 * (1 - beta / 2)] * ROWS), **EXACT)


@given(gae_cases, offset_settings)
def test_complexity_weighted_gae_with_beta_0_is_offset_decay(case, settings):
    with jax.enable_x64(True):
        td, mask = jnp.array(case["rewards"]), jnp.array(case["mask"])
        actual = jit_complexity(td, td, mask, **settings, beta=0.0, max_complexity=3.0, chunk=4)
        np.testing.assert_allclose(actual, jit_offset(td, mask, **settings), rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_offset_decay_defaults():
    td, mask = jnp.array([[0.0, 0.0, 1.0]]), jnp.ones((1, 3))
    expected = [[0.95**2 * np.exp(-0.5 * 4 / 3), 0.95 * np.exp(-0.5 / 3), 1.0]]
    np.testing.assert_allclose(jit_offset(td, mask, alpha=0.5, max_length=3), expected, **EXACT)
    no_complexity = {"beta": 0.0, "max_complexity": 1.0}
    np.testing.assert_allclose(jit_complexity(td, td, mask, alpha=0.5, max_length=3, **no_complexity), expected, **EXACT)


def kernel_of_offset(length, **settings):
    """The weight of each offset: what a TD error of 1 at the last token adds to each earlier token's advantage."""
    impulse = jnp.zeros((1, length)).at[0, -1].set(1.0)
    return np.asarray(jit_offset(impulse, jnp.ones((1, length), bool), **settings))[0, ::-1]


@pytest.mark.usefixtures("x64")
def test_offset_decay_is_neither_recursive_nor_length_adaptive():
    kernel = kernel_of_offset(TOKENS, lambda_base=0.95, alpha=1.0, max_length=TOKENS)
    ratios = kernel[1:] / kernel[:-1]
    assert (np.diff(ratios) < -0.01).all()  # a recursion A_t = δ_t + c A_{t+1} would have the same ratio c everywhere
    lambdas = kernel[1:] ** (1 / np.arange(1, TOKENS))
    assert (np.diff(lambdas) < 0).all()  # λ falls with the offset ...
    assert (np.diff(length_adaptive_lambda(jnp.array([100, 200, 400]))) > 0).all()  # ... VAPO's grows with the length


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("length", "true_ratio", "claimed_ratio"), [(1, 1.0, 1 / (1 + 1 / 8192)), (8192, 0.961, 0.5)], ids=["T=1", "T=L_max"]
)
def test_variance_theorem_of_the_offset_decay_is_false(length, true_ratio, claimed_ratio):
    # Theorem 3.1 of the design document with α = 1, L_max = 8192, γ = 1 and λ_base = 0.95, for independent TD errors of equal
    # variance, at t = 0.
    decaying = np.square(kernel_of_offset(length, alpha=1.0, max_length=8192)).sum()
    constant = np.square(kernel_of_offset(length, alpha=0.0, max_length=8192)).sum()
    assert decaying / constant == pytest.approx(true_ratio, abs=5e-4)
    assert 1 / (1 + 1.0 * length / 8192) == pytest.approx(claimed_ratio)
    assert decaying / constant > claimed_ratio + 1e-5


@pytest.mark.usefixtures("x64")
def test_complexity_bound_ignores_masked_tokens():
    td, mask = jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[1, 0, 1]])
    settings = {"alpha": 0.5, "max_length": 3, "beta": 0.5, "max_complexity": 0.25}
    within = ops.complexity_weighted_gae(td, jnp.array([[0.25, 9.0, -0.25]]), mask, **settings)
    expected = [[1.0 + 3.0 * 0.95 * 0.5 * np.exp(-0.5 / 3), 0.0, 3.0]]
    np.testing.assert_allclose(within, expected, **EXACT)
    assert not ops.complexity_weighted_gae(td, td, jnp.zeros((1, 3)), **settings).any()


def largest_array(jaxpr):
    sizes = [np.prod(v.aval.shape, dtype=int) for eqn in jaxpr.eqns for v in eqn.outvars]
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner_jaxpr = getattr(inner, "jaxpr", inner)
                if hasattr(inner_jaxpr, "eqns"):
                    sizes.append(largest_array(inner_jaxpr))
    return max(sizes, default=0)


def test_complexity_weighted_gae_allocates_no_square_array():
    length, chunk = 64, 4
    settings = {"alpha": 0.5, "max_length": 64, "beta": 0.5, "max_complexity": 1.0, "chunk": chunk}

    def total(td, complexity):
        return ops.complexity_weighted_gae(td, complexity, jnp.ones(length), **settings).sum()

    x = jnp.zeros(length)
    assert largest_array(jax.make_jaxpr(total)(x, x).jaxpr) == chunk * length
    assert largest_array(jax.make_jaxpr(jax.grad(total, (0, 1)))(x, x).jaxpr) == chunk * length


def compute_estimates(td, complexity, mask):
    """Compute each estimate of a batch by its name, with settings that make every argument matter."""
    decay = {"gamma": 0.9, "lambda_base": 0.9, "alpha": 0.5, "max_length": 4}
    by_complexity = {"beta": 0.5, "max_complexity": 9.0, "chunk": 4}
    return {
        "offset": ops.offset_decayed_gae(td, mask, **decay),
        "complexity": ops.complexity_weighted_gae(td, complexity, mask, **decay, **by_complexity),
    }


jit_compute_estimates = jax.jit(compute_estimates)


@pytest.mark.usefixtures("x64")
def test_leading_axes_are_batch_axes():
    rng = np.random.default_rng(0)
    td, complexity = (jnp.array(rng.normal(size=(2, 3, TOKENS))) for _ in range(2))
    mask = jnp.array(rng.random((2, 3, TOKENS)) < 0.7)
    batched = jit_compute_estimates(td, complexity, mask)
    flat = jit_compute_estimates(*(x.reshape(6, TOKENS) for x in (td, complexity, mask)))
    single = jit_compute_estimates(td[1, 2], complexity[1, 2], mask[1, 2])
    for name, estimate in batched.items():
        np.testing.assert_allclose(estimate.reshape(6, TOKENS), flat[name], err_msg=name, **EXACT)
        np.testing.assert_allclose(estimate[1, 2], single[name], err_msg=name, **EXACT)


@pytest.mark.usefixtures("x64")
@given(st.lists(st.booleans(), min_size=9, max_size=9).filter(lambda inserted: sum(inserted) == 4))
def test_masked_tokens_do_not_affect_estimates(inserted):
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        td, complexity = rng.normal(size=(2, 1, 5))
        positions = np.flatnonzero(~np.array(inserted))
        spread = [np.full((1, 9), np.nan) for _ in range(2)]
        mask = np.zeros((1, 9))
        spread[0][:, positions], spread[1][:, positions], mask[:, positions] = td, complexity, 1
        plain = jit_compute_estimates(jnp.array(td), jnp.array(complexity), jnp.ones((1, 5)))
        dirty = jit_compute_estimates(jnp.array(spread[0]), jnp.array(spread[1]), jnp.array(mask))
        for name, estimate in dirty.items():
            np.testing.assert_allclose(np.asarray(estimate)[:, positions], plain[name], err_msg=name, **EXACT)
            assert not np.delete(np.asarray(estimate), positions, axis=1).any(), name


def test_row_without_tokens():
    x, mask = jnp.full((2, 5), jnp.nan), jnp.zeros((2, 5))

    def total(td, complexity):
        return sum(estimate.sum() for estimate in compute_estimates(td, complexity, mask).values())

    out, slopes = jax.jit(jax.value_and_grad(total, (0, 1)))(x, x)
    assert out == 0
    assert not np.any(slopes)


# Invalid arguments


X, M = jnp.ones((2, 3)), jnp.ones((2, 3))
OFFSET = {"alpha": 0.1, "max_length": 3}
COMPLEX = {**OFFSET, "beta": 0.1, "max_complexity": 1.0}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.offset_decayed_gae(X.astype(int), M, **OFFSET), "td must be a floating-point array"),
        (lambda: ops.offset_decayed_gae(X, M, gamma=1.1, **OFFSET), r"gamma must lie in \[0, 1\]"),
        (lambda: ops.offset_decayed_gae(X, M, lambda_base=1.1, **OFFSET), r"lambda_base must lie in \[0, 1\]"),
        (lambda: ops.offset_decayed_gae(X, M, alpha=-1.0, max_length=3), "alpha must not be negative, got -1.0"),
        (lambda: ops.offset_decayed_gae(X, M, alpha=1.0, max_length=0), "max_length must be at least 1, got 0"),
        (lambda: ops.complexity_weighted_gae(X, X[:1], M, **COMPLEX), "complexity must have the shape of td"),
        (lambda: ops.complexity_weighted_gae(X, X.astype(int), M, **COMPLEX), "complexity must be a floating-point array"),
        (lambda: ops.complexity_weighted_gae(X, X, M, **{**COMPLEX, "alpha": -1}), "alpha must not be negative"),
        (lambda: ops.complexity_weighted_gae(X, X, M, **{**COMPLEX, "beta": 1.1}), r"beta must lie in \[0, 1\], got 1.1"),
        (
            lambda: ops.complexity_weighted_gae(X, X, M, **{**COMPLEX, "max_complexity": 0}),
            "max_complexity must be positive",
        ),
        (lambda: ops.complexity_weighted_gae(X, X, M, **COMPLEX, chunk=0), "chunk must be at least 1, got 0"),
        (
            lambda: ops.complexity_weighted_gae(X, -2 * X, M, **COMPLEX),
            r"\|complexity\| must not exceed max_complexity 1, got 2",
        ),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
