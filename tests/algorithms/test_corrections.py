"""Off-policy corrections: default bounds, weights and cut tokens, checked against plain loops."""

import inspect
import math

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms.corrections import BY_NAME, off_policy_mask

SHAPE = (3, 4, 5)
RNG = np.random.default_rng(2)
MASK = RNG.random(SHAPE) < 0.8
POLICY, SAMPLER = RNG.normal(scale=0.4, size=(2, *SHAPE)).astype(np.float32)
DEFAULTS = {
    "capped": {"high": 2.0},
    "masked": {"low": 0.5, "high": 5.0},
    "two_sided": {"low": inspect.Parameter.empty, "high": 2.0},
    "sequence": {"high": 2.0},
    "sequence_masked": {"low": 0.0, "high": 2.0},
    "geometric": {"low": 0.999, "high": 1.001},
}
BOUNDS = {
    "capped": {"high": 1.3},
    "masked": {"low": 0.8, "high": 1.3},
    "two_sided": {"low": 0.8, "high": 1.3},
    "sequence": {"high": 1.3},
    "sequence_masked": {"low": 0.5, "high": 1.3},
    "geometric": {"low": 0.8, "high": 1.2},
}


def deciding_ratio(name, row, t):
    """Return the ratio that decides whether a token is cut."""
    gaps = [float(POLICY[row][i]) - float(SAMPLER[row][i]) for i in range(SHAPE[-1]) if MASK[row][i]]
    if name in {"sequence", "sequence_masked"}:
        return math.exp(sum(gaps))
    return (
        math.exp(sum(gaps) / len(gaps)) if name == "geometric" else math.exp(float(POLICY[row][t]) - float(SAMPLER[row][t]))
    )


def test_default_bounds():
    assert list(BY_NAME) == list(DEFAULTS)
    for name, factory in BY_NAME.items():
        assert {bound: p.default for bound, p in inspect.signature(factory).parameters.items()} == DEFAULTS[name]


@pytest.mark.parametrize("name", BY_NAME)
def test_weights_and_cuts_follow_the_ratio(name):
    correction = BY_NAME[name](**BOUNDS[name])
    arrays = jnp.asarray(POLICY), jnp.asarray(SAMPLER), jnp.asarray(MASK)
    weight, cut = np.asarray(correction.weight(*arrays)), np.asarray(correction.cut(*arrays))
    low, high = BOUNDS[name].get("low", 0.0), BOUNDS[name]["high"]
    seen = set()
    for index in np.ndindex(*SHAPE):
        row, t = index[:2], index[2]
        if not MASK[row][t]:
            assert (weight[row][t], cut[row][t]) == (0, False)
            continue
        ratio = deciding_ratio(name, row, t)
        inside = low <= ratio <= high
        seen.add(inside)
        assert cut[row][t] == (not inside)
        if inside:
            assert weight[row][t] == pytest.approx(1.0 if name == "geometric" else ratio, rel=1e-5)
        else:
            bound = high if ratio > high else low
            assert weight[row][t] == pytest.approx(bound if name in {"capped", "two_sided", "sequence"} else 0.0)
    assert seen == {False, True}


@pytest.mark.parametrize("name", BY_NAME)
def test_equal_policies_cut_nothing(name):
    correction = BY_NAME[name](**({"low": 0.5} if name == "two_sided" else {}))
    arrays = jnp.asarray(POLICY), jnp.asarray(POLICY), jnp.asarray(MASK)
    np.testing.assert_array_equal(correction.weight(*arrays), MASK.astype(np.float32))
    assert not correction.cut(*arrays).any()


def test_invalid_arguments_are_refused():
    arrays = jnp.asarray(POLICY), jnp.asarray(SAMPLER), jnp.asarray(MASK)
    with pytest.raises(ValueError, match=r"cap must be positive, got 0\.0"):
        BY_NAME["capped"](high=0.0).weight(*arrays)
    with pytest.raises(ValueError, match=r"low must lie in \[0, 2\], got 3\.0"):
        BY_NAME["masked"](low=3.0, high=2.0).weight(*arrays)
    with pytest.raises(ValueError, match=r"delta must not be negative, got -1\.0"):
        off_policy_mask(-1.0)
