"""The adaptive entropy bonus in the trainer: its update rule, its effect on the loss, and resumed runs."""

import json
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from bigram import BIGRAM
from run_states import first_state, learn_from, make_rl_state, read_checkpoint
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.algorithms import BY_NAME
from rljax.algorithms.parts import with_parts
from rljax.errors import InputError
from rljax.options import INSTALLERS, entropy_target
from rljax.options.entropy_target import EntropyCoefficients
from rljax.parallel import make_mesh
from rljax.training.interrupt import Interrupted
from rljax.training.metrics import LearnMetrics, UpdateMetrics
from rljax.training.objective.optimizer import policy_optimizer
from rljax.training.setup import plan_setup
from rljax.training.state import Updates

NAME = entropy_target.NAME
TARGET, STEP, INITIAL, HIGH = 2.95, 0.02, 0.01, 0.05
TINY = SMALL.replace(
    algorithm="dr_grpo",
    algorithm_options={},
    train_problems=16,
    heldout_problems=2,
    steps=5,
    prompts=4,
    group_size=4,
    minibatches=2,
    learning_rate=0.2,
    eval_every=0,
    sample_every=0,
    **{"with": (f"term=adaptive_entropy,target={TARGET},step={STEP},initial={INITIAL},high={HIGH}",)},
)


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(ours), jax.device_get(theirs))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return rljax.train(TINY.replace(run=str(tmp_path_factory.mktemp("runs") / "whole")), even_length, policy=BIGRAM)


def start_rl(config):
    """Setup and state at the start of RL."""
    setup, state = first_state(config, reward=even_length, policy=BIGRAM)
    return setup, make_rl_state(setup, state)


def test_coefficient_follows_entropy(finished):
    """Computed by hand: the coefficient rises by a step below the target and falls by one above it, within bounds.

    Above the target, no bonus is applied.
    """
    found = [json.loads(line) for line in (finished.run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in found if row["phase"] == "rl"]
    stored, expected = INITIAL, [INITIAL]
    for row in rows[:-1]:
        below = row["entropy"] <= TARGET
        stored = min(max(stored + (STEP if below else -STEP), 0.0), HIGH)
        expected.append(stored if below else 0.0)
    np.testing.assert_allclose([row["entropy_coefficient"] for row in rows], expected, rtol=1e-5)
    assert len({round(value, 6) for value in expected}) > 2, "the coefficient must change in this run"


def test_a_resumed_run_continues_bit_for_bit(finished, tmp_path):
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(TINY.replace(run=str(path)), stopping_after(4), policy=BIGRAM)
    parts = {"reward": even_length, "policy": BIGRAM}
    assert 1 <= int(read_checkpoint(TINY, path, **parts).state.step) < 5
    resumed = rljax.train(None, resume=path, **parts)
    assert_equal(resumed.params, finished.params)
    assert_equal(*(read_checkpoint(TINY, run, **parts).state for run in (path, finished.run)))


def test_the_loss_uses_the_active_coefficient_of_the_state():
    """The update equals that of a constant bonus with this coefficient; at 0, it equals the update without a bonus."""
    sampled = None
    for active, parts in ((0.5, ("term=entropy,coefficient=0.5",)), (0.0, ())):
        after = []
        for config in (TINY, TINY.replace(**{"with": parts})):
            setup, state = start_rl(config)
            if sampled is None:
                groups = setup.train.generate(setup.full_params(state.params), range(4), 4, jax.random.key(0))
                rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
                sampled = groups._replace(rollout=groups.rollout._replace(rewards=rewards))
            if NAME in state.options:
                now = state.options[NAME]
                changed = EntropyCoefficients(now.stored, now.active * 0 + active)
                state = state._replace(options=state.options | {NAME: changed})
            state, _ = learn_from(setup, state, sampled)
            after.append(jax.device_get(state.params))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *after)


def test_coefficients_stay_without_an_update_or_a_finite_entropy():
    setup, state = start_rl(TINY)
    (follow,) = (option.after_updates for option in setup.options if option.name == NAME)

    def metrics(entropy):
        return LearnMetrics(policy=UpdateMetrics(loss=SimpleNamespace(entropy=entropy), grad_norm=1.0))

    made, skipped = (
        UpdateMetrics(loss=SimpleNamespace(), grad_norm=1.0, skipped_updates=fraction) for fraction in (0.0, 1.0)
    )
    for entropy, updates in ((0.1, []), (0.1, [skipped]), (np.nan, [made]), (None, [made])):
        assert follow(state, metrics(entropy), Updates(1, updates))[0] is state
    low, found = follow(state, metrics(0.1), Updates(1, [made]))
    assert found == {"entropy_coefficient": pytest.approx(INITIAL)}
    assert [float(value) for value in low.options[NAME]] == pytest.approx([INITIAL + STEP] * 2)
    high, _ = follow(low, metrics(TARGET + 1), Updates(1, [made]))
    assert [float(value) for value in high.options[NAME]] == pytest.approx([INITIAL, 0.0])
    assert high.options[NAME].stored.sharding == state.options[NAME].stored.sharding


def test_controller_refuses_a_second_entropy_bonus():
    algorithm = with_parts(BY_NAME["dr_grpo"](), ["term=adaptive_entropy"])
    config = TINY.replace(remedy="controller")
    with pytest.raises(InputError, match="remedy=controller adds an entropy bonus, but dr_grpo already has one"):
        plan_setup(config, algorithm, make_mesh(1, 1), BIGRAM, policy_optimizer(config), INSTALLERS)


def test_constant_bonus_installs_no_option():
    algorithm = with_parts(BY_NAME["dr_grpo"](), ["term=entropy"])
    setup = plan_setup(TINY, algorithm, make_mesh(1, 1), BIGRAM, policy_optimizer(TINY), INSTALLERS)
    assert NAME not in [option.name for option in setup.options]
