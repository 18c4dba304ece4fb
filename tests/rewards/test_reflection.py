"""Self-checking phrases in responses: which ones count, and that a run can count them without rewarding them."""

import pytest
from shared_run import TINY, rows

import rljax
from rljax.rewards.reflection import reflection


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Wait, that's wrong. Let's verify: 3+4=7.", 3),
        ("Hmm... I made a mistake. Let me re-check.", 3),
        ("I\N{RIGHT SINGLE QUOTATION MARK}ve made an error; on second thought, 7.", 2),
        ("Alternatively, double-checking this gives 7.", 2),
        ("To check this, add again.", 1),
        ("Mr. Waitley actually waited; the checklist is verified.", 0),
        ("", 0),
    ],
)
def test_which_phrases_count_as_reflection(text, count):
    assert reflection([text]) == [count]


def test_a_run_logs_reflection_with_zero_weight(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), reward="exact,reflection", reward_weights=(1.0, 0.0), steps=1)
    result = rljax.train(config)
    step = next(row for row in rows(result.run) if row["phase"] == "rl")
    assert "reward_reflection" in step
    assert step["reward"] == pytest.approx(step["reward_exact"])
