"""Invalid settings are refused before a run folder is written."""

import json

import pytest
from filelock import FileLock
from shared_run import TINY

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.loop import discard_on_error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "dado"}, "algorithm 'dado' is unknown; did you mean 'dapo'.* Choose one of .*dapo"),
        ({"algorithm": "drgrpo"}, r"algorithm 'drgrpo' is unknown; did you mean 'dr_grpo'"),
        ({"algorithm": "pkpo", "algorithm_options": {"k": 2.5}}, "pkpo: the option k is 2.5; an integer is expected."),
        (
            {"algorithm_options": {"clip": 1}},
            r"dapo has no option 'clip'; did you mean 'clip_low'\? It has cache, clip_high",
        ),
        ({"algorithm_options": {"clip_low": -1.0}}, "options .*-1.* cannot train .* low must"),
        ({"group_size": 1, "microbatch_rows": None}, "group_size=1: rewards must contain groups of at least 2"),
        ({"replicas": 3, "fsdp": 3}, "needs 9 devices, but there are 8"),
        (
            {"replicas": 8, "microbatch_rows": 4, "minibatches": 4},
            "microbatch_rows is 4 rows, which cannot be split evenly over 8 devices",
        ),
        ({"dataset": "nothing.jsonl"}, "nothing.jsonl"),
        ({"reward": "excat"}, "excat"),
        ({"max_response_tokens": 8}, "every demonstration is longer than the limit of 8 tokens: the shortest has 9"),
        ({"max_prompt_tokens": 2}, "every prompt is longer than the limit of 2 tokens"),
        ({"model": "./nowhere"}, "model folder './nowhere' does not exist"),
        ({"tokenizer": "./nowhere"}, "nowhere"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_written(tmp_path, change, message):
    path = tmp_path / "refused"
    with pytest.raises(InputError, match=message):
        rljax.train(TINY.replace(run=str(path), **change))
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minibatches": 3}, "minibatches=3 does not divide prompts=4"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be positive"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"prompts": 0}, "prompts is 0; it must be at least 1"),
        ({"steps": -1}, "steps is -1; it must not be negative"),
        ({"operands": (4, 3)}, r"operands is \(4, 3\)"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"remat": "sqrt", "scan_layers": True}, "scan_layers cannot be combined with remat='sqrt'"),
        ({"remat": "all"}, "remat is 'all'; choose none, full, dots, dots_no_batch or sqrt"),
        ({"oversample": 0.5}, "oversample is 0.5"),
        ({"heads": 3}, "width=16 over heads=3"),
    ],
)
def test_invalid_values_and_combinations_are_refused(without_type_checks, change, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"difficulty_window": (0.9, 0.1)}, "difficulty_window is .*; give two pass rates in ascending order"),
        (
            {"difficulty_window_end": (0.1, 0.9)},
            "difficulty_window_end is set, but difficulty_window, the window at the start of the run, is not",
        ),
        ({"history_decay": 0.0}, "history_decay is 0.0; it must be above 0"),
    ],
)
def test_an_invalid_difficulty_window_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(**change)


def test_a_configuration_survives_a_round_trip_through_json():
    assert TrainConfig.from_json(json.loads(json.dumps(TINY.to_json()))) == TINY
    with pytest.raises(InputError, match="unknown to this version of rljax: colour"):
        TrainConfig.from_json({**TINY.to_json(), "colour": 1})
    with pytest.raises(InputError, match="unknown to this version of rljax: learning_rte"):
        TrainConfig.from_json({**TINY.to_json(), "optimization": {"learning_rte": 1.0}})


def test_the_error_says_that_the_held_out_prompts_are_too_long(tmp_path):
    problems = [Problem(f"{number}+1=", str(number + 1)) for number in range(1, 9)]
    with pytest.raises(InputError, match="every held-out prompt is longer than the limit of 6 tokens: the shortest has 11"):
        rljax.train(
            TINY.replace(run=str(tmp_path / "run"), max_prompt_tokens=6, warm_start_steps=0, tokenizer="bytes", task=None),
            problems=(problems, [Problem("123456789=", "1")]),
        )


def test_a_failed_start_removes_its_folder_unless_another_process_has_locked_it(tmp_path):
    def refuse():
        with pytest.raises(InputError, match="another process"), discard_on_error(folder):
            raise InputError("another process is training")

    folder = RunFolder.create(tmp_path / "run", {})
    with FileLock(folder.path / ".lock"):
        refuse()
        assert folder.config_file.is_file()
    (folder.path / ".lock").unlink(missing_ok=True)
    refuse()
    assert not folder.path.exists()
