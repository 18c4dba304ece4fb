"""The prompt consistency experiment: its committed rows, their page, and a tiny run of each arm."""

import json
from pathlib import Path

import prompt_consistency as experiment
import pytest

FILE = Path(experiment.__file__).with_suffix(".json")


def test_page_matches_rows():
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    assert len(rows) == 15
    assert all(row["settings"] == experiment.hash_settings(row) for row in rows)
    assert experiment.report(rows) in FILE.with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize("arm", experiment.ARMS)
def test_arm_trains_and_answers_changed_prompts(arm, tmp_path, monkeypatch):
    tiny = {"layers": 1, "width": 16, "hidden": 32, "heldout_problems": 8, "train_problems": 24, "operands": (2, 2)}
    tiny |= {"warm_start_steps": 1, "prompts": 4, "group_size": 2, "steps": 1, "checkpoint_every": 1}
    monkeypatch.setattr(experiment, "CONFIG", experiment.CONFIG.replace(**tiny))
    row = experiment.run_arm(tmp_path, arm, 0)
    assert [*row] == [*experiment.MEASURES]
    assert 0 <= row["original"] <= 1
    assert 0 <= row["changed"] <= 1
