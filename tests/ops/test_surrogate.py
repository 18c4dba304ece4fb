"""Surrogate objectives, checked against loops written from the formulas, in values and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from op_oracles import central_differences

from rljax.ops import off_policy, ratio, surrogate
from rljax.ops import weights as loss_weights

SHAPE = (3, 4)
# These values are at least 0.006 away from the edges of every clip, so that no central difference straddles an edge.
log_ratios = hnp.arrays(np.float64, SHAPE, elements=st.integers(-20, 20).map(lambda k: k / 10 + 0.013))
advantages = hnp.arrays(np.float64, SHAPE, elements=st.integers(-20, 20).map(lambda k: k / 10))
response_advantages = hnp.arrays(np.float64, SHAPE[:1], elements=st.integers(-20, 20).map(lambda k: k / 10))
masks = hnp.arrays(bool, SHAPE)
cotangent = np.random.default_rng(1).normal(size=SHAPE)


def clip(x, low, high):
    return max(low, min(high, x))


def clipped_by_hand(x, a, low, high):
    return min(np.exp(x) * a, clip(np.exp(x), 1 - low, 1 + high) * a)


def dual_clipped_by_hand(x, a, low, high, cap):
    inner = clipped_by_hand(x, a, low, high)
    return max(inner, cap * a) if a < 0 else inner


def two_sided_by_hand(x, a, low, high, delta):
    return min(min(np.exp(x), delta) * a, clip(np.exp(x), 1 - low, 1 + high) * a)


def sapo_by_hand(x, a, tau_positive, tau_negative):
    tau = tau_positive if a > 0 else tau_negative
    return 4 / tau / (1 + np.exp(-tau * (np.exp(x) - 1))) * a


def apply_to_each(f, *arrays):
    out = np.zeros(SHAPE)
    for index in np.ndindex(*SHAPE):
        out[index] = f(*(x[index] for x in arrays))
    return out


def gmpo_by_hand(log_ratio, advantage, mask, bound):
    out = np.zeros(SHAPE)
    for i in range(SHAPE[0]):
        kept = [t for t in range(SHAPE[1]) if mask[i, t]]
        total = 0.0
        for t in kept:
            s = np.sign(advantage[i, t])
            total += s * min(s * log_ratio[i, t], clip(s * log_ratio[i, t], -bound, bound))
        for t in kept:
            out[i, t] = advantage[i, t] * np.exp(total / len(kept))
    return out


def value_and_gradient(op):
    def compute(x, *rest):
        value, vjp = jax.vjp(lambda y: op(y, *rest), x)
        return value, vjp(jnp.asarray(cotangent, x.dtype))[0]

    compiled = jax.jit(compute)

    def call(*arrays):
        with jax.enable_x64(True):
            return tuple(np.asarray(x) for x in compiled(*map(jnp.array, arrays)))

    return call


ELEMENTWISE = {
    "clipped": (surrogate.clipped, lambda x, a: clipped_by_hand(x, a, 0.2, 0.2)),
    "clipped, two ranges": (
        lambda x, a: surrogate.clipped(x, a, low=0.3, high=0.45),
        lambda x, a: clipped_by_hand(x, a, 0.3, 0.45),
    ),
    "clipped, low side open": (
        lambda x, a: surrogate.clipped(x, a, low=1.0, high=0.45),
        lambda x, a: clipped_by_hand(x, a, 1.0, 0.45),
    ),
    "dual_clipped": (surrogate.dual_clipped, lambda x, a: dual_clipped_by_hand(x, a, 0.2, 0.2, 3.0)),
    "dual_clipped, other settings": (
        lambda x, a: surrogate.dual_clipped(x, a, low=0.3, high=0.45, cap=1.8),
        lambda x, a: dual_clipped_by_hand(x, a, 0.3, 0.45, 1.8),
    ),
    "dual_clipped is the two-sided clip": (
        lambda x, a: surrogate.dual_clipped(x, a, low=0.3, high=0.45, cap=1.5),
        lambda x, a: two_sided_by_hand(x, a, 0.3, 0.45, 1.5),
    ),
    "dual_clipped without a cap": (
        lambda x, a: surrogate.dual_clipped(x, a, cap=np.inf),
        lambda x, a: clipped_by_hand(x, a, 0.2, 0.2),
    ),
    "reinforce": (surrogate.reinforce, lambda x, a: a * x),
    "sapo": (surrogate.sapo, lambda x, a: sapo_by_hand(x, a, 1.0, 1.05)),
    "sapo, other settings": (
        lambda x, a: surrogate.sapo(x, a, tau_positive=0.7, tau_negative=2.0),
        lambda x, a: sapo_by_hand(x, a, 0.7, 2.0),
    ),
}
COMPILED = {name: value_and_gradient(op) for name, (op, _) in ELEMENTWISE.items()}


@pytest.mark.parametrize("name", ELEMENTWISE)
@given(log_ratio=log_ratios, advantage=advantages)
def test_surrogate_matches_formula(name, log_ratio, advantage):
    by_hand = ELEMENTWISE[name][1]
    value, gradient = COMPILED[name](log_ratio, advantage)
    np.testing.assert_allclose(value, apply_to_each(by_hand, log_ratio, advantage), atol=1e-12)
    expected = central_differences(lambda x: (cotangent * apply_to_each(by_hand, x, advantage)).sum(), log_ratio)
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


CISPO = value_and_gradient(lambda x, a: surrogate.cispo(x, a, low=0.3, high=0.45))


@given(log_ratio=log_ratios, advantage=advantages)
def test_cispo_matches_formula(log_ratio, advantage):
    value, gradient = CISPO(log_ratio, advantage)
    np.testing.assert_allclose(
        value, apply_to_each(lambda x, a: clip(np.exp(x), 0.7, 1.45) * a * x, log_ratio, advantage), atol=1e-12
    )
    weight = apply_to_each(lambda x, a: clip(np.exp(x), 0.7, 1.45) * a, log_ratio, advantage)
    np.testing.assert_allclose(gradient, cotangent * weight, atol=1e-12)


def cispo_of_the_paper(logp, behaviour, advantage):
    weight = jax.lax.stop_gradient(jnp.clip(jnp.exp(logp - behaviour), 0.7, 1.45))
    return weight * advantage * logp


CISPO_PAPER = value_and_gradient(cispo_of_the_paper)
CISPO_RATIO = value_and_gradient(
    lambda logp, behaviour, advantage: surrogate.cispo(
        ratio.token_log_ratio(logp, behaviour, jnp.ones(SHAPE)), advantage, low=0.3, high=0.45
    )
)


@given(logp=log_ratios, behaviour=log_ratios, advantage=advantages)
def test_cispo_differs_from_the_papers_form_by_a_constant(logp, behaviour, advantage):
    theirs, their_gradient = CISPO_PAPER(logp, behaviour, advantage)
    ours, gradient = CISPO_RATIO(logp, behaviour, advantage)
    np.testing.assert_allclose(gradient, their_gradient, atol=1e-12)
    weight = apply_to_each(lambda x, b: clip(np.exp(x - b), 0.7, 1.45), logp, behaviour)
    np.testing.assert_allclose(theirs - ours, weight * advantage * behaviour, atol=1e-12)


GMPO = value_and_gradient(surrogate.gmpo)
GMPO_NARROW = value_and_gradient(lambda x, a, m: surrogate.gmpo(x, a, m, clip=0.25))


@pytest.mark.parametrize(("op", "bound"), [(GMPO, 0.4), (GMPO_NARROW, 0.25)])
@given(log_ratio=log_ratios, advantage=advantages, mask=masks, poison=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_gmpo_matches_formula(op, bound, log_ratio, advantage, mask, poison):
    value, gradient = op(np.where(mask, log_ratio, poison), np.where(mask, advantage, poison), mask)
    np.testing.assert_allclose(value, gmpo_by_hand(log_ratio, advantage, mask, bound), atol=1e-12)
    expected = central_differences(lambda x: (cotangent * gmpo_by_hand(x, advantage, mask, bound)).sum(), log_ratio)
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


@given(log_ratio=log_ratios, advantage=response_advantages, mask=masks)
def test_gmpo_under_sequence_mean_is_the_mean_over_responses(log_ratio, advantage, mask):
    per_token = np.tile(advantage[:, None], (1, SHAPE[1]))
    value, _ = GMPO(log_ratio, per_token, mask)
    responses = []
    for i in range(SHAPE[0]):
        kept = log_ratio[i][mask[i]]
        if len(kept):
            clipped_log_ratios = np.minimum(kept, 0.4) if advantage[i] > 0 else np.maximum(kept, -0.4)
            responses.append(advantage[i] * np.exp(clipped_log_ratios.mean()))
    expected = sum(responses) / max(len(responses), 1)
    with jax.enable_x64(True):
        actual = (loss_weights.sequence_mean(jnp.array(mask)) * value).sum()
    assert actual == pytest.approx(expected)


def gspo_by_hand(logp, behaviour, advantage, mask):
    total, responses = 0.0, 0
    for i in range(SHAPE[0]):
        kept = [t for t in range(SHAPE[1]) if mask[i, t]]
        if kept:
            responses += 1
            mean = sum(logp[i, t] - behaviour[i, t] for t in kept) / len(kept)
            total += clipped_by_hand(mean, advantage[i], 3e-4, 4e-4)
    return total / max(responses, 1)


@pytest.mark.parametrize("log_ratio", [ratio.sequence_log_ratio, ratio.sequence_token_log_ratio])
def test_both_gspo_forms_have_the_same_gradient(x64, log_ratio):
    rng = np.random.default_rng(2)
    behaviour, noise = -rng.random(SHAPE), rng.normal(size=SHAPE)
    mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]])
    advantage = np.array([1.5, -0.5, -1.0])
    per_token = jnp.tile(jnp.array(advantage)[:, None], (1, SHAPE[1]))

    def objective(logp):
        surrogates = surrogate.clipped(
            log_ratio(logp, jnp.array(behaviour), jnp.array(mask)), per_token, low=3e-4, high=4e-4
        )
        return (loss_weights.sequence_mean(jnp.array(mask)) * surrogates).sum()

    compiled = jax.jit(jax.value_and_grad(objective))
    for scale in (1e-4, 1e-1):
        logp = behaviour + scale * noise
        value, gradient = compiled(jnp.array(logp))
        assert value == pytest.approx(gspo_by_hand(logp, behaviour, advantage, mask))
        expected = central_differences(lambda x: gspo_by_hand(x, behaviour, advantage, mask), logp, step=1e-8)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)


ON_POLICY = {
    "clipped": surrogate.clipped,
    "clipped, zero range": lambda x, a: surrogate.clipped(x, a, low=0.0, high=0.0),
    "dual_clipped": surrogate.dual_clipped,
    "reinforce": surrogate.reinforce,
    "cispo": lambda x, a: surrogate.cispo(x, a, low=1.0, high=0.2),
    "cispo, zero range": lambda x, a: surrogate.cispo(x, a, low=0.0, high=0.0),
    "mirror_descent": lambda x, a: off_policy.mirror_descent(x, a, tau=0.3),
    "sapo": surrogate.sapo,
    "sapo, other settings": lambda x, a: surrogate.sapo(x, a, tau_positive=3.0, tau_negative=0.4),
}


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy_gradient_is_the_advantage(x64, name):
    advantage = jnp.array([-2.0, -0.1, 0.0, 0.3, 5.0])
    gradient = jax.grad(lambda x: ON_POLICY[name](x, advantage).sum())(jnp.zeros(5))
    np.testing.assert_allclose(gradient, advantage, rtol=1e-12)


def test_on_policy_gmpo_gradient_splits_the_advantage_among_tokens(x64):
    advantage, mask = jnp.array([[2.0] * 3, [-0.5] * 3]), jnp.array([[1, 1, 0], [1, 0, 0]])
    for clip in (0.4, 0.0):
        gradient = jax.grad(lambda x, clip=clip: surrogate.gmpo(x, advantage, mask, clip=clip)[:, 0].sum())(
            jnp.zeros((2, 3))
        )
        np.testing.assert_allclose(gradient, [[1.0, 1.0, 0.0], [-0.5, 0.0, 0.0]], rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", ON_POLICY)
def test_extreme_ratios_give_finite_values_and_gradients(name, dtype):
    with jax.enable_x64(True):
        log_ratio = jnp.array([1e4, -1e4, 1e4, -1e4], dtype)
        advantage = jnp.array([1.0, 1.0, 0.0, -1.0], dtype)
        value, vjp = jax.vjp(lambda x: ON_POLICY[name](x, advantage), log_ratio)
        gradient = vjp(jnp.ones_like(value))[0]
    assert value.dtype == dtype
    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()


def test_dual_clip_bounds_the_open_side_of_the_plain_clip():
    log_ratio, advantage = jnp.array([1e4]), jnp.array([-1.0])
    value, gradient = jax.value_and_grad(lambda x: surrogate.dual_clipped(x, advantage).sum())(log_ratio)
    assert value == pytest.approx(-3.0)
    assert gradient.tolist() == [0.0]
    assert surrogate.clipped(log_ratio, advantage).tolist() == [-np.inf]


def test_eq_26_of_the_design_document_never_clips_negative_advantages():
    """For A <= 0, Eq. 26's max(ρA, (1 - low)A) inside Eq. 29's min gives ρA at every ratio; PPO clips at 1 - low."""
    low, advantage = 0.2, -1.0
    for rho in (0.1, 0.5, 0.9, 1.5):
        clip_asym = max(rho * advantage, (1 - low) * advantage)
        assert min(rho * advantage, clip_asym) == rho * advantage
    value, slope = jax.value_and_grad(lambda x: surrogate.clipped(x, jnp.array([advantage]), low=low).sum())(
        jnp.log(jnp.array([0.5]))
    )
    assert value == pytest.approx(-0.8)
    assert slope.tolist() == [0.0]


@pytest.mark.usefixtures("without_type_checks")
def test_hyperparameters_may_be_traced():
    x, a = jnp.array([0.5, -0.5]), jnp.array([1.0, -1.0])
    traced = jax.jit(lambda low, high, cap: surrogate.dual_clipped(x, a, low=low, high=high, cap=cap))(0.1, 0.3, 2.0)
    np.testing.assert_allclose(traced, [1.3, -0.9], rtol=1e-6)


X = jnp.zeros((2, 3))
OPS = [
    surrogate.clipped,
    surrogate.dual_clipped,
    surrogate.reinforce,
    lambda x, a: surrogate.cispo(x, a, low=0.2, high=0.2),
    surrogate.sapo,
    lambda x, a: surrogate.gmpo(x, a, jnp.ones((2, 3))),
]


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, X[0]), r"advantage must have the shape of \w+ \[2, 3\], got \[3\]"),
        ((X.astype(int), X), r"(log_ratio|logp) must be a floating-point array, got int32\[2, 3\]"),
        ((X, X.astype(int)), r"advantage must be a floating-point array, got int32\[2, 3\]"),
    ],
)
def test_invalid_arrays_are_refused(op, arguments, message):
    with pytest.raises(ValueError, match=message):
        op(*arguments)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: surrogate.clipped(X, X, low=1.5), r"low must lie in \[0, 1\], got 1.5"),
        (lambda: surrogate.clipped(X, X, low=-0.1), "low must not be negative, got -0.1"),
        (lambda: surrogate.clipped(X, X, high=-0.1), "high must not be negative, got -0.1"),
        (lambda: surrogate.dual_clipped(X, X, low=1.5), r"low must lie in \[0, 1\], got 1.5"),
        (lambda: surrogate.dual_clipped(X, X, high=-1.0), "high must not be negative, got -1.0"),
        (lambda: surrogate.dual_clipped(X, X, cap=1.0), "cap must be above 1, got 1.0"),
        (lambda: surrogate.dual_clipped(X, X, cap=float("nan")), "cap must be above 1, got nan"),
        (lambda: surrogate.cispo(X, X, low=2.0, high=0.2), r"low must lie in \[0, 1\], got 2.0"),
        (lambda: surrogate.cispo(X, X, low=0.2, high=-0.2), "high must not be negative, got -0.2"),
        (lambda: surrogate.sapo(X, X, tau_positive=0.0), "tau_positive must be positive, got 0.0"),
        (lambda: surrogate.sapo(X, X, tau_negative=-1.0), "tau_negative must be positive, got -1.0"),
        (lambda: surrogate.gmpo(X, X, X + 1, clip=-0.4), "clip must not be negative, got -0.4"),
        (lambda: surrogate.gmpo(X, X, jnp.ones(3)), r"mask must have the shape of log_ratio \[2, 3\], got \[3\]"),
    ],
)
def test_invalid_hyperparameters_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_zero_advantage_gives_zero_objective():
    log_ratio = jnp.array([200.0, 89.0, 5.0, -200.0, jnp.inf])
    for op in (surrogate.clipped, partial(surrogate.clipped, low=1.0, high=jnp.inf)):
        value, slope = jax.vjp(op, log_ratio, jnp.zeros(5))
        assert value.tolist() == slope(jnp.ones(5))[0].tolist() == [0.0] * 5
    unclipped = surrogate.clipped(jnp.array([5.0, 5.0]), jnp.array([2.0, -2.0]), low=1.0, high=jnp.inf)
    np.testing.assert_allclose(unclipped, [2 * np.exp(5.0), -2 * np.exp(5.0)], rtol=1e-6)


@given(log_ratios, advantages, st.sampled_from([(0.2, 0.28), (0.0, 0.0), (1.0, 2.0)]))
def test_clip_equals_the_papers_printed_form(log_ratio, advantage, clip_range):
    low, high = clip_range

    def value_and_slope(form):
        def total(x):
            return (cotangent * form(x, jnp.array(advantage), low=low, high=high)).sum()

        return jax.value_and_grad(total)(jnp.array(log_ratio))

    with jax.enable_x64(True):
        for safe, plain in zip(*map(value_and_slope, (surrogate.clipped, surrogate._as_printed)), strict=True):
            np.testing.assert_allclose(safe, plain, rtol=1e-12, atol=1e-12)


def test_clip_is_finite_where_the_printed_form_overflows():
    def slope(form):
        return jax.grad(lambda x: form(x, jnp.ones(1), low=0.2, high=0.2).sum())(jnp.array([100.0]))

    assert np.isnan(slope(surrogate._as_printed)).all()
    assert not slope(surrogate.clipped).any()
