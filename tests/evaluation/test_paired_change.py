"""Paired change in per-problem accuracy between two evaluations."""

import numpy as np

from rljax.evaluation.paired_change import format_points, paired_change


def test_paired_change_ignores_problems_without_a_result():
    before, after = np.array([1.0, 0.0, np.nan, 0.5]), np.array([1.0, 1.0, 1.0, np.nan])
    assert paired_change(before, after)[::3] == (0.5, 2)
    halves = paired_change(np.array([0.5, 0.5]), np.array([1.0, 0.5]))
    assert (halves.value, halves.low, halves.high) == (0.25, 0.0, 0.5)


def test_paired_change_of_equal_differences():
    assert format_points(paired_change(np.full(4, 0.5), np.ones(4))) == "+50.0 points"
    certain = paired_change(np.zeros(4), np.ones(4))
    assert certain.low < 0.9 < certain.high
    assert format_points(paired_change(np.array([0.5]), np.array([1.0]))) == "+50.0 points"
    rounded = paired_change(np.array([0.1, 0.2, 0.7]), np.array([0.2, 0.3, 0.8]))
    assert format_points(rounded) == "+10.0 points"
    assert format_points(paired_change(np.full(1, np.nan), np.array([1.0]))) == "-"
