"""The accuracy gap between groups of problems: a true gap is found, and equal groups rarely seem to differ."""

import numpy as np
import pytest

from rljax.evaluation.group_gap import MIN_PROBLEMS, group_gap


def sample_groups(rng, accuracies, problems, samples=1):
    """Simulate the accuracies of groups. With several samples, each problem has its own chance around its group's accuracy."""
    found = {}
    for index, accuracy in enumerate(accuracies):
        chance = np.full(problems, accuracy) if samples == 1 else rng.beta(2 * accuracy, 2 * (1 - accuracy), problems)
        found[str(index)] = rng.binomial(samples, chance) / samples
    return found


def test_group_gap_finds_best_and_worst():
    gap = group_gap(sample_groups(np.random.default_rng(0), (0.5, 0.9, 0.2), 300))
    assert (gap.best, gap.worst) == ("1", "2")
    assert gap.difference.low > 0.5
    assert gap.difference.problems == 600


@pytest.mark.parametrize(("count", "problems", "samples"), [(6, 80, 1), (8, 20, 1), (8, 20, 8), (2, 25, 4)])
def test_group_gap_interval_corrects_for_selection(count, problems, samples):
    """In 300 simulations with equal groups, the interval excludes 0 in about 5%; without a correction, in a third."""
    rng = np.random.default_rng(1)
    found = [group_gap(sample_groups(rng, (0.6,) * count, problems, samples)) for _ in range(300)]
    assert np.mean([gap.difference.low > 0 for gap in found]) < 0.08


def test_group_gap_leaves_out_tiny_groups():
    """Groups of three problems are best or worst by chance, and are too small to estimate their variance."""
    rng = np.random.default_rng(2)
    assert group_gap(sample_groups(rng, (0.6,) * 8, 3, samples=8)) is None
    assert group_gap({"a": np.array([0.5, 0.5]), "b": np.array([0.4375, 0.4375])}) is None
    gap = group_gap({"a": np.full(MIN_PROBLEMS, 1.0), "b": np.zeros(MIN_PROBLEMS), "c": np.full(MIN_PROBLEMS - 1, 0.5)})
    assert (gap.best, gap.worst, gap.left_out) == ("a", "b", 1)
    assert "groups of fewer than 20 problems left out: 1" in gap.text()


def test_group_gap_of_equal_or_single_groups():
    same = np.repeat([0.0, 1.0], MIN_PROBLEMS)
    gap = group_gap({"a": same, "b": same})
    assert (gap.best != gap.worst, gap.difference.value) == (True, 0.0)
    assert "left out" not in gap.text()
    assert group_gap({"a": same, "b": np.full(2 * MIN_PROBLEMS, np.nan)}) is None


def test_group_gap_without_spread_has_no_interval():
    """The variance of equal fractions is unknown, not 0, and NumPy does not round it to exactly 0."""
    gap = group_gap({"a": np.full(MIN_PROBLEMS, 0.7), "b": np.full(MIN_PROBLEMS, 0.1)})
    assert gap.difference.value == pytest.approx(0.6)
    assert np.isnan([gap.difference.low, gap.difference.high]).all()
    assert gap.text() == "a is 60.0 points above b (no interval, because the accuracy varies within neither group)"
    other = group_gap({"a": np.full(MIN_PROBLEMS, 0.7), "b": np.repeat([0.1, 0.2], MIN_PROBLEMS // 2)})
    assert other.difference.low < other.difference.value < other.difference.high
