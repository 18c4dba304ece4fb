"""The glossary: no number that a run can write is missing, none is there that no run writes, and every source exists."""

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
from rljax.preference.direct_losses import BY_NAME as DIRECT
from rljax.preference.direct_losses import PairLogps
from rljax.preference.direct_update import judge_logps
from rljax.preference.metrics import DirectMetrics, PairUpdateMetrics, ScoreMetrics
from rljax.preference.pair_update import EncodedPairs, judge_pairs
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
PARTS = {"reward_{NAME}", "episode_{NAME}"}
COUNTS = {"judged", "answers", "is_best", "unstated_share"}  # the last one of RL, the others of a held-out evaluation
SHOWN = {"judge_share"}  # on the display alone
LENGTHS = {"accuracy_to_{N}_tokens"}


def filled(record):
    """A record with 1 in every field; dictionaries are empty."""
    annotations = record.__annotations__
    return record(*({} if "dict" in str(annotations[name]) else 1 for name in record._fields))


def terms():
    """Names of the further terms of the losses, as in the source."""
    folder = Path(algorithms.__file__).parent
    found = [re.findall(r'Term\(\s*"(\w+)"', file.read_text(encoding="utf-8")) for file in folder.rglob("*.py")]
    return {name for names in found for name in names}


BY_OPTIONS = {
    *("anchor_penalty", "auxiliary_loss", "correction_cut", "teacher_kl", "kl_to_reference", "kl_coefficient"),
    *("update_scale", "clip_scale", "entropy_weight", "updates", "planned_updates", "worst_kind_weight"),
}
"""Metrics of the options of a run, each of which a test of its option reads from a run."""


def written_by_rl():
    """Every number of the rows of value pretraining and RL."""
    losses = LossMetrics(ONE, ONE, ONE, ONE, ONE, ONE, dict.fromkeys(terms(), ONE), ONE, ONE, ONE, ONE)
    update = filled(UpdateMetrics)._replace(loss=losses)
    parts = {"credit": filled(CreditMetrics), "critic": filled(CriticMetrics), "policy": update}
    learned = filled(LearnMetrics)._replace(**parts)
    failures = {f"reward_{kind}" for kind in Failures._fields}
    recorded = {*present(learned), *present(filled(RolloutMetrics)), *present(filled(PhaseSeconds))}
    return recorded | {*failures, *PARTS} | BY_OPTIONS


def written_by_pairs():
    """Every number of the rows of training on pairs."""
    numbers = PairLogps(jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.zeros((1, 2)), jnp.zeros(()))
    updates = [filled(PairUpdateMetrics)._replace(pairs=filled(kind)) for kind in (ScoreMetrics, DirectMetrics)]
    direct = jax.eval_shape(lambda: judge_logps(DIRECT["dpo"](), numbers))._asdict()
    pairs = EncodedPairs([[1]], [[2]], np.zeros(1, np.float32), 0, [1], [([], [])])
    judged = judge_pairs(lambda params, rows: np.zeros(2, np.float32), {}, pairs)
    return {*direct, *judged, *(name for update in updates for name in present(update))}


def written_by_the_warm_start():
    """Every number of its update."""
    return {*present(filled(SupervisedMetrics))}


def test_the_glossary_has_every_number_and_no_other():
    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) == written_by_rl() | written_by_pairs() | LENGTHS | COUNTS | SHOWN | {*MEASURES}
    assert written_by_the_warm_start() == {"loss", "entropy", "grad_norm", "skipped_updates"} <= set(NAMES)


def test_a_new_field_of_a_record_would_be_noticed():
    """`filled` really passes through every field that `present` writes."""
    assert {"grad_norm", "lambda_90", "value_loss", "correction_cut", "unjudged", "kl", "entropy_bonus"} <= written_by_rl()
    assert set(ValueMetrics(*jnp.ones(6)).numbers()) == {"value_loss", "value_explained_variance"} <= set(NAMES)


@pytest.mark.parametrize("entry", GLOSSARY, ids=NAMES)
def test_every_entry_is_complete_and_its_source_exists(entry):
    assert all(text for name, text in entry._asdict().items() if name != "unit")
    assert set(entry.phases.split()) <= {"warm_start", "value", "rl", "eval", "pairs"}
    assert {text[-1] for text in (entry.meaning, entry.expect, entry.act)} == {"."}
    module, _, name = entry.source.rpartition(".")
    assert callable(getattr(import_module(module), name))


def flags():
    """All settings of `rljax train`, as flags; and those of the pair commands that the glossary names."""
    return {f"--{name.replace('_', '-')}" for name in TrainConfig().to_flat()} | {"--epochs"}


@pytest.mark.parametrize("entry", GLOSSARY, ids=NAMES)
def test_flags_that_an_entry_names_exist(entry):
    assert set(re.findall(r"--[a-z-]+[a-z]", " ".join(entry))) <= flags()


def test_numbers_on_the_screen_are_found_by_their_label():
    for metric in METRICS:
        assert find_entry(metric.label).name == metric.key
        assert find_entry(metric.key.upper()).name == metric.key
    for name, found in (
        ("held-out accuracy", "accuracy"),
        ("rewards above 0", "accuracy"),
        ("pairs in order", "accuracy"),
        ("accuracy_to_256_tokens", "accuracy_to_{N}_tokens"),
        ("reward_format", "reward_{NAME}"),
        ("reward_raised", "reward_raised"),
        ("lambda_50", "lambda_50"),
    ):
        assert find_entry(name).name == found


def test_an_unknown_number_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"no metric 'filterd_ratio'; did you mean 'filtered_ratio'"):
        find_entry("filterd_ratio")
    with pytest.raises(InputError, match="`rljax explain` lists all"):
        find_entry("accuracy_to_tokens")
