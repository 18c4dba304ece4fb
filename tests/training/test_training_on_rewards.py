"""Rewards beyond correctness: within a few RL steps, the rewarded behavior becomes more frequent.

The policy is a table of logits by position. It writes `#3 confidence: 0.9`; only the digits 3 and 9 can vary.
"""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from scripted_policy import places, probability, scripted_policy, table
from shared_run import rows
from small_runs import SMALL

import rljax
from rljax.data.preferences import Preference
from rljax.data.problem import Problem
from rljax.parallel import make_mesh
from rljax.preference.config import RewardModelConfig
from rljax.preference.reward_model import make_reward_function
from rljax.programs.labeled_pairs import pairs_of
from rljax.programs.reward_model_training import train_reward_model
from rljax.rewards.reward_scores import combine, judge
from rljax.tasks.outliers import OutliersConfig

SCRIPT = "#? confidence: 0.?"
ANSWER, CONFIDENCE = places(SCRIPT)
PROMPTS = [Problem(f"{number}+2=", str(number + 2)) for number in range(8)]
START = table(SCRIPT, {ANSWER: "3", CONFIDENCE: "9"})
ONE_DEVICE = make_mesh(1, 1)
REWARD_MODEL = RewardModelConfig(
    dataset="-",
    tokenizer="bytes",
    layers=1,
    width=16,
    heads=2,
    kv_heads=2,
    hidden=32,
    steps=40,
    batch=16,
    learning_rate=1e-2,
    eval_every=0,
    replicas=1,
    quiet=True,
)


@pytest.fixture
def run(tmp_path):
    """A function that trains a logit table on a reward; returns the new table, the first step's metrics and all samples."""

    def train(reward, problems=PROMPTS, *, start=START, steps=2, name="run"):
        config = SMALL.replace(
            run=str(tmp_path / name),
            tokenizer="bytes",
            algorithm="rloo",
            warm_start_steps=0,
            steps=steps,
            prompts=4,
            group_size=8,
            max_response_tokens=24,
            learning_rate=0.5,
            learning_rate_warmup=0,
            eval_every=0,
            heldout_problems=4,
            sample_every=1,
            shown_samples=4,
        )
        result = rljax.train(config, reward, policy=scripted_policy(start), problems=(problems[:4], problems[4:]))
        first_metrics, *_ = (row for row in rows(result.run) if row["phase"] == "rl")
        samples = [json.loads(line) for line in (result.run / "samples.jsonl").read_text().splitlines()]
        return jax.device_get(result.params), first_metrics, samples

    return train


def test_count_bonus_spreads_the_answers(run, prepared):
    params, first_metrics, _ = run("count_bonus:0.5")
    rewards = prepared[0][0].rewards
    assert first_metrics["reward"] == pytest.approx(rewards.mean(), rel=1e-5)
    for group in rewards:
        for bonus, responses in zip(*np.unique(group, return_counts=True), strict=True):
            count = (0.5 / bonus) ** 2
            assert responses / count == pytest.approx(round(responses / count), abs=1e-3), (
                "a bonus of 0.5 / √n must occur a multiple of n times"
            )
    assert len(np.unique(rewards)) > 2
    assert probability(START, ANSWER, "3") == pytest.approx(0.5, abs=0.01)
    assert probability(params, ANSWER, "3") < 0.4


def test_a_constitution_is_followed(run, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("no three:\n  must_not: '^#3'\n  weight: 0.5\nbrief:\n  max_characters: 40\n")
    params, first_metrics, samples = run(f"constitution:{rules}")
    assert [sample["reward"] for sample in samples] == [-0.5 * sample["completion"].startswith("#3") for sample in samples]
    assert 0 < first_metrics["reward_no three"] < 1
    assert first_metrics["reward"] == pytest.approx(-0.5 * first_metrics["reward_no three"])
    assert first_metrics["reward_brief"] == 0
    assert probability(params, ANSWER, "3") < 0.4


def test_the_brier_reward_lowers_a_confidence_that_is_too_high(run):
    params, first_metrics, samples = run("brier:exact")
    for sample in samples:
        answer, stated = sample["completion"].split(" confidence: ")
        is_right = answer == f"#{sample['answer']}"
        assert sample["reward"] == pytest.approx(is_right - (float(stated) - is_right) ** 2, rel=1e-5)
    assert 0 < first_metrics["reward_exact"] < 0.5, "the accuracy must be below the stated confidence of 0.9"
    assert first_metrics["reward"] == pytest.approx(
        first_metrics["reward_exact"] - first_metrics["reward_brier_score"], rel=1e-5
    )
    assert probability(params, CONFIDENCE, "9") < 0.4
    assert probability(params, CONFIDENCE, "1") > probability(START, CONFIDENCE, "1")


def test_accuracy_does_not_depend_on_rewards(run, prepared):
    """Every reward gets an outlier added, so half of the wrong answers have a reward above 0."""
    columns = {"outlier_share": 1.0, "outlier_size": 100.0}
    problems = [replace(problem, answer="3 confidence: 0.9", columns=columns) for problem in PROMPTS]
    _, first_metrics, samples = run(OutliersConfig.reward, problems)
    rewards = prepared[0][0].rewards
    assert first_metrics["accuracy"] == first_metrics["reward_exact"] == np.isin(rewards, (101, -99)).mean()
    assert 0 < first_metrics["accuracy"] < (rewards > 0).mean()
    assert any(not sample["correct"] and sample["reward"] > 0 for sample in samples)


def pairs_in_order(order):
    """Preference pairs for every prompt, which prefer earlier digits of `order` to later ones."""
    texts = [f"#{digit} confidence: 0.9" for digit in order]
    return [
        Preference(problem.prompt, better, worse)
        for problem in PROMPTS
        for index, better in enumerate(texts)
        for worse in texts[index + 1 :]
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of two reward models: the first overrates the answer 9, the second the answer 1."""
    models_folder = tmp_path_factory.mktemp("models")
    for overrated, order in (("9", "9315"), ("1", "1395")):
        pairs = pairs_in_order(order)
        train_reward_model(replace(REWARD_MODEL, output=str(models_folder / overrated)), preferences=(pairs, pairs))
    return models_folder / "9", models_folder / "1"


def scores_of(reward):
    """Mean reward of the right answer, 3, and of 9 and 1, which the two reward models overrate."""
    found = {}
    for digit in "391":
        scores = judge(reward, [problem.prompt for problem in PROMPTS], [f"#{digit} confidence: 0.9"] * len(PROMPTS), {})
        found[digit] = scores.total.mean()
    return found


def test_retraining_a_reward_model_stops_its_exploitation(run, models, tmp_path):
    old = make_reward_function(models[0], ONE_DEVICE)
    assert scores_of(old)["9"] > scores_of(old)["3"] > scores_of(old)["1"]
    exploiting, _, samples = run(old, steps=5)
    before, exploited = probability(START, ANSWER, "9"), probability(exploiting, ANSWER, "9")
    assert exploited > 1.5 * before
    pairs = []
    for prompt in {sample["prompt"] for sample in samples}:
        texts = [sample["completion"] for sample in samples if sample["prompt"] == prompt]
        right, wrong = ([text for text in texts if text.startswith("#3") == is_right] for is_right in (True, False))
        pairs += [Preference(prompt, *pair) for pair in pairs_of(right, wrong)]
    assert any(pair.rejected.startswith("#9") for pair in pairs), "the pairs must contain the policy's exploits"
    folder = tmp_path / "retrained"
    train_reward_model(replace(REWARD_MODEL, model=str(models[0]), output=str(folder)), preferences=(pairs, pairs))
    retrained = make_reward_function(folder, ONE_DEVICE)
    assert scores_of(retrained)["3"] > scores_of(retrained)["9"]
    recovered, *_ = run(retrained, start=exploiting, steps=5, name="recovered")
    assert probability(recovered, ANSWER, "9") < exploited / 1.5
    assert probability(recovered, ANSWER, "3") > probability(exploiting, ANSWER, "3")


def test_minimum_of_two_reward_models_prevents_exploitation(run, models):
    both = [make_reward_function(folder, ONE_DEVICE) for folder in models]
    minimum = combine(both, None, how="min")
    assert scores_of(both[1])["1"] > scores_of(both[1])["3"]
    assert scores_of(minimum)["3"] > max(scores_of(minimum)["9"], scores_of(minimum)["1"])
    trained, *_ = run(minimum, steps=5)
    for overrated in "91":
        assert probability(trained, ANSWER, overrated) < probability(START, ANSWER, overrated) / 1.5
    assert probability(trained, ANSWER, "3") > probability(START, ANSWER, "3")
