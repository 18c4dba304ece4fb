"""Length settings default to the run's response limit, and schedules end with the run even if steps are skipped."""

import itertools
import json

import jax.numpy as jnp
import pytest
from small_runs import SMALL

import rljax
from rljax.algorithms import Rollout, response_rewards
from rljax.training.config import TrainConfig
from rljax.training.objective.algorithm import list_misfits, make_algorithm, resolved_settings


def config_of(name, **options):
    return TrainConfig.flat(algorithm=name, algorithm_options=options, max_response_tokens=250)


@pytest.mark.parametrize("name", ["dapo", "forking_tokens"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.0, 0.0, -0.5, -1.0]),  # the penalty begins at 200 tokens
        ({"cache": 100}, [0.0, -0.5, -0.75, -1.0]),
        ({"max_length": 500, "cache": 400}, [-0.0, -0.25, -0.3125, -0.375]),
        ({"max_length": 20480, "cache": 4096}, [0.0, 0.0, 0.0, 0.0]),  # the paper's values
    ],
)
def test_the_overlong_penalty_is_scaled_to_the_run(name, options, expected):
    mask = jnp.stack([jnp.arange(250) < count for count in (100, 200, 225, 250)])[None]
    rollout = Rollout(
        mask=mask, behaviour_logp=jnp.zeros(mask.shape), behaviour_entropy=jnp.zeros(mask.shape), rewards=jnp.zeros((1, 4))
    )
    assert response_rewards(make_algorithm(config_of(name, **options)), rollout)[0].tolist() == pytest.approx(expected)


def test_dr_grpo_divides_by_the_runs_limit():
    mask = jnp.ones((1, 2, 4), bool)
    assert make_algorithm(config_of("dr_grpo")).weights(mask)[0, 0, 0] == pytest.approx(1 / (2 * 250))
    assert make_algorithm(config_of("dr_grpo", max_length=3000)).weights(mask)[0, 0, 0] == pytest.approx(1 / (2 * 3000))


def test_shown_settings_contain_the_resolved_lengths():
    assert resolved_settings(config_of("dapo"))["algorithm_options"]["max_length"] == 250
    assert resolved_settings(config_of("dapo", cache=9))["algorithm_options"]["cache"] == 9


@pytest.mark.parametrize(
    ("config", "expected_start"),
    [
        (config_of("dapo"), None),
        (config_of("dr_grpo"), None),
        (config_of("grpo"), None),
        (config_of("dapo", max_length=300, cache=100), None),
        (config_of("dapo", max_length=350, cache=100), "the overlong penalty begins after 250 tokens"),
        (
            config_of("forking_tokens", max_length=20480, cache=4096),
            "the overlong penalty begins after 16384",
        ),
        (
            config_of("dr_grpo", max_length=3000),
            "the algorithm divides by max_length=3000, and a response has at most 250 tokens, so",
        ),
    ],
)
def test_lengths_that_do_not_fit_the_run_are_reported(config, expected_start):
    notes = list_misfits(config, make_algorithm(config))
    assert [note.startswith(expected_start) for note in notes] == ([] if expected_start is None else [True])


@pytest.mark.parametrize(("schedule", "last"), [("cosine", 0.0171), ("linear", 1 / 12)])
def test_schedule_ends_with_the_run_despite_skipped_steps(schedule, last, tmp_path):
    calls = itertools.count()

    def reward(completions, **columns):
        odd = next(calls) % 2
        return [float(index % 2 or odd) for index in range(len(completions))]

    config = SMALL.replace(
        run=str(tmp_path / "run"),
        algorithm="dapo",
        schedule=schedule,
        learning_rate=1e-3,
        learning_rate_warmup=0,
        warm_start_steps=0,
        steps=12,
        minibatches=1,
        max_tries=1,
        oversample=1.0,
        eval_every=0,
        train_problems=16,
        heldout_problems=3,
        prompts=4,
        group_size=4,
    )
    run = rljax.train(config, reward).run
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = {row["step"]: row["learning_rate"] / 1e-3 for row in rows if row.get("learning_rate") and row["phase"] == "rl"}
    assert len(rates) == 6
    if 12 in rates:
        assert rates[12] == pytest.approx(last, abs=1e-3)
    else:
        assert rates[11] == pytest.approx(0.067 if schedule == "cosine" else 2 / 12, abs=1e-3)
