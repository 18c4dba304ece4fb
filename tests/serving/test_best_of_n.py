"""Tests of the server options `--best-of` and `--majority`: the chosen sample, the token counts, and rejected requests."""

import json

import httpx
import numpy as np
import pytest
from served_model import NAME, events, make_model, post, serving
from small_cli import refused

from rljax.errors import InputError
from rljax.programs import serving_extensions
from rljax.programs.serving import ExtensionSettings
from rljax.rewards.votes import vote_reader
from rljax.serving.best_of_n import best_index, by_votes
from rljax.serving.extensions import Prompt, SampledAnswer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "2+2?"}]
SAMPLING = {"seed": 3, "top_k": 2, "max_tokens": 5, "return_token_ids": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def samples(folder):
    """Responses of a server without these options: four samples for a text prompt, and four for a chat."""
    with serving(folder) as (url, _):
        text = post(url, TEXT, prompt="a", n=4, logprobs=0, **SAMPLING).json()
        chat = post(url, CHAT, messages=MESSAGES, n=4, logprobs=True, **SAMPLING).json()
    return text, chat


def mean_logp(choice):
    return np.mean(choice["logprobs"]["token_logprobs"])


def test_best_of_sends_the_most_confident_sample(folder, samples, tmp_path):
    text, chat = samples
    means = [mean_logp(choice) for choice in text["choices"]]
    assert len({round(mean, 4) for mean in means}) > 1
    with serving(folder, extensions=ExtensionSettings(best_of=4), log=tmp_path / "log") as (url, _):
        found = post(url, TEXT, prompt=["a", "a"], logprobs=0, **SAMPLING).json()
        assert [choice["index"] for choice in found["choices"]] == [0, 1]
        for choice in found["choices"]:
            assert choice["token_ids"] == text["choices"][int(np.argmax(means))]["token_ids"]
            assert choice["mean_logprob"] == pytest.approx(max(means), abs=1e-4)
            assert choice["samples"] == 4
        assert found["usage"]["completion_tokens"] == 2 * text["usage"]["completion_tokens"]
        streamed = events(
            post(url, CHAT, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **SAMPLING).text
        )
        complete = post(url, CHAT, messages=MESSAGES, **SAMPLING).json()
        (chunk,) = (event["choices"][0] for event in streamed[:-1])
        assert chunk["delta"] == complete["choices"][0]["message"]
        assert chunk["finish_reason"] == complete["choices"][0]["finish_reason"]
        assert streamed[-1]["usage"] == complete["usage"] == chat["usage"]
        rows = [json.loads(line) for line in (tmp_path / "log" / "answers.jsonl").read_text().splitlines()]
        assert [row["text"] for row in rows[:2]] == [choice["text"] for choice in found["choices"]]
        assert [row["id"] for row in rows[:2]] == [f"{found['id']}-{index}" for index in range(2)]
        assert len(rows) == 4  # Only the samples that are sent are logged.
        tokens = 2 * (text["usage"]["completion_tokens"] + chat["usage"]["completion_tokens"])
        assert f"rljax_completion_tokens_total {tokens:.1f}" in httpx.get(f"{url}/metrics", trust_env=False).text


def test_best_of_takes_one_sample_at_temperature_0(folder):
    body = {"prompt": "a", "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    with serving(folder) as (url, _):
        expected = post(url, TEXT, **body).json()
    with serving(folder, extensions=ExtensionSettings(best_of=4)) as (url, _):
        found = post(url, TEXT, **body).json()
    assert found["usage"] == expected["usage"]
    assert found["choices"] == expected["choices"]


def test_choose_by_sends_the_sample_with_the_best_reward(folder, samples, tmp_path):
    rules = tmp_path / "rules.yaml"
    texts = [choice["text"] for choice in samples[0]["choices"]]
    letters = sorted({*"".join(texts)} - {*texts[2]})
    rules.write_text(json.dumps({f"letter {index}": {"must_not": f"[{letter}]"} for index, letter in enumerate(letters)}))
    with serving(folder, extensions=ExtensionSettings(best_of=4, choose_by=f"constitution:{rules}")) as (url, _):
        (choice,) = post(url, TEXT, prompt="a", **SAMPLING).json()["choices"]
    assert choice["token_ids"] == samples[0]["choices"][2]["token_ids"]
    assert choice["score"] == 0


def test_majority_counts_the_answers_that_the_reward_extracts(folder, samples, monkeypatch):
    rewards = []

    def first_letter(name):
        rewards.append(name)
        return lambda text: text[:1]

    monkeypatch.setattr(serving_extensions, "vote_reader", first_letter)
    texts = [choice["text"] for choice in samples[0]["choices"]]
    votes = [text[:1] for text in texts]
    most_votes = max(map(votes.count, votes))
    with serving(folder, extensions=ExtensionSettings(majority=4)) as (url, _):
        (choice,) = post(url, TEXT, prompt="a", **SAMPLING).json()["choices"]
    assert most_votes > 1
    assert choice["agreement"] == most_votes / 4
    assert votes.count(choice["text"][:1]) == most_votes
    assert rewards == ["exact"]  # The default for a model folder that is not a run.


class FakeChoice:
    def __init__(self, text, logp):
        self.text, self.logp = text, logp


def test_equal_answers_are_counted_and_confidence_breaks_ties():
    texts = ["7+5=12;#12", "12", "so it is #12.0", "#13", "#13"]
    answers = [SampledAnswer(Prompt((1,), {}), None, FakeChoice(text, [-0.1])) for text in texts]
    ranking = by_votes(vote_reader("exact"))(answers)
    assert ranking.scores.tolist() == [0.4, 0, 0.4, 0.4, 0.4]  # A text without "#" contains no result.
    assert best_index(ranking.scores, np.array([-0.4, -0.1, -0.3, -0.2, -0.2])) == 3
    assert best_index(np.array([np.nan, np.nan]), np.array([-2.0, -1.0])) == 1


def test_requests_for_several_choices_are_rejected(folder):
    with serving(folder, extensions=ExtensionSettings(best_of=4), queue=8) as (url, _):
        several = post(url, TEXT, prompt="a", n=2)
        assert (several.status_code, several.json()["error"]["code"]) == (400, "chooses_answers")
        assert post(url, TEXT, prompt="a", seeds=[1]).json()["error"]["param"] == "seeds"
        many = post(url, TEXT, prompt=["a", "b", "c"])
        assert many.status_code == 400
        assert "2 prompts of 4 samples" in many.json()["error"]["message"]
        assert post(url, TEXT, prompt=["a", "b"], max_tokens=2).status_code == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ExtensionSettings(best_of=4, majority=4), "give one of them"),
        (ExtensionSettings(choose_by="format"), "needs --best-of"),
        (ExtensionSettings(best_of=1), "give 2 to 256, the length of the queue"),
        (ExtensionSettings(majority=257), "give 2 to 256, the length of the queue"),
        (ExtensionSettings(best_of=2, choose_by="exact"), "without a reference"),
        (ExtensionSettings(best_of=2, choose_by="model:/nowhere"), "/nowhere"),
        (ExtensionSettings(best_of=2, choose_by="formats"), "there is no reward 'formats'"),
    ],
)
def test_invalid_options_are_rejected(folder, settings, message):
    with pytest.raises(InputError, match=message), serving(folder, extensions=settings):
        pass


def test_invalid_flags_are_rejected(folder, capsys):
    refused(capsys, "give one of them", "serve", str(folder), "--port", "0", "--best-of", "2", "--majority", "2")
    refused(capsys, "without a reference", "serve", str(folder), "--port", "0", "--best-of", "2", "--choose-by", "exact")
