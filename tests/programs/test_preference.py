"""Direct training on pairs: every loss learns the preference, is reproducible, and writes a model that can be loaded."""

import json
import math
import shutil
import signal
from dataclasses import replace

import jax
import numpy as np
import pytest
from chat_models import save_chat_model
from digit_pairs import even_pairs

from rljax.cli import parse
from rljax.data.problem import Problem
from rljax.data.tokenizer import CharacterTokenizer
from rljax.errors import InputError
from rljax.models import TransformerConfig
from rljax.models.model_folder import write_model
from rljax.models.value_model import Model, init_value_params, value_contents, value_model
from rljax.preference.config import PreferenceConfig
from rljax.preference.direct_losses import BY_NAME
from rljax.programs import preference
from rljax.programs.preference import make_preference_setup, train_preference, update_of
from rljax.programs.trained_policy import load
from rljax.tracking.trackers import JsonlTracker
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.interrupt import Interrupted

SHAPE = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "hidden": 64}
CONFIG = PreferenceConfig(
    dataset="-",
    tokenizer="characters",
    **SHAPE,
    steps=30,
    batch=16,
    learning_rate=1e-2,
    learning_rate_warmup=4,
    eval_every=0,
    replicas=1,
    quiet=True,
)
DATA = even_pairs(256, 0), even_pairs(64, 1)
DATA_WITH_GOLD = tuple([replace(pair, gold=pair.chosen[::-1]) for pair in pairs] for pairs in DATA)
DATA_WITH_MARGINS = tuple([replace(pair, margin=4.0) for pair in pairs] for pairs in DATA)


def read_rows(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def train_with(tmp_path_factory):
    """Return a function that trains with a named loss, and caches the result."""
    results = {}

    def train_once(name):
        if name not in results:
            folder = tmp_path_factory.mktemp("models") / name
            loss = BY_NAME[name]()
            pairs = DATA_WITH_MARGINS if loss.reads_margin else DATA_WITH_GOLD if loss.reads_gold else DATA
            results[name] = train_preference(replace(CONFIG, loss=name, output=str(folder)), preferences=pairs)
        return results[name]

    return train_once


@pytest.mark.parametrize("name", BY_NAME)
def test_losses_learn_the_preference(train_with, name):
    result = train_with(name)
    assert result.after["accuracy"] >= 0.9
    assert result.after["margin"] > max(0.0, result.before["margin"])
    assert result.after["loss"] < result.before["loss"]
    rows = read_rows(result.folder)
    assert [row["phase"] for row in rows] == ["eval", *["preference"] * 30, "eval"]
    assert rows[-1] == {"phase": "eval", "step": 30} | result.after
    metrics = {
        "loss",
        "accuracy",
        "margin",
        "chosen_logp",
        "rejected_logp",
        "grad_norm",
        "skipped_updates",
        "learning_rate",
    }
    assert set(rows[1]) - {"reference_point", "reward_shift"} == {"phase", "step"} | metrics
    assert ("reference_point" in rows[1]) == (name == "kto")
    assert ("reward_shift" in rows[1]) == (name == "bco")
    if BY_NAME[name]().reads_reference:
        assert result.before["margin"] == 0.0, "the reference is the model before training"


def test_first_loss_equals_its_value_when_the_policy_is_the_reference(train_with):
    expected = {"dpo": math.log(2), "cdpo": math.log(2), "ipo": 25.0, "kto": 0.5, "bco": 2 * math.log(2), "rebel": 16.0}
    first = {name: read_rows(train_with(name).folder)[1]["loss"] for name in expected}
    assert first == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_same_seed_gives_the_same_metrics(train_with, name, tmp_path):
    once = train_with(name)
    again = train_preference(replace(CONFIG, loss=name, output=str(tmp_path / "again")), preferences=DATA)
    assert read_rows(once.folder) == read_rows(again.folder)
    jax.tree.map(np.testing.assert_array_equal, once.params, again.params)


def test_trained_model_can_be_loaded_and_trained_further(train_with):
    result = train_with("orpo")
    opened = load(result.folder, problems=[Problem("12=", "")], max_response_tokens=6)
    ((text,),) = opened.sample(["12="])
    assert set(text) <= set("02468"), "it was trained to answer with even digits"
    setup, state = make_preference_setup(replace(CONFIG, tokenizer=None, model=str(result.folder), loss="simpo"), DATA)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), jax.device_get(result.params))
    assert setup.tokenizer.vocab_size == CharacterTokenizer().vocab_size


def test_options_reach_the_loss():
    config = replace(CONFIG, loss="ipo", loss_options={"tau": 0.5}, steps=1)
    setup, state = make_preference_setup(config, DATA)
    _, metrics = update_of(setup, state)(state)
    assert metrics["loss"] == pytest.approx(1.0, rel=1e-5)


def test_gold_response_is_required_or_refused():
    with pytest.raises(InputError, match="tpo imitates a third response, but 320 of 320 pairs have none"):
        make_preference_setup(replace(CONFIG, loss="tpo"), DATA)
    with pytest.raises(InputError, match="dpo does not use a third response, but 320 of 320 pairs have one"):
        make_preference_setup(CONFIG, DATA_WITH_GOLD)


def test_unused_margins_are_reported():
    train = [replace(pair, margin=1.0) for pair in DATA[0][:32]]
    setup, _ = make_preference_setup(CONFIG, (train, DATA[1]))
    assert setup.data.warnings == ["The pairs have margins, which dpo does not read."]


@pytest.mark.parametrize(
    ("chat", "warning"),
    [
        (True, "the chat template omits these fields of the chats in the data, so the model does not see them: tool_calls"),
        (
            False,
            "40 prompts are chats (roles: user), but chat is off: the texts are joined by newlines without roles; use --chat",
        ),
    ],
)
def test_omitted_fields_of_chats_are_reported(tmp_path, chat, warning):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
    turns = (call, {"role": "tool", "content": "2"}, {"role": "assistant", "content": "2"}) if chat else None
    question = ({"role": "user", "content": "1+1"},)
    pairs = [
        replace(pair, messages=question, prompt=f"{index}", turns=(turns, None)) for index, pair in enumerate(DATA[0][:40])
    ]
    config = replace(CONFIG, tokenizer=str(save_chat_model(tmp_path / "model")), chat=chat)
    setup, _ = make_preference_setup(config, (pairs[:30], pairs[30:]))
    assert setup.data.warnings == [warning]


def test_margins_reach_training_and_heldout_loss():
    """At the reference, REBEL's loss is the squared margin; a quarter of the pairs have a margin of 4."""
    train = [replace(pair, margin=4.0 * (index % 4 == 0)) for index, pair in enumerate(DATA[0][:64])]
    config = replace(CONFIG, loss="rebel", loss_options={"eta": 0.5}, batch=64, microbatch_pairs=8, steps=1)
    setup, state = make_preference_setup(config, (train, DATA_WITH_MARGINS[1]))
    assert setup.data.warnings == []
    assert setup.heldout.pairs.margin.tolist() == [4.0] * 64
    assert update_of(setup, state)(state)[1]["loss"] == pytest.approx(4.0, rel=1e-5)
    with pytest.raises(InputError, match=r"^rebel learns how much better a response is, but no pair has a margin"):
        make_preference_setup(config, DATA)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "dop"}, r"The loss 'dop' is unknown; did you mean 'dpo'\? Choose one of dpo, dpo_average, rpo"),
        ({"loss": "orpo", "loss_options": {"beta": 1.0}}, "orpo has no option 'beta'; it has coefficient"),
        ({"loss_options": {"beta": -1.0}}, r"The options .* do not fit dpo: beta must be positive"),
        (
            {"max_tokens": 4},
            r"in every pair, prompt and response have more than max_tokens=4 tokens: the shortest pair needs \d",
        ),
        ({"replicas": 8, "batch": 12}, "batch is 12 rows, which cannot be split evenly over 8 devices"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        make_preference_setup(replace(CONFIG, **changes), DATA)


def test_model_larger_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(preference, "device_bytes", lambda mesh: 1000)
    with pytest.raises(
        InputError, match=r"The model has [\d,]+ parameters, which take .*Use a smaller model, or more devices"
    ):
        make_preference_setup(CONFIG, DATA)


def test_reward_model_is_refused(tmp_path):
    vocab = CharacterTokenizer().vocab_size
    shape = TransformerConfig(vocab_size=vocab, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
    model = value_model(Model(shape), 1)
    write_model(tmp_path, value_contents(model, init_value_params(model, jax.random.key(0)), bos=None, eos=1))
    with pytest.raises(InputError, match="is a reward model or a critic; give a language model"):
        make_preference_setup(replace(CONFIG, model=str(tmp_path)), DATA)


def test_nonfinite_updates_are_skipped(tmp_path):
    """After five skipped updates in a row, the run stops and keeps the model from before those updates."""
    config = replace(CONFIG, learning_rate=1e30, learning_rate_warmup=0, output=str(tmp_path / "model"))
    with pytest.raises(
        InputError, match=r"far too large, in 5 updates in a row, .* start again from it, .* lower --learning-rate"
    ):
        train_preference(config, preferences=DATA)
    assert [row["skipped_updates"] for row in read_rows(tmp_path / "model") if row["phase"] != "eval"] == [1.0] * 5
    params = load(tmp_path / "model").params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(params)))


def interrupt_after(row, monkeypatch):
    """Simulate Ctrl-C after this row of metrics is written."""
    log = JsonlTracker.log

    def log_and_stop(self, phase, step, metrics):
        log(self, phase, step, metrics)
        if (phase, step) == row:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JsonlTracker, "log", log_and_stop)


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_interrupted_run_resumes_exactly(train_with, name, tmp_path, monkeypatch, capsys):
    uninterrupted, folder = train_with(name), tmp_path / "stopped"
    config = replace(CONFIG, loss=name, output=str(folder))
    with monkeypatch.context() as patched:
        interrupt_after(("preference", 13), patched)
        with pytest.raises(Interrupted):
            train_preference(config, preferences=DATA)
    assert capsys.readouterr().out.endswith(f"\n  train_preference(preferences=preferences, resume={str(folder)!r})\n")
    assert [row["phase"] for row in read_rows(folder)] == ["eval", *["preference"] * 13]
    assert not (folder / "config.json").exists(), "the model is written only at the end"
    with pytest.raises(
        InputError, match=r"cannot change --learning-rate; leave these flags out. Only these may change: quiet, "
    ):
        train_preference(replace(config, learning_rate=0.5), preferences=DATA, resume=folder)
    flags = ["--batch", "64", "--learning-rate", "1e-5", "--eval-every", "50"]
    defaults = parse(["preference", "--resume", str(folder), *flags])
    with pytest.raises(InputError, match=r"cannot change --batch, --learning-rate; leave"):
        train_preference(defaults.config, preferences=DATA, resume=defaults.resume)
    with pytest.raises(InputError, match=r"The pairs of the run in .* changed since it began"):
        train_preference(preferences=(DATA[0][:-1], DATA[1]), resume=folder)
    again = train_preference(preferences=DATA, resume=folder)
    assert read_rows(folder) == read_rows(uninterrupted.folder)
    assert (again.before, again.after) == (uninterrupted.before, uninterrupted.after)
    jax.tree.map(np.testing.assert_array_equal, again.params, uninterrupted.params)
    assert {path.name for path in folder.iterdir()} == {path.name for path in uninterrupted.folder.iterdir()}
    with pytest.raises(InputError, match="it is complete, or an older version of rljax created it"):
        train_preference(preferences=DATA, resume=folder)


class Killed(BaseException):
    """Simulates the death of the process."""


@pytest.mark.parametrize("resumes", [True, False], ids=["resume", "the same command"])
def test_run_killed_before_its_first_save_restarts(train_with, resumes, tmp_path, monkeypatch):
    uninterrupted, config = train_with("dpo"), replace(CONFIG, loss="dpo", output=str(tmp_path / "killed"))

    def raise_killed(*arguments):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", raise_killed)
        with pytest.raises(Killed):
            train_preference(config, preferences=DATA)
    assert not list((tmp_path / "killed").glob("checkpoints/last/*"))
    start = {"resume": tmp_path / "killed"} if resumes else {"config": config}
    again = train_preference(**start, preferences=DATA)
    assert again.after == uninterrupted.after
    assert read_rows(tmp_path / "killed") == read_rows(uninterrupted.folder)


def test_resume_refuses_a_changed_initial_model(train_with, tmp_path, monkeypatch):
    first, folder = tmp_path / "first", tmp_path / "stopped"
    shutil.copytree(train_with("orpo").folder, first)
    config = replace(CONFIG, tokenizer=None, model=str(first), output=str(folder), steps=4)
    with monkeypatch.context() as patched:
        interrupt_after(("preference", 2), patched)
        with pytest.raises(Interrupted):
            train_preference(config, preferences=DATA)
    for file in ("model.safetensors", "config.json"):
        shutil.copy(train_with("simpo").folder / file, first / file)
    with pytest.raises(InputError, match=r"The weights of the first model of the run in .* changed"):
        train_preference(preferences=DATA, resume=folder)
