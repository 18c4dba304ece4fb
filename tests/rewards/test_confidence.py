"""Confidences that a response states: how they are parsed, and the Brier reward, which is highest if they are calibrated."""

import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards import BY_NAME, resolve, right_from, verifier
from rljax.rewards.confidence import brier, read_confidence, remove_confidence
from rljax.rewards.correctness import Failed
from rljax.rewards.reward_scores import has_verifier, judge


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("#12\nconfidence: 0.8", 0.8),
        ("Confidence = .25.", 0.25),
        ("CONFIDENCE:1", 1.0),
        ("#12confidence: 0", 0.0),
        ("<confidence>\n0.5\n</confidence>", 0.5),
        ("<confidence>0.1</confidence> then confidence: 0.9", 0.9),
        ("confidence: 0.9 then <confidence>0.1</confidence>", 0.1),
        ("confidence: 0.9, in all: confidence: 1.5", None),
        ("confidence: 80%", None),
        ("confidence: -0.2", None),
        ("confidence: nan", None),
        ("<confidence>high</confidence>", None),
        ("overconfidence: 0.8", None),
        ("confidence: ０.8", None),
        ("I am 80 % sure", None),
        ("**confidence:** 0.8", 0.8),
        ("**Confidence**: 0.8", 0.8),
        ("confidence: **0.8**", 0.8),
        ("_confidence: 0.8_", 0.8),
        ("`confidence` = `0.8`.", 0.8),
        ("confidence: 0.8, I think", 0.8),
        ("<confidence>**0.8**</confidence>", 0.8),
        ("confidence: 1e-3", None),
        ("confidence: 0,8", None),
        ("confidence: 0.8/1", None),
        ("confidence: 0.8 / 1", None),
        ("confidence: 0.8 %", None),
        ("confidence: 0.8.1", None),
        ("confidence: 0.8x", None),
        ("self-confidence: 0.3", None),
        ("over_confidence: 0.3", None),
        ("", None),
    ],
)
def test_last_statement_counts_if_it_is_a_probability(text, confidence):
    assert read_confidence(text) == confidence


def test_verifier_reads_only_the_answer():
    assert remove_confidence("#12; confidence: 0.8\nconfidence: 7") == "#12"
    for written in ("1e-3", "0,8", "0.8/1", "80 %", "**0.8**", "`0.8`.", "0." + "8" * 99):
        assert remove_confidence(f"#12 **confidence:** {written}") == "#12", written
    assert remove_confidence("**#12**\n`confidence: 0.8`\n") == "**#12**\n"
    assert remove_confidence("self-confidence: 0.3") == "self-confidence: 0.3"
    assert remove_confidence("#12 <confidence>no</confidence>!") == "#12!"
    completions = ["#12 confidence: 0.8", "#12", "#3", "<confidence>0.8</confidence> #3"]
    scores = judge(resolve("brier:exact"), ["?"] * 4, completions, {"answer": ["12"] * 4})
    assert scores.parts["exact"].tolist() == [1.0, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(scores.parts["brier_score"], [0.04, 1.0, 1.0, 0.64], rtol=1e-6)
    np.testing.assert_allclose(scores.total, [0.96, 0.0, -1.0, -0.64], rtol=1e-6)
    assert scores.correct.tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("probability", [0.0, 0.15, 0.5, 0.7, 1.0])
def test_the_expected_reward_is_highest_at_the_true_probability(probability):
    """The expected reward is p times the reward of a right answer plus 1 - p times the reward of a wrong answer."""
    grid = np.linspace(0, 1, 101)
    completions = [f"#{answer} confidence: {q:.2f}" for answer in (12, 13) for q in grid]
    values = np.array(resolve("brier:exact")(["?"] * 202, completions, answer=["12"] * 202)).reshape(2, 101)
    expected = probability * values[0] + (1 - probability) * values[1]
    assert grid[expected.argmax()] == pytest.approx(probability, abs=1e-9)
    assert expected.max() == pytest.approx(probability**2, abs=1e-6)
    unstated = resolve("brier:exact")(["?"] * 2, ["#12", "#13"], answer=["12"] * 2)
    assert probability * unstated[0] + (1 - probability) * unstated[1] <= expected.min() + 1e-6


def test_partial_credit_and_missing_verdicts():
    @right_from(0.5)
    def share(completions):
        return [0.25, 0.5, None, Failed("raised", "no")]

    reward = brier(share)
    assert has_verifier(reward)
    scores = judge(reward, ["?"] * 4, ["confidence: 1"] * 4, {}, max_failure_share=1)
    assert scores.valid.tolist() == [True, True, False, False]
    assert scores.parts["brier_score"][:2].tolist() == [1.0, 0.0]
    np.testing.assert_array_equal(scores.correct, np.float32([0.0, 1.0, np.nan, np.nan]))
    assert scores.failures["share"].total == 1
    assert scores.failures["brier_score"].total == 0


def test_a_verifier_may_be_a_coroutine_function():
    @verifier
    async def solved(completions, answer):
        return [float(text == f"#{right}") for text, right in zip(completions, answer, strict=True)]

    scores = judge(brier(solved), ["?"] * 2, ["#12 confidence: 0.5", "#3 confidence: 1"], {"answer": ["12"] * 2})
    assert scores.total.tolist() == [0.75, -1.0]
    assert scores.correct is not None
    assert scores.correct.tolist() == [1.0, 0.0]


def test_a_reward_that_is_not_a_verifier_is_refused():
    with pytest.raises(InputError, match=r"needs a verifier, .*has_final_answer is not one; name one, e\.g\. brier:exact"):
        brier(BY_NAME["format"])
    with pytest.raises(InputError, match="the reward 'brier' needs a verifier; write brier:VERIFIER"):
        resolve("brier")
    with pytest.raises(InputError, match=r"no reward 'exakt'; did you mean 'exact'\? Choose one of .*constitution:FILE"):
        resolve("brier:exakt")
