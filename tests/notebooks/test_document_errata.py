"""Errata of the documents: each check refutes its claim, computes the right numbers, and does not refute the correct form."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from document_errata import critic, dapo, errata, group, other_documents, run_all

from rljax.book.errata import Erratum, Evidence
from rljax.cli.errata import errata_text
from rljax.ops.divergence import exact_kl, k3
from rljax.ops.gae import gae, length_adaptive_lambda
from rljax.ops.group import group_centered, group_normalized
from rljax.ops.selection import has_mixed_outcomes
from rljax.ops.surrogate import clipped
from rljax.ops.unpublished.length import adaptive_group_size
from rljax.ops.weights import sequence_mean, token_mean

ENTRIES = {entry.number: entry for entry in errata()}
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.fixture(scope="module")
def evidence():
    return run_all()


@pytest.fixture(scope="module")
def results(evidence):
    return {entry.number: found for entry, found in evidence}


def test_every_error_has_a_unique_number():
    assert {int(re.match(r"\d+", number)[0]) for number in ENTRIES} == set(range(1, 21)) - {18}  # 18 was withdrawn
    assert len(ENTRIES) == len(errata())
    assert [entry.number for entry in errata()][:4] == ["1", "2", "3a", "3b"]


@pytest.mark.parametrize("entry", errata(), ids=lambda entry: entry.number)
def test_entry_is_complete(entry):
    for field in dataclasses.fields(entry):
        if field.name != "check":
            assert getattr(entry, field.name), field.name
    assert entry.kind == "textual" or entry.check is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.claim = "other"


@pytest.mark.parametrize("number", [number for number, entry in ENTRIES.items() if entry.check])
def test_check_refutes_its_claim(number, results):
    assert results[number].confirms is True
    assert NUMBER.search(results[number].numbers)


# Expected numbers, computed by hand or with NumPy; `FIGURES` lists what each check's evidence must contain.
WEIGHT_TWO_AHEAD = math.exp(-1) * 0.95**2  # weight of the error two tokens ahead, at alpha 1 and L_max 4
SQUARED_WEIGHT_ONE_AHEAD = math.exp(-0.5) * 0.95**2  # weight of the error one token ahead, squared
OFFSETS = np.arange(8192.0)
VARIANCE_RATIO = (0.95 ** (2 * OFFSETS) * np.exp(-2 * OFFSETS**2 / 8192)).sum() / (0.95 ** (2 * OFFSETS)).sum()
KL = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
REVERSE_KL = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)


FIGURES = {
    "1": ("-0.50", "-0.50", "-0.80"),
    "2": ("a division by 0 at t = 0", "1 at t = 1", "0.25 at t = 400"),
    "3a": ("ratio 1.000000", f"bound {1 / (1 + 1 / 8192):.6f}"),
    "3b": ("bound 0.500000",),
    "4a": ("0.3125", "0.1875"),
    "4b": ("0.12500", "0.18750", "0.21875"),
    "4c": ("0.0050",),
    "5": ("0.500", "5.000"),
    "6": ("group of 1", "advantage 0", "floor 2"),
    "7": ("0.500 before", "1.125 after"),
    "8a": (f"{WEIGHT_TWO_AHEAD:.3f}", f"{SQUARED_WEIGHT_ONE_AHEAD:.3f}"),
    "8b": ("0.949", "0.944", "0.800", "0.980"),
    "9b": ("0.2 above", "0.2 and 0.28"),
    "9d": ("3 scores", "(57)"),
    "10a": ("0.1 below", "0.3 above", "0.2 and 0.28"),
    "10b": ("3e-06", "1e-06"),
    "10e": ("1.500", "15.000"),
    "10f": ("52.1", "50"),
    "11a": ("0.50", "1.50"),
    "11b": ("0.750", "1.500"),
    "11c": ("0.0000", f"{2 - math.log(2) - 1:.4f}"),
    "11d": ("-5",),
    "11e": ("[0.625, -0.625]",),
    "16": (f"{math.log(3):.3f}", "4.000"),
    "19": ("0.250 by the theorem", "0.125 for J itself"),
    "20": ("2.7 from 0.001", f"{math.exp(-0.16) * math.sqrt(1e5):.1f} from 1e-07"),
    "12b": ("0.50 and 0.50", "0.25 and 0.75"),
    "12c": ("1.20", "1.25"),
    "12d": ("0.0000", f"{2 - math.log(2) - 1:.4f}"),
    "12e": ("+0.00, -0.20, +0.20", "+0.00, -1.22, +1.22 (ddof 0)", "+0.00, -1.00, +1.00 (ddof 1)"),
    "13a": ("soft_start", "-0.5"),
    "13b": ("0 at 16384", f"{-1 / 4096:.5f} at 16385", "-1 at 20480"),
    "13c": ("0.75", "0.50"),
    "13d": ("-19.000 at 1", "-1.000 at 10", "-0.053 at 19", "0.000 at 20", "the clamped lambda is 0"),
    "13e": ("0.750", f"{(0.81 + 0.36) / 1.5:.3f}"),
    "14a": ("21290", "15574"),
    "14b": ("0.750", "1.500"),
    "14c": (f"{0.5 * (math.log(2) - KL):.4f}", "0.2500"),
    "14d": (f"{REVERSE_KL:.4f}", f"{KL:.4f}"),
    "15b": ("1.500", "0.750"),
}


@pytest.mark.parametrize("number", FIGURES)
def test_figures_match_a_hand_computation(number, results):
    for figure in FIGURES[number]:
        assert figure in results[number].numbers


def test_entry_3b_ratio_matches_numpy(results):
    assert round(VARIANCE_RATIO, 3) == 0.961
    assert float(re.search(r"ratio (\S+),", results["3b"].numbers)[1]) == pytest.approx(VARIANCE_RATIO, abs=1e-5)


def plain_gae(td):
    return gae(td, jnp.zeros_like(td), jnp.ones(td.shape, bool))


def k3_gradient(logits, reference):
    """The expectation under pi of (1 - ref/pi) ∇ log pi, which is pi - ref."""
    return jax.nn.softmax(logits) - jnp.exp(reference)


CORRECT_FORMS = {
    "1": lambda: dapo.lower_clip(clipped),
    "2": lambda: critic.warmup(lambda step, warmup: min(1.0, step / warmup)),
    "3a": lambda: critic.variance_bound(1, lambda length, alpha: 1.0),
    "3b": lambda: critic.variance_bound(8192, lambda length, alpha: 1.0),
    "4a": lambda: group.derivation(lambda size, variance: variance * (1 - 1 / size)),
    "4b": lambda: group.variance_falls(lambda size: 0.25 / size),  # for the baseline, the claim is true
    "4c": lambda: group.relabeled({2: 0.5, 4: 0.7}),
    "5": lambda: group.scale_invariance(group_normalized),
    "6": lambda: dapo.group_of_one(lambda length: int(adaptive_group_size(jnp.array(length)))),
    "7": lambda: critic.value_loss_sign(-1.0),
    "8a": lambda: critic.no_recursion(plain_gae),
    "20": lambda: dapo.rate_constant((1e-5, 1e-5, 1e-5)),  # from a single start, some constant works
    "8b": lambda: critic.lambda_by_length(lambda length: float(length_adaptive_lambda(jnp.array(float(length))))),
    "8c": lambda: critic.alpha_range(0.05, 0.01, 0.1),
    "9b": lambda: critic.symmetric_clip(0.2, 0.28),
    "9d": lambda: critic.ladder({"decoupled GAE": 60}),
    "10a": lambda: dapo.dapo_clip(0.2, 0.28),
    "10b": lambda: dapo.compare_numbers(1e-6, 1e-6, "learning rate"),
    "10c": lambda: dapo.useless_groups(has_mixed_outcomes),
    "10e": lambda: dapo.scale_dependence(group_normalized),
    "11a": lambda: group.length_bias(sequence_mean),
    "11b": lambda: group.missing_std(group_normalized),
    "11c": lambda: group.missing_kl(k3),
    "11d": lambda: group.stationarity_bound(1.0 - 0.5),
    "11e": lambda: dapo.vector_above_zero(lambda: jnp.ones(2)),
    "16": lambda: dapo.unused_complexity(lambda length, complexity, reward: length * complexity + reward),
    "17": lambda: group.same_equation(lambda rewards, weights: group_centered(rewards)),
    "19": lambda: critic.policy_gradient_theorem(lambda gamma, step: gamma**step),
    "12b": lambda: other_documents.sample_level(token_mean),
    "12c": lambda: other_documents.symmetric_clip(0.28),
    "12d": lambda: other_documents.constraint(lambda new, old, reference: float(exact_kl(new, reference))),
    "12e": lambda: other_documents.three_rewards(lambda rewards: group_normalized(rewards, eps=0.0, ddof=0)),
    "13a": lambda: other_documents.undefined_name(
        other_documents.OVERLONG.replace("soft_start", "(max_length - cache_length)")
    ),
    "13b": lambda: other_documents.penalty_start(16384),
    "13c": lambda: other_documents.favors_short(sequence_mean),
    "13d": lambda: other_documents.negative_lambda(lambda length: max(0.0, other_documents.unclamped(length))),
    "13e": lambda: other_documents.denominator(lambda q: float((q * q).sum() / q.sum())),
    "14a": lambda: other_documents.buffer(4096),
    "14b": lambda: other_documents.review_advantage(group_normalized),
    "14c": lambda: other_documents.kl_as_expectation(k3_gradient),
    "14d": lambda: other_documents.roles(exact_kl),
    "15b": lambda: other_documents.gpg_divides(group_centered),
}


@pytest.mark.parametrize("number", CORRECT_FORMS)
def test_correct_form_is_not_refuted(number):
    assert CORRECT_FORMS[number]().confirms is False


def test_bae_et_al_claim_no_maximum_of_the_divergence():
    """They only bound it from below, by the variance of the pass rate, so a maximum elsewhere refutes nothing."""
    assert "18" not in ENTRIES
    assert not any("2504.03380" in entry.document for entry in ENTRIES.values())


def test_every_check_has_a_correct_form():
    assert {number for number, entry in ENTRIES.items() if entry.check} - set(CORRECT_FORMS) == {
        "10f"
    }  # it has the same check as 10b


def test_text_shows_claim_correction_and_verdict():
    example = Erratum(
        "7", "A document", "Eq. 1", "two is three", "two is two", "arithmetic", lambda: Evidence("2 and 3", True)
    )
    bare = dataclasses.replace(example, number="8", check=None, kind="textual")
    text = errata_text(
        [(example, Evidence("2 and 3", confirms=True)), (bare, None), (example, Evidence("2 and 2", confirms=False))]
    )
    assert text.startswith("A document\n==========\n\n7. Eq. 1\n    claim:      two is three\n")
    assert "    correction: two is two (arithmetic)\n    computed:   2 and 3. Refuted." in text
    assert "nothing to compute; compare with the source" in text
    assert text.endswith("2 and 2. NOT refuted.")
