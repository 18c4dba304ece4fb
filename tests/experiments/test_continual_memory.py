"""Ways to remember a first task: replaying its solved problems, and an adapter that leaves the first model unchanged."""

import json

import continual_memory
import numpy as np
import pytest
from continual_memory import ARMS, claims, report, run_both

import rljax
from rljax.programs.trained_policy import load
from rljax.training.parts.problems import make_problems

TINY = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "hidden": 32, "train_problems": 24, "heldout_problems": 8}
STEP = {"warm_start_batch": 8, "prompts": 2, "group_size": 2, "steps": 1, "replicas": 1, "quiet": True}
SOLVED = [
    {"operands": 2, "prompt": "1+2=", "answer": "3", "demonstration": "1+2=3;#3"},
    {"operands": 2, "prompt": "4+5=", "answer": "9", "demonstration": "4+5=9;#9"},
]


@pytest.fixture
def tiny_experiment(monkeypatch, tmp_path):
    """Shrink the experiment to two small runs and fake two solved problems; return the work folder and the recorded calls."""
    calls = {"generate": [], "train": []}
    train = rljax.train

    def generate(run, file, **options):
        calls["generate"].append(options)
        file.write_text("".join(f"{json.dumps(row)}\n" for row in SOLVED), encoding="utf-8")

    def watch(config, problems=None, **options):
        calls["train"].append((config, problems))
        return train(config, problems=problems, **options)

    monkeypatch.setattr(continual_memory, "CONFIG", continual_memory.CONFIG.replace(**TINY, **STEP))
    monkeypatch.setattr(continual_memory, "FIRST", continual_memory.FIRST | {"warm_start_steps": 2})
    monkeypatch.setattr(continual_memory, "SECOND", continual_memory.SECOND | {"warm_start_steps": 2})
    monkeypatch.setattr(continual_memory, "generate", generate)
    monkeypatch.setattr(continual_memory.rljax, "train", watch)
    return tmp_path, calls


def test_replay_adds_solved_problems(tiny_experiment):
    work, calls = tiny_experiment
    row = run_both(work, "replay 32", 0)
    assert row["replayed"] == 2
    assert set(row["before"]) == set(row["after"]) == {"+", "-"}
    assert calls["generate"] == [{"checkpoint": "last", "most": 1, "limit": 32, "samples": 8}]
    (_, first_problems), (config, (train, heldout)) = calls["train"]
    assert first_problems is None
    assert config.model.path.endswith("/last")
    new = make_problems(config)
    assert {problem.prompt for problem in train} == {row["prompt"] for row in SOLVED} | {p.prompt for p in new.train}
    assert [problem.demonstration for problem in train[-2:]] == [row["demonstration"] for row in SOLVED]
    assert all("+" not in problem.prompt for problem in (*new.train, *heldout))

    count = len(calls["train"])
    again = run_both(work, "replay 32", 0)
    assert {**row, "seconds": 0} == {**again, "seconds": 0}
    assert len(calls["train"]) == count
    assert len(calls["generate"]) == 1, "the memory is sampled once"
    run_both(work, "none", 0)
    assert [len(problems[0]) for _, problems in calls["train"][count:]] == [24], (
        "the arm reuses the first run and replays nothing"
    )


def test_adapter_keeps_first_parameters(tiny_experiment, monkeypatch):
    work, calls = tiny_experiment
    monkeypatch.setattr(continual_memory, "measure_accuracies", lambda run: {"+": float("first" in run.name), "-": 0.25})
    row = run_both(work, "adapters", 0)
    assert row["after"] == {"+": 1.0, "-": 0.25}, "problems with + must be answered without the adapter"
    (first, _), (second, _) = calls["train"]
    problems = [rljax.Problem("1+1=", "2")]
    before, after = (load(run, which="last", problems=problems).params for run in (first.run.folder, second.run.folder))
    assert second.adapter.rank == 16
    matrices = [np.asarray(params["layers"][0]["attention"]["query"]) for params in (before, after)]
    assert not np.array_equal(*matrices), "the second run must have learned something"
    base = load(second.model.path, problems=problems, reward="exact").params
    np.testing.assert_array_equal(np.asarray(base["layers"][0]["attention"]["query"]), matrices[0])


def test_report_pairs_arms_by_seed():
    rows = []
    for seed in range(5):
        for number, arm in enumerate(ARMS):
            after = {"+": 0.1 * seed + 0.1 * number, "-": 0.5}
            replayed = ARMS[arm].replayed
            rows.append({"arm": arm, "seed": seed, "before": {"+": 0.9, "-": 0.0}, "after": after, "replayed": replayed})
    found = report(rows)
    assert "| before the second run | | 90.0 % | 0.0 % | | |" in found
    assert "| replay 256 | 256 to 256 | 40.0 % (20.4 to 59.6) | 50.0 % | +20.0 |" in found
    assert sum("holds here" in line for line in found.splitlines()) == 6
    assert len(list(claims(rows))) == 6
