"""The batch of a stopped run: it is kept, read back, replayed, and the first term that is not sound is named with its place."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from small_cli import printed, refused
from small_runs import SMALL, even_length

import rljax
from rljax.algorithms import BY_NAME, Rollout, prepare
from rljax.errors import InputError
from rljax.tracking.alarms import watched
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.training.debugging import (
    RESPONSES,
    TOKENS,
    Diagnosis,
    Term,
    batch_terms,
    diagnose,
    measured,
    rollout_terms,
    token_terms,
)
from rljax.training.guard import MOST_SKIPPED
from rljax.training.kept_batch import NAME, KeptBatch, flattened, keep_batch, nested, read_batch


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run whose learning rate no parameter survives, and what it said at its end."""
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
    )
    with pytest.raises(InputError, match="rljax debug") as error:
        rljax.train(config, reward=even_length)
    return path, str(error.value)


def test_the_command_in_the_message_names_the_update(stopped, capsys):
    path, message = stopped
    command = re.search(r"`rljax (debug [^`]+)`", message).group(1).split()
    text = printed(capsys, *command)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert f"Step {MOST_SKIPPED}, 16 responses" in words
    assert "Cause: update of " in words
    assert "lower the learning rate" in words
    assert "0 of 16 " in words
    found = json.loads(printed(capsys, "debug", str(path / NAME), "--json"))
    assert found["cause"]["name"].startswith("update of ")
    assert {"reward", "advantage", "ratio", "surrogate", "kl", "loss"} <= {term["name"] for term in found["terms"]}
    assert all(term["unsound"] == 0 for term in found["terms"] if not term["name"].startswith("update"))


def test_an_alarm_of_the_run_is_said_once_and_is_that_of_its_rows(stopped):
    path, _ = stopped
    _, events = watched(read_metrics(path / "metrics.jsonl"))
    written = [json.loads(line) for line in (path / "alarms.jsonl").read_text(encoding="utf-8").splitlines()]
    assert written == [event.to_json() for event in events]
    assert "truncated" in {row["alarm"] for row in written}, "random weights rarely end a response"
    log = (path / "log.txt").read_text(encoding="utf-8")
    assert all(log.count(event.text()) == 1 for event in events)


def test_a_reward_that_is_infinite_is_named_with_its_response(stopped):
    path, _ = stopped
    kept = read_batch(path / NAME)
    rewards = kept.groups.rollout.rewards.copy()
    rewards[1, 2] = np.inf
    groups = kept.groups._replace(rollout=kept.groups.rollout._replace(rewards=rewards))
    found = poisoned(path, kept._replace(groups=groups))
    assert (found.cause.name, found.cause.place, found.cause.unsound) == ("reward", (10,), 1)
    broken = {term.name for term in found.terms if term.unsound}
    assert {"reward", "advantage", "surrogate", "loss"} <= broken
    assert not {"logp", "ratio", "kl"} & broken
    assert found.texts(10, None)["group"] == "1"
    assert "=" in found.texts(10, 0)["prompt"]


def poisoned(run, kept):
    """The diagnosis of a run with another batch in its folder."""
    saved = (run / NAME).read_bytes()
    try:
        return diagnose(keep_batch(RunFolder.open(run), kept))
    finally:
        (run / NAME).write_bytes(saved)


def test_what_is_no_batch_is_refused(stopped, tmp_path, capsys):
    path, _ = stopped
    refused(capsys, "There is no batch .*it is written when a run stops", "debug", str(tmp_path))
    (tmp_path / NAME).write_bytes(b"nothing of the kind")
    refused(capsys, "is no batch of a stopped run: it cannot be read", "debug", str(tmp_path))
    save_file({"a": np.ones(2)}, tmp_path / NAME)
    refused(capsys, "its format is None", "debug", str(tmp_path))
    kept = read_batch(path / NAME)
    with pytest.raises(InputError, match=r"belongs to checkpoint 99 .*gone on since"):
        poisoned(path, kept._replace(checkpoint=99))


def test_names_survive_the_file():
    tree = {"a": {"with/slash": np.ones(2), 'quote"': np.zeros(1)}, "b\\": np.ones(3)}
    assert list(nested(flattened(tree))["a"]) == ["with/slash", 'quote"']
    assert list(nested(flattened(tree))) == ["a", "b\\"]


def test_a_term_counts_only_what_is_used():
    values = np.array([[np.nan, 2.0, -5.0], [np.inf, np.nan, 1.0]])
    used = np.array([[False, True, True], [True, True, False]])
    assert measured("x", TOKENS, values, used) == Term("x", TOKENS, 4, 2, 5.0, (1, 0))
    assert measured("x", TOKENS, np.abs(values), used & np.isfinite(values)) == Term("x", TOKENS, 2, 0, 5.0, (0, 2))
    assert measured("x", TOKENS, np.zeros((2, 0))) == Term("x", TOKENS, 0, 0, 0.0, ())


LOGP = -np.ones((1, 2, 3), np.float32)
ROLLOUT = Rollout(mask=np.ones((1, 2, 3), bool), behaviour_logp=LOGP, rewards=np.array([[1.0, 0.0]], np.float32))


def test_a_log_probability_that_is_not_a_number_is_named_with_its_token():
    logp = LOGP.copy()
    logp[0, 1, 2] = np.nan
    reward, behaviour = rollout_terms(ROLLOUT._replace(behaviour_logp=logp), np.ones((1, 2), bool))
    assert reward == Term("reward", RESPONSES, 2, 0, 1.0, (0,))
    assert (behaviour.name, behaviour.unsound, behaviour.place) == ("behaviour_logp", 1, (1, 2))


@pytest.mark.parametrize(
    ("slots", "name"),
    [
        ({"surrogate": lambda log_ratio, advantage: jnp.log(advantage - 9.0) + log_ratio}, "surrogate"),
        ({"log_ratio": lambda logp, old, mask: (logp - old) / 0.0}, "log_ratio"),
    ],
)
def test_the_slot_of_an_algorithm_that_breaks_is_named(slots, name):
    algorithm = BY_NAME["rloo"]()._replace(**slots)
    batch = prepare(algorithm, ROLLOUT)
    logp = jnp.asarray(LOGP.reshape(2, 3)) - 0.1
    parts = token_terms(algorithm, logp, jnp.ones((2, 3)), None, batch)
    terms = [
        *batch_terms(jax.device_get(batch)),
        *(measured(part, TOKENS, np.asarray(values)) for part, values in parts.items()),
    ]
    found = Diagnosis(KeptBatch(None, 1, 1), tuple(terms), 1.0, 100.0, lambda row, token: {})
    assert found.cause.name == name
    assert found.cause.unsound == 6
