"""Tests of a server's log: answers with metrics, feedback for `rljax adapt`, and a log that cannot be written."""

import json
import shutil

import httpx
import numpy as np
import pytest
from served_model import NAME, events, make_model, post, serving

from rljax.data.feedback import read_new_lines
from rljax.errors import InputError
from rljax.serving import answer_log
from rljax.serving.answer_log import AnswerLog

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "2+2?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture
def logging_server(folder, tmp_path):
    with serving(folder, log=tmp_path / "log") as (url, served):
        yield url, tmp_path / "log", served


def read_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def give_feedback(url, **body):
    return httpx.post(f"{url}/feedback", json=body, timeout=60, trust_env=False)


def test_answers_are_logged_and_adapt_reads_the_feedback(logging_server):
    url, log, _ = logging_server
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    chat = post(url, CHAT, messages=MESSAGES, n=2, max_tokens=6, seed=3, tools=tools, return_token_ids=True).json()
    text = post(url, TEXT, prompt=["a", "b"], max_tokens=4, temperature=0).json()
    ids = post(url, TEXT, prompt=[7, 8], max_tokens=4).json()
    stream = events(post(url, CHAT, messages=MESSAGES, max_tokens=4, stream=True).text)
    answers = {row["id"]: row for row in read_lines(log / "answers.jsonl")}
    assert set(answers) == {
        *(f"{chat['id']}-{n}" for n in range(2)),
        *(f"{text['id']}-{n}" for n in range(2)),
        f"{ids['id']}-0",
        f"{stream[0]['id']}-0",
    }
    assert [answers[f"{text['id']}-{n}"]["prompt"] for n in range(2)] == ["a", "b"]
    assert [answers[f"{text['id']}-{n}"]["text"] for n in range(2)] == [choice["text"] for choice in text["choices"]]
    assert answers[f"{ids['id']}-0"]["prompt_ids"] == [7, 8]
    row = answers[f"{chat['id']}-1"]
    sampled = chat["choices"][1]
    assert row["prompt"] == MESSAGES
    assert row["tools"] == tools
    assert row["tokens"] == len(sampled["token_ids"])
    assert 0 < row["confidence"] <= 1
    assert row["weights_version"] == 0

    assert give_feedback(url, id=chat["id"], index=1, reward=0.25).json() == {"recorded": f"{chat['id']}-1"}
    assert give_feedback(url, id=text["id"], thumbs=True).status_code == 200
    first, second = (line.content for line in read_new_lines(log / "feedback.jsonl", {}))
    assert (first.messages, first.reward, first.columns["tools"]) == (tuple(MESSAGES), 0.25, tools)
    assert first.response == tuple(sampled["token_ids"])
    np.testing.assert_allclose(first.logp, sampled["sampler_logprobs"], rtol=1e-6)
    assert first.finished == (sampled["finish_reason"] != "length")
    assert (second.prompt, second.reward, second.id) == ("a", 1.0, f"{text['id']}-0")
    assert min(second.logp) < 0  # The log-probability is the model's; under greedy sampling it would be 0.

    assert give_feedback(url, id=text["id"], thumbs=True).status_code == 404  # The answer already has feedback.
    assert give_feedback(url, id=ids["id"], reward=1).status_code == 400  # The prompt is not text.
    assert give_feedback(url, id="chatcmpl-none", reward=1).status_code == 404
    assert len(read_lines(log / "feedback.jsonl")) == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": 7, "reward": 1},
        {"id": "x"},
        {"id": "x", "reward": "good"},
        {"id": "x", "reward": 10**400},
        {"id": "x", "reward": True},
        {"id": "x", "thumbs": 1},
        {"id": "x", "reward": 1, "thumbs": True},
        {"id": "x", "reward": 1, "index": 0.5},
        {"id": "x", "reward": 1, "note": "fine"},
    ],
)
def test_invalid_feedback_is_rejected(logging_server, body):
    url, log, _ = logging_server
    assert give_feedback(url, **body).status_code == 400
    assert read_lines(log / "feedback.jsonl") == []


def test_answers_are_sent_if_the_log_cannot_be_written(logging_server, capsys):
    url, log, _ = logging_server
    before = post(url, TEXT, prompt="a", max_tokens=4).json()
    shutil.rmtree(log)
    assert post(url, TEXT, prompt="b", max_tokens=4).status_code == 200
    assert "an answer is missing from the log" in capsys.readouterr().err
    assert "rljax_unlogged_answers_total 1.0" in httpx.get(f"{url}/metrics", trust_env=False).text
    assert give_feedback(url, id=before["id"], reward=1).status_code == 503
    log.mkdir()
    assert give_feedback(url, id=before["id"], reward=1).status_code == 200  # The server still remembers the answer.


def test_old_answers_are_forgotten(monkeypatch, logging_server):
    url, _, _ = logging_server
    monkeypatch.setattr(answer_log, "MOST_ANSWERS", 1)
    first, second = (post(url, TEXT, prompt="a", max_tokens=2).json()["id"] for _ in range(2))
    assert [give_feedback(url, id=name, reward=1).status_code for name in (first, second)] == [404, 200]


def test_feedback_needs_a_log(folder):
    with serving(folder) as (url, _):
        response = give_feedback(url, id="x", reward=1)
        assert response.status_code == 404
        assert "--log" in response.json()["error"]["message"]


def test_log_path_of_a_file_is_rejected(tmp_path):
    (tmp_path / "log").write_text("")
    with pytest.raises(InputError, match="choose another --log"):
        AnswerLog(tmp_path / "log")
