"""Scores computed from the logits of every slot, compared with a loop; one token is excluded."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models.policy import scores_of_logits
from rljax.rollout import Sequences, pack_one_per_row

ROWS, PROMPT, LENGTH, VOCABULARY = 2, 2, 3, 5
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, VOCABULARY - 1, (ROWS, LENGTH)).astype(np.int32)
PROMPT_ATTENTION = np.ones((ROWS, PROMPT), bool)
PACKED = pack_one_per_row(
    Sequences(np.zeros((ROWS, PROMPT), np.int32), PROMPT_ATTENTION, TOKENS, np.ones((ROWS, LENGTH), bool))
)
LOGITS = RNG.normal(size=(ROWS, PROMPT + LENGTH, VOCABULARY)).astype(np.float32)


def test_scores_match_a_loop_and_an_excluded_token_adds_nothing():
    excluded = LOGITS.copy()
    excluded[..., -1] = -np.inf
    scores = scores_of_logits(jnp.array(excluded), PACKED, 0.7)
    for row, t in np.ndindex(ROWS, LENGTH):
        possible = excluded[row, PROMPT - 1 + t, :-1].astype(np.float64) / 0.7
        probability = np.exp(possible) / np.exp(possible).sum()
        np.testing.assert_allclose(scores.logp[row, t], np.log(probability[TOKENS[row, t]]), rtol=1e-5)
        np.testing.assert_allclose(scores.entropy[row, t], -(probability * np.log(probability)).sum(), rtol=1e-5)
    gradient = jax.grad(lambda logits: scores_of_logits(logits, PACKED, 0.7).entropy.sum())(jnp.array(excluded))
    assert np.isfinite(gradient).all()
