"""Conversations in `rljax chat`, `sample`, `eval` and `pairs`: templates, replies, stop strings, and refused settings."""

import io
import json

import pytest
from chat_models import save_chat_model
from small_cli import printed, refused

from rljax.cli.chat_and_serve import Chat
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.programs.conversation import stream_reply
from rljax.programs.trained_policy import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("models") / "chatty")


def type_lines(monkeypatch, *lines):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def greedy_replies(folder, *conversations, seed=0, budget=12):
    """Return the model's greedy replies to conversations."""
    opened = load(folder, problems=[Problem("", "")], max_response_tokens=budget, chat=True)
    worker = opened.sampler(temperature=0.0, top_k=None, top_p=None)
    return ["".join(stream_reply(opened, worker, messages, seed=seed)) for messages in conversations]


def test_turn_sees_the_earlier_turns(folder, monkeypatch, capsys):
    type_lines(monkeypatch, "hello", "", "and now", "/reset", "hello", "/exit", "never read")
    output = printed(capsys, "chat", str(folder), "--temperature", "0", "--max-response-tokens", "12")
    (first,) = greedy_replies(folder, [{"role": "user", "content": "hello"}])
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}]
    (second,) = greedy_replies(folder, [*turns, {"role": "user", "content": "and now"}])
    assert first != second
    assert output == f"{first}\n{second}\n{first}\n"


def test_reply_is_the_one_that_sample_prints(folder, monkeypatch, capsys):
    (reply,) = greedy_replies(folder, [{"role": "user", "content": "hello"}])
    arguments = ("--prompt", "hello", "--chat", "--max-response-tokens", "12")
    assert printed(capsys, "sample", str(folder), *arguments) == f"hello\n{reply}\n"


def test_system_message_comes_first(folder, monkeypatch, capsys):
    type_lines(monkeypatch, "hello")
    arguments = ("--system", "be brief", "--temperature", "0", "--max-response-tokens", "12")
    output = printed(capsys, "chat", str(folder), *arguments)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert output == f"{greedy_replies(folder, messages)[0]}\n"


REWARD = """
def by_parity_of_length(completions):
    return [float(len(completion.strip()) % 2) for completion in completions]
"""


@pytest.mark.parametrize("command", ["eval", "pairs"])
def test_text_reward_judges_conversations(folder, tmp_path, command, capsys):
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": "1"} for text in ("hello", "and now")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text(REWARD)
    positional = [str(folder), str(tmp_path / "out.jsonl")] if command != "eval" else [str(folder)]
    flags = ["--dataset", str(tmp_path / "rows.jsonl"), "--reward", f"{tmp_path / 'own.py'}:by_parity_of_length"]
    flags += ["--max-response-tokens", "4"]
    refused(capsys, "It received lists of messages.*--no-reward-messages passes text instead", command, *positional, *flags)
    printed(capsys, command, *positional, *flags, "--no-reward-messages")


def test_stop_string_ends_a_reply(folder, capsys):
    opened = load(folder, problems=[Problem("", "")], max_response_tokens=12, chat=True)
    messages = [{"role": "user", "content": "hello"}]
    settings = {"temperature": 0.0, "top_k": None, "top_p": None}
    reply = "".join(stream_reply(opened, opened.sampler(**settings), messages, seed=0))
    assert "ends at its limit of 12 tokens" in capsys.readouterr().err
    stop = next(letter for letter in reply if letter.isascii() and letter.isprintable())
    stopped = "".join(stream_reply(opened, opened.sampler(**settings, stop=[stop]), messages, seed=0))
    assert stopped == reply[: reply.index(stop) + len(stop)]
    assert (stopped,) == tuple(opened.sample(["hello"], stop=[stop])[0])
    assert capsys.readouterr().err == ""


def test_ineffective_sampling_settings_are_refused(folder, capsys):
    refused(
        capsys,
        "--top-k 3 and --top-p None apply to sampling",
        "sample",
        str(folder),
        "--chat",
        "--prompt",
        "a",
        "--top-k",
        "3",
    )
    refused(
        capsys,
        "2 continuations of a prompt would all be the same",
        "sample",
        str(folder),
        "--chat",
        "--prompt",
        "a",
        "--count",
        "2",
    )


def test_conversation_beyond_the_context_is_refused(folder, tmp_path, monkeypatch, capsys):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    raw = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 32}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    type_lines(monkeypatch, "x" * 18)  # the template adds three tokens
    assert printed(capsys, "chat", str(tmp_path), "--max-response-tokens", "11")
    type_lines(monkeypatch, "x" * 19)
    refused(capsys, "up to 33 tokens, and the model has 32 positions", "chat", str(tmp_path), "--max-response-tokens", "11")


def test_conversation_with_the_text_that_ends_a_plan_is_refused(folder):
    opened = load(folder, problems=[Problem("", "")], max_response_tokens=12, chat=True)
    opened = opened._replace(config=opened.config.replace(plan_end="e", sub_policies=2))
    worker = opened.sampler(temperature=0.0, top_k=None, top_p=None)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "hi"}]
    with pytest.raises(InputError, match=r"plan_end is 'e', which the prompt 'hi\\nyes\\nhi' contains"):
        next(stream_reply(opened, worker, turns, seed=0))


def test_model_without_a_template_is_refused(folder, tmp_path, monkeypatch, capsys):
    type_lines(monkeypatch, "hello")
    for file in folder.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    refused(capsys, "no chat template", "chat", str(tmp_path))


def test_default_temperature():
    assert Chat("model").temperature == 0.7
