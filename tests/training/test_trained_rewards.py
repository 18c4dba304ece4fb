"""Rewards that are no verdict on an answer, each in two RL steps: the policy does more often what they pay for.

The policy is a table of logits by position. It writes `#3 confidence: 0.9`, and only the two digits are open.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import SMALL
from whole_runs import rows

import rljax
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.models import Decoder, policy_of_logits

TOKENIZER = load_tokenizer("bytes")
PROMPT = 5
"""Tokens of a prompt, such as `1+2=`, with the one that opens it."""
SCRIPT = "#? confidence: 0.?"
ANSWER, CONFIDENCE = (PROMPT - 1 + place for place, sign in enumerate(SCRIPT) if sign == "?")
"""Positions whose logits are those of the two digits."""
PROMPTS = [Problem(f"{number}+2=", str(number + 2)) for number in range(8)]
FAVOURITE = {ANSWER: "3", CONFIDENCE: "9"}


def token(sign):
    """Its id."""
    return int(TOKENIZER.encode(sign)[-1])


def init(key):
    """At an open place the favourite has the odds 3 to 1 against each of three other digits."""
    table = np.zeros((PROMPT + len(SCRIPT) + 1, TOKENIZER.vocab_size), np.float32)
    for place, sign in enumerate(SCRIPT, start=PROMPT - 1):
        for digit in "1359" if sign == "?" else sign:
            table[place, token(digit)] = 14 + math.log(3) * (digit == FAVOURITE.get(place))
    table[PROMPT - 1 + len(SCRIPT), TOKENIZER.eos_token_id] = 14
    return {"table": jnp.asarray(table)}


def logits(params, packed):
    """Those of the position alone."""
    return params["table"][jnp.minimum(packed.positions, len(params["table"]) - 1)]


def begin(params, tokens, attention, budget):
    """Logits after the prompt, and the position of the next token."""
    lengths = attention.sum(-1, dtype=jnp.int32)
    return params["table"][lengths - 1], lengths


def advance(params, token, position):
    """Logits after a token."""
    return params["table"][jnp.minimum(position, len(params["table"]) - 1)], position + 1


SCRIPTED = policy_of_logits(TOKENIZER.vocab_size, init, logits, decoder=Decoder(begin, advance))


def share(params, place, digit):
    """Probability of a digit."""
    return float(jax.nn.softmax(params["table"][place])[token(digit)])


@pytest.fixture
def run(tmp_path):
    """Trains on a reward; gives the parameters, the numbers of the first step and the samples of both."""

    def train(reward):
        config = SMALL.replace(
            run=str(tmp_path / "run"),
            reward=reward,
            tokenizer="bytes",
            algorithm="rloo",
            warm_start_steps=0,
            steps=2,
            prompts=4,
            group_size=8,
            max_response_tokens=24,
            learning_rate=0.5,
            learning_rate_warmup=0,
            eval_every=0,
            heldout_problems=4,
            sample_every=1,
            shown_samples=4,
        )
        result = rljax.train(config, policy=SCRIPTED, problems=(PROMPTS[:4], PROMPTS[4:]))
        numbers, _ = (row for row in rows(result.run) if row["phase"] == "rl")
        samples = [json.loads(line) for line in (result.run / "samples.jsonl").read_text().splitlines()]
        return result.params, numbers, samples

    return train


def test_a_bonus_by_counts_spreads_the_answers(run, prepared):
    params, numbers, _ = run("count_bonus:0.5")
    rewards = prepared[0][0].rewards
    assert numbers["reward"] == pytest.approx(rewards.mean(), rel=1e-5)
    for group in rewards:
        for bonus, responses in zip(*np.unique(group, return_counts=True), strict=True):
            agreeing = (0.5 / bonus) ** 2
            assert responses / agreeing == pytest.approx(round(responses / agreeing), abs=1e-3), (
                "a bonus of 0.5 / √n comes n times for each such answer"
            )
    assert len(np.unique(rewards)) > 2
    assert share(init(None), ANSWER, "3") == pytest.approx(0.5, abs=0.01)
    assert share(params, ANSWER, "3") < 0.4


def test_a_constitution_is_followed(run, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("no three:\n  must_not: '^#3'\n  weight: 0.5\nbrief:\n  max_characters: 40\n")
    params, numbers, samples = run(f"constitution:{rules}")
    assert [sample["reward"] for sample in samples] == [-0.5 * sample["completion"].startswith("#3") for sample in samples]
    assert 0 < numbers["reward_no three"] < 1
    assert numbers["reward"] == pytest.approx(-0.5 * numbers["reward_no three"])
    assert numbers["reward_brief"] == 0
    assert share(params, ANSWER, "3") < 0.4


def test_the_brier_reward_lowers_a_confidence_that_is_too_high(run):
    params, numbers, samples = run("brier:exact")
    for sample in samples:
        answer, stated = sample["completion"].split(" confidence: ")
        is_right = answer == f"#{sample['answer']}"
        assert sample["reward"] == pytest.approx(is_right - (float(stated) - is_right) ** 2, rel=1e-5)
    assert 0 < numbers["reward_exact"] < 0.5, "less than the confidence of 0.9"
    assert numbers["reward"] == pytest.approx(numbers["reward_exact"] - numbers["reward_brier_score"], rel=1e-5)
    assert share(params, CONFIDENCE, "9") < 0.4
    assert share(params, CONFIDENCE, "1") > share(init(None), CONFIDENCE, "1")
