"""Tests of setting types: an error names the setting of the wrong type; lists, paths and NumPy numbers are converted."""

import math
import re
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np
import pytest

from rljax import TrainConfig
from rljax.errors import InputError
from rljax.preference.config import PreferenceConfig, RewardModelConfig
from rljax.programs.adaptation_config import AdaptationConfig
from rljax.programs.answer_settings import EvalSettings, GenerateSettings, PairSettings, SearchSettings
from rljax.settings.checks import check_types, fit_setting, hints_of
from rljax.settings.flat import flat_names

ANSWERING = (EvalSettings, SearchSettings, GenerateSettings, PairSettings)
GROUPS_OF_A_RUN = TrainConfig().groups()
RUN_SETTINGS = {flag: hint for group in GROUPS_OF_A_RUN.values() for flag, hint in hints_of(type(group)).items()}


@pytest.mark.parametrize("flag", RUN_SETTINGS)
def test_run_setting_rejects_an_object(flag):
    with pytest.raises(InputError, match=rf"{flag} is <object .*(expected|; choose .*)\.$"):
        TrainConfig.flat(**{flag: object()})


@pytest.mark.parametrize(
    ("group", "field"),
    [
        (name, field)
        for name, group in GROUPS_OF_A_RUN.items()
        for field, flag in flat_names(type(group)).items()
        if RUN_SETTINGS[flag] in (int, int | None)
    ],
)
@pytest.mark.parametrize("value", [1.5, True, math.nan, "3"])
def test_count_in_a_group_of_settings_is_a_whole_number(group, field, value, without_type_checks):
    """`TrainConfig(critic=CriticConfig(pretraining_steps=1.5))` once trained for ever: no step was the last."""
    kind = type(GROUPS_OF_A_RUN[group])
    with pytest.raises(InputError, match=rf"^{flat_names(kind)[field]} is {re.escape(repr(value))}[,;]"):
        TrainConfig(**{group: kind(**{field: value})})


@pytest.mark.parametrize("name", GROUPS_OF_A_RUN)
def test_group_of_settings_rejects_another_value(name, without_type_checks):
    kind = type(GROUPS_OF_A_RUN[name]).__name__ if name != "task" else "TaskConfig"
    with pytest.raises(InputError, match=rf"^{name} is 3; a {kind} is needed\. TrainConfig\.flat\(\) takes each setting"):
        TrainConfig(**{name: 3})
    with pytest.raises(InputError, match=r"^task is 3; a TaskConfig is needed"):
        TrainConfig.flat(task=3)


@pytest.mark.parametrize("flag", [flag for flag, hint in RUN_SETTINGS.items() if "tuple" in str(hint)])
def test_list_setting_rejects_a_string(flag):
    with pytest.raises(InputError, match=f"{flag} is 'attention', but a list"):
        TrainConfig.flat(**{flag: "attention"})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"learning_rate": "1e-3"}, "a number"),
        ({"steps": "3"}, "a whole number"),
        ({"steps": 2.5}, "a whole number"),
        ({"prompts": True}, "a whole number"),
        ({"quiet": "yes"}, "true or false"),
        ({"reward": ["exact", "math"]}, "text"),
        ({"difficulty_window": 0.3}, "a list of 2 entries (each a number) or null"),
    ],
)
def test_error_states_the_expected_type(settings, expected):
    name, value = next(iter(settings.items()))
    with pytest.raises(InputError, match=re.escape(f"{name} is {value!r}, but {expected} is expected.")):
        TrainConfig.flat(**settings)


def test_convertible_values_give_equal_settings():
    plain = TrainConfig.flat(learning_rate=1.0, steps=3, stop=("a",), dataset="x.jsonl")
    assert TrainConfig.flat(learning_rate=1, steps=np.int64(3), stop=["a"], dataset=Path("x.jsonl")) == plain
    assert TrainConfig.flat(learning_rate=jnp.float32(1), steps=np.array(3), stop=("a",), dataset="x.jsonl") == plain


@pytest.mark.parametrize("record", [*ANSWERING, PreferenceConfig, RewardModelConfig, AdaptationConfig])
def test_program_setting_rejects_an_object(record, without_type_checks):
    required = {"target": "run", "feedback": Path("queue.jsonl")} if record is AdaptationConfig else {}
    check_types(record(**required))
    for name in record.__dataclass_fields__:
        with pytest.raises(InputError, match=r"is <object .*(expected|; choose .*)\.$"):
            check_types(record(**required | {name: object()}))


@pytest.mark.parametrize("record", [PreferenceConfig, RewardModelConfig])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 10**12}, "^steps is 1000000000000; a whole number must be between"),
        ({"learning_rate": math.inf}, "^learning_rate is inf; it must be a finite number"),
        ({"adam_b1": math.nan}, "^adam_b1 is nan; it must be a finite number"),
        ({"adam_b2": 1.0}, r"^adam_b2 is 1\.0; it must be below 1"),
        ({"adam_b1": -0.1}, r"^adam_b1 is -0\.1; it must not be negative"),
    ],
)
def test_settings_for_pairs_reject_impossible_numbers(record, changes, message):
    with pytest.raises(InputError, match=message):
        record(**changes)


def test_choose_setting_rejects_a_string(without_type_checks):
    with pytest.raises(InputError, match=r"choose is 'votes', but a list \(each text\) is expected"):
        EvalSettings(samples=2, choose="votes").check()


@pytest.mark.parametrize(
    ("value", "hint", "fitted"), [("a", Path, Path("a")), (Path("a"), str, "a"), ("x", Literal["x"], "x")]
)
def test_fit_setting_converts_paths_and_strings(value, hint, fitted):
    assert fit_setting("name", value, hint) == fitted
