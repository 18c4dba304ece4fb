"""The stratified sampling experiment: its statistics, its checked-in results and report, and a tiny run of each arm."""

import json
from pathlib import Path

import numpy as np
import pytest
import stratified_sampling as experiment
from stratified_sampling import hash_of, sampling_section, training_section

FOLDER = Path(experiment.__file__).parent


def test_sampling_section_reports_the_deviation_across_seeds():
    means = np.random.default_rng(0).random((5, 7))
    rows = [
        {
            "part": "sampling",
            "arm": arm,
            "seed": seed,
            "mixed": 0.5,
            "distinct": 0.25,
            "passed": 1.0,
            "means": seed_means.tolist(),
        }
        for arm in experiment.ARMS
        for seed, seed_means in enumerate(means)
    ]
    expected = np.sqrt(np.mean([np.var(column, ddof=1) for column in means.T]))
    assert sampling_section(rows)[-1].endswith(f"| {expected:.3f} |")
    assert "| 50.0 % | 25.0 % | 100.0 % |" in sampling_section(rows)[-1]


def test_training_section_pairs_arms_by_seed():
    rows = [
        {"part": "training", "arm": "stratified", "seed": seed, "accuracy": [0.0] * 30 + [0.5] * 10} for seed in range(5)
    ]
    naive = [{"arm": "naive GRPO", "seed": seed, "rate": None, "accuracy": [0.0] * 30 + [0.4] * 10} for seed in range(5)]
    table = training_section(rows, naive)
    assert table[-1].startswith("| difference, points | | +10.0 | +2.5")
    assert table[2].startswith("| independent | 5 | 40.0 %")


def test_report_matches_results_and_settings():
    rows = json.loads((FOLDER / "stratified_sampling.json").read_text(encoding="utf-8"))
    assert len(rows) == 15
    assert all(row["settings"] == hash_of(row) for row in rows)
    report = (FOLDER / "stratified_sampling.md").read_text(encoding="utf-8")
    assert "\n".join(sampling_section(rows)) in report


@pytest.mark.parametrize("arm", experiment.ARMS)
def test_sample_groups_from_base_model(arm, tmp_path, monkeypatch):
    tiny = {"layers": 1, "width": 16, "hidden": 32, "heldout_problems": 4, "train_problems": 24, "operands": (2, 2)}
    tiny |= {"warm_start_steps": 1, "prompts": 2, "minibatches": 1, "max_response_tokens": 12, "unfinished_share": 0.0}
    monkeypatch.setattr(experiment.ablation_tables, "CONFIG", experiment.ablation_tables.CONFIG.replace(**tiny))
    monkeypatch.setattr(experiment, "PROBLEMS", 4)
    row = experiment.sample_groups(arm, 0, tmp_path)
    assert len(row["means"]) == 4
    assert 0 < row["distinct"] <= 1
