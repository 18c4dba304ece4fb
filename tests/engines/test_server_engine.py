"""Training with a server as the sampler: same tokens as the built-in engine, new weights per step, and server failures."""

import json
import threading
import time

import jax
import numpy as np
import pytest
from served_model import make_model, serving
from shared_run import rows
from simulated_servers import ServerState, running, sglang, vllm
from small_runs import is_time
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

import rljax
from rljax.cli import main
from rljax.data.problem import Problem
from rljax.engines import server_engine
from rljax.engines.dialects import MOST_STOPS, MOST_TEMPERATURE, dialect_of
from rljax.engines.server_engine import ServerEngine
from rljax.errors import InputError, ServerLostError
from rljax.programs.trained_policy import load
from rljax.rollout.engine_protocols import ReportingEngine, Request, Sampling, StreamingEngine
from rljax.serving import protocol
from rljax.training import metrics
from rljax.training.config import TrainConfig
from rljax.training.parts.model_folder import weights_writer

MAX_RESPONSE_TOKENS = 12
PROBLEMS = [Problem(text, "") for text in ("one", "two", "three", "four", "five", "six", "seven", "eight")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "chatty")


@pytest.fixture(scope="module")
def opened(folder):
    return load(folder, problems=[Problem("", "")], max_response_tokens=MAX_RESPONSE_TOKENS)


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as (url, served):
        yield url, served


def config_of(folder, **settings):
    """The configuration of a short run on the served model."""
    short = {"prompts": 2, "group_size": 4, "steps": 3, "eval_every": 0, "sample_every": 0, "learning_rate": 1e-3}
    return TrainConfig.flat(
        model=str(folder),
        chat=False,
        algorithm="grpo",
        max_response_tokens=MAX_RESPONSE_TOKENS,
        heldout_problems=2,
        learning_rate_warmup=0,
        **{**short, **settings},
    )


def engine_at(url, opened, folder, *, server="rljax", sampling=None, patience=2.0, needed=40, into=None, in_flight=False):
    config = TrainConfig.flat(model=str(folder))
    save = weights_writer(config, opened.policy, opened.tokenizer)
    return ServerEngine(
        url,
        server,
        save,
        folder=into,
        needed=needed,
        sampling=sampling or sampling_of(opened),
        vocabulary=opened.policy.vocab_size,
        patience=patience,
        in_flight=in_flight,
    )


def sampling_of(opened, **settings):
    return opened.worker.sampling._replace(max_tokens=MAX_RESPONSE_TOKENS, temperature=1.0, **settings)


def requests_of(sampling, prompts=5, group=3):
    return [
        Request((9, 20 + index, 33)[: 1 + index % 3], index, index, sampling, seed=1000 * index + member + (1 << 62))
        for index in range(prompts)
        for member in range(group)
    ]


def even_length(completions):
    return [float(len(text) % 2 == 0) for text in completions]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.8, "stop": ("a",)}]
)
def test_server_engine_matches_built_in_engine(server, opened, folder, settings):
    sampling = sampling_of(opened)._replace(**settings)
    engine, requests = engine_at(server[0], opened, folder, sampling=sampling), requests_of(sampling)
    found = engine.generate(opened.params, requests)
    expected = opened.worker.engine.generate(opened.params, requests)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.prompt_id, ours.group, ours.finish) == (theirs.prompt_id, theirs.group, theirs.finish)
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        np.testing.assert_allclose(ours.behaviour_logp, theirs.behaviour_logp, atol=1e-4)
        if sampling.temperature:
            np.testing.assert_allclose(ours.policy_logp, theirs.policy_logp, atol=1e-4)
    streamed = [piece for pieces in engine.stream(opened.params, requests) for piece in pieces]
    assert sorted(streamed) == [*range(len(requests))]
    assert isinstance(engine, StreamingEngine)
    assert isinstance(engine, ReportingEngine)


@pytest.mark.parametrize("end", ["/", "/v1", "/v1/"])
def test_address_may_end_in_a_slash_or_v1(server, opened, folder, end):
    """OpenAI's clients take an address that ends in /v1, so users copy it."""
    sampling = sampling_of(opened)
    found = engine_at(server[0] + end, opened, folder).generate(opened.params, requests_of(sampling))
    expected = engine_at(server[0], opened, folder).generate(opened.params, requests_of(sampling))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)


@pytest.mark.parametrize("key", ["sécret", "one\ntwo"])
def test_key_that_cannot_be_sent_is_refused(server, folder, key, tmp_path, monkeypatch):
    monkeypatch.setenv("RLJAX_ENGINE_KEY", key)
    config = config_of(folder, run=str(tmp_path / "run"), engine_url=server[0])
    with pytest.raises(InputError, match=r"^the API key in RLJAX_ENGINE_KEY contains a character that cannot be sent"):
        rljax.train(config, reward=even_length, problems=(PROBLEMS, PROBLEMS[:2]))


def test_server_engine_publishes_changed_weights(server, opened, folder, tmp_path):
    url, served = server
    engine, requests = engine_at(url, opened, folder, into=tmp_path), requests_of(sampling_of(opened), prompts=1)
    before = served.batcher.version
    engine.generate(opened.params, requests)
    engine.generate(opened.params, requests)
    assert served.batcher.version == before + 1
    assert [file.name for file in tmp_path.iterdir()] == [f"version-{before + 1}"]
    other = jax.tree.map(lambda leaf: 1.5 * leaf, opened.params)
    found = engine.generate(other, requests)
    assert served.batcher.version == before + 2
    assert [file.name for file in tmp_path.iterdir()] == [f"version-{before + 2}"], "one folder at a time"
    for ours, theirs in zip(found, opened.worker.engine.generate(other, requests), strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)


def test_run_on_server_matches_built_in_engine(server, folder, tmp_path):
    config = config_of(folder)
    problems = (PROBLEMS[:6], PROBLEMS[6:])
    rljax.train(config.replace(run=str(tmp_path / "own")), reward=even_length, problems=problems)
    rljax.train(config.replace(run=str(tmp_path / "served"), engine_url=server[0]), reward=even_length, problems=problems)
    exact = {"step", "reward", "response_length", "prompt_length", "truncated_share", "staleness", "trained_groups"}
    for ours, theirs in zip(rows(tmp_path / "served"), rows(tmp_path / "own"), strict=True):
        assert {name: ours[name] for name in exact & ours.keys()} == {name: theirs[name] for name in exact & ours.keys()}
        numbers = [name for name in ours if isinstance(ours[name], float) and not is_time(name)]
        assert [ours[name] for name in numbers] == pytest.approx([theirs[name] for name in numbers], rel=1e-3, abs=1e-4)
    assert max(row["sampler_gap"] for row in rows(tmp_path / "served") if "sampler_gap" in row) < 1e-4


def test_asynchronous_run_on_server_resumes(server, folder, tmp_path):
    config = config_of(folder, steps=4, engine_url=server[0], staleness=1, checkpoint_every=1)
    problems = (PROBLEMS[:6], PROBLEMS[6:])
    rljax.train(config.replace(run=str(tmp_path / "uninterrupted")), reward=even_length, problems=problems)
    rljax.train(config.replace(run=str(tmp_path / "resumed"), steps=2), reward=even_length, problems=problems)
    rljax.train(
        config.replace(run=str(tmp_path / "resumed")), resume=tmp_path / "resumed", reward=even_length, problems=problems
    )
    names = ("resumed", "uninterrupted")
    resumed, expected = ([row for row in rows(tmp_path / name) if row["phase"] == "rl"] for name in names)
    assert [row["loss"] for row in resumed] == pytest.approx([row["loss"] for row in expected], rel=1e-2, abs=1e-4)
    assert [row["reward"] for row in resumed] == [row["reward"] for row in expected]
    assert [row["staleness"] for row in resumed] == [0, 1, 1, 1]


def test_wrong_log_probabilities_raise_alarm(server, folder, tmp_path, monkeypatch):
    ask = ServerEngine._ask

    def ask_with_another_temperature(self, requests):
        return [
            reply._replace(
                **{name: [2 * logp for logp in getattr(reply, name)] for name in ("behaviour_logp", "policy_logp")}
            )
            for reply in ask(self, requests)
        ]

    monkeypatch.setattr(ServerEngine, "_ask", ask_with_another_temperature)
    config = config_of(folder, run=str(tmp_path / "run"), engine_url=server[0], steps=6)
    rljax.train(config, reward=even_length, problems=(PROBLEMS[:6], PROBLEMS[6:]))
    assert "sampler_gap" in (tmp_path / "run" / "alarms.jsonl").read_text()


def test_restarted_server_receives_weights_again(folder, opened):
    with serving(folder) as (url, served):
        engine, requests = engine_at(url, opened, folder), requests_of(sampling_of(opened))
        other = jax.tree.map(lambda leaf: 1.5 * leaf, opened.params)
        before = engine.generate(other, requests)
        original = served.load_weights(str(folder))
        served.batcher.decoder.params, served.batcher.version = original, 0  # as after a restart
        after = engine.generate(other, requests)
        assert served.batcher.version == 1
    for ours, theirs in zip(after, before, strict=True):
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)


def test_two_runs_on_one_server(folder, opened):
    with serving(folder) as (url, served):
        engine, requests = engine_at(url, opened, folder), requests_of(sampling_of(opened), prompts=1)
        engine.generate(opened.params, requests)
        served.batcher.version += 1
        with pytest.raises(InputError, match="something else also publishes to it"):
            engine.generate(opened.params, requests)


def test_full_queue_is_retried(folder, opened):
    with serving(folder, queue=8, rows=2) as (url, _):
        engine = engine_at(url, opened, folder, patience=30.0)
        requests = requests_of(sampling_of(opened), prompts=12, group=2)
        assert len(engine.generate(opened.params, requests)) == 24


def test_api_key_is_sent(folder, opened, monkeypatch, tmp_path):
    with serving(folder, api_key="secret") as (url, _):
        with pytest.raises(InputError, match="401 The API key is missing"):
            rljax.train(
                config_of(folder, run=str(tmp_path / "run"), engine_url=url),
                reward=even_length,
                problems=(PROBLEMS, PROBLEMS),
            )
        assert not (tmp_path / "run").exists()
        monkeypatch.setenv("RLJAX_ENGINE_KEY", "secret")
        rljax.train(
            config_of(folder, run=str(tmp_path / "run"), engine_url=url, steps=1),
            reward=even_length,
            problems=(PROBLEMS, PROBLEMS),
        )


def test_unsuitable_server(server, folder, opened, tmp_path_factory):
    with pytest.raises(InputError, match="has room for 192 tokens, but a prompt with its response may have 500"):
        engine_at(server[0], opened, folder, needed=500)
    with pytest.raises(InputError, match="allows responses of 64 tokens, but max_response_tokens=65"):
        engine_at(server[0], opened, folder, sampling=sampling_of(opened)._replace(max_tokens=65))
    with pytest.raises(InputError, match="do not set sampling_mask"):
        engine_at(server[0], opened, folder, sampling=sampling_of(opened, top_k=3, kept=3))
    for changes in ({"temperature": 2.5}, {"stop": tuple("abcdefghijklmnopq")}):
        with pytest.raises(InputError, match="its requests have temperatures up to 2 and at most 16 stop strings"):
            engine_at(server[0], opened, folder, sampling=sampling_of(opened)._replace(**changes))
    assert (MOST_TEMPERATURE, MOST_STOPS) == (protocol.MAX_TEMPERATURE, protocol.MAX_STOPS)
    other = make_model(tmp_path_factory.mktemp("models") / "wide", width=32)
    wide = load(other, problems=[Problem("", "")], max_response_tokens=MAX_RESPONSE_TOKENS)
    with pytest.raises(InputError, match="has another model or tokenizer: fingerprint"):
        engine_at(server[0], wide, other).generate(wide.params, requests_of(sampling_of(wide), prompts=1))


def test_unreachable_server(folder, tmp_path, capsys):
    with serving(folder) as (url, _):
        pass
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": row.prompt, "answer": "1"}) + "\n" for row in PROBLEMS))
    flags = ["train", "--model", str(folder), "--dataset", str(data), "--reward", "exact", "--run", str(tmp_path / "run")]
    flags += ["--engine-url", url, "--engine-patience", "0.5", "--steps", "1", "--no-chat", "--quiet"]
    assert main(flags) == ServerLostError.exit_code == 75
    assert "did not answer /v1/models for 0.5 seconds" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_server_lost_during_run(folder, tmp_path):
    calls = []
    with serving(folder) as (url, served):

        def reward(completions):
            calls.append(None)
            if len(calls) == 3:
                served.batcher._fail("killed by the test")
            return even_length(completions)

        config = config_of(folder, run=str(tmp_path / "run"), engine_url=url, engine_patience=1.0, checkpoint_every=1)
        with pytest.raises(ServerLostError, match=r"No step is lost\. To continue: rljax\.train"):
            rljax.train(config, reward=reward, problems=(PROBLEMS[:6], PROBLEMS[6:]))
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "does not answer" in text
    assert "trying again for 1 seconds" in text


class Answer:
    """An OpenAI-compatible server that gives the same answer to every request."""

    def __init__(self, **choice):
        self.choice = {
            "index": 0,
            "token_ids": [7, 1],
            "sampler_logprobs": [-1.0, -2.0],
            "logprobs": {"token_logprobs": [-1.0, -2.0]},
            "finish_reason": "stop",
            "weights_version": 1,
        } | choice
        self.choices = [self.choice]

    async def models(self, _):
        return JSONResponse({"data": [{"id": "m", "weights_version": 0}]})

    async def answer(self, _):
        return JSONResponse({"choices": self.choices})

    async def weights(self, _):
        return JSONResponse({})

    def app(self):
        posts = {"/v1/completions": self.answer, "/weights": self.weights}
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                *(Route(path, call, methods=["POST"]) for path, call in posts.items()),
            ]
        )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"sampler_logprobs": None}, "has no 'sampler_logprobs'"),
        ({"logprobs": None}, "has no 'logprobs'"),
        ({"sampler_logprobs": [-1.0]}, "2 tokens, 1 log-probabilities of the sampler"),
        ({"token_ids": [], "sampler_logprobs": [], "logprobs": {"token_logprobs": []}}, "at least one token"),
        ({"token_ids": [7, 9999]}, "token id 9999, but .* has another model"),
        ({"token_ids": [3, -7]}, "token id -7, but .* has another model"),
        ({"sampler_logprobs": [None, -1.0]}, "log-probability that is not a finite number"),
        ({"sampler_logprobs": ["a", -1.0]}, "log-probability that is not a finite number"),
        ({"token_ids": [7, None]}, "token id that is not an integer"),
        ({"token_ids": [7, 2.5]}, "token id that is not an integer"),
        ({"finish_reason": "abort"}, "with 'abort'"),
        ({"weights_version": 3}, "something else also publishes"),
        ({"weights_version": 0}, "lost its weights 5 times"),
    ],
)
def test_invalid_server_answers(opened, folder, choice, message):
    with running(Answer(**choice).app()) as url:
        engine = engine_at(url, opened, folder)
        with pytest.raises(InputError, match=message):
            engine.generate(opened.params, requests_of(sampling_of(opened), prompts=1, group=1))


def test_too_few_responses(opened, folder):
    with running(Answer().app()) as url, pytest.raises(InputError, match="1 response to 3 requests"):
        engine_at(url, opened, folder).generate(opened.params, requests_of(sampling_of(opened), prompts=1))


@pytest.mark.parametrize(("name", "app"), [("vllm", vllm), ("sglang", sglang)])
def test_run_on_vllm_and_sglang(opened, folder, tmp_path, name, app):
    state = ServerState(opened.policy.vocab_size)
    with running(app(state)) as url:
        config = config_of(folder, run=str(tmp_path / "run"), engine_url=url, engine_server=name, models="none", steps=2)
        rljax.train(config, reward=even_length, problems=(PROBLEMS[:6], PROBLEMS[6:]))
    assert len(state.requests) == 2 * 2 + 2 * 8, "two evaluations of two prompts, two steps of eight responses"
    assert len(state.folders) == 3, "the weights at the beginning and after each step"
    assert {row["entropy"] > 0 for row in rows(tmp_path / "run") if row["phase"] == "rl"} == {True}
    seeds = [body.get("seed", body.get("sampling_params", {}).get("sampling_seed")) for body in state.requests]
    assert len(set(seeds)) == len(seeds) - 2, "every evaluation has the same seeds"
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_restarted_server_without_versions(opened, folder):
    state = ServerState(opened.policy.vocab_size)
    requests = requests_of(sampling_of(opened), prompts=2)
    with running(vllm(state)) as url:
        engine = engine_at(url, opened, folder, server="vllm", patience=20.0)
        engine.generate(opened.params, requests)
    with running(vllm(state), port=int(url.rsplit(":", 1)[1])):
        engine.http.losses += 1  # no request failed while the server was down, so the engine has not noticed the restart
        assert len(engine.generate(opened.params, requests)) == len(requests)
    assert len(state.folders) == 2
    assert state.folders[0] == state.folders[1]


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_dialects_with_one_log_probability_refuse_truncation(name):
    untruncated = Sampling(4, (1,))
    assert dialect_of(name).why_unsupported(untruncated) is None
    for sampling in (untruncated._replace(top_k=3), untruncated._replace(top_p=0.5), untruncated._replace(stop=("a",))):
        assert dialect_of(name).why_unsupported(sampling)
    with pytest.raises(InputError, match="choose one of rljax, vllm, sglang"):
        dialect_of("trl")


def test_share_copies_responses_to_all_processes(server, opened, folder, monkeypatch):
    requests = requests_of(sampling_of(opened))
    found = engine_at(server[0], opened, folder).generate(opened.params, requests)
    monkeypatch.setattr(server_engine, "copy_from_first", lambda tree: jax.tree.map(np.asarray, tree))
    for ours, theirs in zip(server_engine._broadcast_responses(requests, found), found, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_in_flight_weights_change_running_responses(folder, opened):
    """Weights published in flight apply to the rest of a response; each token records the version that sampled it."""
    other = jax.tree.map(lambda leaf: leaf * 0.5, opened.params)
    sampling = sampling_of(opened)._replace(max_tokens=120, eos_ids=())
    requests = [Request(tuple(opened.tokenizer.encode("one two")), index, index, sampling, index) for index in range(4)]
    with serving(folder, max_response_tokens=120) as (url, served):
        engine = engine_at(url, opened, folder, needed=140, in_flight=True)
        engine.publish_in_flight(opened.params, 3)
        before = engine.generate(opened.params, requests)
        assert [set(response.version.tolist()) for response in before] == [{3}] * 4
        proceed, calls = served.batcher.decoder.proceed, []

        def publish_during_the_third_call(stopped, *, wants_top):
            calls.append(1)
            if len(calls) == 3:
                threading.Thread(target=engine.publish_in_flight, args=(other, 4)).start()
            time.sleep(0.05)
            return proceed(stopped, wants_top=wants_top)

        served.batcher.decoder.proceed = publish_during_the_third_call
        after = engine.generate(opened.params, requests)
    versions = [response.version.tolist() for response in after]
    assert any(8 < row.count(3) < len(row) for row in versions)
    assert versions == [sorted(row) for row in versions], "a response never returns to older weights"
    for old, new, row in zip(before, after, versions, strict=True):
        same = row.count(3)
        assert new.tokens[:same].tolist() == old.tokens[:same].tolist()
        assert new.policy_logp[:same] == pytest.approx(old.policy_logp[:same], abs=1e-5)
        assert same == len(row) or new.policy_logp[same : same + 1] != pytest.approx(
            old.policy_logp[same : same + 1], abs=1e-3
        )


def test_run_publishes_weights_in_flight(folder, tmp_path, monkeypatch):
    """The server samples slowly, so new weights reach responses in progress; the metrics count the version of each token."""
    config = config_of(folder, steps=5, group_size=2, staleness=2, checkpoint_every=1)
    config = config.replace(max_response_tokens=60, logged_rollouts=8, run=str(tmp_path / "run"))
    problems, ages = (PROBLEMS[:6], PROBLEMS[6:]), []
    original = metrics.sampled_versions
    monkeypatch.setattr(metrics, "sampled_versions", lambda groups: ages.append(original(groups)) or ages[-1])
    with serving(folder, max_response_tokens=64) as (url, served):
        config = config.replace(engine_url=url, engine_in_flight=True)
        proceed = served.batcher.decoder.proceed
        served.batcher.decoder.proceed = lambda *rest, **named: time.sleep(0.1) or proceed(*rest, **named)
        rljax.train(config, reward=even_length, problems=problems)
        rljax.train(config.replace(steps=7), resume=tmp_path / "run", reward=even_length, problems=problems)
    found = [row for row in rows(tmp_path / "run") if row["phase"] == "rl"]
    assert [row["step"] for row in found] == [*range(1, 8)]
    assert found[0]["staleness"] == 0
    assert all(0 <= row["staleness"] <= 2 for row in found)
    for row, versions in zip(found, ages, strict=True):
        assert row["staleness"] == pytest.approx(row["step"] - 1 - versions.mean())
    assert any(len(set(versions.tolist())) > 1 for versions in ages), "some rollout must have tokens of two versions"
    opened = rljax.load(tmp_path / "run", reward=even_length, problems=PROBLEMS)
    assert opened.config.sampling.engine_in_flight is None, "the run is opened without the server"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_in_flight": True}, "needs a server of rljax"),
        ({"engine_in_flight": True, "engine_url": "http://127.0.0.1:9"}, "staleness of at least 1"),
        (
            {"engine_in_flight": True, "engine_url": "http://127.0.0.1:9", "staleness": 1, "engine_server": "vllm"},
            "reports the weight version of each token",
        ),
    ],
)
def test_in_flight_needs_a_server_with_versions(folder, settings, message):
    with pytest.raises(InputError, match=message):
        config_of(folder, **settings)
