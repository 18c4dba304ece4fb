"""For responses of up to two tokens, MiniLLM's gradient equals the gradient of the reverse KL divergence.

After such a response's first token there is at most one more, so MiniLLM's mean over later tokens is their sum.
"""

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
STATES = np.array([[0, response[0]] for response in RESPONSES])  # logits index of each prefix: empty, token 1 or token 2
STUDENT, TEACHER = np.random.default_rng(3).normal(size=(2, VOCABULARY, VOCABULARY))


def log_probabilities(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def sequence_kl(policy_logits):
    """Return the KL divergence between the response distributions, by enumerating all responses."""
    student, teacher = (
        np.where(MASK, log_probabilities(each)[STATES, TOKENS], 0.0).sum(-1) for each in (policy_logits, TEACHER)
    )
    return (np.exp(student) * (student - teacher)).sum()


@pytest.mark.usefixtures("x64")
def test_minillm_gradient_is_the_sequence_kl_gradient():
    logp, teacher_logp = (jnp.array(log_probabilities(each)[STATES, TOKENS]) for each in (STUDENT, TEACHER))
    probabilities = jnp.exp(jnp.where(MASK, logp, 0.0).sum(-1))
    algorithm = BY_NAME["minillm"]()
    rollout = Rollout(
        mask=jnp.array(MASK)[:, None],
        behaviour_logp=logp[:, None],
        rewards=jnp.zeros((len(RESPONSES), 1)),
        teacher_logp=teacher_logp[:, None],
    )
    batch = prepare(algorithm, rollout)
    # Instead of sampling, enumerate all responses and weight each by its probability.
    sampling_weights = probabilities[:, None] * len(RESPONSES)
    batch = batch._replace(
        weights=batch.weights * sampling_weights,
        term_weights=tuple(weights * sampling_weights for weights in batch.term_weights),
    )

    def total_loss(policy_logits):
        logits = policy_logits[STATES]
        divergence = algorithm.teacher_divergence(logits, jnp.array(TEACHER)[STATES])
        current_logp = jax.nn.log_softmax(policy_logits)[STATES, TOKENS]
        return loss(algorithm, current_logp, batch, teacher_divergence=divergence)[0]

    gradient = jax.grad(total_loss)(jnp.array(STUDENT))
    expected = np.zeros_like(STUDENT)
    for index in np.ndindex(expected.shape):
        step = np.zeros_like(STUDENT)
        step[index] = 1e-5
        expected[index] = (sequence_kl(STUDENT + step) - sequence_kl(STUDENT - step)) / 2e-5
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-9)
    assert algorithm.teacher_divergence is exact_kl
    token_gradient = jax.grad(lambda policy_logits: total_loss(policy_logits) - surrogate(algorithm, batch, policy_logits))(
        jnp.array(STUDENT)
    )
    assert np.abs(token_gradient - expected).max() > 0.005, (
        "the gradient without credit for later tokens should be wrong, but is right"
    )


def surrogate(algorithm, batch, policy_logits):
    current_logp = jax.nn.log_softmax(policy_logits)[STATES, TOKENS]
    return loss(algorithm._replace(terms=(), teacher_divergence=None), current_logp, batch._replace(term_weights=()))[0]
