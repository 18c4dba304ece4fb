"""Calibration of stated confidences, checked against plain Python and on responses that are calibrated by construction."""

import numpy as np
import pytest

from rljax.data.problem import Problem
from rljax.data.prompts import EncodedPrompts
from rljax.data.tokenizer import ByteTokenizer
from rljax.evaluation.answer_sampling import generate_rows
from rljax.evaluation.answers import gather
from rljax.evaluation.calibration import BINS, calibration
from rljax.rewards import BY_NAME
from rljax.rewards.votes import vote
from rljax.rollout import Response, RolloutWorker
from rljax.rollout.engine_protocols import Sampling
from rljax.rollout.judging import Judge


def plain_scores(confidence, correct, used):
    """The Brier score over all used responses, and the expected calibration error, summed bin by bin."""
    pairs = [(confidence[index], float(correct[index])) for index in np.ndindex(confidence.shape) if used[index]]
    error = 0.0
    for bin_index in range(BINS):
        inside = [(stated, right) for stated, right in pairs if min(int(stated * BINS), BINS - 1) == bin_index]
        if inside:
            error += abs(sum(right - stated for stated, right in inside)) / len(pairs)
    return np.mean([(stated - right) ** 2 for stated, right in pairs]), error


def test_brier_and_calibration_error_match_plain_python():
    rng = np.random.default_rng(0)
    confidence, correct, known = rng.random((30, 1)), rng.random((30, 1)) < 0.4, rng.random((30, 1)) < 0.8
    confidence[::7] = np.nan
    found = calibration(confidence, correct, known)
    brier, error = plain_scores(confidence, correct, known & ~np.isnan(confidence))
    assert found.brier.value == pytest.approx(brier)
    assert found.error.value == pytest.approx(error)
    assert found.stated == pytest.approx((known & ~np.isnan(confidence)).sum() / known.sum())


def test_calibration_error_of_honest_and_overconfident_responses():
    rng = np.random.default_rng(1)
    confidence = rng.random((4000, 2))
    right, known = rng.random(confidence.shape) < confidence, np.ones(confidence.shape, bool)
    honest, overconfident = calibration(confidence, right, known), calibration(np.ones(confidence.shape), right, known)
    assert honest.error.value < 0.03
    assert 0.45 < overconfident.error.value < 0.55
    assert honest.brier.high < overconfident.brier.low


def test_every_response_has_equal_weight():
    """A problem with one stated confidence, and a problem with three."""
    confidence = np.array([[0.9, np.nan, np.nan], [0.5, 0.5, 0.5]])
    correct = np.array([[True, False, False], [False, False, False]])
    found = calibration(confidence, correct, np.ones((2, 3), bool))
    brier, error = plain_scores(confidence, correct, ~np.isnan(confidence))
    assert (found.confidence.value, found.accuracy.value) == pytest.approx((0.6, 0.25))
    assert (found.brier.value, found.error.value) == pytest.approx((brier, error))


def test_calibration_error_of_few_responses_has_no_interval():
    rng = np.random.default_rng(3)
    confidence = rng.random((12, 1))
    found = calibration(confidence, rng.random((12, 1)) < confidence, np.ones((12, 1), bool))
    assert np.isnan([found.error.low, found.error.high]).all()
    assert found.error.problems == 12
    assert f"expected calibration error {found.error.value:.3f}, Brier" in found.text()


def test_calibration_without_confidences():
    nothing = np.full((3, 2), np.nan)
    assert calibration(nothing, np.ones((3, 2), bool), np.ones((3, 2), bool)) is None
    row = {"problem": 0, "sample": 0, "reward": 1.0, "correct": None, "tokens": 3, "truncated": False}
    row |= {"completion": "#7", "given": "7"}
    assert gather([row], 1, 1, verified=False).confidence is None
    assert gather([row | {"confidence": 0.25}], 1, 1, verified=False).confidence.tolist() == [[0.25]]


class ConfidentEngine:
    """An engine whose every response states a confidence."""

    def generate(self, params, requests):
        tokens = np.array([*ByteTokenizer().encode("confidence: 0.75 #2"), ByteTokenizer.eos_token_id], np.int32)
        zeros = np.zeros(len(tokens), np.float32)
        mask = np.ones(len(tokens), bool)
        return [Response(r.prompt_id, r.group, tokens, mask, zeros, zeros, "stop") for r in requests]


def test_generated_rows_have_confidence():
    prompts = EncodedPrompts((Problem("1+1=", "2"),), (ByteTokenizer().encode("1+1="),), 0)
    judge = Judge(ByteTokenizer(), BY_NAME["exact"])
    worker = RolloutWorker(ConfidentEngine(), prompts, 4, Sampling(32, (ByteTokenizer.eos_token_id,)), judge)
    rows = generate_rows(worker, None, 2, seed=0, batch=4, vote=vote)
    assert [(row["confidence"], row["correct"]) for row in rows] == [(0.75, True)] * 2
    sampled = gather(rows, 1, 2, verified=True)
    assert calibration(sampled.confidence, *sampled.correctness_masks(None)).brier.value == 0.0625
