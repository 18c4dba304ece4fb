"""Every algorithm learns from what the trainer prepares for it.

The policy is a bigram model, which compiles fast, or a transformer for algorithms that need one.
`tests/rollout/test_layout.py` tests that each algorithm's loss and gradient reach the transformer's parameters.
"""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from bigram import BIGRAM
from run_states import first_state, learn_from, make_rl_state, read_checkpoint
from shared_run import TINY, distances, rows
from small_runs import even_length

import rljax
from rljax.algorithms import BY_NAME
from rljax.cli import main, parse
from rljax.errors import InputError
from rljax.ops.unpublished.group_baseline import rank_based
from rljax.programs.value_pretraining import critic_only, make_value_learner
from rljax.rollout import for_algorithm
from rljax.training.config import TrainConfig
from rljax.training.metrics import present
from rljax.training.objective.algorithm import check_algorithm, make_algorithm
from rljax.training.rl_phase import make_learner
from rljax.training.rollout_data import make_rollout_scorer

CRITICS = {name for name in BY_NAME if BY_NAME[name]().critic is not None}


STEP_REWARD = """
def parity(prompts, completions, **columns):
    return [[(len(text), float(len(text) % 2))] if text else [] for text in completions]
"""


def all_right(completions):
    return [1.0] * len(completions)


ONE_STEP = TINY.replace(
    algorithm_options={}, warm_start_steps=0, steps=1, minibatches=1, microbatch_rows=None, eval_every=0, max_tries=1
)


NEED_TRANSFORMER = ("forking_tokens", "grpo_process", "ppo", "t1")
"""Algorithms that need the built-in model: for entropies, step rewards, a critic, or a reference."""
NEED_STEP_REWARDS = ("grpo_process", "mt_grpo")
"""Algorithms that need step rewards."""


def policy_arguments(config):
    """Keyword arguments that pass the bigram policy, or none for the built-in policy."""
    return {} if config.algorithm.name in NEED_TRANSFORMER else {"policy": BIGRAM}


def start_rl(config, reward=even_length):
    """Setup and state at the start of RL."""
    setup, state = first_state(config, reward=reward, **policy_arguments(config))
    return setup, make_rl_state(setup, state)


@pytest.fixture(scope="module")
def step_reward(tmp_path_factory):
    """The name of a step reward in a file: `FILE:parity`."""
    file = tmp_path_factory.mktemp("step_reward") / "judge.py"
    file.write_text(STEP_REWARD)
    return f"{file}:parity"


@pytest.mark.parametrize("name", ["grpo_process", "vapo_grpo"])
def test_runs_with_step_rewards_or_with_critic_and_groups(tmp_path, step_reward, name):
    """Train once with step rewards, and once with both a critic and groups; other tests use only groups or only a critic."""
    config = ONE_STEP.replace(
        run=str(tmp_path / name), algorithm=name, step_reward=step_reward if name == "grpo_process" else None
    )
    config = config.replace(value_pretraining_steps=1 if name in CRITICS else None)
    result = rljax.train(config, even_length, **policy_arguments(config))
    (row,) = (row for row in rows(result.run) if row["phase"] == "rl")
    assert all(np.isfinite(value) for value in row.values() if isinstance(value, float))
    assert max(distances(result.params, start_rl(config)[1].params)) > 0


@pytest.fixture(scope="module")
def sampled(step_reward):
    """A rollout with step rewards; each group contains rewards of 0 and of 1."""
    setup, state = start_rl(ONE_STEP.replace(algorithm="grpo_process", step_reward=step_reward))
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return groups._replace(rollout=groups.rollout._replace(rewards=rewards))


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"gkd", "minillm", "on_policy_distillation", "remax"}))
def test_every_algorithm_learns(step_reward, sampled, name):
    """Run the updates of one step on a rollout that the trainer has scored for the algorithm."""
    config = ONE_STEP.replace(algorithm=name, step_reward=step_reward if name in NEED_STEP_REWARDS else None)
    setup, state = start_rl(config)
    before = jax.device_get(state.params)
    state, metrics = learn_from(setup, state, sampled)
    present_metrics = present(metrics)
    assert all(np.isfinite(value) for value in present_metrics.values())
    assert ("explained_variance" in present_metrics) == (name in CRITICS)
    assert max(distances(state.params, before)) > 0


def test_parts_and_the_schedule_reach_the_learner(sampled):
    parts = (
        "advantage=rank",
        "keep_group=difficulty_window,low=0.5,high=0.5",
        "term=entropy",
        "term=importance_weighted_kl",
    )
    config = ONE_STEP.replace(algorithm="dapo", schedule="cosine", **{"with": parts})
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    setup, state = start_rl(config)
    assert setup.algorithm.advantage is rank_based
    assert setup.algorithm.keep_group.keywords == {"low": 0.5, "high": 0.5}
    before = jax.device_get(state.params)
    state, metrics = learn_from(setup, state, sampled)
    assert max(distances(state.params, before)) > 0
    present_metrics = present(metrics)
    assert present_metrics["entropy_bonus"] == pytest.approx(present_metrics["entropy"])
    assert present_metrics["reference_kl"] == pytest.approx(0, abs=1e-5), (
        "before the first update, the policy equals the reference"
    )
    assert state.reference is not None


def test_problem_kinds_reach_the_advantage(sampled):
    config = ONE_STEP.replace(algorithm="dr_grpo", **{"with": ("advantage=hierarchical",)})
    with pytest.raises(
        InputError, match=r"dr_grpo and --with advantage=hierarchical must compare problems of the same kind, but no"
    ):
        start_rl(config)
    setup, state = start_rl(config.replace(operands=(2, 3), max_prompt_tokens=8))
    operands = [problem.columns["operands"] for problem in setup.train.prompts.problems]
    groups = sampled._replace(prompt_ids=np.array([operands.index(count) for count in (2, 3, 3, 2)]))
    scored_rollout = make_rollout_scorer(setup)(state, groups)
    assert scored_rollout.groups.rollout.kinds.tolist() == [0, 1, 1, 0]
    before = jax.device_get(state.params)
    state, _, _ = make_learner(setup, state)(state, scored_rollout)
    assert max(distances(state.params, before)) > 0


def test_entropy_reaches_the_critic_advantage(sampled):
    """Also checks value pretraining, which uses only part of the algorithm."""
    part = "critic.advantage=complexity_weighted,max_length=12,beta=0.5"
    setup, state = start_rl(ONE_STEP.replace(algorithm="ppo", **{"with": (part,)}))
    before = jax.device_get(state.params)
    alone = setup._replace(algorithm=critic_only(setup.algorithm))
    state, metrics, _ = make_value_learner(alone, state, 1)(state, make_rollout_scorer(alone)(state, sampled))
    assert np.isfinite(metrics.critic.value_loss)
    scored_rollout = make_rollout_scorer(setup)(state, sampled)
    assert (scored_rollout.groups.rollout.behaviour_entropy > 0).any()
    state, _, _ = make_learner(setup, state)(state, scored_rollout)
    assert max(distances(state.params, before)) > 0


def test_run_reports_a_reward_that_is_only_measured(step_reward):
    for name, is_learned in (("grpo_process", False), ("dr_grpo", True)):
        setup, _ = start_rl(
            ONE_STEP.replace(algorithm=name, step_reward=step_reward if name in NEED_STEP_REWARDS else None)
        )
        assert ("the reward of the response is only measured" in " ".join(setup.omissions)) != is_learned


def test_plans_and_answers_are_credited_separately(step_reward, sampled):
    """The last step of a response is its answer and earlier steps are its plan; the plan's weight must change the update."""
    learned = []
    for weight in (0, 2):
        part = f"advantage=plan_and_answer,plan_weight={weight}"
        config = ONE_STEP.replace(algorithm="dr_grpo", step_reward=step_reward, **{"with": (part,)})
        setup, state = start_rl(config)
        rollout = sampled.rollout
        first = np.zeros_like(rollout.step_end)
        first[..., 0] = rollout.mask.sum(-1) > 1
        rewards = np.where(first, np.array([0, 0, 1, 1], np.float32)[:, None], rollout.step_rewards)
        groups = sampled._replace(rollout=rollout._replace(step_end=rollout.step_end | first, step_rewards=rewards))
        state, metrics = learn_from(setup, state, groups)
        assert metrics.policy is not None
        learned.append(jax.device_get(state.params))
    assert max(distances(*learned)) > 0


def test_several_rewards_reach_the_advantage():
    def length(completions):
        return [float(len(completion)) / 12 for completion in completions]

    config = ONE_STEP.replace(algorithm="dr_grpo", **{"with": ("advantage=reliability_quality",)})
    with pytest.raises(
        InputError, match=r"cannot train with .*: the advantage reliability_quality needs at least two rewards, .* got 1"
    ):
        start_rl(config)
    setup, state = start_rl(config, [even_length, length])
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    before = jax.device_get(state.params)
    state, _ = learn_from(setup, state, groups)
    assert max(distances(state.params, before)) > 0


def test_the_error_for_an_invalid_part_names_its_flag():
    for short, parts in (("rang", ()), (None, ("advantage=rang",))):
        with pytest.raises(InputError, match=r"--with advantage=rang: advantage has no part 'rang'; .*centered.*rank"):
            first_state(ONE_STEP.replace(algorithm="dapo", advantage=short, **{"with": parts}))
    with pytest.raises(InputError, match="advantage=rank and advantage=centered are two parts for one slot"):
        first_state(ONE_STEP.replace(algorithm="dapo", advantage="rank", **{"with": ("advantage=centered",)}))


def test_the_advantage_has_its_own_flag(capsys):
    config = parse(["train", "--algorithm", "grpo", "--advantage", "rank", "--with", "term=entropy"]).config
    changed = make_algorithm(config)
    assert changed.advantage is rank_based
    assert [term.name for term in changed.terms][-1] == "entropy_bonus"
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    assert "--advantage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("surrogate_mask=binary_kl,threshold=-1", "threshold must not be negative"),
        ("log_ratio=bounded,bound=0.5", "bound must be at least 1"),
        ("keep_group=difficulty_window,low=0.9,high=0.1", "high"),
        ("advantage=pass_at_k_credit,k=9", "k "),
        ("advantage=normalized,eps=-1", "eps "),
    ],
)
def test_an_invalid_option_of_a_part_is_refused_at_the_start(part, message):
    config = ONE_STEP.replace(algorithm="dapo", **{"with": (part,)})
    with pytest.raises(InputError, match=rf"and --with {part} cannot train with .*: {message}"):
        check_algorithm(make_algorithm(config), config)


def test_rewards_and_weights_reach_the_algorithm_separately():
    def length(completions):
        return [float(len(completion)) for completion in completions]

    learned = []
    for weights in (None, (1.0, -2.0)):
        config = ONE_STEP.replace(algorithm="gdpo", reward_weights=weights)
        setup, state = start_rl(config, [even_length, length])
        groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
        parts = for_algorithm(groups).reward_parts
        factors = dict(zip(parts, weights or (1.0, 1.0), strict=True))
        total = sum(factors[name] * part for name, part in parts.items())
        np.testing.assert_allclose(total, groups.rollout.rewards, rtol=1e-6)
        before = jax.device_get(state.params)
        state, _ = learn_from(setup, state, groups)
        assert max(distances(state.params, before)) > 0
        learned.append(jax.device_get(state.params))
    assert max(distances(*learned)) > 0, "different weights must give different updates"


def test_a_term_is_trained_on_if_the_surrogate_has_no_weight():
    config = ONE_STEP.replace(algorithm="gpg", **{"with": ("term=positive_examples,coefficient=0.1",)})
    setup, state = start_rl(config, all_right)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    before = jax.device_get(state.params)
    state, metrics = learn_from(setup, state, groups)
    assert max(distances(state.params, before)) > 0
    assert present(metrics)["loss"] > 0, "the surrogate's weight is 0 in GPG if all responses to a prompt are right"


def test_a_single_reward_is_the_only_component(sampled):
    parts = for_algorithm(sampled).reward_parts
    assert list(parts) == ["reward"]
    np.testing.assert_array_equal(parts["reward"], sampled.rollout.rewards)


def test_remax_judges_greedy_responses_without_training_on_them():
    config = ONE_STEP.replace(algorithm="remax", prompts=4, group_size=1)
    setup, state = start_rl(config)
    groups = setup.train.generate(state.params, range(4), 1, jax.random.key(0))
    greedy = setup.train.with_sampling(temperature=0.0).answer(state.params, range(4), jax.random.key(1))
    texts = [setup.train.judge.completion(response) for response in greedy]
    assert groups.rollout.greedy_rewards.tolist() == even_length(texts)
    assert groups.rollout.mask.shape[:2] == (4, 1)
    abstaining = replace(
        setup.train, judge=setup.train.judge._replace(reward=lambda completions: [None] * len(completions))
    )
    assert not abstaining.generate(state.params, range(4), 1, jax.random.key(0)).rollout.valid.any()
    rewards = 1 - groups.rollout.greedy_rewards[:, None]
    groups = groups._replace(rollout=groups.rollout._replace(rewards=rewards))
    before = jax.device_get(state.params)
    state, _ = learn_from(setup, state, groups)
    assert max(distances(state.params, before)) > 0
    assert not setup.heldout.compares_with_greedy


def test_a_moving_reference_follows_the_policy(tmp_path):
    config = ONE_STEP.replace(run=str(tmp_path / "moving"), algorithm="t1", steps=2)
    result = rljax.train(config, even_length, **policy_arguments(config))
    state = read_checkpoint(config, result.run, reward=even_length, **policy_arguments(config)).state
    start = start_rl(config)[1].params
    first, reference, now = (tree["embedding"] for tree in jax.device_get((start, state.reference, state.params)))
    assert 0 < np.abs(reference - first).max() < np.abs(now - first).max()
