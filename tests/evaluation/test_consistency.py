"""A model's majority votes find planted errors in demonstrations, and its right responses become new demonstrations."""

import numpy as np
import pytest

from rljax.data.problem import Problem
from rljax.evaluation.consistency import clean_demonstrations, consensus, keep_responses
from rljax.rewards.votes import vote

SAMPLES = 8


def simulate_responses(problems, rng, *, skill):
    """Responses of a model that is right with probability `skill` and otherwise gives one of many wrong answers."""
    for index, problem in enumerate(problems):
        for number in range(SAMPLES):
            answer = problem.answer if rng.random() < skill else str(rng.integers(100, 10_000))
            right = answer == problem.answer
            text = f"step {number}, thus #{answer}"
            yield {
                **{"problem": index, "sample": number, "completion": text, "given": answer, "truncated": False},
                **{"reward": float(right), "correct": right},
            }


def test_clean_demonstrations_finds_corrupted_ones():
    rng = np.random.default_rng(0)
    true = [Problem(f"{n}+1=", str(n + 1), demonstration=f"#{n + 1}") for n in range(200)]
    corrupted = set(rng.choice(200, 40, replace=False).tolist())
    planted = [
        Problem(p.prompt, str(int(p.answer) + 5), demonstration=f"#{int(p.answer) + 5}") if n in corrupted else p
        for n, p in enumerate(true)
    ]
    rows = list(simulate_responses(true, rng, skill=0.8))
    dropped = clean_demonstrations(planted, rows, planted, vote, agreement=0.5, replace=False)
    assert dropped.contradicted >= 38
    assert dropped.confirmed + dropped.undecided >= 160
    wrong = [row for row in dropped.rows if int(row["answer"]) != int(row["prompt"].split("+")[0]) + 1]
    assert len(wrong) == 40 - dropped.contradicted
    replaced = clean_demonstrations(planted, rows, planted, vote, agreement=0.5, replace=True)
    assert len(replaced.rows) == 200
    assert all(vote(row["demonstration"]) == row["answer"] for row in replaced.rows)
    assert sum(int(row["answer"]) != int(row["prompt"].split("+")[0]) + 1 for row in replaced.rows) == len(wrong)


def test_clean_demonstrations_without_agreement():
    problem = Problem("?", "9", demonstration="#9")
    unread = Problem("?", "9", demonstration="no idea")
    rows = [
        {
            "problem": 0,
            "sample": n,
            "completion": f"#{n}",
            "given": str(n % 4),
            "truncated": False,
            "reward": 0.0,
            "correct": None,
        }
        for n in range(8)
    ]
    cleaned = clean_demonstrations([problem, unread], rows, [problem], vote, agreement=0.5, replace=False)
    assert (cleaned.undecided, cleaned.unparsed, len(cleaned.rows)) == (1, 1, 2)
    assert consensus([None, None, None, "7"], agreement=0.5) is None


@pytest.mark.parametrize("keep", ["verifier", "votes"])
def test_keep_responses_selects_right_and_different(keep):
    rng = np.random.default_rng(1)
    problems = [Problem(f"{n}+1=", str(n + 1), columns={"level": n}) for n in range(30)]
    rows = list(simulate_responses(problems, rng, skill=0.9))
    kept = keep_responses(rows, problems, keep=keep, most=3, threshold=0.9, agreement=0.5)
    assert (kept.problems, kept.solved, kept.responses) == (30, 30, 240)
    assert len(kept.rows) == 90 == kept.right == kept.judged
    assert kept.rows[0]["level"] == 0
    for row in kept.rows:
        assert row["demonstration"].endswith(f"#{row['answer']}")
    by_prompt = [row["demonstration"] for row in kept.rows if row["prompt"] == "0+1="]
    assert len(set(by_prompt)) == 3
    alike = keep_responses(rows, problems, keep=keep, most=3, threshold=0.1, agreement=0.5)
    assert len(alike.rows) == 30, "all responses of a problem share most of their words"


def test_keep_responses_skips_truncated():
    row = {"problem": 0, "sample": 0, "completion": "#2", "given": "2", "truncated": True, "reward": 1.0, "correct": True}
    kept = keep_responses([row], [Problem("1+1=", "2")], keep="verifier", most=1, threshold=1.0, agreement=0.5)
    assert (kept.rows, kept.accepted, kept.solved) == ([], 0, 0)
