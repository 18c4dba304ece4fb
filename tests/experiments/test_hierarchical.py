"""Hierarchical and flat credit: the arms differ only as described, and are compared at equal sampled tokens."""

import pytest
from hierarchical import ARMS, CONFIG, accuracy_at, config_of, curve_of, report


def test_accuracy_at_interpolates_sampled_tokens():
    metrics = [
        {"phase": "eval", "step": 0, "accuracy": 0.1},
        {"phase": "rl", "step": 1, "response_length": 10.0},
        {"phase": "rl", "step": 2, "response_length": 12.0},
        {"phase": "eval", "step": 2, "accuracy": 0.5},
        {"phase": "rl", "step": 3, "response_length": 12.0},
    ]
    assert curve_of(metrics, 4) == [(0, 0.1), (88, 0.5)]
    with_plans = [row | {"sampled_tokens": 20.0} if row["phase"] == "rl" else row for row in metrics]
    assert curve_of(with_plans, 4) == [(0, 0.1), (40, 0.5)]
    assert accuracy_at(22, [(0, 0.1), (88, 0.5)]) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="sampled 40 tokens, fewer than 88"):
        accuracy_at(88, [(0, 0.1), (40, 0.5)])


def test_arms_differ_only_in_described_settings():
    assert {config_of(arm, 0).sampling.group_size for arm in ARMS} == {8}
    assert {config_of(arm, 0).sampling.prompts for arm in ARMS} == {8}
    credit, divided = (config_of(arm, 3).to_json() for arm in ("credit", "sub-policies"))
    different = {
        group: {n for n in credit[group] if credit[group][n] != divided[group][n]}
        for group in credit
        if isinstance(credit[group], dict)
    }
    assert set().union(*different.values()) == {"rank", "alpha", "sub_policies"}
    assert CONFIG.data.heldout_problems == 128


def test_report_pairs_arms_by_seed():
    rows = [
        {"arm": arm, "seed": seed, "accuracy": 0.2 * number + 0.1 * seed, "curve": [(0, 0.05)]}
        for seed in range(3)
        for number, arm in enumerate(ARMS)
    ]
    assert "| credit | 5.0% | 30.0% (20.0% to 40.0%) | +20.0 | +20.0, +20.0, +20.0 |" in report(rows)
