"""Router metrics of mixture-of-experts runs: how routers distribute tokens; measuring them must not affect training."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.families import write_folder
from run_states import first_state
from small_runs import is_time

import rljax
from rljax import options
from rljax.models import Model
from rljax.models.router_statistics import statistics_by_layer
from rljax.options import router_metrics
from rljax.options.router_metrics import first_responses
from rljax.tracking.rows import read_metrics
from rljax.training.state import Updates

NAMES = ("router_balance", "router_entropy", "router_largest_share", "router_unused_share")


@pytest.fixture
def config(tmp_path):
    folder = write_folder(tmp_path / "model", "qwen3_moe")
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"prompt": f"3 {n}", "answer": "6"}) + "\n" for n in range(4, 18))
    )
    return rljax.TrainConfig.flat(
        **{"model": str(folder), "dataset": str(tmp_path / "data.jsonl"), "tokenizer": "ids", "max_response_tokens": 5},
        **{"algorithm": "grpo", "steps": 2, "prompts": 2, "group_size": 2, "heldout_problems": 2, "models": "none"},
        **{"quiet": True, "learning_rate": 1e-2, "run": str(tmp_path / "run"), "replicas": 1, "sample_every": 0},
    )


def reward(completions):
    return [float(len(completion) % 2) for completion in completions]


def without_router_metrics(row):
    return {name: value for name, value in row.items() if name not in NAMES and not is_time(name)}


def test_router_metrics_do_not_change_training(config, tmp_path, monkeypatch):
    done = rljax.train(config, reward=reward)
    monkeypatch.setattr(options, "config_with_experts", lambda policy: None)
    plain = rljax.train(config.replace(run=str(tmp_path / "plain")), reward=reward)
    chex.assert_trees_all_equal(done.params, plain.params)
    found, expected = (
        [row for row in read_metrics(result.run / "metrics.jsonl") if row["phase"] == "rl"] for result in (done, plain)
    )
    assert [without_router_metrics(row) for row in found] == [without_router_metrics(row) for row in expected]
    for row in found:
        assert 0.5 < row["router_balance"] <= 6
        assert 0 < row["router_entropy"] <= np.log(6) + 1e-6
        assert 1 / 6 <= row["router_largest_share"] <= 1 / 2 + 1e-6, (
            "each token goes to 2 of 6 experts, so no expert gets more than half"
        )
    assert found[0]["router_entropy"] != found[1]["router_entropy"], "each step must measure its own rollout"


def test_first_responses_are_measured_without_padding_rows(config):
    setup, state = first_state(config, reward=reward)
    groups = setup.train.generate(setup.full_params(state.params), [0, 1, 2], 2, jax.random.key(0))
    tokens, attention, counted = first_responses(groups, devices=2)
    slots = groups.prompt_tokens.shape[1]
    assert tokens.shape == (4, slots + 5)
    np.testing.assert_array_equal(tokens[:3, slots:], groups.tokens[:, 0])
    np.testing.assert_array_equal(attention[:3, :slots], groups.prompt_attention)
    np.testing.assert_array_equal(counted[:3, slots:], groups.attention[:, 0])
    assert not counted[3].any()
    assert not counted[:, :slots].any()
    option = next(option for option in setup.options if option.name == "router_metrics")
    option.before_updates(state, type("Scored", (), {"groups": groups}))
    _, metrics = option.after_updates(state, None, Updates(0, []))
    positions = np.maximum(attention.cumsum(-1) - 1, 0)
    arrays = (jnp.asarray(each[:3]) for each in (tokens, positions, attention.astype(np.int32), counted))
    model_config = options.config_with_experts(setup.policy)
    expected = statistics_by_layer(Model(model_config), state.params, *arrays)
    np.testing.assert_allclose(metrics["router_balance"], expected.balance.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["router_largest_share"], expected.largest_share.max(), rtol=1e-5)


def test_only_part_of_a_long_rollout_is_measured(config, monkeypatch):
    setup, state = first_state(config, reward=reward)
    groups = setup.train.generate(setup.full_params(state.params), [0, 1, 2], 2, jax.random.key(0))
    slots = groups.prompt_tokens.shape[1] + 5
    monkeypatch.setattr(router_metrics, "TOKENS", 2 * slots + 1)
    assert [each.shape for each in first_responses(groups, devices=1)] == [(2, slots)] * 3
    monkeypatch.setattr(router_metrics, "TOKENS", 1)
    assert len(first_responses(groups, devices=1)[0]) == 1
