"""Tests of a server's filters: which texts they withhold, what clients and logs show, and filters that fail."""

import json

import httpx
import jax
import numpy as np
import pytest
from served_model import NAME, events, make_model, post, serving

from rljax.data.tokenizer import ByteTokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig
from rljax.models.value_model import init_value_params, value_model
from rljax.parallel import make_mesh
from rljax.preference.reward_model import RewardModel, make_reward_function, save_reward_model
from rljax.programs.serving import ExtensionSettings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAMPLING = {"seed": 3, "top_k": 2, "max_tokens": 5}
FILTER = """
def judge(completions, **columns):
    if any("crash" in completion for completion in completions):
        raise ValueError("crash")
    return [None if "?" in completion else 1.0 for completion in completions]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def texts(folder):
    """The texts of four samples; the first contains a letter that the last does not."""
    with serving(folder) as (url, _):
        found = [choice["text"] for choice in post(url, TEXT, prompt="a", n=4, **SAMPLING).json()["choices"]]
    assert set(found[0]) - set(found[3])
    return found


@pytest.fixture(scope="module")
def rules(texts, tmp_path_factory):
    """The name of a constitution, and for each sample whether it breaks the rules; the first does and the last does not."""
    letter = min(set(texts[0]) - set(texts[3]))
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(json.dumps({"letter": {"must_not": f"[{letter}]"}, "long": {"max_characters": 300, "weight": 0.5}}))
    return f"constitution:{path}", [letter in text for text in texts]


def read_metrics(url, name):
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)}


def count_verdicts(url, what):
    """Count the texts that passed, were withheld, and could not be judged."""
    found = read_metrics(url, "rljax_filtered_texts_total")
    verdicts = ("passed", "withheld", "unjudged")
    return [
        sum(value for key, value in found.items() if f'verdict="{verdict}"' in key and f'what="{what}"' in key)
        for verdict in verdicts
    ]


def test_answers_that_break_a_rule_are_withheld(folder, texts, rules, tmp_path):
    name, broken = rules
    with serving(folder, extensions=ExtensionSettings(filter_answers=(name,)), log=tmp_path / "log") as (url, _):
        assert count_verdicts(url, "answer") == [0, 0, 0]
        body = post(url, TEXT, prompt="a", n=4, logprobs=2, return_token_ids=True, **SAMPLING).json()
        for choice, text, is_broken in zip(body["choices"], texts, broken, strict=True):
            assert choice["text"] == ("" if is_broken else text)
            assert (choice["finish_reason"] == "content_filter") == is_broken
            assert bool(choice["token_ids"]) != is_broken
            assert bool(choice["sampler_logprobs"]) != is_broken
            assert bool(choice["logprobs"]["tokens"]) != is_broken
        rows = [json.loads(line) for line in (tmp_path / "log" / "answers.jsonl").read_text().splitlines()]
        assert [row.get("filtered") for row in rows] == [name if is_broken else None for is_broken in broken]
        assert [row["text"] for row in rows] == texts
        assert body["usage"]["completion_tokens"] == sum(row["tokens"] for row in rows)
        assert count_verdicts(url, "answer") == [4 - sum(broken), sum(broken), 0]
        streamed = events(post(url, TEXT, prompt="a", n=4, stream=True, **SAMPLING).text)
        assert [event["choices"][0]["text"] for event in streamed] == [choice["text"] for choice in body["choices"]]
        ends = [event["choices"][0]["finish_reason"] for event in streamed]
        assert ends == [choice["finish_reason"] for choice in body["choices"]]


def test_prompts_that_break_a_rule_are_rejected(folder, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"secret": {"must_not": "(?i)secret"}}))
    with serving(folder, extensions=ExtensionSettings(filter_prompts=(f"constitution:{path}",)), log=tmp_path / "log") as (
        url,
        served,
    ):
        chat = [{"role": "user", "content": "the SEcret"}, {"role": "user", "content": "?"}]
        ids = served.tokenizer.encode("secret")
        requests = [
            (TEXT, {"prompt": ["a", "secret"]}),
            (TEXT, {"prompt": ids}),
            (CHAT, {"messages": chat, "stream": True}),
        ]
        for endpoint, body in requests:
            response = post(url, endpoint, **body)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "content_filter"
        assert read_metrics(url, "rljax_completion_tokens_total") == {"rljax_completion_tokens_total": 0}
        assert count_verdicts(url, "prompt") == [1, 3, 0]
        rows = [json.loads(line) for line in (tmp_path / "log" / "answers.jsonl").read_text().splitlines()]
        assert [row.get("prompt", row.get("prompt_ids")) for row in rows] == ["secret", ids, chat]
        assert {row["filtered_prompt"] for row in rows} == {f"constitution:{path}"}
        answer = post(url, CHAT, messages=[{"role": "user", "content": "a"}], max_tokens=2)
        assert answer.json()["choices"][0]["finish_reason"] != "content_filter"


def test_best_sample_that_passes_is_sent(folder, texts, rules):
    name, broken = rules
    with serving(folder, extensions=ExtensionSettings(best_of=4, filter_answers=(name,))) as (url, _):
        (choice,) = post(url, TEXT, prompt="a", **SAMPLING).json()["choices"]
        assert choice["text"] in [text for text, is_broken in zip(texts, broken, strict=True) if not is_broken]
    strict = f"{name},least=1"
    with serving(folder, extensions=ExtensionSettings(best_of=4, filter_answers=(strict,))) as (url, _):
        (choice,) = post(url, TEXT, prompt="a", **SAMPLING).json()["choices"]
        assert (choice["text"], choice["finish_reason"], "mean_logprob" in choice) == ("", "content_filter", False)
        assert count_verdicts(url, "answer") == [0, 4, 0]


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory):
    """The folder of a reward model with random weights."""
    path, tokenizer = tmp_path_factory.mktemp("models") / "random", ByteTokenizer()
    shape = TransformerConfig(
        vocab_size=tokenizer.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32
    )
    model = value_model(Model(shape), 1)
    save_reward_model(path, RewardModel(model, init_value_params(model, jax.random.key(0)), tokenizer, chat=False))
    return path


def test_reward_model_can_filter_and_choose(folder, texts, reward_model):
    scores = np.array(make_reward_function(reward_model, make_mesh(1, 1))(["a"] * 4, texts))
    least = float(np.sort(scores)[1:3].mean())
    with serving(folder, extensions=ExtensionSettings(filter_answers=(f"model:{reward_model},least={least}",))) as (url, _):
        choices = post(url, TEXT, prompt="a", n=4, **SAMPLING).json()["choices"]
    assert [choice["finish_reason"] == "content_filter" for choice in choices] == (scores < least).tolist()
    with serving(folder, extensions=ExtensionSettings(best_of=4, choose_by=f"model:{reward_model}")) as (url, _):
        (choice,) = post(url, TEXT, prompt="a", **SAMPLING).json()["choices"]
    assert choice["text"] == texts[int(scores.argmax())]
    assert choice["score"] == pytest.approx(scores.max(), abs=1e-5)


def test_texts_that_a_filter_cannot_judge_are_withheld(folder, tmp_path):
    (tmp_path / "judge.py").write_text(FILTER)
    with serving(folder, extensions=ExtensionSettings(filter_prompts=(f"{tmp_path / 'judge.py'}:judge,least=0",))) as (
        url,
        _,
    ):
        statuses = [post(url, TEXT, prompt=text, max_tokens=1).status_code for text in ("a", "a?", "crash")]
        assert statuses == [200, 400, 400]  # The filter abstains on the second prompt, and raises an error on the third.
        assert count_verdicts(url, "prompt") == [1, 0, 2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("format", "write format,least=NUMBER"),
        ("model:/nowhere", "write model:/nowhere,least=NUMBER"),
        ("format,least=nan", "the lowest score"),
        ("format,least=much", "the lowest score"),
        ("exact,least=1", "without a reference"),
        ("constitution:/nowhere", "/nowhere"),
    ],
)
def test_invalid_filters_are_rejected(folder, name, message):
    with pytest.raises(InputError, match=message), serving(folder, extensions=ExtensionSettings(filter_answers=(name,))):
        pass
