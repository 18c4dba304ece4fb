"""Feedback for a run whose prompts have images: lines that can be scored, and lines that are refused."""

import json

import pytest

from rljax.data.bad_rows import BadRowError
from rljax.data.feedback import Line, LineLocation, read_line
from rljax.data.images import PATTERNS
from rljax.programs.feedback_log import example_of
from rljax.training.config import TrainConfig
from rljax.training.parts.tokenizer import make_tokenizer

CONFIG = TrainConfig.flat(
    task="digits", images=(8, 4), heads=2, kv_heads=1, max_prompt_tokens=8, max_response_tokens=8, replicas=1
)
TOKENIZER = make_tokenizer(CONFIG)
IMAGE = PATTERNS[3:7]


def make_example(prompt, response):
    """Encode a line of feedback, with this prompt and response, as a training example."""
    line = json.dumps({"prompt": prompt, "response": response, "reward": 1})
    found = Line(LineLocation("q", "q", 1, len(line), ""), line, read_line(line.encode()))
    return example_of(found, named={}, config=CONFIG, tokenizer=TOKENIZER)


def test_complete_images_in_the_prompt_are_read():
    found = make_example(IMAGE + IMAGE, "3+5=#8")
    assert found.prompt[-8:] == TOKENIZER.encode(IMAGE + IMAGE)
    assert found.tokens == [*TOKENIZER.encode("3+5=#8"), TOKENIZER.eos_token_id]
    assert make_example(IMAGE, found.tokens).tokens == found.tokens


@pytest.mark.parametrize(
    ("prompt", "response", "column", "message"),
    [
        (IMAGE[:3], "8", "prompt", "has 3 consecutive patches"),
        (IMAGE, f"8{IMAGE[0]}", "response", "the response contains an image patch"),
        (IMAGE, TOKENIZER.encode(IMAGE[:1]), "response", "the response contains an image patch"),
    ],
)
def test_patches_that_cannot_be_scored_are_refused(prompt, response, column, message):
    with pytest.raises(BadRowError, match=message) as error:
        make_example(prompt, response)
    assert error.value.column == column
