"""`rljax chat`: turns go through the template, replies come from the model, and what is impossible is refused."""

import io
import json

import pytest
from chat_models import save_chat_model
from small_cli import printed, refused

from rljax.cli.chat import Chat
from rljax.data.problem import Problem
from rljax.programs.conversation import stream_reply
from rljax.programs.trained_policy import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("models") / "chatty")


def type_lines(monkeypatch, *lines):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def replies(folder, *conversations, seed=0, budget=12):
    """What the model answers to conversations, greedily."""
    opened = load(folder, problems=[Problem("", "")], max_response_tokens=budget, chat=True)
    worker = opened.sampler(temperature=0.0, top_k=None, top_p=None)
    return ["".join(stream_reply(opened, worker, messages, seed=seed)) for messages in conversations]


def test_every_turn_sees_those_before_it(folder, monkeypatch, capsys):
    type_lines(monkeypatch, "hello", "", "and now", "/reset", "hello", "/exit", "never read")
    output = printed(capsys, "chat", str(folder), "--temperature", "0", "--max-response-tokens", "12")
    (first,) = replies(folder, [{"role": "user", "content": "hello"}])
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}]
    (second,) = replies(folder, [*turns, {"role": "user", "content": "and now"}])
    assert first != second
    assert output == f"{first}\n{second}\n{first}\n"


def test_a_reply_is_the_one_that_sample_prints(folder, monkeypatch, capsys):
    (reply,) = replies(folder, [{"role": "user", "content": "hello"}])
    arguments = ("--prompt", "hello", "--chat", "--max-response-tokens", "12")
    assert printed(capsys, "sample", str(folder), *arguments) == f"hello\n{reply}\n"


def test_the_system_message_comes_first(folder, monkeypatch, capsys):
    type_lines(monkeypatch, "hello")
    arguments = ("--system", "be brief", "--temperature", "0", "--max-response-tokens", "12")
    output = printed(capsys, "chat", str(folder), *arguments)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert output == f"{replies(folder, messages)[0]}\n"


REWARD = """
def by_length(completions):
    return [float(len(completion.strip()) % 2) for completion in completions]
"""


@pytest.mark.parametrize("command", ["eval", "pairs"])
def test_a_reward_of_texts_judges_a_model_on_conversations(folder, tmp_path, command, capsys):
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": "1"} for text in ("hello", "and now")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text(REWARD)
    places = [str(folder), str(tmp_path / "out.jsonl")] if command != "eval" else [str(folder)]
    flags = ["--dataset", str(tmp_path / "rows.jsonl"), "--reward", f"{tmp_path / 'own.py'}:by_length"]
    flags += ["--max-response-tokens", "4"]
    refused(capsys, "Its completions are lists of messages.*--no-reward-messages makes them text", command, *places, *flags)
    printed(capsys, command, *places, *flags, "--no-reward-messages")


def test_a_conversation_beyond_the_context_is_refused(folder, tmp_path, monkeypatch, capsys):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    raw = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 32}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    type_lines(monkeypatch, "x" * 18)  # the template adds three tokens
    assert printed(capsys, "chat", str(tmp_path), "--max-response-tokens", "11")
    type_lines(monkeypatch, "x" * 19)
    refused(capsys, "up to 33 tokens, and the model has 32 positions", "chat", str(tmp_path), "--max-response-tokens", "11")


def test_a_model_without_a_template_is_refused(folder, tmp_path, monkeypatch, capsys):
    type_lines(monkeypatch, "hello")
    for file in folder.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    refused(capsys, "no chat template", "chat", str(tmp_path))


def test_the_default_temperature():
    assert Chat("model").temperature == 0.7
