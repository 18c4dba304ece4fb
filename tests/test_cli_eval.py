"""`rljax eval` on the command line: what it prints and saves, how it continues after an interrupt, and what it refuses."""

import json

import jax
import numpy as np
import pytest
import tyro
from small_runs import SMALL, even_length

from rljax.cli import main
from rljax.cli.evaluate import Eval, run_eval
from rljax.cli.flags import with_values
from rljax.errors import InputError
from rljax.evaluation.answer_sampling import sample_files, settings_of
from rljax.programs.answer_settings import EvalSettings
from rljax.programs.evaluation import evaluate as evaluate_in_code
from rljax.programs.train import train
from rljax.programs.trained_policy import load
from rljax.rewards.votes import vote
from rljax.rollout import RolloutWorker, Step
from rljax.training.config import TrainConfig

HELDOUT, SAMPLES = 6, 4
JUDGE = """
def judge(completions, **columns):
    return [float(len(completion) % 2) for completion in completions]

def half(prompts, **columns):
    return [None if prompt.count("+") > 1 else 0.5 for prompt in prompts]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "small"
    train(
        TrainConfig.flat(
            **{"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 16, "replicas": 1, "quiet": True},
            **{"operands": (2, 3), "train_problems": 40, "heldout_problems": HELDOUT, "max_response_tokens": 12},
            **{"algorithm": "grpo", "steps": 1, "prompts": 4, "group_size": 4, "warm_start_steps": 10},
            run=str(path),
        )
    )
    return path


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A file of reward functions; `judge` rewards completions of odd length."""
    path = tmp_path_factory.mktemp("rewards") / "judge.py"
    path.write_text(JUDGE)
    return path


@pytest.fixture(scope="module")
def shared_flags(judge):
    """Flags that several tests share."""
    return ("--samples", str(SAMPLES), "--batch", "8", "--temperature", "1.5", "--reward", f"{judge}:judge")


@pytest.fixture(scope="module")
def undisturbed(run, shared_flags, tmp_path_factory):
    """The folder of an evaluation that was not interrupted."""
    out = tmp_path_factory.mktemp("evaluations") / "whole"
    assert evaluate(run, *shared_flags, "--out", out) == 0
    return out


def evaluate(*arguments) -> int:
    return run_eval(tyro.cli(Eval, args=[str(argument) for argument in arguments]))


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_default_is_one_greedy_answer_per_problem(run, tmp_path, capsys):
    out = tmp_path / "answers.jsonl"
    assert evaluate(run, "--limit", 5, "--out", out) == 0
    output = capsys.readouterr().out
    assert "accuracy " in output
    assert "95 % interval" in output
    assert "on 5 of 5 problems, mean reward" in output
    rows = read_rows(out)
    assert [(row["problem"], row["sample"]) for row in rows] == [(i, 0) for i in range(5)]
    assert json.loads((tmp_path / "answers.settings.json").read_text())["sampling"]["temperature"] == 0
    assert "pass@1" in output
    assert "maj@" not in output


def test_each_of_several_datasets_has_its_own_report_and_files(run, tmp_path, capsys):
    for name in ("first", "second"):
        rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(len(name))]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = ["--dataset", str(tmp_path / "first.jsonl"), "--also", str(tmp_path / "second.jsonl")]
    assert main(["eval", str(run), *sets, "--out", str(tmp_path / "answers")]) == 0
    shown = capsys.readouterr().out
    assert shown.index("first:") < shown.index("second:")
    for name in ("first", "second"):
        saved = (tmp_path / "answers" / name / "samples.jsonl").read_text().splitlines()
        assert len(saved) == len(name)
    assert main(["eval", str(run), "--also", str(tmp_path / "second.jsonl"), "--out", str(tmp_path / "a.jsonl")]) == 0
    assert (tmp_path / "a-held-out-problems.jsonl").is_file()
    assert (tmp_path / "a-second.jsonl").is_file()
    for flags, message in (
        (["--also", str(run / "first.jsonl")], "two datasets are called 'first'"),
        (["--vote"], "--also"),
    ):
        assert main(["eval", str(run), *sets[:2], *(flags if "--also" in flags else [*sets[2:], *flags])]) == 2
        assert message in capsys.readouterr().err


def test_samples_are_saved_with_their_answers_rewards_and_lengths(undisturbed):
    rows = read_rows(undisturbed / "samples.jsonl")
    assert sorted((row["problem"], row["sample"]) for row in rows) == list(np.ndindex(HELDOUT, SAMPLES))
    for row in rows:
        assert list(row) == [
            "problem",
            "sample",
            "prompt",
            "completion",
            "answer",
            "given",
            "reward",
            "correct",
            "tokens",
            "truncated",
        ]
        assert row["prompt"].endswith("=")
        assert str(eval(row["prompt"][:-1])) == row["answer"]
        assert row["reward"] == len(row["completion"]) % 2
        assert row["given"] == vote(row["completion"])
        assert row["tokens"] == 12 if row["truncated"] else row["tokens"] <= 12
    by_problem = [{row["completion"] for row in rows if row["problem"] == i} for i in range(HELDOUT)]
    assert max(map(len, by_problem)) > 1, "answers to a problem are sampled independently"


def test_the_summary_agrees_with_the_samples(undisturbed):
    summary = json.loads((undisturbed / "samples.summary.json").read_text())
    rows = read_rows(undisturbed / "samples.jsonl")
    right = np.zeros((HELDOUT, SAMPLES), bool)
    for row in rows:
        right[row["problem"], row["sample"]] = row["reward"] > 0
    measures = {name: estimate["value"] for name, estimate in summary["whole"]["measures"].items()}
    assert 0 < right.mean() < right.any(-1).mean()
    assert [measures[name] for name in ("pass@1", "avg@4", "reward")] == pytest.approx([right.mean()] * 3)
    assert measures["pass@4"] == pytest.approx(right.any(-1).mean())
    assert {"pass@2", "maj@2", "maj@4", "truncated"} <= set(measures)
    assert measures["response_length"] == pytest.approx(np.mean([row["tokens"] for row in rows]))
    assert sum(part["count"] for part in summary["by_length"]) == HELDOUT * SAMPLES
    assert [part["label"] for part in summary["by_column"]["operands"]] == ["2", "3"]
    assert sum(part["count"] for part in summary["by_column"]["operands"]) == HELDOUT
    assert summary["settings"]["samples"] == SAMPLES


def test_tables_by_length_and_by_column_are_printed(run, shared_flags, undisturbed, capsys):
    assert evaluate(run, *shared_flags, "--out", undisturbed, "--k", 3, 1) == 0
    output = capsys.readouterr().out
    for words in ("6 problems, 4 answers each", "avg@4", "pass@3", "maj@3", "1 to 16", "By operands", "samples.jsonl"):
        assert words in output, words
    assert "pass@4" not in output


@pytest.mark.parametrize("complete_rows", [0, 1, 8, 9, 23, 24])
def test_a_resumed_evaluation_writes_the_same_files(run, shared_flags, undisturbed, tmp_path, complete_rows, monkeypatch):
    """The interrupted evaluation left a file with `complete_rows` complete rows and one truncated row."""
    lines = (undisturbed / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.settings.json").write_bytes((undisturbed / "samples.settings.json").read_bytes())
    (tmp_path / "samples.jsonl").write_bytes(b"".join(lines[:complete_rows]) + b'{"problem": 5, "sam')
    calls, generate = [], RolloutWorker.generate

    def count_call(*arguments):
        calls.append(arguments)
        return generate(*arguments)

    monkeypatch.setattr(RolloutWorker, "generate", count_call)
    assert evaluate(run, *shared_flags, "--out", tmp_path) == 0
    assert len(calls) == 3 - complete_rows // 8
    for name in ("samples.jsonl", "samples.settings.json"):
        assert (tmp_path / name).read_bytes() == (undisturbed / name).read_bytes()
    resumed, expected = (
        json.loads((path / "samples.summary.json").read_text())["whole"]["measures"] for path in (tmp_path, undisturbed)
    )
    assert resumed["reward"] == expected["reward"]


def test_an_evaluation_of_the_earlier_version_can_be_resumed(run, shared_flags, undisturbed, tmp_path):
    settings = (undisturbed / "samples.settings.json").read_text()
    assert settings.count('"rows_per_call": 8') == 1
    earlier = settings.replace("rows_per_call", "rows_a_call")
    (tmp_path / "samples.settings.json").write_text(earlier)
    (tmp_path / "samples.jsonl").write_bytes((undisturbed / "samples.jsonl").read_bytes())
    assert evaluate(run, *shared_flags, "--out", tmp_path) == 0
    assert (tmp_path / "samples.settings.json").read_text() == earlier
    with pytest.raises(InputError, match=r"\(rows_per_call was 8 and is now 4\)"):
        evaluate(run, *shared_flags, "--out", tmp_path, "--batch", "4")


def test_ctrl_c_keeps_complete_calls_and_prints_how_to_continue(
    run, shared_flags, undisturbed, tmp_path, monkeypatch, capsys
):
    generate, calls = RolloutWorker.generate, []

    def interrupt_the_second_call(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(*arguments)

    monkeypatch.setattr(RolloutWorker, "generate", interrupt_the_second_call)
    out = tmp_path / "new" / "answers.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, *shared_flags, "--out", out)
    assert "the same command continues" in capsys.readouterr().out
    assert out.read_bytes() == b"".join((undisturbed / "samples.jsonl").read_bytes().splitlines(keepends=True)[:8])
    assert not sample_files(out).summary.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--samples", "5", "--batch", "10"), "samples was 4 and is now 5"),
        (("--seed", "1"), "seed was 0 and is now 1"),
        (("--top-k", "3"), "sampling"),
        (("--limit", "3"), "limit was null and is now 3"),
        (("--checkpoint", "last"), 'checkpoint was "best" and is now "last"'),
        (("--reward", "math"), "reward "),
        (("--batch", "4"), "rows_per_call was 8 and is now 4"),
        (("--cache-dtype", "int8"), "cache_dtype "),
    ],
)
def test_resuming_with_different_settings_is_refused(run, shared_flags, undisturbed, changed, message):
    before = (undisturbed / "samples.jsonl").read_bytes()
    with pytest.raises(InputError, match="already exists, with answers made under other settings") as refused:
        evaluate(run, *shared_flags, "--out", undisturbed, *changed)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (undisturbed / "samples.jsonl").read_bytes() == before


def test_a_foreign_or_edited_file_is_refused(run, shared_flags, undisturbed, tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text("my notes\n")
    with pytest.raises(InputError, match="already exists, without readable settings"):
        evaluate(run, "--out", mine)
    assert mine.read_text() == "my notes\n"
    lines = (undisturbed / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.settings.json").write_bytes((undisturbed / "samples.settings.json").read_bytes())
    for broken in (lines[1], b"[]\n", b"{\n", b'{"problem": 0, "sample": 1}\n'):
        edited = lines[0] + broken + (lines[1] if broken == lines[1] else b"")
        (tmp_path / "samples.jsonl").write_bytes(edited)
        with pytest.raises(InputError, match=r"samples.jsonl line [23] is not the answer expected there"):
            evaluate(run, *shared_flags, "--out", tmp_path)
        assert (tmp_path / "samples.jsonl").read_bytes() == edited


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "0"), "--limit is 0; it must be at least 1"),
        (("--samples", "0"), "--samples is 0; it must be at least 1"),
        (("--samples", "1001"), "--samples is 1001; at most 1000"),
        (("--batch", "0"), "--batch is 0"),
        (("--seed", "-1"), "--seed is -1"),
        (("--k", "2"), "--k 2 cannot be measured from --samples 1"),
        (("--samples", "4", "--k", "0", "4"), "--k 0 cannot"),
        (("--samples", "4", "--greedy"), "the 4 greedy answers to a problem would all be the same"),
        (("--samples", "4", "--temperature", "0"), "greedy answers to a problem would all be the same"),
        (("--greedy", "--temperature", "1"), "--greedy and --temperature 1.0 contradict each other"),
        (("--top-p", "0.9"), "also give a --temperature above 0"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_opened(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate("./nowhere", *arguments)


def test_a_missing_column_is_refused_before_anything_is_sampled(run, tmp_path):
    with pytest.raises(InputError, match="--by subject: the problems have no such column; choose among operands"):
        evaluate(run, "--by", "subject", "--out", tmp_path / "answers.jsonl")
    assert not list(tmp_path.iterdir())


def test_results_of_a_dataset_are_grouped_by_subject(run, tmp_path, capsys):
    data = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1), "subject": "odd" if n % 2 else "even"} for n in range(1, 6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert evaluate(run, "--dataset", data, "--limit", 4) == 0
    output = capsys.readouterr().out
    assert "on 4 of 4 problems" in output
    assert "By subject" in output
    assert "even" in output
    assert list(tmp_path.iterdir()) == [data]


def test_problems_on_which_the_reward_abstains_are_left_out(run, judge, tmp_path, capsys):
    half = ("--reward", f"{judge}:half", "--samples", "2")
    assert evaluate(run, *half, "--out", tmp_path / "a.jsonl", "--right-above", "0.5") == 0
    assert "share of rewards above 0.5: 0.0%" in (output := capsys.readouterr().out)
    assert "on 3 of 6 problems, 2 answers each, 6 answers not judged" in output
    assert {row["reward"] for row in read_rows(tmp_path / "a.jsonl")} == {0.5, None}
    measures = json.loads((tmp_path / "a.summary.json").read_text())["whole"]["measures"]
    assert (measures["reward"]["value"], measures["reward"]["problems"]) == (0.5, 3)


@pytest.fixture(scope="module")
def run_with_a_reward_function(tmp_path_factory):
    """The folder of a run whose reward function was passed to `train`."""
    path = tmp_path_factory.mktemp("runs") / "function"
    train(SMALL.replace(steps=0, train_problems=20, heldout_problems=4, run=str(path)), even_length)
    return path


def odd_length(completions):
    """The opposite of `even_length`."""
    return [1 - reward for reward in even_length(completions)]


class CountingEngine:
    """An engine that counts requests and forwards them to another engine."""

    def __init__(self, inner):
        self.inner, self.requests = inner, 0

    def generate(self, params, requests):
        self.requests += len(requests)
        return self.inner.generate(params, requests)


class ConstantRewardEnvironment:
    """A one-turn environment that gives every completion the reward 0.25."""

    max_turns = 1

    def reset(self, problem):
        return problem

    def step(self, state, completion):
        return Step(state, reward=0.25, done=True)


def test_a_reward_that_was_passed_to_train_must_be_passed_again(run_with_a_reward_function, judge, tmp_path, capsys):
    with pytest.raises(InputError, match=r"The run was started with reward passed to train\(\); pass the same arguments\."):
        run_eval(Eval(str(run_with_a_reward_function)))
    assert run_eval(Eval(str(run_with_a_reward_function), reward=f"{judge}:judge")) == 0
    assert "on 4 of 4 problems" in capsys.readouterr().out
    out = tmp_path / "answers.jsonl"
    measures = evaluate_in_code(run_with_a_reward_function, reward=even_length, out=out).whole.measures
    assert measures["reward"].value == measures["avg@1"].value
    with pytest.raises(InputError, match=r"reward was .*even_length.* and is now .*odd_length"):
        evaluate_in_code(run_with_a_reward_function, reward=odd_length, out=out)


def test_sampling_and_export_need_no_reward(run_with_a_reward_function, tmp_path, capsys):
    assert main(["sample", str(run_with_a_reward_function), "--prompt", "3+4="]) == 0
    assert capsys.readouterr().out.startswith("3+4=")
    assert main(["export", str(run_with_a_reward_function), str(tmp_path / "model")]) == 0
    written = {"config.json", "model.safetensors", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in (tmp_path / "model").iterdir()} == written
    assert load(run_with_a_reward_function).missing == ("reward",)


def test_evaluation_uses_the_engine_and_the_environment_that_are_passed(run_with_a_reward_function):
    opened = load(run_with_a_reward_function, reward=even_length)
    engine, environment = CountingEngine(opened.worker.engine), ConstantRewardEnvironment()
    report = evaluate_in_code(run_with_a_reward_function, engine=engine, environment=environment, limit=3)
    assert engine.requests == 3
    assert report.whole.measures["reward"].value == 0.25


def test_a_saved_evaluation_is_continued_only_with_the_same_parts(run, tmp_path):
    reward, out = tmp_path / "rw.py", tmp_path / "out"
    judge = "def judge(completions):\n    return [1.0 for _ in completions]\n"
    reward.write_text(judge)
    same = {"limit": 2, "out": out, "reward": f"{reward}:judge"}
    evaluate_in_code(run, **same)
    engine = CountingEngine(load(run).worker.engine)
    for file, message in (
        (judge.replace("1.0", "0.0"), 'reward_sha256 was "'),
        (judge, "engine_sha256 was null and is now"),
    ):
        reward.write_text(file)
        with pytest.raises(InputError, match=message):
            evaluate_in_code(run, **same, engine=None if file != judge else engine)
    evaluate_in_code(run, **same)
    settings = json.loads(sample_files(out).settings.read_text())
    assert set(settings) >= {"reward_sha256", "tokenizer_sha256"}


def test_settings_identify_the_parameters_and_the_problems(run):
    opened = load(run)
    params, worker = opened.params, opened.worker
    name = next(iter(params))
    same = settings_of(worker, params, opened.mesh)
    assert json.loads(json.dumps(same)) == same
    assert settings_of(worker, params, opened.mesh) == same
    assert settings_of(worker.with_first_prompts(3), params, opened.mesh)["problems_sha256"] != same["problems_sha256"]
    moved = {**params, name: jax.tree.map(lambda leaf: leaf + 1e-3, params[name])}
    assert settings_of(worker, moved, opened.mesh)["model_sha256"] != same["model_sha256"]


def test_eval_on_eight_devices_reports_dropped_problems(shared_data, tmp_path, capsys):
    model = (shared_data / "stories260k", "--tokenizer", "bytes", "--max-response-tokens", "4", "--limit", "7")
    data = ("--dataset", shared_data / "gsm8k_train.jsonl", "--samples", "3", "--batch", "16")
    assert evaluate(*model, *data, "--out", tmp_path / "a") == 0
    output = capsys.readouterr().out
    summary = json.loads((tmp_path / "a" / "samples.summary.json").read_text())
    assert summary["whole"]["count"] + summary["dropped"] == 7
    assert (f"Left out {summary['dropped']} problems" in output) == (summary["dropped"] > 0)
    rows = read_rows(tmp_path / "a" / "samples.jsonl")
    assert sorted((row["problem"], row["sample"]) for row in rows) == list(np.ndindex(summary["whole"]["count"], 3))
    assert summary["settings"]["rows_per_call"] == 15
    assert summary["settings"]["devices"].startswith("8 x ")


def test_prompts_of_the_default_task_can_be_changed(run, capsys):
    """The task's tokenizer has no space, so `spaces` is refused with a list of alternatives; `order` swaps the summands."""
    with pytest.raises(
        InputError, match=r"--perturb spaces makes prompts that this model cannot read .* case, typos, order\."
    ):
        evaluate(run, "--perturb", "spaces")
    assert evaluate(run, "--perturb", "order") == 0
    assert "prompts changed (order), for example from" in capsys.readouterr().out


def test_chat_without_a_chat_template_is_refused(run):
    arguments = tyro.cli(Eval, args=with_values([str(run), "--chat"], Eval))
    assert arguments.chat is True
    assert tyro.cli(Eval, args=with_values([str(run), "--no-chat"], Eval)).chat is False
    with pytest.raises(InputError, match="has no chat template"):
        run_eval(arguments)


def test_evaluate_accepts_the_same_settings_in_python(run):
    by_name = evaluate_in_code(run, samples=2, temperature=1.5, limit=3)
    as_record = evaluate_in_code(run, EvalSettings(samples=2, temperature=1.5, limit=3))
    assert by_name.to_json() == as_record.to_json()
    assert by_name.whole.count == 3
    with pytest.raises(InputError, match="no setting 'sampels'; did you mean 'samples'"):
        evaluate_in_code(run, sampels=2)
