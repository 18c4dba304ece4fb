"""The Fisher anchor: its estimate and gradient match direct computations, runs resume, and bad settings are refused."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bigram import BIGRAM
from fake_runs import write_run
from run_states import first_state, learn_from, make_rl_state, read_checkpoint
from small_runs import SMALL, even_length

import rljax
from rljax.errors import InputError
from rljax.options.fisher_anchor import NAME, SAMPLES, anchor_problems, sample_responses, with_fisher
from rljax.rollout import pack_one_per_row
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.initial_state import begin_options
from rljax.training.parts.problems import training_problems
from rljax.training.scoring import make_score
from rljax.training.setup import encode_nonempty

WEIGHT = 3.0
TINY = SMALL.replace(
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    train_problems=16,
    heldout_problems=2,
    steps=2,
    prompts=4,
    group_size=4,
    learning_rate=1e-2,
    eval_every=0,
    sample_every=0,
    anchor=WEIGHT,
)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Settings with a dataset of earlier problems, one of which is longer than the run's own prompts."""
    file = tmp_path_factory.mktemp("data") / "earlier.jsonl"
    rows = [{"prompt": prompt, "answer": "0"} for prompt in ("1-1=", "2-2=", "12-12=")]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return TINY.replace(anchor_problems=str(file))


def host_leaves(tree):
    return jax.tree.leaves(jax.device_get(tree))


def test_the_fisher_information_is_the_mean_of_the_squared_gradients(config):
    """The expected gradient of each response's log-likelihood comes from one Jacobian."""
    setup, state = first_state(config.replace(temperature=0.7, fsdp=2), reward=even_length)
    assert not any(leaf.any() for leaf in host_leaves(state.options[NAME].fisher)), "not yet estimated or restored"
    score = make_score(setup.policy, 0.7)
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), jnp.uint32(2**32 - 1))
    problems = anchor_problems(setup.config, most=SAMPLES)
    worker = replace(setup.train, prompts=encode_nonempty(setup.config, problems, setup.tokenizer))
    sampled, mask = sample_responses(worker, state.params, 6, key)
    assert len(worker.prompts.tokens) == 3

    def likelihoods(params):
        return jnp.where(mask, score(params, pack_one_per_row(sampled)).logp, 0.0).sum(-1)

    expected = [
        np.square(np.asarray(leaf)).mean(0) for leaf in jax.tree.leaves(jax.jit(jax.jacrev(likelihoods))(state.params))
    ]
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state.params)
    after = with_fisher(state, worker, score, setup.mesh, samples=6)
    for found, right in zip(host_leaves(after.options[NAME].fisher), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)
    assert max(leaf.max() for leaf in expected) > 0.1
    anchor = after.options[NAME]
    assert jax.tree.map(lambda leaf: leaf.sharding, anchor) == type(anchor)(shardings, shardings)


def test_an_update_is_pulled_towards_the_anchor(config):
    """A gradient descent step with the anchor minus the same step without it is -λ F (θ - θ*)."""
    after, moved = [], {}
    for weight, problems in ((None, None), (WEIGHT, config.algorithm.anchor_problems)):
        chosen = config.replace(anchor=weight, anchor_problems=problems)
        setup, state = first_state(chosen, reward=even_length, policy=BIGRAM, optimizer=optax.sgd(1.0))
        state = make_rl_state(setup, state)
        groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
        rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
        groups = groups._replace(rollout=groups.rollout._replace(rewards=rewards))
        if NAME in state.options:
            fisher = jax.tree.map(lambda leaf: jnp.abs(leaf) + 0.1, state.params)
            anchor_params = jax.tree.map(lambda leaf: leaf - 0.01, state.params)
            anchor = state.options[NAME]._replace(params=anchor_params, fisher=fisher)
            state = state._replace(options={NAME: anchor})
            moved = {"fisher": host_leaves(fisher), "sizes": [leaf.size for leaf in host_leaves(fisher)]}
        state, metrics = learn_from(setup, state, groups)
        after.append(host_leaves(state.params))
    for without_anchor, with_anchor, fisher in zip(*after, moved["fisher"], strict=True):
        np.testing.assert_allclose(with_anchor - without_anchor, -WEIGHT * fisher * 0.01, rtol=1e-2, atol=2e-5)
    penalty = WEIGHT / 2 * sum(float(fisher.sum()) for fisher in moved["fisher"]) * 0.01**2
    assert metrics.policy.options["anchor_penalty"] == pytest.approx(penalty, rel=1e-3)


def test_a_resumed_run_keeps_its_initial_anchor(config, tmp_path):
    config = config.replace(warm_start_steps=2, warm_start_batch=8)
    parts = {"reward": even_length, "policy": BIGRAM}
    run = rljax.train(config.replace(run=str(tmp_path / "run"), steps=1), **parts).run
    saved = read_checkpoint(config, run, **parts).state
    setup, state = first_state(config, **parts)
    initial = begin_options(setup, state).options[NAME]
    jax.tree.map(np.testing.assert_array_equal, *map(jax.device_get, (saved.options[NAME], initial)))
    assert any(leaf.any() for leaf in host_leaves(initial.fisher))
    rljax.train(config.replace(run=str(run), steps=2), resume=run, **parts)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, second, third, fourth = (row["anchor_penalty"] for row in rows if row["phase"] in ("warm_start", "rl"))
    assert first == 0 < min(second, third), "the anchor applies to the warm start too"
    assert fourth > 0, "resuming must not move the anchor to the current parameters"


def test_anchor_problems_come_from_the_run_that_contains_the_model(tmp_path):
    run = write_run(tmp_path / "first", task="sums", operators="-", operands=(2, 3), train_problems=20, heldout_problems=4)
    config = TrainConfig.flat(model=str(run.path / "last"), anchor=1.0)
    with pytest.raises(InputError, match="is not in the folder of a run; name a run"):
        anchor_problems(config, most=5)  # a folder with only a config.json is not a run
    run.checkpoints.mkdir()
    found = anchor_problems(config, most=5)
    assert len({problem.prompt for problem in found}) == 5
    assert all("-" in problem.prompt for problem in found)
    assert anchor_problems(config.replace(model="any", anchor_problems=str(run.path)), most=5) == found


def test_a_model_without_available_problems_is_refused(tmp_path):
    run = write_run(tmp_path / "first")
    run.checkpoints.mkdir()
    run.write_config({**run.config, "seams": ["problems"]})
    with pytest.raises(InputError, match="were passed from Python; pass a dataset with --anchor-problems"):
        anchor_problems(TrainConfig.flat(anchor=1.0, anchor_problems=str(run.path)), most=5)
    with pytest.raises(InputError, match=r"'model' is not the folder of a run, .* pass them with --dataset"):
        training_problems(None, "model")
    with pytest.raises(InputError, match="name a run or a dataset with --anchor-problems"):
        anchor_problems(TrainConfig.flat(anchor=1.0), most=5)
    with pytest.raises(InputError, match="anchor is not set; set --anchor"):
        TrainConfig.flat(anchor_problems="runs/first")
    with pytest.raises(InputError, match=r"anchor=1\.0 cannot be used with an adapter \(lora_rank=4\)"):
        TrainConfig.flat(anchor=1.0, lora_rank=4)
    with pytest.raises(InputError, match=r"anchor is -1\.0; it must be positive"):
        TrainConfig.flat(anchor=-1)


def test_the_problems_of_a_run_with_a_custom_reward_need_no_answers(tmp_path):
    """The settings name a reward that needs answers, but the run used a reward function passed from Python."""
    rows = [{"text": f"Write {number}.", "code": "0", "test_list": ["assert f"], "task_id": number} for number in range(20)]
    data = tmp_path / "code.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = write_run(tmp_path / "first", dataset=str(data), reward="exact", heldout_problems=2)
    with pytest.raises(InputError, match=r"no problem of .* has one"):
        training_problems(run.path, run.path)
    run.write_config({**run.config, "seams": ["reward"]})
    assert len(training_problems(run.path, run.path)) == 18
