"""Best of k by a score: the expectation over all subsets, checked against a loop over them."""

from itertools import combinations

import numpy as np
import pytest

from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.best_of_n import accuracy_by_chooser, best_at_k, chosen_table
from rljax.evaluation.statistics import average_at_n, pass_at_k


def by_all_subsets(scores, right, judged, k):
    """The share of right responses among the highest scores of each subset, averaged over the subsets."""
    answers = []
    for row, good, seen in zip(scores, right, judged, strict=True):
        places = [place for place in range(len(row)) if seen[place]]
        shares = []
        for subset in combinations(places, k):
            numbers = [-1e9 if np.isnan(row[place]) else row[place] for place in subset]
            highest = [place for place, number in zip(subset, numbers, strict=True) if number == max(numbers)]
            shares.append(sum(bool(good[place]) for place in highest) / len(highest))
        answers.append(np.mean(shares) if shares else np.nan)
    return np.array(answers)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_every_subset_counts_once(k):
    rng = np.random.default_rng(k)
    scores = rng.integers(0, 4, (8, 6)).astype(float)  # few values, so that there are ties
    scores[rng.random(scores.shape) < 0.1] = np.nan
    right, judged = rng.random(scores.shape) < 0.4, rng.random(scores.shape) < 0.85
    np.testing.assert_allclose(best_at_k(scores, right, judged, k=k), by_all_subsets(scores, right, judged, k))


def test_a_perfect_score_is_pass_at_k_and_a_constant_one_is_the_mean():
    rng = np.random.default_rng(0)
    right, judged = rng.random((5, 6)) < 0.3, np.ones((5, 6), bool)
    for k in (1, 2, 5):
        np.testing.assert_allclose(best_at_k(right.astype(float), right, judged, k=k), pass_at_k(right, judged, k=k))
        constant = best_at_k(np.zeros((5, 6)), right, judged, k=k)
        np.testing.assert_allclose(constant, average_at_n(right.astype(float), judged))


@pytest.mark.usefixtures("untyped")
def test_wrong_shapes_and_numbers_are_refused():
    right = np.ones((1, 2), bool)
    with pytest.raises(ValueError, match="k must be from 1 to 2"):
        best_at_k(np.zeros((1, 2)), right, right, k=3)
    with pytest.raises(ValueError, match=r"all arrays must be \[P, N\]"):
        best_at_k(np.zeros((1, 3)), right, np.ones((1, 3), bool), k=1)


def test_a_chooser_that_prefers_wrong_answers_gets_worse_with_more_responses():
    correct = np.array([[1.0, 0.0, 0.0, 1.0]] * 6)
    answers = [["7", "8", "8", "7"]] * 6
    sampled = SampledAnswers(correct, np.ones((6, 4), int), correct < 0, answers, correct, scores={"bad": -correct})
    chosen = accuracy_by_chooser(sampled, ["verifier", "votes", "bad"], at=[1, 2, 4])
    values = {name: [round(estimate.value, 3) for estimate in row.values()] for name, row in chosen.items()}
    assert values == {"verifier": [0.5, 0.833, 1.0], "votes": [0.5, 0.5, 0.5], "bad": [0.5, 0.167, 0.0]}
    assert [column.header for column in chosen_table(chosen).columns] == ["responses", "verifier", "votes", "bad"]
