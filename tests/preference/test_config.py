"""Settings of a reward model's training that cannot work are refused, each by its name."""

import json
import math

import pytest

from rljax.errors import InputError
from rljax.preference.config import RewardModelConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be positive"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must not be negative"),
        ({"learning_rate": math.nan}, "learning_rate is nan; it must be positive"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"microbatch_pairs": 5}, "microbatch_pairs=5 does not divide batch=32"),
        ({"width": 33}, "width=33 over heads=2"),
    ],
)
def test_settings_that_cannot_work(untyped, changes, message):
    with pytest.raises(InputError, match=message):
        RewardModelConfig("-", **{"batch": 32, "heads": 2} | changes)


def test_settings_are_json():
    raw = json.loads(json.dumps(RewardModelConfig("pairs.jsonl", replicas=2).to_json()))
    assert RewardModelConfig(**raw) == RewardModelConfig("pairs.jsonl", replicas=2)
