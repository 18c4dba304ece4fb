"""The batch of a stopped run is saved, read back and replayed; the first term that is not finite is named with its position."""

import json
import re
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bigram import BIGRAM
from run_states import make_rl_state
from safetensors.numpy import save_file
from small_cli import printed, refused
from small_runs import SMALL, even_length

import rljax
from rljax.algorithms import BY_NAME, Rollout, prepare
from rljax.algorithms.algorithm import ROLLOUT_FIELDS, RolloutField
from rljax.cli.debug import CAUSES, OPTION_ADVICE, diagnosis_text
from rljax.errors import InputError
from rljax.options import INSTALLERS
from rljax.options.controller import clip_range
from rljax.programs import batch_replay
from rljax.programs.batch_replay import (
    BATCH_TERMS,
    NUMBERS,
    RESPONSES,
    TOKENS,
    Diagnosis,
    MeasuredTerm,
    batch_terms,
    diagnose,
    measure_term,
    nest,
    read_batch,
    replay,
    rollout_terms,
    token_terms,
    with_abstaining_rewards,
)
from rljax.rewards.reward_scores import combine
from rljax.tracking.alarms import watch_rows
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.lifecycle.initial_state import first_params, initial_state, state_like
from rljax.training.objective.algorithm import reward_names, reward_weights
from rljax.training.parts.custom_parts import CustomParts, read_saved_settings
from rljax.training.phase import MAX_CONSECUTIVE_SKIPS
from rljax.training.rl_phase import make_learner
from rljax.training.rollout_data import make_rollout_scorer
from rljax.training.run import STOPPED_BATCH_FILE, StoppedBatch, flatten, write_batch
from rljax.training.setup import make_setup


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that stopped because its learning rate is far too large, and its error message."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    config = SMALL.replace(
        run=str(path),
        algorithm="grpo",
        learning_rate=1e20,
        steps=9,
        prompts=2,
        group_size=8,
        heldout_problems=4,
        train_problems=8,
        remembered_rewards=99,
        algorithm_options={"beta": 0.01},
    )
    with pytest.raises(InputError, match="rljax debug") as error:
        rljax.train(config, reward=even_length)
    return path, str(error.value)


def test_debug_command_names_the_update(stopped, capsys):
    path, message = stopped
    command = re.search(r"`rljax (debug [^`]+)`", message).group(1).split()
    text = printed(capsys, *command)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert f"Step {MAX_CONSECUTIVE_SKIPS}, 16 responses" in words
    assert "Cause: update of " in words
    assert "lower the learning rate" in words
    assert "0 of 16 " in words
    found = json.loads(printed(capsys, "debug", str(path / STOPPED_BATCH_FILE), "--json"))
    assert found["cause"]["name"].startswith("update of ")
    assert {"reward", "advantage", "ratio", "surrogate", "kl", "loss"} <= {term["name"] for term in found["terms"]}
    assert all(term["unsound"] == 0 for term in found["terms"] if not term["name"].startswith("update"))


def test_alarms_are_reported_once(stopped):
    path, _ = stopped
    _, events = watch_rows(read_metrics(path / "metrics.jsonl"))
    written = [json.loads(line) for line in (path / "alarms.jsonl").read_text(encoding="utf-8").splitlines()]
    assert written == [event.to_json() for event in events]
    assert "truncated" in {row["alarm"] for row in written}, "random weights rarely end a response"
    log = (path / "log.txt").read_text(encoding="utf-8")
    assert all(log.count(event.text()) == 1 for event in events)


def test_infinite_reward_is_named_with_its_response(stopped):
    path, _ = stopped
    batch = read_batch(path / STOPPED_BATCH_FILE)
    groups = batch.scored_rollout.groups
    rewards = groups.rollout.rewards.copy()
    rewards[1, 2] = np.inf
    groups = groups._replace(rollout=groups.rollout._replace(rewards=rewards))
    found = diagnose_with_batch(path, batch._replace(scored_rollout=batch.scored_rollout._replace(groups=groups)))
    assert (found.cause.name, found.cause.place, found.cause.unsound) == ("reward", (10,), 1)
    broken = {term.name for term in found.terms if term.unsound}
    assert {"reward", "advantage", "surrogate", "loss"} <= broken
    assert not {"logp", "ratio", "kl"} & broken
    assert found.texts(10, None)["group"] == "1"
    assert "=" in found.texts(10, 0)["prompt"]


def diagnose_with_batch(run, batch):
    """Diagnose a run with another batch in its folder."""
    saved = (run / STOPPED_BATCH_FILE).read_bytes()
    try:
        return diagnose(write_batch(RunFolder.open(run), batch))
    finally:
        (run / STOPPED_BATCH_FILE).write_bytes(saved)


def test_invalid_batches_are_refused(stopped, tmp_path, capsys):
    path, _ = stopped
    refused(capsys, "There is no batch file .*A run writes one when it stops", "debug", str(tmp_path))
    (tmp_path / STOPPED_BATCH_FILE).write_bytes(b"nothing of the kind")
    refused(capsys, "cannot be read as the batch of a stopped run", "debug", str(tmp_path))
    save_file({"a": np.ones(2)}, tmp_path / STOPPED_BATCH_FILE)
    refused(capsys, "its format is None", "debug", str(tmp_path))
    batch = read_batch(path / STOPPED_BATCH_FILE)
    with pytest.raises(InputError, match=r"belongs to checkpoint 99 .*continued since"):
        diagnose_with_batch(path, batch._replace(checkpoint=99))


def test_saved_batch_is_the_last_steps(stopped):
    path, _ = stopped
    batch = read_batch(path / STOPPED_BATCH_FILE)
    assert (batch.step, batch.scored_rollout.progress) == (MAX_CONSECUTIVE_SKIPS, pytest.approx((batch.step - 1) / 9))
    past, rollout = batch.scored_rollout.past, batch.scored_rollout.groups.rollout
    state = last_state(path)
    ids = batch.scored_rollout.groups.prompt_ids
    assert (np.asarray(state.options["reward_history"].size)[ids] > past.memory.size[ids]).all(), (
        "the state already contains the rewards of this batch"
    )
    assert rollout.ref_logp is not None
    assert batch.weights is None


def last_state(path):
    """Return the training state that a run saved at its end."""
    config, _ = read_saved_settings(RunFolder.open(path).config)
    setup = make_setup(config, CustomParts(reward=even_length), INSTALLERS)
    return checkpoints.restore(path / "checkpoints" / "last", partial(state_like, setup)).checkpoint.state


def make_first_rollout(config, **reward):
    """Return a setup with a bigram model, its state before RL, and the scored rollout of its first step."""
    setup = make_setup(config, CustomParts(policy=BIGRAM, **reward), INSTALLERS)
    state = initial_state(setup, first_params(setup))
    state = make_rl_state(setup, state)
    groups = setup.train.generate(state.params, range(2), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (2, 2))
    groups = groups._replace(rollout=groups.rollout._replace(rewards=rewards))
    return setup, state, make_rollout_scorer(setup)(state, groups)


TINY = SMALL.replace(prompts=2, group_size=4, minibatches=1, heldout_problems=4, train_problems=8, steps=4)


@pytest.mark.usefixtures("without_type_checks")
def test_values_precede_the_critics_update(tmp_path):
    setup, state, scored_rollout = make_first_rollout(
        TINY.replace(algorithm="ppo", group_size=4, critic_learning_rate=0.1), reward=even_length
    )
    state, _, _ = make_learner(setup, state)(state, scored_rollout)
    folder = RunFolder.create(tmp_path / "run", {})
    terms = {
        term.name: term
        for term in replay(setup, state, read_batch(write_batch(folder, StoppedBatch(scored_rollout, 1, 0, None)))).terms
    }
    values = np.abs(scored_rollout.groups.rollout.values[scored_rollout.groups.rollout.mask])
    assert terms["values"].largest == pytest.approx(values.max())
    assert terms["value now"].largest != pytest.approx(values.max()), "the critic has learned from the batch"


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("auxiliary_loss", {"auxiliary": 0.5, "warm_start_batch": 4}),
        ("prompt_consistency_loss", {"prompt_consistency": {"order": 0.5}}),
    ],
)
def test_replayed_update_includes_extra_losses(name, settings):
    config = TINY.replace(**settings)
    setup, state, scored_rollout = make_first_rollout(config, reward=even_length, optimizer=optax.sgd(1.0))
    state, scored_rollout = state._replace(step=jnp.int32(2)), scored_rollout._replace(progress=0.5)
    found = replay(setup, state, StoppedBatch(scored_rollout, 3, 0, None))
    terms = {term.name: term for term in found.terms}
    _, metrics, _ = make_learner(setup, state)(state, scored_rollout)
    assert terms[name].largest == pytest.approx(float(metrics.policy.options[name]), rel=1e-5)
    assert terms[name].largest > 0
    assert found.update_norm == pytest.approx(float(metrics.policy.grad_norm), rel=1e-4)


@pytest.mark.usefixtures("without_type_checks")
def test_replayed_loss_uses_the_controllers_state(monkeypatch):
    seen = []
    monkeypatch.setattr(batch_replay, "token_terms", lambda algorithm, *arrays: seen.append(algorithm) or {})
    setup, state, scored_rollout = make_first_rollout(TINY.replace(remedy="controller", minibatches=2), reward=even_length)
    control = state.options["controller"]._replace(clip_scale=jnp.float32(0.5))
    replay(setup, state._replace(options=state.options | {"controller": control}), StoppedBatch(scored_rollout, 1, 0, None))
    assert clip_range(seen[0].surrogate)["low"] == pytest.approx(0.5 * clip_range(setup.algorithm.surrogate)["low"])


@pytest.mark.parametrize("how", ["sum", "min"])
def test_setup_without_custom_rewards(how):
    config = TINY.replace(reward_combine=how, reward_weights=(1.0, 0.5), **{"with": ("advantage=reliability_quality",)})
    setup = make_setup(*with_abstaining_rewards(config, CustomParts(), rewards=2))
    assert len(reward_names(setup.train)) == 2


@pytest.mark.parametrize("needed", ["reward", "environment"])
def test_replay_without_the_custom_judge(stopped, needed):
    """A replay needs neither custom rewards nor an environment, and no built-in reward replaces them."""
    path, _ = stopped
    file = path / "config.json"
    before = file.read_text()
    config = json.loads(before)
    config["seams"] = [needed]
    config["reward"] |= {"weights": [1.0, -0.5], "combine": "min"} if needed == "reward" else {"weights": None}
    config["reward"]["name"] = "no_such_reward"
    try:
        file.write_text(json.dumps(config))
        assert diagnose(path).cause.name.startswith("update of ")
    finally:
        file.write_text(before)


@pytest.mark.usefixtures("without_type_checks")
def test_batch_keeps_the_weights_of_several_rewards(stopped, tmp_path):
    judge = SimpleNamespace(reward=combine([even_length, silent], [1.0, -0.3]))
    weights = reward_weights(BY_NAME["gdpo"](), SimpleNamespace(environment=None, judge=judge))
    assert weights == {"even_length": 1.0, "silent": -0.3}
    assert reward_weights(BY_NAME["grpo"](), SimpleNamespace(environment=None, judge=judge)) is None
    batch = read_batch(stopped[0] / STOPPED_BATCH_FILE)._replace(weights=weights)
    assert read_batch(write_batch(RunFolder.create(tmp_path / "run", {}), batch)).weights == weights


def silent(completions):
    return [None] * len(completions)


def test_nested_names_survive_flattening():
    tree = {"a": {"with/slash": np.ones(2), 'quote"': np.zeros(1)}, "b\\": np.ones(3)}
    assert jax.tree.map(np.array_equal, nest(flatten(tree)), tree) == {
        "a": {"with/slash": True, 'quote"': True},
        "b\\": True,
    }


def test_term_counts_only_used_values():
    values = np.array([[np.nan, 2.0, -5.0], [np.inf, np.nan, 1.0]])
    used = np.array([[False, True, True], [True, True, False]])
    assert measure_term("x", TOKENS, values, used) == MeasuredTerm("x", TOKENS, 4, 2, 5.0, (1, 0))
    assert measure_term("x", TOKENS, np.abs(values), used & np.isfinite(values)) == MeasuredTerm(
        "x", TOKENS, 2, 0, 5.0, (0, 2)
    )
    assert measure_term("x", TOKENS, np.zeros((2, 0))) == MeasuredTerm("x", TOKENS, 0, 0, 0.0, ())


LOGP = -np.ones((1, 2, 3), np.float32)
ROLLOUT = Rollout(mask=np.ones((1, 2, 3), bool), behaviour_logp=LOGP, rewards=np.array([[1.0, 0.0]], np.float32))


def test_nan_log_probability_is_named_with_its_token():
    logp = LOGP.copy()
    logp[0, 1, 2] = np.nan
    reward, behaviour = rollout_terms(ROLLOUT._replace(behaviour_logp=logp), np.ones((1, 2), bool))
    assert reward == MeasuredTerm("reward", RESPONSES, 2, 0, 1.0, (0,))
    assert (behaviour.name, behaviour.unsound, behaviour.place) == ("behaviour_logp", 1, (1, 2))


def test_every_term_has_advice():
    stored = [name for name, field in ROLLOUT_FIELDS.items() if field == RolloutField("P G T", float)]
    batch = prepare(BY_NAME["grpo"](beta=0.1), ROLLOUT._replace(ref_logp=LOGP))
    logp = jnp.asarray(LOGP.reshape(2, 3))
    parts = token_terms(BY_NAME["grpo"](beta=0.1), logp, logp, None, batch)
    assert "term reference_kl" in parts
    names = ["reward", *stored, *BATCH_TERMS, *parts, "value now", "value_loss", "loss", "gradient of w", "update of w"]
    assert {name.split()[0] for name in names} == set(CAUSES)
    term = MeasuredTerm("auxiliary_loss", NUMBERS, 1, 1, 0.0, ())
    stopped = Mock(step=1, checkpoint=1)
    stopped.scored_rollout.groups.rollout.rewards = np.zeros((1, 2))
    found = Diagnosis(stopped, (term,), 1.0, 100.0, lambda row, token: {})
    assert diagnosis_text(found, 400).endswith(f"Cause: auxiliary_loss, 1 of 1 numbers is not finite. {OPTION_ADVICE}")


@pytest.mark.parametrize(
    ("slots", "name"),
    [
        ({"surrogate": lambda log_ratio, advantage: jnp.log(advantage - 9.0) + log_ratio}, "surrogate"),
        ({"log_ratio": lambda logp, old, mask: (logp - old) / 0.0}, "log_ratio"),
    ],
)
def test_broken_slot_of_an_algorithm_is_named(slots, name):
    algorithm = BY_NAME["rloo"]()._replace(**slots)
    batch = prepare(algorithm, ROLLOUT)
    logp = jnp.asarray(LOGP.reshape(2, 3)) - 0.1
    parts = token_terms(algorithm, logp, jnp.ones((2, 3)), None, batch)
    terms = [
        *batch_terms(jax.device_get(batch)),
        *(measure_term(part, TOKENS, np.asarray(values)) for part, values in parts.items()),
    ]
    found = Diagnosis(StoppedBatch(None, 1, 1, None), tuple(terms), 1.0, 100.0, lambda row, token: {})
    assert found.cause.name == name
    assert found.cause.unsound == 6
