"""Compliance with rules, judged by a model on a server: requests, how its answers are read, and what counts as a failure."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from served_model import NAME, make_model, serving

from rljax.rewards.constitution import constitution
from rljax.rewards.correctness import Failed
from rljax.rewards.reward_scores import judge
from rljax.rewards.served_judge import KEY_VARIABLE, yes_or_no


@contextmanager
def serve_judge(answer):
    """Run a server whose model replies `answer(question)`; yield its address, the request bodies and the Authorization headers."""
    bodies, authorizations = [], []

    class Handler(BaseHTTPRequestHandler):
        def reply(self, content, status=200):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def do_GET(self):
            self.reply({"data": [{"id": "first"}, {"id": "second"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            authorizations.append(self.headers["Authorization"])
            text = answer(body["messages"][0]["content"])
            self.reply({"choices": [{"message": {"content": text}}]}, 200 if text != "broken" else 500)

        def log_message(self, *arguments):
            del arguments

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies, authorizations
    finally:
        server.shutdown()
        server.server_close()


def reply_to(question):
    """Return the model's reply, which depends only on the text before the question."""
    text = question.partition("Question about the text:")[0]
    return next((reply for word, reply in REPLIES.items() if word in text), "No, it is not.")


REPLIES = {"please": " Yes.", "perhaps": "Maybe", "unsure": "Not sure", "crash": "broken", "nothing": None}


def test_requests_and_how_answers_are_read(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    progress = []
    with serve_judge(reply_to) as (url, bodies, authorizations):
        outcomes = yes_or_no("Is it polite?", url)(
            ["please", "go", "perhaps", "unsure", "crash", "nothing"], lambda *counts: progress.append(counts)
        )
    assert outcomes[:2] == [True, False]
    assert [outcome.kind for outcome in outcomes[2:]] == ["raised"] * 4
    assert "the judge answered 'Maybe', not yes or no" in outcomes[2].reason
    assert "the judge answered 'Not sure', not yes or no" in outcomes[3].reason
    assert progress == [(n, 6) for n in range(1, 7)]
    assert {body["model"] for body in bodies} == {"first"}
    assert all("Is it polite?" in body["messages"][0]["content"] and body["temperature"] == 0 for body in bodies)
    assert set(authorizations) == {"Bearer secret"}


def test_rule_is_broken_if_the_model_answers_no():
    with serve_judge(reply_to) as (url, bodies, _):
        rules = {"kind": {"judged": {"question": "Is it polite?", "at": url, "model": "second"}, "weight": 2}}
        scores = judge(constitution(rules | {"brief": {"max_words": 1}}), ["?"] * 3, ["please", "go away", "perhaps"], {})
    assert scores.total.tolist() == [0.0, -3.0, 0.0]
    assert scores.valid.tolist() == [True, True, False]
    assert {body["model"] for body in bodies} == {"second"}


def test_stopped_server_is_a_failure():
    with serve_judge(reply_to) as (url, *_):
        pass
    (outcome,) = yes_or_no("Is it polite?", url)(["please"], None)
    assert isinstance(outcome, Failed)
    assert url in outcome.reason


def test_judge_works_with_our_own_server(tmp_path):
    with serving(make_model(tmp_path / "model")) as (url, _):
        outcomes = yes_or_no("Is it polite?", url)(["please", "go"], None)
        unknown_model = yes_or_no("Is it polite?", url, "absent")(["please"], None)
    for outcome in outcomes:  # the model's weights are random, so its answers are neither yes nor no
        assert "not yes or no" in outcome.reason
    assert isinstance(unknown_model[0], Failed)
    assert NAME != "absent"
