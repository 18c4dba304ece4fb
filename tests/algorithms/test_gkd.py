"""GKD's divergence from the teacher, checked against NumPy for β = 0, β = 1 and a value between them."""

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME

STUDENT, TEACHER = np.random.default_rng(0).normal(size=(2, 3, 5))


def probabilities(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def kl(p, q):
    return (p * np.log(p / q)).sum(-1)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_gkd_divergence(beta):
    student, teacher = probabilities(STUDENT), probabilities(TEACHER)
    mixture = beta * teacher + (1 - beta) * student
    between = beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)
    expected = {0.0: kl(teacher, student), 1.0: kl(student, teacher)}.get(beta, between)
    divergence = BY_NAME["gkd"](beta=beta).teacher_divergence
    np.testing.assert_allclose(divergence(jnp.array(STUDENT), jnp.array(TEACHER)), expected, rtol=1e-12)
