"""The papers' ablation tables on a transformer: arms match the rows, and committed pages match the runs."""

import itertools
import json
from pathlib import Path

import ablation_tables
import claims_on_transformer
import jax.numpy as jnp
import numpy as np
import pytest
from ablation_tables import ARMS, DAPO_ROWS, SEEDS, TABLES, config_of, hash_of, measurements, report
from claims_on_transformer import CLAIMS, compare_on_smollm2, decide, read_inputs, summary
from scipy import stats

from lab.rank_correlation import kendall, permutation_test
from rljax.algorithms import BY_NAME, dapo, dapo_ladder, without
from rljax.options import INSTALLERS
from rljax.training.parts.custom_parts import BUILT_IN
from rljax.training.setup import make_setup

FOLDER = Path(ablation_tables.__file__).parent


def algorithm_of(arm):
    """The algorithm of an arm."""
    return make_setup(config_of(arm, 0, None), BUILT_IN, INSTALLERS).algorithm


def differing_slots(one, other):
    """Names of the slots in which two algorithms differ; functions are compared by their `repr`."""
    return {name for name in one._fields if repr(getattr(one, name)) != repr(getattr(other, name))}


@pytest.mark.parametrize(("arm", "row"), [*zip(DAPO_ROWS, dapo_ladder(dapo()), strict=True)])
def test_dapo_arm_matches_paper_row(arm, row):
    expected = dapo_ladder(dapo(max_length=ablation_tables.LIMIT, cache=ablation_tables.LIMIT // 5))[row]
    assert differing_slots(algorithm_of(arm), expected) == {"outcome_reward"}


def test_vapo_arm_leaves_out_one_part():
    full = BY_NAME["vapo"](alpha=1.0, pretraining_steps=10)
    parts = {
        "value pretraining": "value_pretraining",
        "decoupled GAE": "decoupled_gae",
        "length-adaptive GAE": "length_adaptive",
        "clip-higher": "clip_higher",
        "token-level loss": "token_level",
        "positive examples": "positive_examples",
        "group sampling": "group_sampling",
    }
    for name, part in parts.items():
        found, expected = algorithm_of(f"VAPO without {name}"), without("vapo", full, part)
        slots = differing_slots(found._replace(critic=None), expected._replace(critic=None))
        assert slots == {"outcome_reward"}, name
        assert found.critic.pretraining_steps == expected.critic.pretraining_steps
        lengths = jnp.array([10, 40])
        for critic in (found.critic, expected.critic):
            assert (critic.policy_lambda is None) == (part == "length_adaptive")
        if part != "length_adaptive":
            np.testing.assert_allclose(found.critic.policy_lambda(lengths), expected.critic.policy_lambda(lengths))
    assert config_of("VAPO without group sampling", 0, None).sampling.group_size == 1


def test_arms_train_on_equally_many_responses():
    samplings = [config_of(arm, 0, None).sampling for arm in ARMS]
    assert {sampling.prompts * sampling.group_size for sampling in samplings} == {64}
    assert {config_of(arm, 0, None).optimization.minibatches for arm in ARMS} == {4}


def test_kendall_and_permutation_test_match_scipy():
    random = np.random.default_rng(3)
    one, other = random.normal(size=6), random.normal(size=6)
    np.testing.assert_allclose(kendall(one, other), stats.kendalltau(one, other).statistic)
    found = permutation_test(one, other)
    taus = sorted(stats.kendalltau(one, order).statistic for order in itertools.permutations(other))
    assert found.share == pytest.approx(stats.kendalltau(one, other, method="exact").pvalue)
    assert (found.low, found.high) == pytest.approx((taus[17], taus[701]))
    with pytest.raises(ValueError, match="two to nine"):
        permutation_test(range(10), range(10))


def test_kendall_ignores_ties():
    assert kendall([1, 2, 3], [5.0, 5.0, 7.0]) == pytest.approx(2 / 3)


def test_measurements():
    step = {"phase": "rl", "tokens_per_second": 50.0, "seconds": 2.0, "clip_fraction": 0.1}
    step |= dict.fromkeys(ablation_tables.STEP_METRICS, 0.5)
    value = {"phase": "value", "seconds": 3.0, "value_loss": 0.4}
    metrics = [
        value,
        {"phase": "eval", "step": 0, "accuracy": 0.5},
        step,
        step,
        {"phase": "eval", "step": 2, "accuracy": 1},
    ]
    answers = [
        {"step": 0, "completion": "1", "reward": 0.0},
        {"step": 2, "completion": "12", "reward": 0.0},
        {"step": 2, "completion": "1234", "reward": 1.0},
    ]
    found = measurements(metrics, answers)
    assert found["tokens"] == [200, 300]
    assert (found["wrong_length"], found["spread"]) == (2.0, 0.333)
    assert (found["heldout"], found["clipped"], found["value_loss"]) == ([0.5, 1], [0.1, 0.1], [0.4])


def make_row(arm, seed, *, end, truncated):
    """The row of a run with this final accuracy and this fraction of truncated responses."""
    key = {"arm": arm, "seed": seed, "rate": None}
    return key | {
        "settings": hash_of(key),
        "accuracy": [0.2] * 4 + [end] * ablation_tables.LAST,
        "truncated_share": [truncated] * 14,
    }


@pytest.mark.parametrize(("truncated", "gain", "verdict"), [(0.5, 0.1, "holds here"), (0.5, -0.1, "contradicted")])
def test_decide_needs_the_premise(truncated, gain, verdict):
    claim = next(claim for claim in CLAIMS if claim.name == "overlong filtering")

    def rows(share):
        ends = {"naive GRPO": 0.5, "+ overlong filtering": 0.5 + gain}
        return [
            make_row(arm, seed, end=end + 0.001 * seed, truncated=share + 0.001 * seed)
            for arm, end in ends.items()
            for seed in SEEDS
        ]

    assert decide(claim, rows(truncated)).verdict == verdict
    assert decide(claim, rows(0.0)).verdict == "not decided"


def make_real_row(arm, seed, end):
    """One run of SmolLM2 that ends with this accuracy and clips a tenth of the tokens."""
    return {"arm": arm, "seed": seed, "accuracy": {"0": 0.1, "24": end}, "clipped": [0.0, None, 0.2]}


@pytest.mark.parametrize(("gain", "verdict"), [(0.0, "holds here"), (0.1, "contradicted")])
def test_smollm2_needs_five_seeds_for_a_verdict(gain, verdict):
    """Only seeds that both arms have are compared; the claim asks for equal accuracies."""
    claim = next(claim for claim in CLAIMS if claim.real == ("Dr.GRPO", "GRPO"))
    rows = [make_real_row("GRPO", seed, 0.7 + 0.01 * seed) for seed in range(6)]
    rows += [make_real_row("Dr.GRPO", seed, 0.7 + 0.01 * seed + gain + 0.001 * (seed % 2)) for seed in range(5)]
    found = compare_on_smollm2(claim, rows)
    assert (found["verdict"], found["statistic"]["seeds"], found["clipped"]) == (verdict, 5, 0.1)
    assert found["statistic"]["value"] == pytest.approx(gain + 0.0004)
    few = compare_on_smollm2(claim, [row for row in rows if row["seed"] < 3])
    assert (few["verdict"], few["statistic"]["seeds"]) == ("not decided", 3)
    assert few["statistic"]["low"] < gain < few["statistic"]["high"], "three seeds have an interval"


def page_body(name):
    """A committed page without its first line, which contains the date and the machine."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8").split("\n\n", 1)[1]


def test_ladders_page_matches_runs():
    rows, _ = read_inputs()
    assert page_body("ablation_tables") == report(rows)
    assert ablation_tables.arms_with_runs(rows, TABLES[0]) == [*DAPO_ROWS]


def test_claims_on_transformer_page_matches_runs():
    stored = json.loads((FOLDER / "claims_on_transformer.json").read_text(encoding="utf-8"))
    assert stored == summary(*read_inputs())
    assert page_body("claims_on_transformer") == claims_on_transformer.report(stored)
