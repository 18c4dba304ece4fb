"""Advantages of GDPO, MaxRL and PKPO, checked against the outputs of other projects' functions (see `make_peer_advantages.py`).

GDPO's values come from verl, MaxRL's from its authors' code. For PKPO, no repository of its authors was found: this file compares
with another author's public implementation, and `test_values_of_other_libraries.py` with the code that is printed in the paper.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops import batch, group, pass_at_k

pytestmark = pytest.mark.usefixtures("x64")

PEER = json.loads(Path(__file__).with_name("peer_advantages.json").read_text())
FIRST, SECOND, WEIGHTS = (np.array(PEER["inputs"][name], float) for name in ("first", "second", "weights"))
PEER_OUTPUTS = PEER["outputs"]


def test_gdpo_matches_verl():
    """In the last step, verl divides by √(variance + 1e-8), with means over count + 1e-8; rljax divides by std + 1e-6."""
    z_scores = [(r - r.mean(-1, keepdims=True)) / (r.std(-1, ddof=1, keepdims=True) + 1e-6) for r in (FIRST, SECOND)]
    total = WEIGHTS[0] * z_scores[0] + WEIGHTS[1] * z_scores[1]
    count = total.size
    their_mean = total.sum() / (count + 1e-8)
    their_variance = np.square(total - their_mean).sum() / (count + 1e-8) * count / (count - 1)
    sums = np.array(PEER_OUTPUTS["gdpo"]) * np.sqrt(their_variance + 1e-8) + their_mean
    scores = jnp.stack([jnp.array(FIRST), jnp.array(SECOND)], -1)
    ours = batch.decoupled_normalized(scores, jnp.array(WEIGHTS), eps=1e-6)
    np.testing.assert_allclose(ours, (sums - total.mean()) / (total.std(ddof=1) + 1e-6), rtol=1e-9)
    assert np.abs(np.array(PEER_OUTPUTS["gdpo"])[2]).max() > 0.1, (
        "in a group with equal first rewards, the second rewards decide"
    )


def test_max_rl_matches_its_authors_code():
    np.testing.assert_allclose(group.mean_normalized(jnp.array(FIRST), eps=1e-6), PEER_OUTPUTS["max_rl"], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("s", pass_at_k.pass_at_k_credit),
        ("sloo", pass_at_k.pass_at_k_leave_one_out),
        ("sloo_minus_one", pass_at_k.pass_at_k_marginal),
    ],
)
def test_pkpo_matches_a_public_implementation(name, ours):
    """PKPO sums over the six responses and rljax averages, so rljax's credits are 6 times PKPO's."""
    for k, theirs in PEER_OUTPUTS["pkpo"][name].items():
        np.testing.assert_allclose(ours(jnp.array(SECOND), k=int(k)) / 6, theirs, rtol=1e-11, atol=1e-14)
