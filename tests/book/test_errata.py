"""Errata in papers and libraries: each check finds its error with the right numbers, and none in the correct formula."""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import pytest

from rljax.book import errata as checks
from rljax.book.errata import ERRATA, run_all
from rljax.cli import main
from rljax.ops.batch import gpg_scale
from rljax.ops.divergence import k3
from rljax.ops.gae import length_adaptive_lambda
from rljax.ops.group import group_centered
from rljax.ops.surrogate import clipped
from rljax.ops.weights import constant_length, token_mean_per_group

ENTRIES = {entry.number: entry for entry in ERRATA}
KL = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
EXPECTED_NUMBERS = {
    "1": (f"value {KL:.4f} and {KL:.4f}", f"{0.5 - 0.25:.4f} and {0.5 * (math.log(2) - KL):.4f}"),
    "2": (f"{0.2 / math.sqrt(0.08 / 3):.3f} with ddof 0", "1.000 with ddof 1"),
    "3": ("-19.00 at 1, -1.00 at 10, -0.05 at 19", "clamped lambda is 0 at 10"),
    "4": ("weighs 0.10", "by Eq. 12 0.50"),
    "5": ("q(y|x) is 0 in float32", "log w is 0"),
    "6": ("dual clip -3, DAPO -10",),
    "7": ("0.500, then 0.125", f"{1 / 16:.4f}, then {1 / 16:.4f}"),
    "8": (f"{-1 / 3 / 2 / 2:.4f} and {-1 / 3 / 8 / 2:.4f}",),
    "9": ("loss 1; the same two twice: 2",),
    "10": ("signal: 2; B / (B - M) is 1",),
    "11": ("gradient -0.00", f"of Eq. 4 {1 - math.exp(3):.2f}"),
    "12": ("advantage 0.999999", "group 0"),
    "13": ("0.0000, of the divergence 0.2747",),
    "14": ("weight 0.28; by Eq. 5 1",),
    "15": ("1.20; DAPO 1.25",),
    "16": ("-0.750 after the first, where the mean is -0.500", "the divisor is 0"),
    "17": (f"loss {math.log(0.9):.3f} at a score of 0.9, {math.log(0.1):.3f} at 0.1",),
}
CORRECT = {
    "1": lambda: checks.unbiased_k3(checks.gradient_of_kl),
    "2": lambda: checks.deviation_of(0),
    "3": lambda: checks.negative_lambda(lambda length: float(length_adaptive_lambda(jnp.array(float(length))))),
    "4": lambda: checks.token_means(token_mean_per_group),
    "5": lambda: checks.underflow(20),
    "6": lambda: checks.name_of_dapo(clipped),
    "7": lambda: checks.recommended_by_dr_grpo(lambda mask: constant_length(mask, max_length=8)),
    "8": lambda: checks.cause_of_length_bias(lambda mask: constant_length(mask, max_length=8)),
    "9": lambda: checks.sum_over_sequences(lambda mask: constant_length(mask, max_length=8)),
    "10": lambda: checks.factor_of_gpg(lambda rewards: float(gpg_scale(rewards))),
    "11": lambda: checks.clamped_penalty(k3),
    "12": lambda: checks.group_of_one(lambda rewards: group_centered(jnp.tile(rewards, 2))[:1]),
    "13": lambda: checks.k1_as_loss(checks.gradient_of_kl),
    "14": lambda: checks.cispo_bound(lambda ratio, high: min(ratio, 1 + high)),
    "15": lambda: checks.dapo_default(0.28),
    "16": lambda: checks.divisor_of_minillm(lambda length, token: length - token),
    "17": lambda: checks.sign_of_cross_entropy(-1.0),
}


@pytest.fixture(scope="module")
def evidence():
    return run_all()


def test_errata_are_complete():
    assert len(ENTRIES) == len(ERRATA) >= 10
    for entry in ERRATA:
        assert all(getattr(entry, field.name) for field in dataclasses.fields(entry))
        assert re.search(r"arXiv:\d{4}\.\d{5}|verl|TRL|NeMo", entry.document)
        assert len(entry.where) > 3


def test_errata_numbers_match_hand_computations(evidence):
    found = {entry.number: result for entry, result in evidence}
    assert found.keys() == EXPECTED_NUMBERS.keys() == CORRECT.keys()
    for number, expected in EXPECTED_NUMBERS.items():
        assert found[number].confirms is True, number
        assert [text for text in expected if text not in found[number].numbers] == [], found[number].numbers


@pytest.mark.parametrize("number", CORRECT)
def test_correct_formula_shows_no_difference(number):
    assert CORRECT[number]().confirms is False


def test_k3_loss_has_the_gradient_of_kl_from_the_reference():
    logits, reference = (jnp.log(jnp.array(p)) for p in ((0.5, 0.5), (0.25, 0.75)))
    expected = jax.grad(lambda x: (jnp.exp(reference) * (reference - jax.nn.log_softmax(x))).sum())(logits)
    assert jnp.allclose(checks.K3_GRADIENT(logits, reference), expected, atol=1e-6)


def test_errata_command_prints_verdicts_and_json(evidence, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("rljax.book.errata.run_all", lambda: evidence)
    assert main(["errata"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "The readings differ." in words
    assert "They differ." in words
    assert "Refuted." in words
    assert "NOT" not in words
    assert f"{len(ENTRIES)} errata: {len(ENTRIES)} of {len(ENTRIES)} examples confirm their entries" in words
    assert main(["errata", "--json"]) == 0
    assert [row["number"] for row in json.loads(capsys.readouterr().out)] == list(ENTRIES)
