"""Best of k by a score: the expectation over all subsets of k responses, checked by enumerating the subsets."""

from itertools import combinations

import numpy as np
import pytest

from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.best_of_n import accuracy_by_chooser, best_at_k, chosen_table
from rljax.evaluation.statistics import average_at_n, pass_at_k


def enumerate_best(scores, right, judged, k):
    """The fraction of right responses among the highest-scoring ones of a subset, averaged over all subsets."""
    answers = []
    for row, good, seen in zip(scores, right, judged, strict=True):
        indices = [i for i in range(len(row)) if seen[i]]
        fractions = []
        for subset in combinations(indices, k):
            values = [-1e9 if np.isnan(row[i]) else row[i] for i in subset]
            highest = [i for i, value in zip(subset, values, strict=True) if value == max(values)]
            fractions.append(sum(bool(good[i]) for i in highest) / len(highest))
        answers.append(np.mean(fractions) if fractions else np.nan)
    return np.array(answers)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_best_at_k_matches_enumeration(k):
    rng = np.random.default_rng(k)
    scores = rng.integers(0, 4, (8, 6)).astype(float)  # few values, so that there are ties
    scores[rng.random(scores.shape) < 0.1] = np.nan
    right, judged = rng.random(scores.shape) < 0.4, rng.random(scores.shape) < 0.85
    np.testing.assert_allclose(best_at_k(scores, right, judged, k=k), enumerate_best(scores, right, judged, k))


def test_best_at_k_of_perfect_and_constant_scores():
    rng = np.random.default_rng(0)
    right, judged = rng.random((5, 6)) < 0.3, np.ones((5, 6), bool)
    for k in (1, 2, 5):
        np.testing.assert_allclose(best_at_k(right.astype(float), right, judged, k=k), pass_at_k(right, judged, k=k))
        constant = best_at_k(np.zeros((5, 6)), right, judged, k=k)
        np.testing.assert_allclose(constant, average_at_n(right.astype(float), judged))


@pytest.mark.usefixtures("without_type_checks")
def test_best_at_k_invalid_arguments():
    right = np.ones((1, 2), bool)
    with pytest.raises(ValueError, match="k must be from 1 to 2"):
        best_at_k(np.zeros((1, 2)), right, right, k=3)
    with pytest.raises(ValueError, match=r"all arrays must be \[P, N\]"):
        best_at_k(np.zeros((1, 3)), right, np.ones((1, 3), bool), k=1)


def test_accuracy_by_chooser():
    correct = np.array([[1.0, 0.0, 0.0, 1.0]] * 6)
    answers = [["7", "8", "8", "7"]] * 6
    sampled = SampledAnswers(correct, np.ones((6, 4), int), correct < 0, answers, correct, scores={"bad": -correct})
    chosen = accuracy_by_chooser(sampled, ["verifier", "votes", "bad"], at=[1, 2, 4])
    values = {name: [round(estimate.value, 3) for estimate in row.values()] for name, row in chosen.items()}
    assert values == {"verifier": [0.5, 0.833, 1.0], "votes": [0.5, 0.5, 0.5], "bad": [0.5, 0.167, 0.0]}
    assert [column.header for column in chosen_table(chosen).columns] == ["responses", "verifier", "votes", "bad"]
