"""`--replay-experts` in a run: recorded experts reach the learner, and incompatible settings are refused."""

import json

import chex
import jax
import numpy as np
import pytest
from models.families import write_folder
from run_states import first_state
from small_runs import even_length, stopping_after

import rljax
from rljax.errors import InputError
from rljax.options import router_replay
from rljax.rollout import sequences_of
from rljax.rollout.expert_records import experts_in_slots
from rljax.rollout.groups import from_dict, to_dict
from rljax.training.interrupt import Interrupted
from rljax.training.rollout_data import make_policy_scores, make_rollout_scorer
from rljax.training.scoring import policy_params


@pytest.fixture
def config(tmp_path):
    folder = write_folder(tmp_path / "model", "qwen3_moe")
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"prompt": f"3 {n}", "answer": "6"}) + "\n" for n in range(4, 18))
    )
    return rljax.TrainConfig.flat(
        **{"model": str(folder), "dataset": str(tmp_path / "data.jsonl"), "tokenizer": "ids", "max_response_tokens": 5},
        **{"algorithm": "grpo", "steps": 3, "prompts": 2, "group_size": 2, "heldout_problems": 2, "models": "none"},
        **{"quiet": True, "learning_rate": 1e-2, "run": str(tmp_path / "run"), "replicas": 1, "sample_every": 0},
        replay_experts=True,
    )


def reward(completions):
    return [float(len(completion) % 2) for completion in completions]


def test_the_learner_and_the_reference_use_the_recorded_experts(config):
    setup, state = first_state(config, reward=reward)
    groups = setup.train.generate(setup.full_params(state.params), [0, 1], 2, jax.random.key(0))
    slots = groups.prompt_tokens.shape[1]
    assert groups.experts.shape == (2, 2, slots + 5, 4, 2)
    np.testing.assert_array_equal(
        (groups.experts[..., 0, 0] >= 0)[..., :slots], groups.prompt_attention[:, None].repeat(2, 1)
    )
    np.testing.assert_array_equal((groups.experts[..., 0, 0] >= 0)[..., slots:].sum(-1), groups.attention.sum(-1) - 1)
    chex.assert_trees_all_equal(from_dict(to_dict(groups)), groups)
    scored = make_rollout_scorer(setup)(state, groups).groups.rollout
    np.testing.assert_allclose(scored.ref_logp[scored.mask], scored.policy_logp[scored.mask], atol=1e-5)
    others = (groups.experts + 1) % 6  # different experts must give different log-probabilities
    changed = groups._replace(experts=np.where(groups.experts >= 0, others, -1).astype(np.int16))
    logp = make_policy_scores(setup)(policy_params(setup.base, state.params), sequences_of(changed)).logp
    mask = groups.rollout.mask
    assert np.abs(logp.reshape(mask.shape) - groups.rollout.policy_logp)[mask].max() > 1e-4


def test_run_with_replay_resumes_exactly(config, tmp_path):
    uninterrupted = rljax.train(config, even_length)
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(tmp_path / "stopped")), stopping_after(4))
    resumed = rljax.train(None, even_length, resume=tmp_path / "stopped")
    chex.assert_trees_all_equal(uninterrupted.params, resumed.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paged_cache": 0.5}, "cannot be combined with --paged-cache"),
        ({"algorithm": "on_policy_distillation", "teacher": "MODEL"}, "cannot be used with a teacher"),
        ({"model": None, "tokenizer": "bytes"}, "with a mixture of experts"),
    ],
)
def test_settings_without_expert_records_are_refused(config, changes, message):
    changes = {name: config.model.path if value == "MODEL" else value for name, value in changes.items()}
    with pytest.raises(InputError, match=message):
        first_state(config.replace(**changes), reward=reward)


def test_long_prompts_are_refused(config, monkeypatch):
    monkeypatch.setattr(router_replay, "PREFILL_TOKENS", 1)
    with pytest.raises(InputError, match="prompts of at most 1 tokens"):
        first_state(config, reward=reward)


def test_incomplete_records_are_refused(config):
    setup, state = first_state(config, reward=reward)
    responses = setup.train.answer(setup.full_params(state.params), [0, 1], jax.random.key(0))
    with pytest.raises(InputError, match="all responses must have experts"):
        experts_in_slots([responses[0], responses[1]._replace(experts=None)], 8, 5)
    with pytest.raises(InputError, match="one row for each token of the prompt"):
        experts_in_slots([responses[0]._replace(experts=responses[0].experts[:1])], 8, 5)
