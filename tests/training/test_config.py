"""Impossible settings are refused by name, whether they come from Python or from a file."""

import json
import math

import pytest

from rljax.errors import InputError
from rljax.settings.checks import LARGEST_INTEGER
from rljax.tracking.rows import json_safe
from rljax.training.config import TrainConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": math.inf}, "learning_rate is inf; it must be a finite number"),
        ({"oversample": math.nan}, "oversample is nan"),
        ({"max_grad_norm": math.nan}, "max_grad_norm is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        (
            {"steps": 2**63},
            r"steps is 9223372036854775808; a whole number must be between -2,147,483,647 and 2,147,483,647",
        ),
        ({"operands": (2, 10**20)}, "operands is 100000000000000000000"),
        ({"length_weights": (1.0, 1.0, 1.0, 1.0, math.inf)}, "length_weights is inf"),
        ({"algorithm_options": {"clip": math.nan}}, "algorithm_options is nan"),
    ],
)
def test_impossible_numbers_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TrainConfig.flat(**settings)


def test_an_infinite_bound_is_kept():
    config = TrainConfig.flat(algorithm="ppo", algorithm_options={"dual_clip": math.inf}, seed=LARGEST_INTEGER)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert TrainConfig.from_json(json_safe(config.to_json(), "config")) == config


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        ("optimization", {"steps": "ten"}, "'ten' for steps, but a whole number is expected; correct it"),
        ("optimization", {"steps": 1.5}, "1.5 for steps, but a whole number"),
        ("optimization", {"learning_rate": "nan"}, "learning_rate is nan"),
        ("run", {"quiet": 1}, "1 for quiet, but true or false is expected"),
        ("model", {"dtype": "int8"}, "'int8' for dtype, but 'float32' or"),
        ("sampling", None, "settings unknown to this version"),
        ("task", "sums", "'sums' for task; an object with its name is needed"),
        ("task", {"name": "sums", "operands": [2]}, r"\[2\] for operands, but a list of 2 entries"),
    ],
)
def test_a_config_file_with_wrong_types_is_refused_by_name(group, value, message):
    raw = json.loads(json.dumps(TrainConfig().to_json())) | {group: value}
    with pytest.raises(InputError, match=message):
        TrainConfig.from_json(raw)
