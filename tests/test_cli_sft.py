"""`rljax sft` trains on chats, writes a model that other commands open, and refuses invalid arguments."""

import json
import shlex

import pytest
from chat_models import save_chat_model
from small_cli import printed, refused

from rljax.cli import parse
from rljax.cli.train import full_names
from rljax.tracking.rows import read_metrics


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("models") / "chat")


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Sums as one-turn conversations."""
    file = tmp_path_factory.mktemp("data") / "chats.jsonl"
    sums = [(a, b) for a in range(8) for b in range(8)]
    turns = [({"role": "user", "content": f"{a}+{b}="}, {"role": "assistant", "content": f"#{a + b}"}) for a, b in sums]
    file.write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    return file


def test_sft_on_chats_writes_a_run_that_the_suggested_commands_open(model, chats, tmp_path, capsys):
    run = tmp_path / "run"
    arguments = ["sft", "--model", str(model), "--dataset", str(chats), "--chat", "--run", str(run), "--replicas", "1"]
    shown = printed(
        capsys, *arguments, "--steps", "3", "--batch", "8", "--learning-rate", "1e-3", "--max-response-tokens", "8"
    )
    assert "supervised fine-tuning on" in shown
    assert "Held-out perplexity: " in shown
    assert "accuracy" not in shown
    settings = json.loads((run / "config.json").read_text())
    assert (settings["optimization"]["steps"], settings["warm_start"]["steps"], settings["warm_start"]["batch"]) == (
        0,
        3,
        8,
    )
    assert settings["reward"]["name"] == "none"
    typed = [line.strip() for line in shown.split("What to type next:")[1].splitlines() if line.strip()]
    assert [line.split()[1] for line in typed] == ["eval", "chat", "train", "export"]
    small = ("--steps", "1", "--prompts", "4", "--group-size", "2", "--heldout-problems", "2", "--max-response-tokens", "8")
    for line in typed:
        command, *words = shlex.split(line)[1:]
        assert parse([command, *words])
        if command == "eval":
            assert "0 to" in printed(capsys, command, *words, "--max-response-tokens", "8")
        if command == "train":
            printed(capsys, command, *words, *small, "--run", str(tmp_path / "rl"), "--replicas", "1", "--quiet")
            assert read_metrics(tmp_path / "rl" / "metrics.jsonl")[-1]["phase"] == "eval"
        if command == "export":
            printed(capsys, command, words[0], str(tmp_path / "exported"))
    assert printed(capsys, "sample", str(run), "--prompt", "3+4=", "--max-response-tokens", "4")
    assert "sft        3/3    finished" in printed(capsys, "runs", str(tmp_path))
    refused(capsys, "there is no reward to judge answers with", "eval", str(run))
    refused(capsys, "Start RL from its model with a reward", "train", "--resume", str(run), "--steps", "2")


def test_sft_on_prompt_completion_rows_with_a_reward_and_lora(model, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}=", "completion": f"#{n}"}) + "\n" for n in range(40)))
    words = ["--lora-rank", "2", "--reward", "exact", "--max-response-tokens", "4", "--replicas", "1", "--quiet"]
    run = tmp_path / "run"
    shown = printed(
        capsys, "sft", "--model", str(model), "--dataset", str(file), "--epochs", "1", "--run", str(run), *words
    )
    assert "Held-out accuracy: " in shown
    settings = json.loads((run / "config.json").read_text())["warm_start"]
    assert (settings["steps"], settings["learning_rate"]) == (3, 2e-4)  # 36 training rows in batches of 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-train-epochs 3", r"There is no option --num-train-epochs; use --epochs\."),
        ("--assistant_only_loss", "leave it out: only the assistant's tokens are trained"),
        ("--max-length 9", "use --max-prompt-tokens and --max-response-tokens"),
        ("--per-device-train-batch-size 2", "use --batch"),
        ("--epochs 0", "epochs is 0; it must be at least 1"),
        ("--epochs 2 --steps 3", "--epochs and --steps are two ways to set the length"),
    ],
)
def test_invalid_arguments_give_one_paragraph_and_exit_code_2(words, message, tmp_path, capsys):
    refused(capsys, message, "sft", *words.split(), "--run", str(tmp_path / "run"))


@pytest.mark.parametrize("command", ["sft", "train", "tune", "plan"])
def test_a_path_without_a_flag_is_refused(command, capsys):
    message = rf"`rljax {command}` takes only flags, not 'my data.jsonl'; for a dataset, write --dataset 'my data.jsonl'\."
    refused(capsys, message, command, "my data.jsonl", "--seed", "1")


def test_help_shows_the_commands_own_flags_and_they_parse(capsys):
    shown = printed(capsys, "sft", "--help")
    assert shown == printed(capsys, "sft", "--help-all")
    flags = {word for word in shown.split() if word.startswith("--") and "," not in word}
    assert {"--epochs", "--batch", "--steps", "--learning-rate", "--demonstration-column"} <= flags
    assert parse(["sft", "--steps", "7", "--eval-every=3"]).config.warm_start.steps == 7
    assert "--warm" not in shown
    assert full_names(["--eval_every=3"]) == ["--warm-start-eval-every=3"]
