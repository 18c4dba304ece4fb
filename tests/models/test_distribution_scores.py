"""Functions of full distributions: values and gradients computed in chunks of tokens match those from all logits at once."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.distribution_scores import apply_over_vocabulary, square_sum
from rljax.models.packed import Features
from rljax.ops.distillation import generalized_jsd, sorted_probability_distance
from rljax.parallel import make_mesh

ROWS, LENGTH, VOCAB = 4, 7, 11
RANDOM = np.random.default_rng(0)
MESHES = {1: None, 2: make_mesh(1, 2), 4: make_mesh(2, 2)}
DIVERGENCE = partial(generalized_jsd, beta=0.3)


def features(width, cap=None):
    hidden, head = RANDOM.normal(size=(ROWS, LENGTH, width)), RANDOM.normal(size=(VOCAB, width))
    return Features(*(jnp.array(array, jnp.float32) for array in (hidden, head)), cap=cap)


STUDENT, TEACHER = features(5), features(3, jnp.float32(1.5))
WEIGHTS = jnp.array(RANDOM.normal(size=(ROWS, LENGTH)), jnp.float32)


def from_all_logits(student, teacher):
    first, second = (jnp.einsum("RKD,VD->RKV", each.hidden, each.head) for each in (student, teacher))
    return DIVERGENCE(first / 0.7, teacher.cap * jnp.tanh(second / teacher.cap) / 0.7)


@pytest.mark.parametrize(("chunk", "parts"), [(3, 1), (100, 1), (8, 2), (5, 4)])
def test_a_chunked_divergence_matches_all_logits(chunk, parts):
    def in_chunks(student, teacher):
        return apply_over_vocabulary(DIVERGENCE, student, teacher, temperature=0.7, chunk=chunk, mesh=MESHES[parts])

    def gradients(function):
        return jax.jit(jax.grad(lambda *models: (WEIGHTS * function(*models)).sum(), (0, 1)))(STUDENT, TEACHER)

    chex.assert_trees_all_close(
        jax.jit(in_chunks)(STUDENT, TEACHER), from_all_logits(STUDENT, TEACHER), rtol=1e-5, atol=1e-6
    )
    chex.assert_trees_all_close(gradients(in_chunks), gradients(from_all_logits), rtol=1e-4, atol=1e-5)


def test_the_sum_of_squares_matches_a_loop():
    expected = np.zeros((ROWS, LENGTH))
    for row, index in np.ndindex(ROWS, LENGTH):
        exponentials = np.exp(np.asarray(STUDENT.head, float) @ np.asarray(STUDENT.hidden[row, index], float) / 0.7)
        expected[row, index] = sum((each / exponentials.sum()) ** 2 for each in exponentials)
    actual = apply_over_vocabulary(square_sum, STUDENT, temperature=0.7, chunk=3)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_gradient_over_bfloat16_hidden_states_is_summed_in_float32():
    """The head's gradient over 2,048 equal tokens; a running sum in bfloat16 would stop growing after 256 of them."""
    hidden, head = jnp.ones((1, 2048, 1), jnp.bfloat16), jnp.zeros((2, 1))

    def total(head):
        return apply_over_vocabulary(lambda logits: logits[..., 0], Features(hidden, head), chunk=1).sum()

    gradient = jax.grad(total)(head)
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(gradient[:, 0], [2048, 0])


def test_memory_does_not_grow_with_the_number_of_chunks():
    def temporaries(length):
        one = Features(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, length, 64), (8192, 64))))

        def total(student, teacher):
            return apply_over_vocabulary(DIVERGENCE, student, teacher, chunk=32).sum()

        return jax.jit(jax.grad(total)).lower(one, one).compile().memory_analysis().temp_size_in_bytes

    logits = 32 * 8192 * 4
    assert temporaries(1024) - temporaries(64) < 2 * logits < 1024 * 8192 * 4


def test_features_of_different_tokens_are_refused():
    fewer = STUDENT._replace(hidden=STUDENT.hidden[:, :-1])
    with pytest.raises(ValueError, match=r"features must have the same rows and tokens, got \[\(4, 6\), \(4, 7\)\]"):
        apply_over_vocabulary(DIVERGENCE, fewer, TEACHER, chunk=4)


def test_vocabularies_of_different_sizes_can_be_compared():
    fewer = STUDENT._replace(head=STUDENT.head[:-1])
    found = apply_over_vocabulary(sorted_probability_distance, fewer, TEACHER, chunk=4)
    teacher_logits = TEACHER.cap * jnp.tanh(TEACHER.hidden @ TEACHER.head.T / TEACHER.cap)
    expected = sorted_probability_distance(fewer.hidden @ fewer.head.T, teacher_logits)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_mesh_that_does_not_divide_the_rows_is_refused():
    with pytest.raises(ValueError, match="the 4 rows must be a multiple of the 3 devices"):
        apply_over_vocabulary(square_sum, STUDENT, chunk=4, mesh=make_mesh(3, 1))
