"""Helpers of the tests of equations: random arrays, central differences, and generalized advantages as sums over tokens."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

ROWS, TOKENS = 3, 6
"""Shape of the cases for generalized advantage estimation."""
reals = st.floats(-3, 3)
unit = st.floats(0, 1)


def arrays(*shape: int, elements: st.SearchStrategy = reals) -> st.SearchStrategy:
    """Generate float64 arrays of a shape."""
    return hnp.arrays(np.float64, shape, elements=elements)


def poisoned(x: np.ndarray, mask: np.ndarray, poison: float = np.nan) -> jax.Array:
    """Write a value, by default NaN, outside the mask."""
    return jnp.array(np.where(mask, x, poison))


def central_differences(f: Callable[[np.ndarray], float | jax.Array], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Estimate the gradient of a scalar function of one array."""
    slope = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        shift = np.zeros(x.shape)
        shift[at] = step
        slope[at] = (float(f(x + shift)) - float(f(x - shift))) / (2 * step)
    return slope


gae_cases = st.fixed_dictionaries(
    {
        "rewards": arrays(ROWS, TOKENS),
        "values": arrays(ROWS, TOKENS),
        "mask": hnp.arrays(bool, (ROWS, TOKENS)),
        "bootstrap": arrays(ROWS),
        "gamma": unit,
        "lambda_": arrays(ROWS, elements=unit),
    }
)


def fixed_gae_case(seed: int = 0) -> dict:
    """Make a case with a gap between tokens and a row without tokens."""
    rng = np.random.default_rng(seed)
    mask = np.array([[1, 1, 1, 1, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]], bool)
    return {
        "rewards": rng.normal(size=(ROWS, TOKENS)),
        "values": rng.normal(size=(ROWS, TOKENS)),
        "mask": mask,
        "bootstrap": rng.normal(size=ROWS),
        "gamma": 0.9,
        "lambda_": np.array([0.3, 0.8, 0.5]),
    }


def td_by_hand(case: dict) -> np.ndarray:
    """δ_t = r_t + γ V_{t+1} - V_t, where t + 1 is the next response token."""
    out = np.zeros((ROWS, TOKENS))
    for i, row in enumerate(case["mask"]):
        tokens = np.flatnonzero(row)
        following = [*(case["values"][i, t] for t in tokens[1:]), case["bootstrap"][i]]
        for t, next_value in zip(tokens, following, strict=False):
            out[i, t] = case["rewards"][i, t] + case["gamma"] * next_value - case["values"][i, t]
    return out


def weighted_errors_by_hand(td: np.ndarray, mask: np.ndarray, weight: Callable[[int, int, int], float]) -> np.ndarray:
    """A_t = Σ_l weight(row, l, t+l) δ_{t+l}, where l counts only response tokens."""
    out = np.zeros(td.shape)
    for i, row in enumerate(mask):
        tokens = np.flatnonzero(row)
        for k, t in enumerate(tokens):
            out[i, t] = sum(weight(i, offset, u) * td[i, u] for offset, u in enumerate(tokens[k:]))
    return out


def gae_by_hand(case: dict, lambdas: list[float] | np.ndarray) -> np.ndarray:
    """A_t = Σ_l (γ λ)^l δ_{t+l}, with one λ per row."""
    return weighted_errors_by_hand(
        td_by_hand(case), case["mask"], lambda i, offset, _: (case["gamma"] * lambdas[i]) ** offset
    )
