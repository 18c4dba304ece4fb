"""Distillation, checked against loops, the limits β → 0 and β → 1, TRL's values, and the teacher log-ratio's expectation."""

import json
from math import exp, inf, log
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.ops.distillation import (
    generalized_jsd,
    matched_vocabulary_distance,
    mean_later_log_ratio,
    sorted_probability_distance,
    teacher_log_ratio,
)
from rljax.ops.divergence import exact_kl

RNG = np.random.default_rng(0)
STUDENT, TEACHER = 2 * RNG.normal(size=(2, 4, 3, 7))
TRL_RESULTS = json.loads(Path(__file__).with_name("trl_distillation.json").read_text())


def softmax(row):
    powers = [exp(z - max(row)) for z in row]
    return [power / sum(powers) for power in powers]


def kl(p, q):
    return sum(a * log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def jsd(student, teacher, beta):
    p, q = softmax(teacher), softmax(student)
    mixture = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
    return beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)


def map_last_axis(f, *arrays):
    leading = arrays[0].shape[:-1]
    return np.array([f(*(list(array[index]) for array in arrays)) for index in np.ndindex(leading)]).reshape(leading)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.5, 0.9])
def test_jsd_matches_formula(beta):
    expected = map_last_axis(lambda student, teacher: jsd(student, teacher, beta), STUDENT, TEACHER)
    np.testing.assert_allclose(generalized_jsd(jnp.array(STUDENT), jnp.array(TEACHER), beta=beta), expected, rtol=1e-11)


@pytest.mark.usefixtures("x64")
def test_jsd_limits_are_forward_and_reverse_kl():
    student, teacher = jnp.array(STUDENT), jnp.array(TEACHER)

    def slope(f):
        return jax.grad(lambda logits: f(logits).sum())(student)

    near = 1e-7
    for beta, scale, end in (
        (near, near, lambda logits: exact_kl(teacher, logits)),
        (1 - near, near, lambda logits: exact_kl(logits, teacher)),
    ):
        np.testing.assert_allclose(generalized_jsd(student, teacher, beta=beta) / scale, end(student), rtol=1e-4)
        gradient = slope(lambda logits, beta=beta: generalized_jsd(logits, teacher, beta=beta)) / scale
        np.testing.assert_allclose(gradient, slope(end), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("beta", ["0.0", "0.1", "0.5", "0.9", "1.0"])
def test_jsd_matches_trl_in_value_and_gradient(beta):
    student, teacher = (jnp.array(TRL_RESULTS[name]) / TRL_RESULTS["temperature"] for name in ("logits", "teacher_logits"))
    limits = {"0.0": lambda logits: exact_kl(teacher, logits), "1.0": lambda logits: exact_kl(logits, teacher)}
    ours = limits.get(beta, lambda logits: generalized_jsd(logits, teacher, beta=float(beta)))
    np.testing.assert_allclose(ours(student), TRL_RESULTS["outputs"][beta]["divergence"], rtol=1e-11)
    gradient = jax.grad(lambda logits: ours(logits).sum())(student) / TRL_RESULTS["temperature"]
    np.testing.assert_allclose(gradient, TRL_RESULTS["outputs"][beta]["gradient"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta", [0.2, 0.5])
def test_jsd_is_0_for_equal_logits_symmetric_and_bounded(beta):
    student, teacher = jnp.array(STUDENT, jnp.float32), jnp.array(TEACHER, jnp.float32)
    np.testing.assert_allclose(generalized_jsd(student, student, beta=beta), 0, atol=1e-6)
    swapped = generalized_jsd(teacher, student, beta=1 - beta)
    np.testing.assert_allclose(generalized_jsd(student, teacher, beta=beta), swapped, rtol=1e-5, atol=1e-6)
    disjoint = generalized_jsd(jnp.array([0.0, -inf]), jnp.array([-inf, 0.0]), beta=beta)
    np.testing.assert_allclose(disjoint, -beta * log(beta) - (1 - beta) * log(1 - beta), rtol=1e-6)


def test_excluded_tokens_count_as_probability_0():
    excluding_logits, remaining_logits = [0.3, -1.0, -inf, -inf], [0.3, -1.0]
    teacher = [1.0, -inf, 0.5, -inf]
    ours = generalized_jsd(jnp.array(excluding_logits), jnp.array(teacher), beta=0.3)
    np.testing.assert_allclose(ours, jsd(excluding_logits, teacher, 0.3), rtol=1e-6)
    gradient = jax.grad(lambda logits: generalized_jsd(logits, jnp.array(teacher), beta=0.3))(jnp.array(excluding_logits))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[2:], 0)
    both_exclude = generalized_jsd(jnp.array(excluding_logits), jnp.array([0.1, 0.2, -inf, -inf]), beta=0.3)
    np.testing.assert_allclose(
        both_exclude, generalized_jsd(jnp.array(remaining_logits), jnp.array([0.1, 0.2]), beta=0.3), rtol=1e-6
    )


def test_chunks_of_tokens_add_up_to_the_full_result():
    student, teacher = jnp.array(STUDENT, jnp.float32), jnp.array(TEACHER, jnp.float32)
    chunks = jax.lax.map(lambda pair: generalized_jsd(*pair, beta=0.3), (student, teacher))
    np.testing.assert_allclose(chunks, generalized_jsd(student, teacher, beta=0.3), rtol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_beta_outside_0_to_1_is_refused_with_a_hint(beta):
    with pytest.raises(
        ValueError, match=r"beta must lie strictly between 0 and 1, got .*exact_kl\(teacher_logits, logits\)"
    ):
        generalized_jsd(jnp.zeros(3), jnp.zeros(3), beta=beta)


def test_empty_vocabulary_is_refused():
    with pytest.raises(ValueError, match="logits must have at least 1 non-empty axes"):
        generalized_jsd(jnp.zeros((2, 0)), jnp.zeros((2, 0)), beta=0.5)


def test_teacher_log_ratio_matches_formula():
    logp, teacher = -np.abs(RNG.normal(size=(2, 2, 4)))
    mask = np.array([[1, 1, 1, 0], [1, 0, 1, 1]])
    expected = [[teacher[i, t] - logp[i, t] if mask[i, t] else 0.0 for t in range(4)] for i in range(2)]
    dirty = [jnp.array(np.where(mask, x, np.nan), jnp.float32) for x in (logp, teacher)]
    np.testing.assert_allclose(teacher_log_ratio(*dirty, jnp.array(mask)), expected, rtol=1e-6, atol=1e-6)


def test_teacher_log_ratio_of_an_excluded_token_is_minus_infinity():
    assert teacher_log_ratio(jnp.array([-1.0]), jnp.array([-inf]), jnp.array([1])).tolist() == [-inf]


@pytest.mark.usefixtures("x64")
def test_teacher_log_ratio_descends_the_reverse_kl_in_expectation():
    """The expectation is an exact sum over the vocabulary, so there is no sampling error."""
    student, teacher = jnp.array(STUDENT[0]), jax.nn.log_softmax(jnp.array(TEACHER[0]))
    logp = jax.nn.log_softmax(student)
    log_ratio = teacher_log_ratio(logp, teacher, jnp.ones(logp.shape, bool))
    np.testing.assert_allclose((jnp.exp(logp) * log_ratio).sum(-1), -exact_kl(student, teacher), rtol=1e-12)

    def objective(logits):
        return (jnp.exp(logp) * log_ratio * jax.nn.log_softmax(logits)).sum()

    gradient = jax.grad(lambda logits: exact_kl(logits, teacher).sum())(student)
    np.testing.assert_allclose(jax.grad(objective)(student), -gradient, rtol=1e-10, atol=1e-13)


def test_mean_later_log_ratio_skips_gaps_and_padding():
    rng = np.random.default_rng(0)
    logp, teacher_logp = rng.normal(size=(2, 4, 7)).astype(np.float32)
    mask = rng.random((4, 7)) < 0.6
    expected = np.zeros((4, 7))
    for row, t in zip(*np.nonzero(mask), strict=True):
        later = [float(teacher_logp[row, k]) - float(logp[row, k]) for k in range(t + 1, 7) if mask[row, k]]
        expected[row, t] = sum(later) / len(later) if later else 0.0
    dirty = (jnp.array(np.where(mask, x, np.nan)) for x in (logp, teacher_logp))
    np.testing.assert_allclose(mean_later_log_ratio(*dirty, jnp.array(mask)), expected, rtol=1e-5, atol=1e-6)


def test_mean_later_log_ratio_is_infinite_only_before_a_token_that_the_teacher_excludes():
    student, teacher = jnp.array([-1.0, -1.0, -1.0, -1.0]), jnp.array([-1.0, -jnp.inf, -2.0, -4.0])
    assert mean_later_log_ratio(student, teacher, jnp.ones(4)).tolist() == [-np.inf, -2.0, -3.0, 0.0]


def sorted_distance(student, teacher):
    """The absolute probability differences summed over ranks, and the sum's gradient with respect to the student's logits."""
    p, q = softmax(student), softmax(teacher)
    order = sorted(range(len(p)), key=lambda token: -p[token])
    teacher_sorted = [*sorted(q, reverse=True), *[0.0] * len(p)]
    student_sorted = [*(p[token] for token in order), *[0.0] * len(q)]
    distance = sum(abs(a - b) for a, b in zip(student_sorted[: max(len(p), len(q))], teacher_sorted, strict=False))
    signs = {token: 1.0 if student_sorted[rank] > teacher_sorted[rank] else -1.0 for rank, token in enumerate(order)}
    mean = sum(signs[token] * p[token] for token in order)
    return distance, [p[token] * (signs[token] - mean) for token in range(len(p))]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("size", [4, 7, 9])
def test_sorted_probability_distance_and_gradient(size):
    teacher = 2 * np.random.default_rng(size).normal(size=(4, 3, size))
    found = sorted_probability_distance(jnp.array(STUDENT), jnp.array(teacher))
    slope = jax.grad(lambda logits: sorted_probability_distance(logits, jnp.array(teacher)).sum())(jnp.array(STUDENT))
    for index in np.ndindex(4, 3):
        distance, gradient = sorted_distance(list(STUDENT[index]), list(teacher[index]))
        np.testing.assert_allclose(found[index], distance, rtol=1e-12)
        np.testing.assert_allclose(slope[index], gradient, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(sorted_probability_distance(jnp.array(teacher), jnp.array(STUDENT)), found, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_sorted_distance_ignores_token_order_and_impossible_tokens():
    student, teacher = jnp.array(STUDENT), jnp.array(TEACHER)
    found = sorted_probability_distance(student, teacher)
    permuted = student[..., np.random.default_rng(1).permutation(7)]
    np.testing.assert_allclose(sorted_probability_distance(permuted, teacher), found, rtol=1e-12)
    wider = jnp.pad(teacher, ((0, 0), (0, 0), (0, 5)), constant_values=-jnp.inf)
    np.testing.assert_allclose(sorted_probability_distance(student, wider), found, rtol=1e-12)
    np.testing.assert_allclose(sorted_probability_distance(permuted, student), 0, atol=1e-12)


def test_student_learns_sorted_probabilities_across_vocabularies():
    """The student learns the teacher's sorted probabilities, but not which token has which probability."""
    teacher, student = jnp.array(TEACHER[..., :5]), jnp.array(STUDENT)
    step = jax.jit(jax.grad(lambda logits: sorted_probability_distance(logits, teacher).sum()))
    for size in (0.3, 0.1, 0.03):
        for _ in range(300):
            student = student - size * step(student)
    before = sorted_probability_distance(jnp.array(STUDENT), teacher).mean()
    assert sorted_probability_distance(student, teacher).mean() < 0.1 * before


STUDENT_IDS, TEACHER_IDS = np.array([5, 0, 3]), np.array([1, 4, 0])


def matched_distance(student, teacher, pairs, beta):
    """GOLD's distance with matched tokens, computed with Python floats; `pairs` are (student id, teacher id)."""
    q, p = softmax(student), softmax(teacher)
    shared = 0.0
    for student_id, teacher_id in pairs:
        mean = beta * p[teacher_id] + (1 - beta) * q[student_id]
        shared += beta * p[teacher_id] * log(p[teacher_id] / mean) + (1 - beta) * q[student_id] * log(q[student_id] / mean)
    rest = sorted((x for i, x in enumerate(q) if i not in {a for a, _ in pairs}), reverse=True)
    teacher_rest = sorted((x for i, x in enumerate(p) if i not in {b for _, b in pairs}), reverse=True)
    size = max(len(rest), len(teacher_rest))
    gaps = zip(rest + [0.0] * (size - len(rest)), teacher_rest + [0.0] * (size - len(teacher_rest)), strict=True)
    weight = len(pairs) / len(p)
    return weight * shared + (1 - weight) * sum(abs(a - b) for a, b in gaps)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("size", [5, 7, 9])
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_matched_vocabulary_distance_and_gradient(size, beta):
    teacher = 2 * np.random.default_rng(size).normal(size=(4, 3, size))
    pairs = list(zip(STUDENT_IDS.tolist(), TEACHER_IDS.tolist(), strict=True))

    def distance(logits):
        return matched_vocabulary_distance(logits, jnp.array(teacher), STUDENT_IDS, TEACHER_IDS, beta=beta)

    oracle = lambda student: map_last_axis(lambda s, t: matched_distance(s, t, pairs, beta), student, teacher)  # noqa: E731
    np.testing.assert_allclose(distance(jnp.array(STUDENT)), oracle(STUDENT), rtol=1e-11)
    slope = jax.grad(lambda logits: distance(logits).sum())(jnp.array(STUDENT))
    for token in range(7):
        step = 1e-6 * np.eye(7)[token]
        numeric = (oracle(STUDENT + step) - oracle(STUDENT - step)) / 2e-6
        np.testing.assert_allclose(slope[..., token], numeric, rtol=1e-5, atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_matching_all_tokens_is_gkd_and_matching_none_is_uld():
    student, teacher, every, none = jnp.array(STUDENT), jnp.array(TEACHER), np.arange(7), np.arange(0)
    found = matched_vocabulary_distance(student, teacher, every, every, beta=0.3)
    np.testing.assert_allclose(found, generalized_jsd(student, teacher, beta=0.3), rtol=1e-11)
    found = matched_vocabulary_distance(student, teacher, none, none, beta=0.3)
    np.testing.assert_allclose(found, sorted_probability_distance(student, teacher), rtol=1e-11)


@pytest.mark.usefixtures("x64")
def test_matched_distance_ignores_renumbered_tokens():
    student, teacher, order = jnp.array(STUDENT), jnp.array(TEACHER), np.random.default_rng(1).permutation(7)
    found = matched_vocabulary_distance(student, teacher, STUDENT_IDS, TEACHER_IDS, beta=0.3)
    new_ids = np.argsort(order)
    renumbered = matched_vocabulary_distance(student[..., order], teacher, new_ids[STUDENT_IDS], TEACHER_IDS, beta=0.3)
    np.testing.assert_allclose(renumbered, found, rtol=1e-11)
    same = matched_vocabulary_distance(student[..., order], student, new_ids[STUDENT_IDS], STUDENT_IDS, beta=0.3)
    np.testing.assert_allclose(same, 0, atol=1e-12)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("ids", [np.array([0, 0, 1]), np.array([0, 1, 7]), np.array([-1, 0, 1]), np.array([0.0, 1.0, 2.0])])
def test_invalid_matched_ids_are_refused(ids):
    with pytest.raises(ValueError, match=r"^matched must"):
        matched_vocabulary_distance(jnp.array(STUDENT), jnp.array(TEACHER), ids, TEACHER_IDS, beta=0.3)
