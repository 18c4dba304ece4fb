"""Settings of reward-model training: refused values, JSON, and groups that other programs share."""

import json
import math
from dataclasses import fields

import pytest

from rljax.errors import InputError
from rljax.preference.config import PairConfig, RewardModelConfig
from rljax.settings.shared_groups import AdamConfig, MeshConfig, NetworkConfig
from rljax.training.config import DevicesConfig, ModelConfig, OptimizationConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be positive"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must not be negative"),
        ({"learning_rate": math.nan}, "learning_rate is nan; it must be a finite number"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"microbatch_pairs": 5}, "microbatch_pairs=5 does not divide batch=32"),
        ({"width": 33}, "width=33 over heads=2"),
    ],
)
def test_invalid_settings_are_refused(without_type_checks, changes, message):
    with pytest.raises(InputError, match=message):
        RewardModelConfig("-", **{"batch": 32, "heads": 2} | changes)


def test_settings_are_json():
    raw = json.loads(json.dumps(RewardModelConfig("pairs.jsonl", replicas=2).to_json()))
    assert RewardModelConfig(**raw) == RewardModelConfig("pairs.jsonl", replicas=2)


def test_shared_settings_are_defined_once():
    """A shared setting's name, type and default come from one record."""
    reward_model_fields = {field.name: field for field in fields(RewardModelConfig)}
    for group, run in ((NetworkConfig, ModelConfig), (AdamConfig, OptimizationConfig), (MeshConfig, DevicesConfig)):
        assert issubclass(run, group)
        assert not [name for name in run.__annotations__ if name in {field.name for field in fields(group)}]
        assert not [name for name in PairConfig.__annotations__ if name in {field.name for field in fields(group)}]
        assert {field.name for field in fields(group)} <= set(reward_model_fields)


def test_settings_of_an_earlier_version_are_read():
    """The settings.json of an earlier version, whose settings have another order."""
    saved = {
        "dataset": "pairs.jsonl",
        "model": None,
        "tokenizer": "bytes",
        "layers": 2,
        "width": 16,
        "heads": 2,
        "kv_heads": 1,
    }
    saved |= {"hidden": 32, "batch": 8, "adam_b1": 0.8, "adam_b2": 0.9, "weight_decay": 0.1, "max_grad_norm": 2.0}
    saved |= {
        "dtype": "bfloat16",
        "remat": "full",
        "replicas": 1,
        "fsdp": 2,
        "tensor": 1,
        "name": "reward-model",
        "seed": 3,
    }
    config = RewardModelConfig(**saved)
    assert config.to_json() | saved == config.to_json()
    assert RewardModelConfig("pairs.jsonl", "model").model == "model"
