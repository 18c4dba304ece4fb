"""Tests of the server: answers match `rljax sample`, settings may differ within a batch, and bad input is rejected."""

import asyncio
import json
import random
import shutil
import time

import httpx
import jax.numpy as jnp
import numpy as np
import openai
import pytest
from served_model import NAME, SPECIALS, events, make_model, post, serving

from rljax.data.problem import Problem
from rljax.models import Packed
from rljax.programs.trained_policy import load
from rljax.serving.batching import DecodingFailure
from rljax.serving.decoding_rows import begin_rows, continue_rows

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def opened(folder):
    return load(folder, problems=[Problem("", "")], max_response_tokens=64)


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder) as (url, served):
        yield url, served


def token_ids_of(body):
    return [choice["token_ids"] for choice in body["choices"]]


def test_greedy_tokens_match_rljax_sample(server, opened):
    url, _ = server
    prompts = [[6 + index, 20, 33][: 1 + index % 3] for index in range(12)]
    found = post(url, TEXT, prompt=prompts, max_tokens=30, temperature=0, return_token_ids=True).json()
    expected = sample_tokens(opened, prompts, 30)
    assert token_ids_of(found) == expected
    assert found["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert found["usage"]["completion_tokens"] == sum(map(len, expected))


def sample_tokens(opened, prompts, max_tokens, **settings):
    worker = opened.worker.with_sampling(max_tokens=max_tokens)
    rows = opened._replace(worker=worker).sample_ids(prompts, **settings)
    return [row for group in rows for row in group]


def test_chat_text_matches_rljax_sample(server, opened):
    url, _ = server
    body = post(url, CHAT, messages=[{"role": "user", "content": "hello"}], max_tokens=20, temperature=0).json()
    chat = load(opened.config.model.path, problems=[Problem("", "")], max_response_tokens=20, chat=True)
    ((expected,),) = chat.sample(["hello"])
    assert body["choices"][0]["message"] == {"role": "assistant", "content": expected}


def test_log_probabilities_match_the_policy_score(server, opened):
    url, _ = server
    body = post(
        url, TEXT, prompt=[9, 8, 7], max_tokens=25, seed=3, temperature=0.7, logprobs=5, return_token_ids=True
    ).json()
    choice = body["choices"][0]
    tokens = jnp.tile(jnp.array([[9, 8, 7, *choice["token_ids"]]]), (8, 1))  # One row per device.
    rows, count = tokens.shape
    scored, place = jnp.tile(jnp.arange(3, count), (rows, 1)), jnp.arange(rows * (count - 3)).reshape(rows, -1)
    packed = Packed(tokens, jnp.tile(jnp.arange(count), (rows, 1)), jnp.ones((rows, count), int), scored, place)
    scores = np.asarray(opened.policy.score(opened.params, packed, 0.7).logp).reshape(rows, -1)[0]
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], scores, atol=1e-4)
    assert all(len(row) >= 1 for row in choice["logprobs"]["top_logprobs"])


def test_settings_may_differ_within_a_batch(server):
    url, _ = server
    kinds = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.5, "top_p": 0.8, "seed": 5},
        {"top_k": 1},
    ]

    async def ask(client, kind):
        answer = await client.post(url + TEXT, json={"model": NAME, "prompt": [9], "return_token_ids": True} | kind)
        return token_ids_of(answer.json())[0]

    async def ask_all(kinds):
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            return await asyncio.gather(*[ask(client, kind) for kind in kinds])

    together = asyncio.run(ask_all(kinds * 3))
    alone = [asyncio.run(ask_all([kind]))[0] for kind in kinds]
    assert together == alone * 3
    assert alone[0] == alone[3]  # Both always choose the most likely token.
    assert alone[0] != alone[1]


def test_seed_gives_the_same_tokens_as_the_engine(server, opened):
    url, _ = server
    body = post(url, TEXT, prompt=[9, 10], n=2, max_tokens=12, seed=11, top_k=50, return_token_ids=True).json()
    sampling = opened.worker.with_sampling(max_tokens=12, temperature=1.0, top_k=50).sampling
    from rljax.rollout.engine_protocols import Request

    requests = [Request((9, 10), 0, 0, sampling, 11 + index) for index in range(2)]
    responses = opened.worker.engine.generate(opened.params, requests)
    assert token_ids_of(body) == [response.tokens.tolist() for response in responses]
    found = [choice["sampler_logprobs"] for choice in body["choices"]]
    for values, response in zip(found, responses, strict=True):
        np.testing.assert_allclose(values, response.behaviour_logp, atol=1e-4)


def test_64_concurrent_openai_clients(server):
    url, served = server

    async def talk(client, index):
        stream = await client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": f"hello {index % 4}"}],
            max_tokens=8 + index % 5,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        complete = await client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": f"hello {index % 4}"}],
            max_tokens=8 + index % 5,
            temperature=0,
        )
        assert text == complete.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == complete.usage.completion_tokens > 0
        assert complete.choices[0].finish_reason in ("stop", "length")
        return index % 20, text

    async def talk_all():
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", http_client=openai.DefaultAsyncHttpxClient(trust_env=False)
        ) as client:
            assert [model.id async for model in client.models.list()] == [NAME]
            return await asyncio.gather(*[talk(client, index) for index in range(64)])

    before = begin_rows._cache_size(), continue_rows._cache_size()
    found = asyncio.run(talk_all())
    assert len(set(found)) == 20
    assert (begin_rows._cache_size(), continue_rows._cache_size()) == before
    assert served.batcher.load[:2] == (0, 0)


def test_stop_string_ends_a_response_and_is_not_sent(server):
    url, _ = server
    complete = post(url, TEXT, prompt="ab", max_tokens=40, temperature=0).json()["choices"][0]["text"]
    stop = complete[9:11]
    expected = complete[: complete.index(stop)]
    body = post(url, TEXT, prompt="ab", max_tokens=40, temperature=0, stop=stop).json()
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (expected, "stop")
    assert body["usage"]["completion_tokens"] <= 40
    streamed = events(post(url, TEXT, prompt="ab", max_tokens=40, temperature=0, stop=[stop], stream=True).text)
    assert "".join(event["choices"][0]["text"] for event in streamed) == expected
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"


def test_stop_token_ends_a_response(server):
    url, _ = server
    (complete,) = token_ids_of(post(url, TEXT, prompt="ab", max_tokens=20, temperature=0, return_token_ids=True).json())
    stop = complete[5]
    body = post(url, TEXT, prompt="ab", max_tokens=20, temperature=0, stop_token_ids=[stop], return_token_ids=True).json()
    assert token_ids_of(body) == [complete[: complete.index(stop) + 1]]
    assert body["choices"][0]["finish_reason"] == "stop"


def test_stream_equals_complete_response(server):
    url, _ = server
    settings = {"prompt": [9, 10], "n": 2, "seed": 1, "max_tokens": 20, "logprobs": 1, "return_token_ids": True}
    complete = post(url, TEXT, **settings).json()["choices"]
    chunks = [event["choices"][0] for event in events(post(url, TEXT, stream=True, **settings).text)]
    for choice in complete:
        own_chunks = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert [token for chunk in own_chunks for token in chunk["token_ids"]] == choice["token_ids"]
        logp = [value for chunk in own_chunks for value in chunk["logprobs"]["token_logprobs"]]
        np.testing.assert_allclose(logp, choice["logprobs"]["token_logprobs"], atol=1e-5)
        assert own_chunks[0]["prompt_token_ids"] == [9, 10]


def test_chat_log_probabilities_include_the_most_likely_tokens(server):
    url, _ = server
    body = post(
        url, CHAT, messages=[{"role": "user", "content": "a"}], max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    for entry in body.json()["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-5)


def test_logprob_tokens_are_distinguished_by_their_bytes(server, opened):
    """Most single bytes are not valid text, so the decoded text would be the same for most tokens."""
    url, _ = server
    settings = {"max_tokens": 40, "seed": 3, "temperature": 2}
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20}
    byte_tokens = 0
    for choice in post(url, CHAT, n=6, **chat, **settings).json()["choices"]:
        entries = [entry for entry in choice["logprobs"]["content"] if entry["token"] not in SPECIALS]
        byte_tokens += sum(entry["token"].startswith("bytes:") for entry in entries)
        text = b"".join(bytes(entry["bytes"]) for entry in entries).decode(errors="replace")
        assert text == choice["message"]["content"]
    assert byte_tokens > 10
    (choice,) = post(url, TEXT, prompt="a", logprobs=5, return_token_ids=True, **settings).json()["choices"]
    assert [len(row) for row in choice["logprobs"]["top_logprobs"]] == [5] * len(choice["token_ids"])
    assert all(
        row[token] == pytest.approx(value, abs=1e-5)
        for row, token, value in zip(
            *(choice["logprobs"][name] for name in ("top_logprobs", "tokens", "token_logprobs")), strict=True
        )
        if token in row
    )
    for index, offset in enumerate(choice["logprobs"]["text_offset"]):
        before = opened.tokenizer.decode(choice["token_ids"][:index])
        assert 0 <= len(before) - offset <= 1 or before.endswith("\N{REPLACEMENT CHARACTER}")
        assert choice["text"].startswith(before[:offset])


def test_samples_differ_without_a_seed(server):
    body = post(server[0], TEXT, prompt=["ab"] * 3, n=2, max_tokens=20, return_token_ids=True).json()
    assert len(set(map(tuple, token_ids_of(body)))) == 6


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "4", "tool_call_id": 7},
        {"role": "user", "content": "a", "name": ["b"]},
        {"role": "assistant", "content": "a", "refusal": "no"},
        {"role": "user", "content": [{"type": "image_url", "text": "a"}]},
        {"role": "assistant", "content": "a", "tool_calls": {}},
        {"role": "assistant", "content": "a", "tool_calls": [{"id": 5, "function": {"name": "f", "arguments": {}}}]},
        {"role": "user", "content": "a", "tool_calls": [{"id": "5", "function": {"name": "f", "arguments": {}}}]},
    ],
)
def test_unused_message_entries_are_rejected(server, message):
    answer = post(server[0], CHAT, messages=[message], max_tokens=2)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0]")


def test_stream_options_need_stream(server):
    answer = post(server[0], CHAT, messages=[{"role": "user", "content": "a"}], stream_options={"include_usage": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options")


def test_new_weights_get_a_new_version(folder, tmp_path):
    second, wider = make_model(tmp_path / "second", seed=1), make_model(tmp_path / "wider", width=32)
    with serving(folder) as (url, _):
        body = {"prompt": [9, 10], "max_tokens": 12, "temperature": 0, "return_token_ids": True}
        before = post(url, TEXT, **body).json()

        def load_weights(**body):
            return httpx.post(f"{url}/weights", json=body, timeout=60, trust_env=False)

        assert load_weights(folder=str(second), version=3).json() == {"weights_version": 3}
        after = post(url, TEXT, **body).json()
        assert (before["weights_version"], after["weights_version"]) == (0, 3)
        assert token_ids_of(before) != token_ids_of(after)
        expected = sample_tokens(load(second, problems=[Problem("", "")], max_response_tokens=64), [[9, 10]], 12)
        assert token_ids_of(after) == expected
        assert load_weights(folder=str(second), version=3).json() == {"weights_version": 3}, "the same request again"
        assert load_weights(folder=str(folder), version=3).status_code == 409
        response = load_weights(folder=str(wider), version=4)
        assert response.status_code == 400
        assert "another model or tokenizer" in response.json()["error"]["message"]
        assert load_weights(folder=str(tmp_path / "absent"), version=4).status_code == 400
        assert load_weights(folder=7, version=4).status_code == 400
        assert post(url, TEXT, **body).json()["weights_version"] == 3


def test_new_weights_print_no_note_about_unused_settings(server, folder, tmp_path, capsys):
    new = shutil.copytree(folder, tmp_path / "new")
    (new / "generation_config.json").write_text('{"do_sample": true, "top_p": 0.5}')
    server[1].load_weights(str(new))
    assert capsys.readouterr().err == ""


def test_disconnected_clients_free_their_rows(folder):
    with serving(folder, context=1024, max_response_tokens=1000, rows=2) as (url, served):
        body = {"model": NAME, "prompt": [9], "max_tokens": 1000, "n": 64, "stop": ["never"]}
        with (
            httpx.Client(timeout=60, trust_env=False) as client,
            client.stream("POST", url + TEXT, json=body | {"stream": True}) as answer,
        ):
            assert next(answer.iter_bytes())
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + TEXT, json=body, timeout=0.2, trust_env=False)
        cancelled = b"rljax_cancelled_requests_total 2.0"
        deadline = time.monotonic() + 10
        while cancelled not in httpx.get(f"{url}/metrics", trust_env=False).content and time.monotonic() < deadline:
            time.sleep(0.02)  # A busy server may start the second request only after its client has disconnected.
        assert cancelled in httpx.get(f"{url}/metrics", trust_env=False).content
        assert served.batcher.load[:2] == (0, 0)


def test_failed_stream_does_not_count_as_cancelled(folder):
    with serving(folder) as (url, served):
        served.batcher.submit = lambda jobs: [job.deliver(DecodingFailure("broken")) for job in jobs]
        answer = post(url, TEXT, prompt="a", stream=True)
        assert "The response cannot be completed: broken." in answer.text
        assert b"rljax_cancelled_requests_total 0.0" in httpx.get(f"{url}/metrics", trust_env=False).content


def test_full_queue_returns_429(folder):
    with serving(folder, rows=1, queue=2) as (url, _):

        async def ask(client):
            body = {"model": NAME, "prompt": [9], "max_tokens": 64, "n": 2}
            return await client.post(url + TEXT, json=body)

        async def ask_all():
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                return await asyncio.gather(*[ask(client) for _ in range(8)])

        answers = asyncio.run(ask_all())
        assert {answer.status_code for answer in answers} == {200, 429}
        full = next(answer for answer in answers if answer.status_code == 429)
        assert full.headers["Retry-After"] == "1"
        assert full.json()["error"]["code"] == "queue_full"


def test_every_path_except_health_needs_the_key(folder):
    with serving(folder, api_key="sécret") as (url, _):
        get = lambda path, **headers: httpx.get(url + path, headers=headers, trust_env=False)  # noqa: E731
        assert get("/health").status_code == 200
        assert [get(path).status_code for path in ("/v1/models", "/metrics")] == [401, 401]
        assert get("/v1/models", Authorization="Bearer wrong").status_code == 401
        assert get("/v1/models", Authorization="Bearer sécret".encode()).status_code == 200
        assert post(url, TEXT, prompt="a").json()["error"]["type"] == "authentication_error"


INVALID_REQUESTS = [
    (TEXT, {"prompt": "a", "model": "gpt-4"}, 404, "model_not_found"),
    (TEXT, {"prompt": "a", "model": 3}, 400, None),
    (TEXT, {}, 400, None),
    (TEXT, {"prompt": []}, 400, None),
    (TEXT, {"prompt": ""}, 400, None),
    (TEXT, {"prompt": [1, "a"]}, 400, None),
    (TEXT, {"prompt": [100000]}, 400, None),
    (TEXT, {"prompt": [-1]}, 400, None),
    (TEXT, {"prompt": [True]}, 400, None),
    (TEXT, {"prompt": [9] * 192}, 400, "context_length_exceeded"),
    (TEXT, {"prompt": "a", "max_tokens": 65}, 400, None),
    (TEXT, {"prompt": "a", "max_tokens": 0}, 400, None),
    (TEXT, {"prompt": "a", "max_tokens": 1.5}, 400, None),
    (TEXT, {"prompt": "a", "temperature": -1}, 400, None),
    (TEXT, {"prompt": "a", "temperature": "hot"}, 400, None),
    (TEXT, {"prompt": "a", "top_p": 0}, 400, None),
    (TEXT, {"prompt": "a", "n": 0}, 400, None),
    (TEXT, {"prompt": "a", "n": 129}, 400, None),
    (TEXT, {"prompt": "a", "stop": ""}, 400, None),
    (TEXT, {"prompt": "a", "stop": ["<end>"]}, 400, None),
    (TEXT, {"prompt": "a", "stop_token_ids": 0}, 400, None),
    (TEXT, {"prompt": "a", "stop_token_ids": ""}, 400, None),
    (TEXT, {"prompt": "a", "stream": "yes"}, 400, None),
    (TEXT, {"prompt": "a", "logit_bias": {"5": 1}}, 400, "unsupported_parameter"),
    (TEXT, {"prompt": "a", "echo": True}, 400, "unsupported_parameter"),
    (TEXT, {"prompt": "a", "colour": 1}, 400, "unknown_parameter"),
    (CHAT, {"messages": []}, 400, None),
    (CHAT, {"messages": [{"role": "user"}]}, 400, None),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}, 400, None),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400, None),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, 400, None),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}, 400, None),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, 400, None),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}}, 400, None),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), INVALID_REQUESTS)
def test_invalid_request_is_rejected(server, path, body, status, code):
    answer = post(server[0], path, **body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert code is None or error["code"] == code
    assert "Traceback" not in answer.text


def test_fields_without_effect_are_accepted(server):
    body = {"user": "me", "frequency_penalty": 0, "logit_bias": {}, "echo": False, "metadata": None, "seed": None}
    assert post(server[0], TEXT, prompt="a", max_tokens=1, **body).status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"model": "\\ud800"}', b"9" * 5000],
)
def test_invalid_json_is_rejected(server, content):
    answer = httpx.post(server[0] + TEXT, content=content, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"model": "a", "model": "b"}', "the name 'model' occurs twice in an object"),
        (b'{"temperature": NaN}', "NaN is not JSON"),
        (b'{"model": }', "Expecting value: line 1 column 11 (char 10)"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_invalid_json_is_explained(server, content, reason):
    answer = httpx.post(server[0] + TEXT, content=content, trust_env=False)
    assert answer.json()["error"]["message"] == f"The body must be JSON in UTF-8 ({reason})."


def test_stop_string_with_a_special_token_names_the_field_for_token_ids(server):
    message = post(server[0], TEXT, prompt="a", stop="<end>").json()["error"]["message"]
    assert "Give its id with stop_token_ids;" in message


def test_large_body_is_rejected(server):
    assert httpx.post(server[0] + TEXT, content=b" " * 2_000_000, trust_env=False).status_code == 413


def test_unknown_path_or_method_is_rejected(server):
    for method, path, status in [
        ("GET", "/v2", 404),
        ("GET", TEXT, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/models/x", 404),
    ]:
        answer = httpx.request(method, server[0] + path, trust_env=False)
        assert (answer.status_code, set(answer.json())) == (status, {"error"})


def test_tool_calls_are_read(monkeypatch, server):
    url, served = server
    text = 'Let me see.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    tokenizer_type = type(served.tokenizer)
    monkeypatch.setattr(tokenizer_type, "decode", lambda self, ids: text)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    ask = {"messages": [{"role": "user", "content": "a"}], "tools": tools, "max_tokens": 4, "seed": 0}
    message = post(url, CHAT, **ask).json()["choices"][0]["message"]
    assert message["content"] == "Let me see."
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "add", "arguments": '{"a": 1}'}]
    (chunk,) = events(post(url, CHAT, stream=True, **ask).text)
    assert chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "add"
    stopped = post(url, CHAT, **ask, stop=["see"]).json()["choices"][0]["message"]
    assert (stopped["content"], len(stopped["tool_calls"])) == ("Let me ", 1)
    text += '<tool_call>{"name": "ad</tool_call>'
    assert post(url, CHAT, **ask).json()["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_tools_reach_the_prompt(server):
    url, served = server
    tools = [{"type": "function", "function": {"name": "ad", "parameters": {}}}]
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "return_token_ids": True}
    with_tools, without_tools = (
        post(url, CHAT, **ask, **more).json() for more in ({"tools": tools}, {"tools": tools, "tool_choice": "none"})
    )
    texts = [served.tokenizer.inner.decode(body["choices"][0]["prompt_token_ids"]) for body in (with_tools, without_tools)]
    assert '"name": "ad"' in texts[0]
    assert texts[1] == "<u>a<end><a>"


def random_json(rng, depth=0):
    """Return a random JSON value."""
    kinds = [None, True, -1, 0, 3, 1e300, 10**30, "", "a", "<end>", "\U0001f600", [], {}, NAME]
    if depth < 2 and rng.random() < 0.4:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 2 and rng.random() < 0.2:
        return {rng.choice(["role", "content", "type", "x"]): random_json(rng, depth + 1) for _ in range(2)}
    return rng.choice(kinds)


FIELDS = (
    *("model", "prompt", "messages", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids"),
    *(
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "tools",
        "tool_choice",
        "logit_bias",
        "x",
    ),
)


def fuzz(url, count, seed):
    """Send requests with random values in some fields; return the number of replies with each status."""
    rng, statuses = random.Random(seed), {}
    with httpx.Client(timeout=60, trust_env=False) as client:
        for _ in range(count):
            path = rng.choice([TEXT, CHAT, "/weights"])
            good = {"prompt": "a"} if path == TEXT else {"messages": [{"role": "user", "content": "a"}]}
            body = {"model": NAME, "max_tokens": 2} | ({} if path == "/weights" else good)
            body |= {rng.choice(FIELDS): random_json(rng) for _ in range(rng.randrange(3))}
            content = json.dumps(body).encode()
            if rng.random() < 0.1:
                content = content[: rng.randrange(len(content))]
            answer = client.post(url + path, content=content)
            assert answer.status_code in (200, 400, 404, 413, 429), (content, answer.text)
            assert "Traceback" not in answer.text
            assert answer.status_code == 200 or set(answer.json()) == {"error"}
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    return statuses


def test_random_fields_never_crash_the_server(server):
    url, _ = server
    found = fuzz(url, 300, seed=0)
    assert found[400] > 100
    assert found[200] > 10
    assert httpx.get(f"{url}/health", trust_env=False).json()["status"] == "ok"
