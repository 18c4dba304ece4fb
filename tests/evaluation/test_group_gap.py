"""The gap between groups: a true one is found, and equal groups rarely seem to differ."""

import numpy as np
import pytest

from rljax.evaluation.group_gap import FEWEST, group_gap


def sample_groups(rng, shares, problems, samples=1):
    """Groups whose problems share one probability of being answered correctly or, with several samples, have one each."""
    found = {}
    for index, share in enumerate(shares):
        chance = np.full(problems, share) if samples == 1 else rng.beta(2 * share, 2 * (1 - share), problems)
        found[str(index)] = rng.binomial(samples, chance) / samples
    return found


def test_the_best_and_the_worst_group_are_found():
    gap = group_gap(sample_groups(np.random.default_rng(0), (0.5, 0.9, 0.2), 300))
    assert (gap.best, gap.worst) == ("1", "2")
    assert gap.difference.low > 0.5
    assert gap.difference.problems == 600


@pytest.mark.parametrize(("count", "problems", "samples"), [(6, 80, 1), (8, 20, 1), (8, 20, 8), (2, 25, 4)])
def test_the_interval_accounts_for_picking_the_best_and_the_worst_group(count, problems, samples):
    """In 300 simulations with equal groups, the interval excludes 0 in about one of twenty, and not in a third."""
    rng = np.random.default_rng(1)
    found = [group_gap(sample_groups(rng, (0.6,) * count, problems, samples)) for _ in range(300)]
    assert np.mean([gap.difference.low > 0 for gap in found]) < 0.08


def test_tiny_groups_are_left_out():
    """Groups of three problems come out best or worst by chance, and say too little about their scatter."""
    rng = np.random.default_rng(2)
    assert group_gap(sample_groups(rng, (0.6,) * 8, 3, samples=8)) is None
    assert group_gap({"a": np.array([0.5, 0.5]), "b": np.array([0.4375, 0.4375])}) is None
    gap = group_gap({"a": np.full(FEWEST, 1.0), "b": np.zeros(FEWEST), "c": np.full(FEWEST - 1, 0.5)})
    assert (gap.best, gap.worst, gap.left_out) == ("a", "b", 1)
    assert "groups of fewer than 20 problems left out: 1" in gap.text()


def test_equal_groups_have_a_gap_of_0_and_a_single_group_has_none():
    same = np.repeat([0.0, 1.0], FEWEST)
    gap = group_gap({"a": same, "b": same})
    assert (gap.best != gap.worst, gap.difference.value) == (True, 0.0)
    assert "left out" not in gap.text()
    assert group_gap({"a": same, "b": np.full(2 * FEWEST, np.nan)}) is None
