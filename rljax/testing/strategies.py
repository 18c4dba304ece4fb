"""Hypothesis strategies for valid rollouts: ragged masks, gaps, ties, extreme ratios, and garbage outside the mask."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rljax.errors import InputError
from rljax.testing.example import Example

try:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp
except ModuleNotFoundError as missing:
    raise InputError("rljax.testing.strategies needs the package hypothesis; run `pip install hypothesis`.") from missing

REWARDS = (0.0, 1.0, 0.5, -1.0)
"""The rewards that are sampled; there are only four, so that ties are common."""


@st.composite
def examples(
    draw: Callable[..., Any],
    *,
    prompts: int = 2,
    group: int = 2,
    tokens: int = 3,
    gaps: bool = True,
    garbage: float = -7.0,
    marks: bool = False,
) -> Example:
    """Sample rollouts of one shape; Hypothesis shrinks them to full masks, rewards of 0 and ratios of 1.

    Args:
        draw: the function that Hypothesis passes.
        prompts: P, the number of prompts.
        group: G, the number of responses per prompt, at least 2.
        tokens: T, the number of positions per response.
        gaps: whether positions before and between the tokens may be outside the mask; positions after the last token may always be.
        garbage: log-probability outside the mask.
        marks: whether responses may be marked as having no reward, or as truncated.
    """
    shape = (prompts, group, tokens)
    if gaps:
        outside = draw(hnp.arrays(bool, shape))
        outside[..., 0] &= ~outside.all(-1)
    else:
        outside = (
            np.arange(tokens)
            >= tokens - draw(hnp.arrays(np.int64, shape[:2], elements=st.integers(0, tokens - 1)))[..., None]
        )

    def numbers(low: int, high: int) -> np.ndarray:
        return draw(hnp.arrays(np.float64, shape, elements=st.integers(low, high).map(lambda k: k / 8 + 0.003 * (k != 0))))

    old = -0.5 - np.abs(numbers(0, 16))
    logp = old + numbers(-24, 24)
    ref = logp + numbers(-8, 8)
    rewards = draw(hnp.arrays(np.float64, shape[:2], elements=st.sampled_from(REWARDS)))
    inside = {name: np.where(outside, garbage, x) for name, x in (("logp", logp), ("old_logp", old), ("ref_logp", ref))}
    if marks:
        flags = hnp.arrays(bool, shape[:2])
        return Example(mask=~outside, rewards=rewards, **inside, valid=~draw(flags), truncated=draw(flags))
    return Example(mask=~outside, rewards=rewards, **inside)
