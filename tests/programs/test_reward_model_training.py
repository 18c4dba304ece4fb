"""Training of a reward model on any mesh; its folder can be opened as a reward and as the start of a critic."""

import json
import math
import signal
from dataclasses import replace
from functools import partial

import chex
import jax
import numpy as np
import pytest
import tyro
from digit_pairs import digit_pairs, texts
from small_runs import SMALL

import rljax
from rljax.cli import main
from rljax.cli.reward_model import RewardModel as Command
from rljax.cli.reward_model import run_reward_model
from rljax.data.tokenizer import CharacterTokenizer
from rljax.errors import InputError
from rljax.models import TransformerConfig, init_params
from rljax.models.huggingface import save_pretrained
from rljax.parallel import make_mesh
from rljax.preference.config import RewardModelConfig
from rljax.preference.pair_update import encode_pairs, evaluate_on_pairs
from rljax.preference.reward_model import load_reward_model, make_reward_function, make_score
from rljax.programs import pair_training
from rljax.programs import reward_model_training as training
from rljax.programs.reward_model_training import make_reward_setup, train_reward_model
from rljax.rewards.reward_scores import judge
from rljax.rollout import sequences_of
from rljax.tracking.trackers import JsonlTracker
from rljax.training.checkpoints.checkpoint import LAST, restore
from rljax.training.interrupt import INTERRUPTED
from rljax.training.lifecycle.initial_state import load_initial_state, state_like
from rljax.training.setup import CustomParts, make_setup
from rljax.training.value_update import make_values

TOKENIZER = CharacterTokenizer()
SHAPE = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "hidden": 64}
CONFIG = RewardModelConfig(
    dataset="-",
    tokenizer="characters",
    **SHAPE,
    steps=60,
    batch=32,
    learning_rate=1e-2,
    eval_every=0,
    replicas=1,
    quiet=True,
)
POLICY = TransformerConfig(vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
TINY = SMALL.replace(
    name="tiny",
    algorithm="ppo",
    **SHAPE,
    train_problems=40,
    heldout_problems=6,
    warm_start_steps=0,
    steps=1,
    prompts=4,
    group_size=4,
    microbatch_rows=4,
    eval_every=0,
    sample_every=0,
    value_pretraining_steps=0,
)
ONE = make_mesh(1, 1)
HELDOUT = digit_pairs(200, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A reward model that prefers longer responses."""
    folder = tmp_path_factory.mktemp("models") / "length"
    return train_reward_model(replace(CONFIG, output=str(folder)), preferences=(digit_pairs(512, 0), HELDOUT))


def test_reward_model_learns_preferences(trained):
    assert 0.3 < trained.accuracy_before < 0.7
    assert trained.accuracy_after > 0.9
    rows = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["eval", *["reward_model"] * 60, "eval"]
    assert rows[-1]["accuracy"] == trained.accuracy_after
    assert rows[1]["loss"] == pytest.approx(math.log(2), abs=0.1)
    metrics = {"loss", "accuracy", "lead", "score", "grad_norm", "skipped_updates", "learning_rate", "seconds"}
    assert set(rows[1]) == {"phase", "step"} | metrics
    assert rows[-1]["loss"] < 0.3
    settings = json.loads((trained.folder / "settings.json").read_text())
    assert list(settings.pop("fingerprints")) == ["the pairs"]
    assert settings == replace(CONFIG, output=str(trained.folder)).to_json()


def test_folder_contains_the_trained_model(trained):
    again = load_reward_model(trained.folder)
    encoded = encode_pairs(HELDOUT, again.tokenizer, max_tokens=32)
    score = make_score(again.model, ONE)
    loaded, trained_metrics = (
        evaluate_on_pairs(score, again.params, encoded),
        evaluate_on_pairs(score, trained.params, encoded),
    )
    assert loaded == trained_metrics
    assert loaded["accuracy"] == trained.accuracy_after


def test_chat_template_cannot_be_added_to_a_trained_reward_model(trained):
    config = replace(CONFIG, model=str(trained.folder), chat=True)
    with pytest.raises(InputError, match=r"was trained without the chat template, so --chat does not apply"):
        make_reward_setup(config, (digit_pairs(40, 0), HELDOUT[:4]))


def test_reward_function_has_the_learned_preference(trained):
    scores = judge(make_reward_function(trained.folder, ONE), *texts(HELDOUT[:20]), {})
    assert (scores.total[:20] > scores.total[20:]).mean() > 0.85


def test_policy_and_critic_use_the_reward_model(trained, tmp_path):
    reward = make_reward_function(trained.folder, ONE)
    config = TINY.replace(critic=str(trained.folder), critic_learning_rate=1e-30, run=str(tmp_path / "run"))
    rljax.train(config, reward)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["phase"] == "rl"]
    assert math.isfinite(row["reward"])
    assert math.isfinite(row["value_loss"])
    setup = make_setup(config, CustomParts(reward=reward))
    first = load_initial_state(setup)
    state = restore(tmp_path / "run" / "checkpoints" / LAST, partial(state_like, setup)).checkpoint.state
    chex.assert_trees_all_close(state.critic.params, trained.params, rtol=1e-7, atol=1e-20)
    groups = setup.train.generate(first.params, [0, 1], 2, jax.random.key(0))
    values = make_values(setup.critic, setup.mesh, 4)(state.critic.params, sequences_of(groups)).reshape(
        groups.tokens.shape
    )
    for index in np.ndindex(2, 2):
        prompt = setup.train.prompts.tokens[groups.prompt_ids[index[0]]]
        tokens = groups.tokens[index][groups.attention[index]].tolist()
        scores = make_score(load_reward_model(trained.folder).model, ONE)(
            trained.params, [[*prompt, *tokens[:count]] for count in range(len(tokens))]
        )
        np.testing.assert_allclose(values[index][: len(tokens)], scores, atol=1e-4, err_msg="values are the model's scores")


def test_command_reads_a_file_and_a_model_folder(tmp_path, capsys):
    pairs = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in digit_pairs(60, 3)]
    pairs += [{"prompt": "1=", "chosen": "1" * 40, "rejected": "1"}, {"prompt": "1=", "chosen": "1", "rejected": "1"}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    common = [
        "--batch",
        "8",
        "--max-tokens",
        "16",
        "--replicas",
        "1",
        "--on-error",
        "drop",
        "--eval-every",
        "1",
        "--steps",
        "2",
    ]
    shape = [word for name, value in SHAPE.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    def run(*words):
        return run_reward_model(tyro.cli(Command, args=[str(file), *common, *words]))

    assert run(*shape, "--tokenizer", "characters", "--output", str(tmp_path / "first")) == 0
    output = capsys.readouterr().out
    assert "1 bad row left out" in output
    assert "both responses are the same" in output
    assert "Left out 1 pair: prompt and response have more than 16 tokens" in output
    assert "2 updates of 8 pairs, 8 at a time on 1 device" in output
    assert output.count(": held-out pairs in order ") == 3
    assert f"--reward model:{tmp_path / 'first'}" in output
    assert run("--model", str(tmp_path / "first"), "--output", str(tmp_path / "second")) == 0
    rows = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[index])
        for name, index in (("first", -1), ("second", 0))
    ]
    assert rows[0] | {"step": 0} == pytest.approx(rows[1] | {"step": 0})
    with pytest.raises(InputError, match=r"already contains config\.json, .*choose another folder with --output"):
        run("--model", str(tmp_path / "first"), "--output", str(tmp_path / "second"))


def test_training_starts_from_a_language_model(tmp_path):
    policy = init_params(POLICY, jax.random.key(3))
    save_pretrained(tmp_path / "policy", POLICY, policy, bos=None, eos=1)
    config = replace(CONFIG, model=str(tmp_path / "policy"), microbatch_pairs=8)
    setup, state = make_reward_setup(config, (digit_pairs(40, 0), HELDOUT[:4]))
    np.testing.assert_array_equal(state.params["trunk"]["embedding"], policy["embedding"])
    assert state.params["head"].shape == (1, 16)
    assert (setup.microbatch, setup.steps) == (8, 60)
    assert make_reward_setup(replace(config, steps=None, epochs=3), (digit_pairs(40, 0), HELDOUT[:4]))[0].steps == 4
    with pytest.raises(InputError, match="The tokenizer has 259 tokens, but the model"):
        make_reward_setup(replace(config, tokenizer="bytes"), (digit_pairs(40, 0), HELDOUT[:4]))


def test_training_is_the_same_on_eight_devices():
    data = digit_pairs(40, 0), HELDOUT[:4]
    histories = []
    for mesh in ({"replicas": 1}, {"replicas": 2, "fsdp": 4, "microbatch_pairs": 8}):
        setup, state = make_reward_setup(replace(CONFIG, **mesh, steps=2), data)
        update, seen = training.update_of(setup, state), []
        for _ in range(setup.steps):
            state, metrics = update(state)
            seen.append({name: value for name, value in metrics.items() if name != "seconds"})
        judged = evaluate_on_pairs(make_score(setup.model, setup.mesh), state.params, setup.data.heldout)
        histories.append([*seen, judged])
    for one, eight in zip(*histories, strict=True):
        assert one == pytest.approx(eight, abs=2e-4)
    assert histories[0][0]["learning_rate"] == pytest.approx(1e-2 / 2), "a run of two steps warms up in one"


def test_command_shown_after_ctrl_c_resumes_exactly(tmp_path, monkeypatch, capsys):
    file, names = tmp_path / "pairs.jsonl", ("uninterrupted", "stopped")
    rows = [{"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected} for pair in digit_pairs(80, 0)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shape = (
        "--layers",
        "1",
        "--width",
        "16",
        "--heads",
        "2",
        "--kv-heads",
        "1",
        "--hidden",
        "32",
        "--tokenizer",
        "characters",
    )
    words = ["reward-model", str(file), *shape, *("--batch", "8", "--steps", "4", "--replicas", "1", "--quiet")]
    words += ["--learning-rate", "1e-2", "--checkpoint-every", "3"]
    assert main([*words, "--output", str(tmp_path / "uninterrupted")]) == 0
    log = JsonlTracker.log

    def log_and_stop(self, phase, step, metrics):
        log(self, phase, step, metrics)
        if (phase, step) == ("reward_model", 2):
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(JsonlTracker, "log", log_and_stop)
        assert main([*words, "--output", str(tmp_path / "stopped")]) == INTERRUPTED
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command == ["rljax", "reward-model", "--resume", str(tmp_path / "stopped")]
    assert main(command[1:]) == 0
    uninterrupted, stopped = (
        [
            {name: value for name, value in json.loads(line).items() if name != "seconds"}
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in names
    )
    assert stopped == uninterrupted
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in names]
    assert weights[0] == weights[1]


def test_heldout_prompts_are_removed_from_training(tmp_path):
    def write(name, prompts):
        rows = [{"prompt": prompt, "chosen": "2", "rejected": "3"} for prompt in prompts]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    config = replace(CONFIG, dataset=write("a.jsonl", ["1=", "2=", "3="]), heldout_dataset=write("b.jsonl", ["2=", "4="]))
    train, heldout, warnings = pair_training.read_pairs(config)
    assert [pair.prompt for pair in train] == ["1=", "3="]
    assert [pair.prompt for pair in heldout] == ["2=", "4="]
    assert warnings == []
    with pytest.raises(InputError, match="nothing is left to train on"):
        pair_training.read_pairs(replace(config, dataset=config.heldout_dataset))


def test_invalid_data_and_meshes_are_refused(tmp_path):
    pairs = digit_pairs(4, 0)
    with pytest.raises(
        InputError,
        match=r"in every pair, prompt and response have more than max_tokens=2 tokens: the shortest pair needs \d",
    ):
        make_reward_setup(replace(CONFIG, max_tokens=2), (pairs, pairs))
    with pytest.raises(InputError, match="there are no pairs; give at least one"):
        make_reward_setup(CONFIG, ([], pairs))
    with pytest.raises(InputError, match="batch is 12 rows, which cannot be split evenly over 8 devices"):
        make_reward_setup(replace(CONFIG, replicas=8, batch=12), (pairs, pairs))
    with pytest.raises(InputError, match="microbatch_pairs is 4 rows, which cannot be split evenly over 8 devices"):
        make_reward_setup(replace(CONFIG, replicas=8, microbatch_pairs=4), (pairs, pairs))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be created"):
        pair_training.make_folder(replace(CONFIG, output=str(tmp_path / "file" / "in")), {})


def test_micro_batches_fit_devices_and_memory():
    assert pair_training.microbatch_of(replace(CONFIG, batch=64), 1, 16) == 64
    assert pair_training.microbatch_of(replace(CONFIG, batch=64), 1, 1024) == 8
    assert pair_training.microbatch_of(replace(CONFIG, batch=48), 8, 1024) == 8
    assert pair_training.microbatch_of(replace(CONFIG, batch=48), 8, 100_000) == 8
    assert pair_training.microbatch_of(replace(CONFIG, microbatch_pairs=2), 1, 16) == 2
