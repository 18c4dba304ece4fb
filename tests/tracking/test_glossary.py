"""The glossary has exactly the metrics that a run can write, and every source that it names exists."""

import re
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms
from rljax.algorithms import LossMetrics
from rljax.algorithms.metrics import ValueMetrics
from rljax.errors import InputError
from rljax.evaluation.heldout import PER_SET_METRICS
from rljax.preference.direct_losses import BY_NAME as DIRECT
from rljax.preference.direct_losses import PairLogps
from rljax.preference.direct_update import measure_pairs
from rljax.preference.metrics import DirectMetrics, PairUpdateMetrics, ScoreMetrics
from rljax.preference.pair_update import EncodedPairs, evaluate_on_pairs
from rljax.programs.supervised import MEASURES
from rljax.rewards.correctness import Failures
from rljax.tracking.display_text import METRICS
from rljax.tracking.glossary import GLOSSARY, find_entry
from rljax.tracking.phase_times import PhaseSeconds
from rljax.training.config import TrainConfig
from rljax.training.metrics import (
    CreditMetrics,
    CriticMetrics,
    LearnMetrics,
    RolloutMetrics,
    SupervisedMetrics,
    UpdateMetrics,
    present,
)

NAMES = [entry.name for entry in GLOSSARY]
ONE = np.float32(1)
REWARD_PARTS = {"reward_{NAME}", "episode_{NAME}"}
EVALUATION_METRICS = {"judged", "answers", "is_best", "unstated_share"}  # RL writes unstated_share
DISPLAY_METRICS = {"judge_share"}  # shown on the display only
LENGTH_METRICS = {"accuracy_to_{N}_tokens"}
SET_METRICS = {f"{metric}_on_{{NAME}}" for metric in PER_SET_METRICS}


def fill_record(record):
    """Return a record with 1 in every field, or {} if the field is a dictionary."""
    annotations = record.__annotations__
    return record(*({} if "dict" in str(annotations[name]) else 1 for name in record._fields))


def term_names():
    """Find the names of all extra loss terms in the source code."""
    folder = Path(algorithms.__file__).parent
    found = [re.findall(r'Term\(\s*"(\w+)"', file.read_text(encoding="utf-8")) for file in folder.rglob("*.py")]
    return {name for names in found for name in names}


OPTIONAL_METRICS = {
    *(
        "anchor_penalty",
        "auxiliary_loss",
        "prompt_consistency_loss",
        "correction_cut",
        "teacher_kl",
        "kl_to_reference",
        "kl_coefficient",
    ),
    "entropy_coefficient",
    *("update_scale", "clip_scale", "entropy_weight", "updates", "planned_updates", "worst_kind_weight"),
    "calculator_share",
    "sampled_tokens",
    *("router_balance", "router_entropy", "router_largest_share", "router_unused_share"),
}
"""Metrics that depend on options; the tests of these options check that a run writes them."""


def rl_metrics():
    """Return the names of all metrics in rows from value pretraining and RL."""
    losses = LossMetrics(ONE, ONE, ONE, ONE, ONE, ONE, dict.fromkeys(term_names(), ONE), ONE, ONE, ONE, ONE)
    update = fill_record(UpdateMetrics)._replace(loss=losses)
    parts = {"credit": fill_record(CreditMetrics), "critic": fill_record(CriticMetrics), "policy": update}
    learned = fill_record(LearnMetrics)._replace(**parts)
    failures = {f"reward_{kind}" for kind in Failures._fields}
    recorded = {*present(learned), *present(fill_record(RolloutMetrics)), *present(fill_record(PhaseSeconds))}
    return recorded | {*failures, *REWARD_PARTS} | OPTIONAL_METRICS


def pair_metrics():
    """Return the names of all metrics in rows from training on pairs."""
    logps = PairLogps(jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.zeros((1, 2)), jnp.zeros(()))
    updates = [fill_record(PairUpdateMetrics)._replace(pairs=fill_record(kind)) for kind in (ScoreMetrics, DirectMetrics)]
    direct = jax.eval_shape(lambda: measure_pairs(DIRECT["dpo"](), logps))._asdict()
    pairs = EncodedPairs([[1]], [[2]], np.zeros(1, np.float32), 0, [1], [([], [])])
    judged = evaluate_on_pairs(lambda params, rows: np.zeros(2, np.float32), {}, pairs)
    return {*direct, *judged, *(name for update in updates for name in present(update))}


def warm_start_metrics():
    """Return the names of all metrics of a warm-start update."""
    return {*present(fill_record(SupervisedMetrics))}


def test_the_glossary_has_every_metric_and_no_other():
    assert len(set(NAMES)) == len(NAMES)
    assert set(
        NAMES
    ) == rl_metrics() | pair_metrics() | LENGTH_METRICS | SET_METRICS | EVALUATION_METRICS | DISPLAY_METRICS | {*MEASURES}
    assert warm_start_metrics() == {"loss", "entropy", "grad_norm", "skipped_updates"} <= set(NAMES)


def test_metrics_of_nested_records_are_found():
    """`fill_record` and `present` also find the metrics of nested records."""
    assert {"grad_norm", "lambda_90", "value_loss", "correction_cut", "unjudged", "kl", "entropy_bonus"} <= rl_metrics()
    assert set(ValueMetrics(*jnp.ones(6)).numbers()) == {"value_loss", "value_explained_variance"} <= set(NAMES)


@pytest.mark.parametrize("entry", GLOSSARY, ids=NAMES)
def test_every_entry_is_complete_and_its_source_exists(entry):
    assert all(text for name, text in entry._asdict().items() if name != "unit")
    assert set(entry.phases.split()) <= {"warm_start", "value", "rl", "eval", "pairs"}
    assert {text[-1] for text in (entry.meaning, entry.expect, entry.act)} == {"."}
    module, _, name = entry.source.rpartition(".")
    assert callable(getattr(import_module(module), name))


def flags():
    """Return the flags of `rljax train`, and the flag of the pair commands that the glossary names."""
    return {f"--{name.replace('_', '-')}" for name in TrainConfig().to_flat()} | {"--epochs"}


@pytest.mark.parametrize("entry", GLOSSARY, ids=NAMES)
def test_flags_that_an_entry_names_exist(entry):
    assert set(re.findall(r"--[a-z-]+[a-z]", " ".join(entry))) <= flags()


def test_metrics_are_found_by_their_label_on_the_screen():
    for metric in METRICS:
        assert find_entry(metric.label).name == metric.key
        assert find_entry(metric.key.upper()).name == metric.key
    for name, found in (
        ("held-out accuracy", "accuracy"),
        ("rewards above 0", "accuracy"),
        ("pairs in order", "accuracy"),
        ("accuracy_to_256_tokens", "accuracy_to_{N}_tokens"),
        ("reward_format", "reward_{NAME}"),
        ("reward_on_aime", "reward_on_{NAME}"),
        ("reward_raised", "reward_raised"),
        ("lambda_50", "lambda_50"),
    ):
        assert find_entry(name).name == found


def test_an_unknown_metric_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match=r"no metric 'filterd_ratio'; did you mean 'filtered_ratio'"):
        find_entry("filterd_ratio")
    with pytest.raises(InputError, match="`rljax explain` lists all"):
        find_entry("accuracy_to_tokens")
