"""MiniLLM's gradient is that of the reverse KL between complete responses, as long as a mean over one token is a sum."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.ops.divergence import exact_kl

VOCABULARY, EOS = 3, 0
RESPONSES = [(EOS,), *product(range(1, VOCABULARY), range(VOCABULARY))]
MASK = np.array([[True, len(response) > 1] for response in RESPONSES])
TOKENS = np.array([(*response, 0)[:2] for response in RESPONSES])
STATES = np.array([[0, response[0]] for response in RESPONSES])  # a row of logits for each prefix: none, token 1, token 2
STUDENT, TEACHER = np.random.default_rng(3).normal(size=(2, VOCABULARY, VOCABULARY))


def log_probabilities(table):
    return table - np.log(np.exp(table).sum(-1, keepdims=True))


def sequence_kl(table):
    """KL between the distributions of complete responses, by enumeration."""
    ours, theirs = (np.where(MASK, log_probabilities(each)[STATES, TOKENS], 0.0).sum(-1) for each in (table, TEACHER))
    return (np.exp(ours) * (ours - theirs)).sum()


@pytest.mark.usefixtures("x64")
def test_the_expected_gradient_is_that_of_the_kl_between_responses_of_at_most_two_tokens():
    logp, teacher_logp = (jnp.array(log_probabilities(each)[STATES, TOKENS]) for each in (STUDENT, TEACHER))
    chances = jnp.exp(jnp.where(MASK, logp, 0.0).sum(-1))
    algorithm = BY_NAME["minillm"]()
    rollout = Rollout(
        mask=jnp.array(MASK)[:, None],
        behaviour_logp=logp[:, None],
        rewards=jnp.zeros((len(RESPONSES), 1)),
        teacher_logp=teacher_logp[:, None],
    )
    batch = prepare(algorithm, rollout)
    by_chance = chances[:, None] * len(RESPONSES)  # in place of samples: every response, weighted by its probability
    batch = batch._replace(
        weights=batch.weights * by_chance, term_weights=tuple(weights * by_chance for weights in batch.term_weights)
    )

    def total(table):
        logits = table[STATES]
        divergence = algorithm.teacher_divergence(logits, jnp.array(TEACHER)[STATES])
        now = jax.nn.log_softmax(table)[STATES, TOKENS]
        return loss(algorithm, now, batch, teacher_divergence=divergence)[0]

    gradient = jax.grad(total)(jnp.array(STUDENT))
    expected = np.zeros_like(STUDENT)
    for index in np.ndindex(expected.shape):
        step = np.zeros_like(STUDENT)
        step[index] = 1e-5
        expected[index] = (sequence_kl(STUDENT + step) - sequence_kl(STUDENT - step)) / 2e-5
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-9)
    assert algorithm.teacher_divergence is exact_kl
    only_tokens = jax.grad(lambda table: total(table) - surrogate(algorithm, batch, table))(jnp.array(STUDENT))
    assert np.abs(only_tokens - expected).max() > 0.005, "without credit for later tokens it is not the gradient"


def surrogate(algorithm, batch, table):
    now = jax.nn.log_softmax(table)[STATES, TOKENS]
    return loss(algorithm._replace(terms=(), teacher_divergence=None), now, batch._replace(term_weights=()))[0]
