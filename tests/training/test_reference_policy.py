"""The reference in the trainer: a KL coefficient that follows the divergence, and hard resets of the reference."""

import json
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bigram import BIGRAM
from run_states import first_state, learn_from, make_rl_state, read_checkpoint
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.algorithms import BY_NAME, Rollout
from rljax.algorithms.terms import kl_penalty, kl_to_reference, with_kl_coefficient
from rljax.errors import InputError
from rljax.ops.divergence import kl_in_reward
from rljax.options import INSTALLERS, kl_target
from rljax.options.moving_reference import make_restart
from rljax.parallel import make_mesh
from rljax.programs.batch_replay import replay
from rljax.programs.plan import plan_of
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.metrics import LearnMetrics, UpdateMetrics
from rljax.training.objective.optimizer import policy_optimizer
from rljax.training.rl_phase import make_learner
from rljax.training.rollout_data import make_prepare, make_rollout_scorer
from rljax.training.run import StoppedBatch
from rljax.training.setup import plan_setup
from rljax.training.state import Updates

TARGET, GAIN, BETA = 1e-4, 0.5, 0.1
KL = kl_target.NAME
TINY = SMALL.replace(
    algorithm="grpo",
    algorithm_options={"beta": BETA},
    train_problems=16,
    heldout_problems=2,
    steps=4,
    prompts=4,
    group_size=4,
    minibatches=2,
    learning_rate=1e-2,
    eval_every=0,
    sample_every=0,
)
BOTH = TINY.replace(kl_target=TARGET, kl_gain=GAIN, reference_period=2, learning_rate=0.2)


def equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(ours), jax.device_get(theirs))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return rljax.train(BOTH.replace(run=str(tmp_path_factory.mktemp("runs") / "whole")), even_length, policy=BIGRAM)


@pytest.fixture(scope="module")
def rows(finished):
    found = [json.loads(line) for line in (finished.run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["phase"] == "rl"]


@pytest.fixture(scope="module")
def begin_run():
    """(settings) -> setup, state at the start of RL, and a rollout whose groups contain both rewards.

    The policy is a bigram model, or a transformer if the settings have an adapter.
    """

    def begin(config):
        own = {} if config.adapter.rank else {"policy": BIGRAM}
        setup, state = first_state(config, reward=even_length, **own)
        state = make_rl_state(setup, state)
        groups = setup.train.generate(setup.full_params(state.params), range(4), 4, jax.random.key(0))
        rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
        return setup, state, groups._replace(rollout=groups.rollout._replace(rewards=rewards))

    return begin


def test_the_coefficient_of_a_run_follows_the_controller(rows):
    """The rule: the previous coefficient times 1 + K clip(KL / target - 1, -0.2, 0.2)."""
    assert [row["kl_coefficient"] for row in rows[:1]] == [pytest.approx(BETA)]
    factors = [1 + GAIN * min(max(row["kl_to_reference"] / TARGET - 1, -0.2), 0.2) for row in rows]
    expected = np.cumprod([BETA, *factors[:-1]])
    np.testing.assert_allclose([row["kl_coefficient"] for row in rows], expected, rtol=1e-5)
    assert factors[0] == 0.9, "nothing has been learned, so the policy is the reference"
    assert max(factors) == 1.1, "the divergence exceeds the target"


def test_a_reset_makes_the_policy_the_reference(rows):
    """Resets follow steps 2 and 4, so the divergence is 0 up to rounding in steps 1 and 3."""
    first, second, third, fourth = (row["kl_to_reference"] for row in rows)
    assert max(first, third) < 1e-9
    assert min(second, fourth) > 1e-5


def test_a_run_resumed_after_a_reset_continues_bit_for_bit(finished, tmp_path):
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(BOTH.replace(run=str(path)), stopping_after(4), policy=BIGRAM)
    parts = {"reward": even_length, "policy": BIGRAM}
    stopped = read_checkpoint(BOTH, path, **parts).state
    assert 2 <= int(stopped.step) < 4, "after the first reset, before the end"
    assert float(stopped.options[KL]) != pytest.approx(BETA)
    resumed = rljax.train(None, resume=path, **parts)
    equal(resumed.params, finished.params)
    equal(*(read_checkpoint(BOTH, run, **parts).state for run in (path, finished.run)))


@pytest.mark.parametrize("rank", [None, 2])
def test_a_reset_restarts_the_optimizer(begin_run, rank):
    """Also with an adapter: the reference is then the base with the current adapter."""
    setup, state, sampled = begin_run(TINY.replace(reference_period=2, lora_rank=rank))
    first = jax.device_get(state.params)
    score_rollout, learn = make_rollout_scorer(setup), make_learner(setup, state)
    state, _, _ = learn(state, score_rollout(state, sampled))
    equal(state.reference, first)
    assert any(leaf.any() for leaf in jax.tree.leaves(jax.device_get(state.opt_state)) if leaf.ndim), "no moments to reset"
    state, _, _ = learn(state, score_rollout(state, sampled))
    equal(state.reference, state.params)
    equal(state.opt_state, setup.optimizer.init(state.params))
    assert max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (state.params, first)), strict=True)) > 0
    state, metrics, _ = learn(state, score_rollout(state, sampled))
    assert metrics.options["kl_to_reference"] > 0, "the rollout was sampled by the policy before the reset"


def test_the_loss_uses_the_coefficient_of_the_state(begin_run):
    """The update is the same as if the run had started with this coefficient."""
    after = []
    for beta, options in ((0.7, {}), (BETA, {"kl_target": TARGET})):
        setup, state, sampled = begin_run(TINY.replace(algorithm_options={"beta": beta}, **options))
        state = state._replace(reference=jax.tree.map(lambda leaf: leaf * 0.9, state.reference))
        if options:
            state = state._replace(options=state.options | {KL: state.options[KL] * 7})
        state, metrics = learn_from(setup, state, sampled)
        assert metrics.options.get(KL) == (pytest.approx(0.7) if options else None)
        after.append(state.params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *map(jax.device_get, after))


def test_a_penalty_in_the_reward_uses_the_coefficient_of_the_state():
    rng = np.random.default_rng(0)
    logp, ref = (-rng.uniform(0.1, 2.0, (2, 2, 3)).astype(np.float32) for _ in range(2))
    rollout = Rollout(np.ones((2, 2, 3), bool), logp, np.array([[1, 0], [0, 0.5]], np.float32), ref_logp=ref)
    weak, strong = (BY_NAME["rloo"](beta=beta) for beta in (0.1, 0.6))
    option = kl_target.Option(KL, adjust=with_kl_coefficient)
    found = make_prepare(weak, (option,))(rollout, adjustments={KL: np.float32(0.6)})
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, make_prepare(strong)(rollout))
    assert np.abs(found.advantage - make_prepare(weak)(rollout).advantage).max() > 0.01


def test_remembered_rewards_include_the_kl_penalty(begin_run):
    memories = []
    for beta, target in ((0.6, None), (0.1, TARGET)):
        settings = {"algorithm": "rloo", "algorithm_options": {"beta": beta}, "remembered_rewards": 4}
        setup, state, sampled = begin_run(TINY.replace(kl_target=target, **settings))
        state = state._replace(reference=jax.tree.map(lambda leaf: leaf * 0.5, state.reference))
        if target is not None:
            state = state._replace(options=state.options | {KL: jnp.float32(0.6)})
        (push,) = (option.before_updates for option in setup.options if option.name == "reward_history")
        memories.append(jax.device_get(push(state, make_rollout_scorer(setup)(state, sampled)).options["reward_history"]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), *memories)
    assert len(set(memories[0].rewards.ravel().tolist())) > 3, "the penalty differs between responses"


def test_a_replay_uses_the_coefficient_of_the_checkpoint(begin_run):
    config = TINY.replace(algorithm="rloo", kl_target=TARGET, warm_start_steps=0)
    setup, state, sampled = begin_run(config)
    state = state._replace(reference=jax.tree.map(lambda leaf: leaf * 0.5, state.reference))
    kept = StoppedBatch(make_rollout_scorer(setup)(state, sampled), 1, 1, None)
    found = replay(setup, state._replace(options=state.options | {KL: state.options[KL] * 100}), kept).terms
    expected, own = (
        np.abs(
            make_prepare(setup.algorithm, setup.options, minibatches=2)(
                kept.scored_rollout.groups.rollout, adjustments={KL: np.float32(beta)}
            ).advantage
        ).max()
        for beta in (100 * BETA, BETA)
    )
    assert next(term.largest for term in found if term.name == "advantage") == pytest.approx(expected)
    assert expected > 2 * own


def test_a_step_without_an_update_keeps_the_coefficient(begin_run):
    setup, state, _ = begin_run(TINY.replace(kl_target=TARGET))
    (follow,) = (option.after_updates for option in setup.options if option.name == KL)
    made, skipped = (UpdateMetrics(loss=SimpleNamespace(), grad_norm=1.0, skipped_updates=share) for share in (0.0, 1.0))
    for divergence, updates in (({"kl_to_reference": 1.0}, []), ({"kl_to_reference": np.nan}, [skipped]), ({}, [made])):
        assert follow(state, LearnMetrics(options=divergence), Updates(1, updates))[0] is state
    moved, _ = follow(state, LearnMetrics(options={"kl_to_reference": 1.0}), Updates(1, [made]))
    assert float(moved.options[KL]) == pytest.approx(BETA * 1.02)
    assert moved.options[KL].sharding == state.options[KL].sharding


def test_a_step_whose_updates_were_skipped_resets_nothing(begin_run):
    setup, state, _ = begin_run(TINY.replace(reference_period=1))
    state = state._replace(reference=jax.tree.map(lambda leaf: leaf * 0.9, state.reference), step=state.step + 1)
    move = make_restart(setup.optimizer, 1)
    for updates in ([], [UpdateMetrics(None, None, 1.0)]):
        assert move(state, LearnMetrics(), Updates(1, updates))[0] is state


def install_options(algorithm, config):
    """Installed options of a run with this algorithm."""
    return plan_setup(config, algorithm, make_mesh(1, 1), BIGRAM, policy_optimizer(config), INSTALLERS).options


RLOO = BY_NAME["rloo"]()
NO_PENALTY = "got none; choose an algorithm with one, such as grpo with --algorithm-options beta=0.04"


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (BY_NAME["dapo"](), {"kl_target": 0.1}, f"kl_target=0.1 .* {NO_PENALTY}"),
        (BY_NAME["grpo"](beta=0.0), {"kl_target": 0.1}, NO_PENALTY),
        (BY_NAME["gkd"](), {"kl_target": 0.1}, NO_PENALTY),
        (
            RLOO._replace(reward_kl=kl_penalty(0.1), terms=kl_to_reference(0.1)),
            {"kl_target": 0.1},
            "must have one KL penalty .* got the term 'reference_kl' and reward_kl",
        ),
        (
            RLOO._replace(reward_kl=lambda *arrays: kl_in_reward(*arrays, beta=0.1)),
            {"kl_target": 0.1},
            "reward_kl must be a partial function with the keyword beta",
        ),
        (
            RLOO._replace(terms=(kl_to_reference(0.1)[0]._replace(coefficient=-0.1),)),
            {"kl_target": 0.1},
            "coefficient of the KL penalty must be positive, got -0.1",
        ),
        (BY_NAME["dapo"](), {"reference_period": 5}, "reference_period=5: the algorithm has no KL penalty to a reference"),
        (BY_NAME["t1"](), {"reference_period": 5}, "reference already follows the policy, by reference_rate=0.01"),
        (
            BY_NAME["grpo"](beta=0.1),
            {"reference_period": 5, "schedule": "cosine"},
            "schedule='cosine' would return to its peak",
        ),
        (
            BY_NAME["grpo"](beta=0.1),
            {"reference_period": 5, "remedy": "controller", "minibatches": 2},
            "reference_period=5: .* remedy=controller adjusts one optimizer",
        ),
    ],
)
def test_settings_that_the_algorithm_cannot_use_are_refused(algorithm, settings, message):
    with pytest.raises(InputError, match=message):
        install_options(algorithm, TINY.replace(**settings))


@pytest.mark.parametrize("name", ["grpo", "ppo", "reinforce_pp", "rloo", "t1"])
def test_every_algorithm_with_a_penalty_accepts_a_target(name):
    assert KL in [option.name for option in install_options(BY_NAME[name](beta=0.1), TINY.replace(kl_target=0.1))]


def test_a_run_and_a_plan_refuse_the_same_settings(tmp_path):
    config = TINY.replace(algorithm="dapo", algorithm_options={}, kl_target=0.1, run=str(tmp_path / "run"))
    with pytest.raises(InputError, match=NO_PENALTY):
        rljax.train(config, even_length)
    with pytest.raises(InputError, match=NO_PENALTY):
        plan_of(config, 1, 8)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl_target": 0.0}, "kl_target is 0.0; it must be positive"),
        ({"kl_gain": 0.1}, "kl_gain=0.1 sets how fast to approach kl_target, but kl_target is not set"),
        ({"kl_target": 0.1, "kl_gain": 5.0}, "kl_gain is 5.0; it must be at least 0 and below 5"),
        ({"kl_target": 0.1, "kl_gain": -0.1}, "kl_gain is -0.1; it must be at least 0"),
        ({"reference_period": 0}, "reference_period is 0; it must be at least 1"),
        ({"kl_target": float("nan")}, "kl_target is nan; it must be (positive|a finite number)"),
    ],
)
def test_invalid_settings_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        TrainConfig.flat(**change)
