"""Commands that use a trained run: best of N, search over steps, data generation, voting and perturbed prompts."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from run_states import first_state, read_checkpoint
from small_cli import printed, refused
from small_runs import SMALL

import rljax
from rljax.data.problem import Problem
from rljax.data.problem_datasets import load_problems
from rljax.errors import InputError
from rljax.evaluation.statistics import Estimate
from rljax.programs import combined_evaluation, synthetic_data
from rljax.programs.prefix_values import load_value_function
from rljax.programs.search import search
from rljax.programs.synthetic_data import false_steps_of
from rljax.programs.train import train
from rljax.programs.trained_policy import load
from rljax.rewards.steps import equations
from rljax.rollout import sequences_of
from rljax.rollout.continuations import prefixes_of
from rljax.training.value_update import make_values

HELDOUT = 6
JUDGE = """
def judge(completions, **columns):
    return [float(len(completion) % 2 == 0) for completion in completions]
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A reward function file that rewards completions of even length."""
    path = tmp_path_factory.mktemp("rewards") / "judge.py"
    path.write_text(JUDGE)
    return f"{path}:judge"


@pytest.fixture(scope="module")
def run(judge, tmp_path_factory):
    """A run whose critic reads log-probabilities, stopped before its first step."""
    path = tmp_path_factory.mktemp("runs") / "critic"
    chosen = {"algorithm": "ppo", "critic_surprisal": True, "tokenizer": "bytes", "reward": judge}
    sizes = {"steps": 0, "max_prompt_tokens": 12, "train_problems": 20, "heldout_problems": HELDOUT, "seed": 1}
    train(SMALL.replace(**chosen, **sizes, run=str(path)))
    return path


def test_the_value_of_a_prefix_is_the_critics_value_at_its_end(run):
    """A prefix alone has the same value as at its last token in one pass over the complete response."""
    opened = load(run, trust=True)
    worker = opened.sampler(temperature=1.0, top_k=None, top_p=None)
    groups = worker.generate(opened.params, [0, 1], 2, jax.random.key(0))
    value = load_value_function("critic", opened, run)
    complete = prefixes_of(worker, groups)
    prefixes = [p._replace(tokens=p.tokens[:n], logp=p.logp[:n]) for p in complete for n in range(len(p.tokens))]
    expected = np.concatenate(
        [row[: len(prefix.tokens)] for row, prefix in zip(_values_in_one_pass(run, opened, groups), complete, strict=True)]
    )
    np.testing.assert_allclose(value(prefixes), expected, atol=1e-5)
    assert np.ptp(expected) > 1e-4
    zero_logp = [prefix._replace(logp=tuple(0.0 for _ in prefix.logp)) for prefix in prefixes]
    assert np.abs(value(zero_logp) - expected).max() > 1e-6, "this critic reads log-probabilities"


def _values_in_one_pass(run, opened, groups):
    """Compute the value before each response token as in training, with the checkpoint's parameters."""
    setup, _ = first_state(opened.config)
    critic = read_checkpoint(opened.config, run, "best").state.critic
    assert setup.critic is not None
    assert critic is not None
    return make_values(setup.critic, opened.mesh, 8)(critic.params, sequences_of(groups))


def test_accuracy_of_each_chooser_is_reported_per_number_of_answers(run, tmp_path, capsys):
    words = (
        "eval",
        str(run),
        "--trust",
        "--samples",
        "4",
        "--choose",
        "verifier",
        "votes",
        "critic",
        "--out",
        str(tmp_path / "a.jsonl"),
    )
    output = printed(capsys, *words)
    assert "Accuracy of the chosen response" in output
    summary = json.loads((tmp_path / "a.summary.json").read_text())
    chosen = summary["chosen"]
    assert [row["k"] for row in chosen["critic"]] == [1, 2, 4]
    measures = summary["whole"]["measures"]
    assert [row["value"] for row in chosen["verifier"]] == [measures[f"pass@{k}"]["value"] for k in (1, 2, 4)]
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    best = [max((r for r in rows if r["problem"] == p), key=lambda r: r["scores"]["critic"]) for p in range(HELDOUT)]
    assert chosen["critic"][-1]["value"] == pytest.approx(np.mean([row["reward"] for row in best]))
    assert printed(capsys, *words) == output, "saved answers keep their scores"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", "RUN", "--choose", "votes"), "also give --samples"),
        (
            ("eval", "RUN", "--trust", "--samples", "2", "--choose", "critics"),
            "no value 'critics'; choose 'critic', or 'model:FOLDER'",
        ),
        (("eval", "RUN", "RUN"), "Several runs can be evaluated together only with --vote"),
        (("eval", "RUN", "--vote"), "give at least two"),
        (("eval", "RUN", "RUN", "--vote", "--perturb", "case"), "give one of them"),
        (("eval", "RUN", "--trust", "--perturb", "typos"), "changes no prompt"),
        (("search", "RUN", "--samples", "0"), "give numbers of at least 1"),
        (("search", "RUN", "--expand", "0"), "--expand is 0"),
        (("search", "RUN", "--temperature", "0"), "above 0"),
        (("search", "RUN", "--step-ends", ""), "none of them empty"),
        (("search", "RUN", "--quantize", "int8"), "the critic was trained with exact weights"),
        (("search", "RUN", "--seed", str(2**63)), "must be at least 0 and below"),
        (
            ("eval", "RUN", "--samples", "2", "--choose", "critic", "--quantize", "nf4"),
            "the critic was trained with exact weights",
        ),
        (("sample", "RUN", "--trust", "--prompt", "1+1=", "--seed", "-1"), "must be at least 0 and below"),
        (("search", "RUN", "--trust", "--value", "model:./nowhere"), "nowhere"),
        (("generate", "RUN", "out.jsonl", "--contradicted", "drop"), "applies only with --clean"),
        (("generate", "RUN", "out.jsonl", "--clean", "x.jsonl", "--most", "2"), "applies only without --clean"),
        (("generate", "RUN", "out.jsonl", "--similarity", "2"), "it must be from 0 to 1"),
        (("generate", "RUN", "RUN"), "already exists"),
        (("generate", "RUN", "none/out.jsonl"), "there is no folder 'none'"),
        (("generate", "RUN", "out.jsonl", "--agreement", "0.7"), "applies only with --keep votes or --clean"),
        (("generate", "nowhere", "out.jsonl", "--keep", "votes", "--agreement", "2"), "at most 1"),
        (("eval", "nowhere", "nowhere", "--vote", "--out", "RUN"), "already exists"),
        (("eval", "nowhere", "--perturb", "case", "--out", "none/v.json"), "there is no folder 'none'"),
        (("eval", "RUN", "RUN", "--vote", "--by", "level"), "--by does not apply to an evaluation with --vote"),
        (("eval", "RUN", "RUN", "--vote", "--samples", "2", "--k", "2"), "--k does not apply to an evaluation with --vote"),
        (("search", "nowhere", "--out", "RUN"), "already exists"),
        (("search", "nowhere", "--out", "none/s.json"), "there is no folder 'none'"),
    ],
)
def test_invalid_arguments_are_refused(run, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    refused(capsys, message, *[str(run) if word == "RUN" else word for word in words])
    assert not list(tmp_path.iterdir())


def test_a_search_is_compared_with_responses_of_the_same_cost(run, tmp_path, capsys):
    words = ("--samples", "4", "--step-ends", "1", "2", "3", "--limit", "3", "--out", str(tmp_path / "s.json"))
    output = printed(capsys, "search", str(run), "--trust", *words)
    assert "N = 4: search minus best of" in output
    report = json.loads((tmp_path / "s.json").read_text())
    assert (report["problems"], [row["keep"] for row in report["rows"]]) == (3, [1])
    for row in report["rows"]:
        assert row["tokens"] >= row["response_tokens"] or row["responses"] == 1
        assert row["accuracy"]["problems"] == 3


def test_answers_have_at_least_the_minimum_number_of_tokens(run, tmp_path, capsys):
    words = ("--samples", "4", "--least-tokens", "6", "--continuation", ";")
    printed(capsys, "eval", str(run), "--trust", *words, "--out", str(tmp_path / "a.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * len({row["problem"] for row in rows})
    assert all(row["tokens"] > 6 or row["truncated"] for row in rows)
    summary = printed(capsys, "eval", str(run), "--trust", *words)
    assert "problems" in summary
    refused(capsys, "--least-tokens is 0", "eval", str(run), "--trust", "--least-tokens", "0")
    assert printed(capsys, "sample", str(run), "--trust", "--prompt", "1+1=", *words[2:])


def test_a_tree_search_samples_as_many_steps_as_requested(run, tmp_path, capsys):
    words = ("--method", "tree", "--samples", "6", "--expand", "2", "--step-ends", "1", "2", "--limit", "3")
    printed(capsys, "search", str(run), "--trust", *words, "--out", str(tmp_path / "s.json"))
    (row,) = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert (row["samples"], row["keep"], row["accuracy"]["problems"]) == (6, 6, 3)
    assert 0 < row["tokens"] <= 6 * 12
    refused(capsys, "--exploration is -1", "search", str(run), "--trust", "--exploration", "-1")


def test_a_revision_samples_as_many_versions_as_requested(run, tmp_path, capsys):
    words = ("--method", "revision", "--samples", "1", "5", "--step-ends", "1", "2", "--limit", "3")
    printed(capsys, "search", str(run), "--trust", *words, "--out", str(tmp_path / "s.json"))
    once, often = json.loads((tmp_path / "s.json").read_text())["rows"]
    assert (once["samples"], often["samples"], often["keep"]) == (1, 5, 5)
    assert once["tokens"] < often["tokens"] <= 5 * 12


@pytest.mark.parametrize("method", ["tree", "revision"])
def test_right_answers_of_a_search_become_demonstrations(run, tmp_path, capsys, method):
    out = tmp_path / "found.jsonl"
    words = ("--trust", "--method", method, "--samples", "12", "--step-ends", "1", "2", "--demonstrations", str(out))
    assert f"Rows written to {out}" in printed(capsys, "search", str(run), *words)
    problems = load_problems(out)
    assert problems
    assert all(problem.demonstration and len(problem.demonstration) % 2 == 0 for problem in problems)
    trained = {problem.prompt for problem in load(run, dataset=str(out), trust=True).worker.prompts.problems}
    heldout = {problem.prompt for problem in load(run, trust=True).worker.prompts.problems}
    assert not trained & heldout, "the run's training problems are searched, not its held-out ones"
    refused(capsys, "already exists", "search", str(run), *words)


def test_a_search_reports_that_no_step_ends_occur(run):
    found = [
        search(run, trust=True, samples=(2,), limit=4, method=method, step_ends=("never",))
        for method in ("beam", "revision")
    ]
    assert all("the texts that end a step do not occur" in " ".join(report.lines()) for report in found)
    assert "do not occur" not in " ".join(search(run, trust=True, samples=(2,), limit=4, step_ends=("1", "2", "3")).lines())


def test_paths_may_be_strings(run, tmp_path):
    search(run, trust=True, samples=(12,), step_ends=("1", "2"), demonstrations=str(tmp_path / "found.jsonl"))
    rljax.evaluate(run, trust=True, limit=2, out=str(tmp_path / "answers.jsonl"))
    synthetic_data.generate(run, str(tmp_path / "own.jsonl"), trust=True, samples=4)
    assert {"found.jsonl", "answers.jsonl", "own.jsonl"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.usefixtures("without_type_checks")
def test_a_prompt_in_place_of_a_list_of_prompts_is_refused(run):
    opened = load(run, trust=True)
    for prompts in ("1+1=", [5], [[{"role": "user", "content": "1+1="}]]):
        with pytest.raises(InputError, match=r"^prompts is .*; give a list of texts, such as \['1\+1='\]\.$"):
            opened.sample(prompts)


@pytest.mark.usefixtures("without_type_checks")
def test_unknown_settings_of_an_evaluation_are_refused(run):
    with pytest.raises(InputError, match=r"^There is no setting 'sample'; did you mean 'samples'"):
        rljax.evaluate(run, trust=True, sample=4)
    with pytest.raises(
        InputError, match=r"^settings is \{'samples': 4\}; pass each setting by its name, such as samples=4\.$"
    ):
        rljax.evaluate(run, {"samples": 4}, trust=True)


def test_a_search_without_a_right_answer_writes_no_demonstrations(run, tmp_path, capsys):
    never = tmp_path / "never.py"
    never.write_text("def never(completions, **columns):\n    return [0.0 for _ in completions]\n")
    words = (
        "--samples",
        "2",
        "--limit",
        "2",
        "--reward",
        f"{never}:never",
        "--demonstrations",
        str(tmp_path / "none.jsonl"),
    )
    refused(capsys, "no answer was right", "search", str(run), *words)
    assert not (tmp_path / "none.jsonl").exists()


def test_generated_rows_are_demonstrations_that_train_reads(run, tmp_path, capsys):
    out = tmp_path / "own.jsonl"
    output = printed(capsys, "generate", str(run), str(out), "--trust", "--samples", "64", "--limit", "5", "--most", "2")
    assert "responses kept, for" in output
    problems = load_problems(out)
    assert problems
    assert all(problem.demonstration and len(problem.demonstration) % 2 == 0 for problem in problems)
    trained = {problem.prompt for problem in load(run, dataset=str(out), trust=True).worker.prompts.problems}
    heldout = {problem.prompt for problem in load(run, trust=True).worker.prompts.problems}
    assert not trained & heldout, "the run's training problems are answered, not its held-out ones"


def test_no_file_is_written_if_no_response_is_kept(run, tmp_path, capsys):
    never = tmp_path / "never.py"
    never.write_text("def never(completions, **columns):\n    return [0.0 for _ in completions]\n")
    words = ("--samples", "2", "--limit", "2", "--reward", f"{never}:never")
    refused(capsys, "accepted responses: 0 of 4", "generate", str(run), str(tmp_path / "own.jsonl"), *words)
    assert not (tmp_path / "own.jsonl").exists()


def test_clean_reports_what_the_votes_confirm_or_contradict(run, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2", "demonstration": "#2"}\n' * 2)
    output = printed(
        capsys, "generate", str(run), str(tmp_path / "b.jsonl"), "--trust", "--clean", str(data), "--samples", "2"
    )
    assert "2 rows kept. Votes: 0 rows confirmed, 0 contradicted and dropped, 2 undecided" in output
    assert len(load_problems(tmp_path / "b.jsonl")) == 2


def test_a_demonstration_that_the_votes_contradict_is_dropped(tmp_path, capsys):
    """The model is trained to always answer 2, so its votes contradict the answer 7."""
    learned, rows = tmp_path / "learned.jsonl", tmp_path / "rows.jsonl"
    line = '{"prompt": "%s=", "answer": "%s", "demonstration": "#%s"}\n'
    learned.write_text("".join(line % (f"{number}+1", 2, 2) for number in range(10)))
    rows.write_text(line % ("1+1", 2, 2) + line % ("2+1", 7, 7) + line % ("3+1", 2, 2))
    warm_start = {"warm_start_steps": 60, "warm_start_batch": 8, "warm_start_learning_rate": 1e-2}
    chosen = {"tokenizer": "characters", "max_response_tokens": 4, "steps": 0, "heldout_problems": 2}
    result = train(SMALL.replace(dataset=str(learned), **chosen, **warm_start, run=str(tmp_path / "run")))
    out = tmp_path / "clean.jsonl"
    output = printed(capsys, "generate", str(result.run), str(out), "--clean", str(rows), "--samples", "8")
    assert "2 rows kept. Votes: 2 rows confirmed, 1 contradicted and dropped, 0 undecided" in output
    assert [problem.prompt for problem in load_problems(out)] == ["1+1=", "3+1="]


def test_runs_vote_together_and_prompts_are_perturbed(run, tmp_path, capsys):
    out = tmp_path / "v.json"
    output = printed(capsys, "eval", str(run), str(run / "checkpoints" / "last"), "--trust", "--vote", "--out", str(out))
    assert f"on {HELDOUT} problems" in output
    assert len(json.loads(out.read_text())["runs"]) == 2
    out = tmp_path / "p.json"
    output = printed(capsys, "eval", str(run), "--trust", "--perturb", "spaces", "--limit", "4", "--out", str(out))
    assert "on the same 4 problems" in output
    found = json.loads(out.read_text())
    assert found["change"]["problems"] == 4
    assert ("same answer: " in output) == (found["same_answers"]["problems"] > 0)


def test_robustness_compares_only_problems_whose_changed_prompts_fit(run, monkeypatch):
    """The changed prompts of the last two problems are too long, so their original prompts are left out too."""

    def lengthen(problems, name, *, seed):
        texts = [f"{problem.prompt} " if index < 2 else problem.prompt * 9 for index, problem in enumerate(problems)]
        return [replace(problem, prompt=text) for problem, text in zip(problems, texts, strict=True)]

    monkeypatch.setattr(combined_evaluation, "perturb", lengthen)
    found = combined_evaluation.robustness(run, "spaces", limit=4, trust=True)
    assert (found.after.whole.count, found.after.dropped) == (2, 2)
    assert found.before.whole.count == found.change.problems == 2
    lines = found._replace(same=Estimate(0.25, 0.1, 0.5, 2)).lines()
    assert lines[-2] == "same answer:  25.0% (10 to 50) of the changed prompts"


def test_a_right_answer_with_a_false_step_is_not_kept_as_a_demonstration(run, tmp_path, capsys, monkeypatch):
    """One of three right responses to a sum has a false step; with `--step-reward none` it is kept."""
    problem = Problem("7+5=", "12")
    texts = ("7+5=12;#12", "4+4=13;#12", "#12", "7+5=13;#13")
    rows = [
        {"problem": 0, "sample": sample, "completion": text, "given": text[-2:], "reward": float(text.endswith("12"))}
        | {"correct": text.endswith("12"), "truncated": False}
        for sample, text in enumerate(texts)
    ]
    assert false_steps_of(equations, rows, [problem]) == {(0, 1), (0, 3)}
    monkeypatch.setattr(synthetic_data, "generate_rows", lambda worker, *_, **__: [row | {"problem": 0} for row in rows])
    monkeypatch.setattr(synthetic_data, "reward_columns", lambda problems: {"answer": ["12"] * len(problems)})
    words = ("--trust", "--samples", "4", "--limit", "1", "--similarity", "1", "--most", "9")
    output = printed(capsys, "generate", str(run), str(tmp_path / "steps.jsonl"), *words)
    assert "Left out 1 response with a right answer but a false step." in output
    assert [row.demonstration for row in load_problems(tmp_path / "steps.jsonl")] == ["7+5=12;#12", "#12"]
    printed(capsys, "generate", str(run), str(tmp_path / "all.jsonl"), *words, "--step-reward", "none")
    assert [row.demonstration for row in load_problems(tmp_path / "all.jsonl")] == [*texts[:3]]


def test_code_named_by_a_run_is_executed_only_with_trust(run, judge, tmp_path, capsys):
    """The reward file writes a trace file when it is executed."""
    path, trace = Path(judge.rpartition(":")[0]), tmp_path / "executed"
    before = path.read_text()
    path.write_text(f"open({str(trace)!r}, 'w').close()\n{before}")
    try:
        printed(capsys, "sample", str(run), "--prompt", "3+4=")
        for words in (("eval",), ("search",), ("generate", str(tmp_path / "own.jsonl"))):
            command, *rest = words
            refused(capsys, "which is code that its config.json names; read it, then add --trust", command, str(run), *rest)
        printed(capsys, "eval", str(run), "--reward", "exact", "--limit", "1")
        assert not trace.exists()
        printed(capsys, "eval", str(run), "--trust", "--accept-changes", "--limit", "1")
        assert trace.exists()
    finally:
        path.write_text(before)
