"""Settings files: what a file may contain, which setting takes precedence, and the origin of each value."""

import inspect
import json

import pytest
from small_cli import printed, refused

from rljax import InputError, load_config
from rljax.cli import main, starting_config
from rljax.cli.run_settings import Settings, start_from_flags
from rljax.tasks import TASKS
from rljax.tasks.sums import SumsConfig
from rljax.training.config import TrainConfig


def write_file(folder, text, name="settings.yaml"):
    path = folder / name
    path.write_text(text)
    return path


def test_file_and_flags_give_the_same_settings(tmp_path, capsys):
    path = write_file(tmp_path, "algorithm: grpo\nlearning-rate: 1e-5\noperands: [2, 3]\nalgorithm_options: {beta: 0.1}\n")
    flags = ["--algorithm", "grpo", "--learning-rate", "1e-5", "--operands", "2", "3", "--algorithm-options", "beta=0.1"]
    by_file = json.loads(printed(capsys, "config", "--config", str(path), "--json"))
    by_flags = json.loads(printed(capsys, "config", *flags, "--json"))
    assert {name: row["value"] for name, row in by_file.items()} == {name: row["value"] for name, row in by_flags.items()}
    assert by_file["learning_rate"] == {"value": 1e-5, "from": f"{path}:2"}
    assert by_flags["learning_rate"]["from"] == "flag --learning-rate"
    assert by_file["algorithm_options"] == {"value": {"beta": 0.1}, "from": f"{path}:4"}


def test_flags_take_precedence_and_origins_are_shown(tmp_path, capsys):
    path = write_file(tmp_path, "steps: 7\nprompts: 16\n")
    shown = json.loads(printed(capsys, "config", "--config", str(path), "--steps", "9", "--quiet", "--data", "1", "--json"))
    origins = {name: row["from"] for name, row in shown.items()}
    assert (shown["steps"]["value"], origins["steps"]) == (9, "flag --steps")
    assert (shown["quiet"]["value"], origins["quiet"]) == (True, "flag --quiet")
    assert (shown["replicas"]["value"], origins["replicas"]) == (1, "flag --replicas")
    assert origins["prompts"] == f"{path}:2"
    assert origins["group_size"].startswith("arithmetic_dapo.py:")
    assert origins["weight_decay"] == "default"


@pytest.mark.parametrize("flags", [(), ("--dataset", "x.jsonl"), ("--model", "m"), ("--task", "iteration")])
def test_config_prints_a_file_of_the_same_settings(tmp_path, capsys, flags):
    path = write_file(
        tmp_path, printed(capsys, "config", "--algorithm", "vapo", "--difficulty-window", "0.1", "0.9", *flags)
    )
    first = printed(capsys, "config", "--config", str(path), "--json")
    again = {name: row["value"] for name, row in json.loads(first).items()}
    by_flags = printed(capsys, "config", "--algorithm", "vapo", "--difficulty-window", "0.1", "0.9", *flags, "--json")
    assert again == {name: row["value"] for name, row in json.loads(by_flags).items()}


def test_config_changed_omits_defaults(capsys):
    shown = printed(capsys, "config", "--dataset", "x.jsonl", "--changed")
    assert shown.splitlines() == ["# data", "dataset: x.jsonl  # flag --dataset"]


def test_config_of_a_run_starts_a_new_run(tmp_path):
    config = TrainConfig.flat(run="runs/first", operands=(2, 4), steps=7, name="first")
    for task in (None, SumsConfig((2, 3))):
        saved = config.to_json() | {"seams": []} | {"task": None if task is None else config.to_json()["task"]}
        path = write_file(tmp_path, json.dumps(saved, indent="\t"), "config.json")
        expected = TrainConfig.from_json({name: part for name, part in saved.items() if name != "seams"}).replace(run=None)
        assert load_config(path) == expected
    custom = write_file(tmp_path, json.dumps(config.to_json() | {"seams": ["reward"]}), "config.json")
    with pytest.raises(ValueError, match=r"config.json:1: this run was started with reward passed to rljax.train\(\)"):
        load_config(custom)


def test_python_experiment_is_a_settings_file(tmp_path, capsys):
    path = write_file(
        tmp_path, "import rljax\n\nCONFIG = rljax.TrainConfig.flat(\n    steps=3,\n    prompts=8,\n)\n", "mine.py"
    )
    shown = json.loads(printed(capsys, "config", "--config", str(path), "--json"))
    assert (shown["prompts"], shown["steps"]["from"]) == ({"value": 8, "from": f"{path}:5"}, f"{path}:4")
    assert load_config(path) == TrainConfig.flat(steps=3, prompts=8)
    assert load_config("arithmetic_dapo") == starting_config([])
    mine = write_file(tmp_path, f"experiment: {path}\nprompts: 2\n")
    assert load_config(mine) == TrainConfig.flat(steps=3, prompts=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "steps: 3\nlerning_rate: 1\n",
            "settings.yaml:2: rljax has no setting 'lerning_rate'; did you mean 'learning_rate'?",
        ),
        (
            "sampling:\n  prompt: 3\n",
            "settings.yaml:2: the group sampling has no setting 'prompt'; did you mean 'prompts'?",
        ),
        ("steps: many\n", "settings.yaml:1: steps is 'many', but a whole number is expected"),
        (
            "remat: true\n",
            "settings.yaml:1: remat is True, but 'none' or 'full' or 'dots' or 'dots_no_batch' or 'sqrt' is expected",
        ),
        ("dtype: float16\n", "settings.yaml:1: dtype is 'float16', but 'float32' or 'bfloat16' is expected"),
        ("steps: 3\n\nsteps: 4\n", "settings.yaml:3 sets steps again; line 1 sets it already"),
        ("steps: 3\noptimization: {steps: 4}\n", "settings.yaml:2 sets steps again; .*settings.yaml:1 sets it already"),
        ("quiet: true\nprompts: 5\nminibatches: 2\n", "settings.yaml:2: minibatches=2 does not divide prompts=5"),
        ("steps: [1\n", "settings.yaml:2 is not YAML"),
        ("- steps\n", "settings.yaml:1 must have settings as `name: value`"),
        ("data: 3\n", "settings.yaml:1: data is 3, but it is a group of settings"),
        ("optimization:\n", "settings.yaml:1: optimization is null, but it is a group .*, or leave optimization out"),
        ("learning_rate: null\n", "settings.yaml:1: learning_rate is null, but a number is expected"),
        ("algorithm: dado\n", "algorithm 'dado' is unknown"),
        ("dataset: x.jsonl\noperands: [2, 3]\n", r"settings.yaml:1: Both a dataset \('x.jsonl'\) and a generated task"),
    ],
)
def test_settings_file_error_names_its_line(tmp_path, capsys, text, message):
    refused(capsys, message, "config", "--config", str(write_file(tmp_path, text)))


def test_file_without_settings(tmp_path, capsys):
    refused(
        capsys,
        "config.json:2 is not JSON",
        "config",
        "--config",
        str(write_file(tmp_path, '{"steps": 3,\n"seed"}', "config.json")),
    )
    refused(capsys, "cannot be read", "config", "--config", str(tmp_path / "nothing.yaml"))
    refused(
        capsys, "must end in .yaml, .yml, .json, .py", "config", "--config", str(write_file(tmp_path, "", "settings.toml"))
    )
    refused(
        capsys,
        "cannot be run at line 1 .ZeroDivisionError",
        "config",
        "--config",
        str(write_file(tmp_path, "1 / 0", "wrong.py")),
    )
    assert load_config(write_file(tmp_path, "")) == starting_config([])


def test_own_algorithm_is_named_by_file_and_function(tmp_path, capsys):
    source = (
        "import rljax\n\ndef mine(*, clip=0.3):\n    return rljax.algorithms.dapo(clip_high=clip)\n\ndef bare(clip): ...\n"
    )
    path = write_file(tmp_path, source, "own.py")
    shown = json.loads(printed(capsys, "config", "--algorithm", f"{path}:mine", "--json"))
    assert shown["algorithm_options"] == {"value": {}, "from": "default"}
    refused(capsys, "needs clip; its arguments are its options", "config", "--algorithm", f"{path}:bare")
    refused(capsys, "the algorithm .*has no 'other'; it has mine, bare", "config", "--algorithm", f"{path}:other")


def test_trial_run_shortens_the_warm_start():
    default = starting_config([])
    assert (default.optimization.steps, default.warm_start.steps) == (100, 480)
    assert starting_config(["--steps", "20"]).warm_start.steps == 480
    assert starting_config(["--steps", "3"]).warm_start.steps == 15
    assert starting_config(["--steps", "0"]).warm_start.steps == 1
    assert "from 480 to 15 steps" in start_from_flags(["--steps", "3"]).notes[0]
    assert not start_from_flags(["--steps", "3", "--warm-start-steps", "9"]).notes


def test_trial_run_keeps_the_users_warm_start(tmp_path):
    assert (
        starting_config(["--config", str(write_file(tmp_path, "warm_start_steps: 50\n")), "--steps", "3"]).warm_start.steps
        == 50
    )
    assert load_config(write_file(tmp_path, "steps: 3\n")).warm_start.steps == 480, (
        "load_config does not shorten the warm start"
    )


def test_smoke_shrinks_the_run_and_flags_take_precedence(capsys):
    shown = json.loads(printed(capsys, "config", "--smoke", "--prompts", "6", "--json"))
    assert {name: shown[name]["value"] for name in ("steps", "group_size", "warm_start_steps", "prompts", "name")} == {
        "steps": 2,
        "group_size": 4,
        "warm_start_steps": 10,
        "prompts": 6,
        "name": "smoke",
    }
    assert (shown["steps"]["from"], shown["prompts"]["from"]) == ("--smoke", "flag --prompts")
    assert shown["without"]["value"] == ["dynamic_sampling"]
    vapo = starting_config(["--smoke", "--algorithm", "vapo", "--minibatches", "2"])
    assert (vapo.critic.pretraining_steps, vapo.algorithm.without) == (1, ())
    assert (load_config("arithmetic_dapo").warm_start.keep, vapo.warm_start.keep) == (True, False), (
        "--smoke keeps no warm start, so it runs every phase"
    )


def test_smoke_excludes_keep_group_parts(tmp_path, capsys):
    part = "keep_group=difficulty_window,low=0.3,high=0.7"
    own = write_file(tmp_path, f"with: [advantage=rank, '{part}']\n")
    assert starting_config(["--config", str(own)]).algorithm.parts == ("advantage=rank", part)
    assert starting_config(["--config", str(own), "--smoke"]).algorithm.parts == ("advantage=rank",)
    for flag in (["--with", "advantage=rank", part], [f"--with={part}"]):
        refused(capsys, f"--smoke leaves dynamic sampling out.*so .*{part} cannot be used", "config", "--smoke", *flag)


def test_task_help_names_every_task():
    shown = inspect.getsource(Settings)
    assert [name for name in TASKS if f"'{name}" not in shown] == []
    assert "--task list" not in shown, "an unknown task is an error"


def test_code_named_only_by_a_runs_config_needs_trust(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        f"import os\nos.mkdir({str(tmp_path / 'executed')!r})\ndef judge(completions): return [0.0]\n"
    )
    config = TrainConfig.flat(reward=f"{tmp_path / 'mine.py'}:judge", algorithm=f"{tmp_path / 'mine.py'}:own")
    path = write_file(tmp_path, json.dumps(config.to_json() | {"seams": []}), "config.json")
    refused(capsys, r"executes .*mine\.py:judge and .*mine\.py:own.*--trust", "config", "--config", str(path))
    refused(capsys, r"executes .*mine\.py:own, which", "train", "--config", str(path), "--reward", "exact")
    assert not (tmp_path / "executed").exists()
    assert main(["config", "--config", str(path), "--reward", "exact", "--algorithm", "grpo"]) == 0
    assert not (tmp_path / "executed").exists()
    for settings in ({}, {"environment": f"{tmp_path / 'mine.py'}:World"}):
        path.write_text(json.dumps(config.replace(**settings).to_json() | {"seams": []}))
        with pytest.raises(InputError, match=r"executes .*mine\.py:own.*trust=True"):
            load_config(path)
    refused(capsys, r"executes .*mine\.py:World.*--trust", "config", "--config", str(path), "--algorithm", "grpo")
    assert not (tmp_path / "executed").exists()
    (tmp_path / "starts.jsonl").touch()
    path.write_text(json.dumps({"experiment": str(tmp_path / "mine.py")}))
    with pytest.raises(InputError, match=r"executes .*mine\.py, which is code"):
        load_config(path)
    assert not (tmp_path / "executed").exists()
    path.write_text(json.dumps(config.to_json() | {"seams": []}))
    refused(capsys, "it has judge", "config", "--config", str(path), "--trust")
    assert (tmp_path / "executed").exists()
    (tmp_path / "executed").rmdir()
    with pytest.raises(InputError, match="it has judge"):
        load_config(path, trust=True)
    assert (tmp_path / "executed").exists()
