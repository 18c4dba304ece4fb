"""Commands as a user types them: what they print, and their exit codes."""

import contextlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import jax
import pytest
from skip_plots import plotting_curves

from rljax import load_config
from rljax.algorithms import BY_NAME
from rljax.algorithms.corrections import BY_NAME as CORRECTIONS
from rljax.cli import COMMANDS, DEFAULT_EXPERIMENT, main, parse, starting_config
from rljax.cli.train_help import SHOWN
from rljax.cli.version import MIN_JAX, check_jax, version_text
from rljax.errors import InputError
from rljax.programs.base_settings import experiment_files
from rljax.tasks.sums import SumsConfig
from rljax.training.config import TrainConfig

SMALL = (
    *("--layers", "1", "--width", "16", "--heads", "2", "--kv-heads", "1", "--hidden", "16"),
    *("--operands", "2", "2", "--train-problems", "40", "--heldout-problems", "6", "--max-response-tokens", "12"),
    *("--algorithm-options", "max_length=12", "cache=2", "--warm-start-steps", "2", "--steps", "1", "--prompts", "4"),
    *("--group-size", "4", "--max-tries", "1", "--replicas", "1", "--quiet", "--no-keep-warm-start"),
)
UNFINISHED = {"unfinished_share": 0.8, "unfinished_operands": 3, "unanswered_operands": 5}
"""Task settings of the default experiment that `SMALL` does not change."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run, and what the command printed."""
    path, printed = tmp_path_factory.mktemp("runs") / "small", io.StringIO()
    with plotting_curves(), redirect_stdout(printed):
        assert main(["train", *SMALL, "--run", str(path)]) == 0
    return path, printed.getvalue()


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


def refusal_of(capsys, *arguments) -> str:
    """Check that a command exits with 2 and prints one paragraph without a traceback; return that message."""
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("rljax: ")
    assert "\n" not in error
    assert "Traceback" not in error
    return error


def test_train_ends_by_printing_the_accuracy_and_what_to_type_next(trained):
    path, text = trained
    lines = text.splitlines()
    (outcome,) = (line for line in lines if line.startswith("Held-out accuracy: "))
    assert "before RL" in outcome
    assert f"Curves: {path / 'curves.png'}" in lines
    assert {f"  rljax eval {path}", f"  rljax export {path} my-model"} <= set(lines)
    assert lines[-2:] == ["To train longer:", f"  rljax train --resume {path} --steps 2"]


def test_config_json_contains_grouped_settings_and_passed_objects(run):
    saved = json.loads((run / "config.json").read_text())
    assert saved.pop("seams") == []
    config = TrainConfig.from_json(saved)
    assert (config.task, config.optimization.steps) == (SumsConfig((2, 2), train_problems=40, **UNFINISHED), 1)
    assert config.run.folder == str(run)


def test_resuming_with_more_steps_extends_a_run(run, tmp_path, capsys):
    longer = tmp_path / "longer"
    shutil.copytree(run, longer)
    assert main(["train", "--resume", str(longer), "--steps", "2", "--no-quiet"]) == 0
    text = capsys.readouterr().out
    assert "Resumed at RL step 1 of 2." in text
    assert "Changed: steps: 1 -> 2, quiet: True -> False." in text
    assert "held-out accuracy so far: " in text
    fixed = ["--steps", "3", "--learning-rate", "1", "--run", "elsewhere"]
    message = r"cannot change --learning-rate: 0.0001 -> 1.0, --run: \S*small -> elsewhere; its results"
    assert re.search(message, refusal_of(capsys, "train", "--resume", str(longer), *fixed))


def test_a_start_is_recorded_with_its_command_and_versions(run):
    (row,) = [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]
    assert {"at", "command", "devices", "versions", "changes"} <= set(row)
    assert row["versions"]["jax"] == jax.__version__
    lines = (run / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    assert any("warm start: 2 steps" in line for line in lines)


def test_eval_prints_an_interval_and_writes_the_answers(run, tmp_path, capsys):
    out = tmp_path / "answers.jsonl"
    assert main(["eval", str(run), "--limit", "5", "--out", str(out)]) == 0
    assert "95 % interval" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == 5
    assert "already exists" in refusal_of(capsys, "eval", str(run), "--out", str(out))


def test_eval_uses_a_dataset(run, tmp_path, capsys):
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(1, 6)))
    assert main(["eval", str(run), "--dataset", str(data)]) == 0
    assert "on 5 of 5 problems" in capsys.readouterr().out


def test_sample_continues_prompts(run, capsys):
    assert main(["sample", str(run), "--prompt", "3+4=", "1+1=", "--count", "2", "--temperature", "1.0"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line[:4] for line in lines] == ["3+4=", "3+4=", "1+1=", "1+1="]


def test_sample_and_eval_end_answers_at_a_stop_string(run, tmp_path, capsys):
    assert main(["sample", str(run), "--prompt", "3+4="]) == 0
    answer = capsys.readouterr().out.strip().removeprefix("3+4=")
    assert main(["sample", str(run), "--prompt", "3+4=", "--stop", "no such text", answer[1]]) == 0
    stopped = capsys.readouterr().out.strip().removeprefix("3+4=")
    assert stopped == answer[: answer.index(answer[1]) + 1]
    out = tmp_path / "answers.jsonl"
    digits = [str(digit) for digit in range(10)]
    assert main(["eval", str(run), "--limit", "4", "--stop", *digits, "--out", str(out)]) == 0
    texts = [json.loads(line)["completion"] for line in out.read_text().splitlines()]
    assert all(not set(text[:-1]) & set(digits) for text in texts)
    assert json.loads((tmp_path / "answers.settings.json").read_text())["sampling"]["stop"] == digits
    assert "stop contains an empty text" in refusal_of(capsys, "sample", str(run), "--prompt", "3+4=", "--stop", "")


def test_plot_plots_a_run_again_and_overlays_two_runs(run, tmp_path, capsys):
    (run / "curves.png").unlink()
    assert main(["plot", str(run)]) == 0
    assert (run / "curves.png").is_file()
    copy = tmp_path / "second"
    shutil.copytree(run, copy)
    assert main(["plot", str(run), str(copy), "--out", str(tmp_path / "both.png")]) == 0
    assert (tmp_path / "both.png").is_file()


def test_export_writes_a_model_that_can_be_trained_further(run, tmp_path, capsys):
    folder = tmp_path / "model"
    assert main(["export", str(run), str(folder)]) == 0
    weights, tokenizer = ("config.json", "model.safetensors"), ("tokenizer.json", "tokenizer_config.json")
    assert {file.name for file in folder.iterdir()} == {*weights, *tokenizer, "generation_config.json"}
    assert "already exists" in refusal_of(capsys, "export", str(run), str(folder))
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps({"question": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(1, 30)))
    own = ["--model", str(folder), "--dataset", str(data), "--algorithm", "grpo", "--steps", "1"]
    small = ["--prompts", "2", "--group-size", "2", "--max-response-tokens", "4", "--replicas", "1", "--quiet"]
    assert main(["train", *own, *small, "--run", str(tmp_path / "again")]) == 0


@pytest.mark.parametrize(
    ("command", "code"), [(("train", "--help"), 141), (("equations",), 141)], ids=["while parsing", "while running"]
)
def test_a_closed_pipe_prints_no_error(command, code):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "rljax", *command], env=environment, **pipes) as running:
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == code


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"train", "sft", "pretrain"}))
def test_help_of_a_command_names_it_and_exits_with_0(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"rljax {command}" in shown
    positional = re.sub(r"\[-[^\]]*\]", "", shown.partition("\n\n")[0])
    assert not {"STR", "PATH"} & set(positional.split()), "an argument is named by its type"


@pytest.mark.parametrize("command", COMMANDS)
def test_descriptions_have_no_line_at_which_tyro_would_break_a_paragraph(command):
    lines = inspect.cleandoc(COMMANDS[command][0].__doc__).splitlines()
    assert [line for line in lines if line and not line[0].isalpha()] == []


def test_help_of_train_is_one_screen(capsys):
    assert main(["train", "--help", "--algorithm", "grpo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 42
    assert max(map(len, lines)) <= 84
    assert sum(len(settings) for _, settings in SHOWN) == 20
    assert any(line.split()[:2] == ["--learning-rate", "0.0001"] for line in lines)


@pytest.fixture(scope="module")
def all_help():
    """What `rljax train --help-all` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        main(["train", "--help-all"])
    return printed.getvalue()


def test_help_all_lists_every_setting(all_help):
    for name in TrainConfig(task=SumsConfig()).to_flat():
        assert f"--{name.replace('_', '-')}" in all_help, name
    assert "--iterations" not in all_help
    for name in CORRECTIONS:
        assert f"'{name}'" in all_help


def test_an_old_jax_is_refused_with_the_command_to_type():
    with pytest.raises(InputError, match=r"JAX 0.9.1 is installed, and rljax needs 0.10.0 or newer; run `pip install -U"):
        check_jax("0.9.1")
    project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    assert f"jax>={'.'.join(map(str, MIN_JAX))}" in project["dependencies"]


def test_version_names_python_jax_and_devices(capsys):
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][:6] == ["rljax", "Python", "JAX", "jaxlib", "devices:", "compiled"]
    assert f"devices: {jax.device_count()} x cpu" in lines[4]


def test_version_shows_the_issue_tracker_if_the_metadata_has_one(monkeypatch):
    monkeypatch.setattr("rljax.cli.version.links", lambda: {"issues": "https://example.org/issues"})
    assert version_text().splitlines()[-1] == "report bugs at https://example.org/issues"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_contain_commands_and_flags(shell, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["completion", shell])
    assert not stopped.value.code
    script = capsys.readouterr().out
    assert all(word in script for word in (*COMMANDS, "--learning-rate", "--right-above"))


def test_the_listing_of_algorithms_fits_80_columns_and_cuts_no_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["algorithms", "--json"])
    rows = json.loads(capsys.readouterr().out)
    main(["algorithms"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = set(text.split())
    assert {row["name"] for row in rows["algorithms"]} == set(BY_NAME)
    assert all(f"{name}={value}" in words for row in rows["algorithms"] for name, value in row["options"].items())


def test_commands_in_the_help_can_be_copied(all_help):
    assert "keep_group=difficulty_window,low=0.3,high=0.7" in all_help
    code = re.findall(r"`[^`]*`", " ".join(all_help.split()))
    assert not [span for span in code if re.search(r"=\S*, \S+=", span)]


def test_help_explains_the_teacher(all_help):
    assert "--teacher " in all_help


def test_help_names_every_command(capsys):
    assert main([]) == 0
    output = capsys.readouterr().out
    assert all(f"rljax {command}" in output for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("trian",),
            r"no command 'trian'; did you mean 'train'\? The commands are train, sft, pretrain, config, eval, sample",
        ),
        (("train", "--stepz", "3"), "no option --stepz; did you mean '--steps'"),
        (("train", "--lr", "3"), "no option --lr; use --learning-rate"),
        (("train", "--no-steps"), "no option --no-steps: --steps takes a value"),
        (("train", "--kl-coef", "0.1"), "no option --kl-coef; use --algorithm-options beta=0.04"),
        (("train", "--num-generations", "8"), r"no option --num-generations; use --group-size .num_generations in TRL"),
        (("train", "--actor_rollout_ref.rollout.n=8"), "use --group-size .actor_rollout_ref.rollout.n in verl"),
        (("train", "--task", "iteration", "--operands", "2", "2"), "--operands is a setting of the task sums"),
        (("train", "--dataset", "x", "--operands", "2", "2"), "--operands is a setting of the task sums"),
        (("train", "--algorithm", "dado"), "algorithm 'dado' is unknown"),
        (
            ("train", "--correction", "clipped"),
            r"correction 'clipped' is unknown; did you mean 'capped'\? Choose one of none",
        ),
        (("train", "--correction", "two_sided"), "two_sided needs --correction-low"),
        (("train", "--experiment", "nothing"), "no experiment 'nothing'; give a Python file .*arithmetic_dapo"),
        (("train", "--model", "./nowhere", "--dataset", "x.jsonl"), "nowhere"),
        (("train", "--resume", "./nowhere"), "nowhere"),
        (("train", "--resume", "./nowhere", "--steps", "3"), "nowhere"),
        (("train", "--resume", "./nowhere", "--task", "sums"), "so --task cannot be used as well"),
        (("train", "--hosts", "2", "--host", "1"), "--hosts and --host need --coordinator"),
        (("train", "--coordinator", "10.0.0.1", "--hosts", "2", "--host", "1"), "set the address as ADDRESS:PORT"),
        (("eval", "./nowhere"), "nowhere"),
        (("sample", "./nowhere", "--prompt", "1+1="), "nowhere"),
        (("plot", "./nowhere"), "nowhere"),
        (("export", "./nowhere", "out"), "not the folder of a run"),
        (("algorithms", "dado"), "algorithm 'dado' is unknown"),
    ],
)
def test_invalid_arguments_give_one_paragraph_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    error = refusal_of(capsys, *arguments)
    assert re.search(message, error), error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [("--steps", "many"), ("--algorithm-options", "clip")])
def test_invalid_values_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments])
    assert stopped.value.code == 2
    assert arguments[0].removeprefix("--") in "".join(capsys.readouterr())


def test_settings_of_a_task_are_flags():
    assert parse(["train", "--task", "iteration", "--iterations", "2", "4"]).config.task.iterations == (2, 4)
    assert parse(["train", "--operands", "2", "4"]).config.task.operands == (2, 4)


def test_the_flag_data_is_an_alias_for_replicas():
    assert parse(["train", "--data", "2"]).config.devices.replicas == 2


def test_a_value_may_begin_like_a_flag():
    assert parse(["sample", "run", "--prompt", "--- user says"]).prompt == ("--- user says",)


def test_a_model_or_dataset_flag_starts_from_the_general_settings():
    assert starting_config([]) == load_config(DEFAULT_EXPERIMENT)
    assert starting_config(["--model", "x"]) == TrainConfig(task=SumsConfig())
    assert starting_config(["--dataset=x"]) == TrainConfig()


def test_a_different_algorithm_keeps_the_experiment_and_the_shared_options():
    default = load_config(DEFAULT_EXPERIMENT)
    shared = {"max_length": default.algorithm.options["max_length"]}
    assert starting_config(["--algorithm", "dr_grpo"]) == default.replace(algorithm_options=shared)


def test_train_accepts_real_weights_and_real_data(shared_data, tmp_path, capsys):
    own = ["--model", str(shared_data / "stories260k"), "--tokenizer", "bytes", "--algorithm", "grpo", "--steps", "3"]
    data = ["--dataset", str(shared_data / "gsm8k_train.jsonl"), "--heldout-problems", "8"]
    small = ["--prompts", "2", "--group-size", "4", "--max-response-tokens", "16", "--replicas", "1", "--quiet"]
    assert main(["train", *own, *data, *small, "--run", str(tmp_path / "real")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "real" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["phase"] == "rl"] == [1, 2, 3]
    assert all("reference_kl" in row for row in rows if row["phase"] == "rl"), "every step made an update"


def test_experiments_are_found_and_document_their_command():
    without_a_config = {
        "algorithm_by_phase",
        "dapo_on_a_page",
        "claims_on_transformer",
        "pruned_answers",
        "quantized_answers",
        "search_costs",
        "selector",
        "serving_filters",
        "stratified_sampling",
        "tool_throughput",
        "vapo_on_a_page",
    }
    folder = Path(__file__).resolve().parents[1] / "experiments"
    assert {file.stem for file in folder.glob("*.py")} - {file.stem for file in experiment_files()} == without_a_config
    for file in experiment_files():
        assert isinstance(load_config(file.stem), TrainConfig)
        assert "Command:" in file.read_text()
        assert "Deviations" in file.read_text()


@pytest.mark.parametrize(
    "words",
    [
        *([name, "--help"] for name in COMMANDS),
        ["train", "--help-all"],
        ["--help"],
        ["--version"],
        ["algorithms", "--parts"],
    ],
    ids=" ".join,
)
def test_no_help_page_is_wider_than_80_columns(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 4
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0)])
def test_a_command_with_closed_output_exits_normally(closed, code):
    words = f"{sys.executable} -m rljax equations clipped {closed}"
    ended = subprocess.run(words, shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
