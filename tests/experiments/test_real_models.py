"""The experiments with a pretrained model: their rewards and problems, and committed results that match the settings."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED_DATA
from real import gsm8k
from real.addition import ADDITION, last_number, write_sums
from real.addition_algorithms import COMPARISON
from real.addition_on_cpu import ON_CPU
from real.calculator_tool import CALCULATOR_TOOL, COST, Sums, is_small
from real.calculator_tool import write_sums as write_calculator_sums
from real.curves import at_tokens, commands_of, curves_of, plot, report, report_by_tokens, settings_of
from real.json_answers import JSON_ANSWERS, json_answer, read_answer, write_questions
from real.least_common_multiple import LEAST_COMMON_MULTIPLE, final_number

import rljax

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "real"
GSM8K = gsm8k.gsm8k(Path("gsm8k_train.jsonl"))
EXPERIMENTS = (ADDITION, CALCULATOR_TOOL, COMPARISON, GSM8K, JSON_ANSWERS, LEAST_COMMON_MULTIPLE, ON_CPU)
COMMITTED = [experiment for experiment in EXPERIMENTS if (FOLDER / f"{experiment.name}.json").is_file()]


def rows_of(experiment):
    """The committed rows of an experiment."""
    return json.loads((FOLDER / f"{experiment.name}.json").read_text())


def read_problems(files):
    """The rows of the training file and of the held-out file."""
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_last_number_reward():
    answers = ["17 + 25 = 42", "42", "It is 42, since 17 + 25 is that", "about 42.", "forty-two", ""]
    assert last_number(answers, ["42"] * len(answers)) == [1, 1, 0, 1, 0, 0]


def test_sums_are_disjoint(tmp_path):
    train, heldout = read_problems(write_sums(tmp_path))
    rows = [*train, *heldout]
    sums = [re.findall(r"\d+", row["prompt"][0]["content"]) for row in rows]
    assert (len(train), len(heldout), len({*map(tuple, sums)})) == (90 * 90 - 256, 256, 90 * 90)
    assert all(int(a) + int(b) == int(row["answer"]) for (a, b), row in zip(sums, rows, strict=True))


def test_json_answer_reward():
    right, wrong = '{"sum": 42, "even": true}', '{"sum": 43, "even": false}'
    scores = {
        right: 1,
        f"\n{right} ": 1,
        wrong: 1 / 3,
        '{"sum": 42, "even": false}': 2 / 3,
        "42": 0,
        '{"sum": 42}': 0,
        '{"sum": "42", "even": true}': 0,
        "[]": 0,
    }
    scores['{"sum": 42,\n"even": true}'] = 0
    assert json_answer([*scores], ["42"] * len(scores)) == [*scores.values()]
    assert [read_answer(text) is not None for text in scores] == [score > 0 for score in scores.values()]


def test_questions_are_disjoint(tmp_path):
    train, heldout = read_problems(write_questions(tmp_path))
    questions = [row["prompt"][0]["content"] for row in (*train, *heldout)]
    assert len({*questions}) == len(questions) == 49 * 49


def test_final_number():
    texts = ["The LCM of 4 and 6 is 12.", "12", "**12**", "The LCM of 4 and 6", "12 is the LCM of both", "none"]
    assert [final_number(text) for text in texts] == ["12", "12", "12", "6", "", ""]


@pytest.mark.parametrize(
    ("text", "number"),
    [("so $1,080.00 in all", "1080"), ("3.50", "3.50"), ("-7 degrees", "-7"), ("Step 2: it is 9", "9"), ("none", None)],
)
def test_gsm8k_number_of(text, number):
    assert gsm8k.number_of(text) == number


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="shared data absent")
def test_gsm8k_split(tmp_path):
    train, heldout = read_problems(gsm8k.write_problems(SHARED_DATA / "gsm8k_train.jsonl", tmp_path))
    assert (len(train), len(heldout)) == (7473 - gsm8k.HELD_OUT, gsm8k.HELD_OUT)
    assert all(re.fullmatch(r"-?\d+(\.\d+)?", row["answer"]) for row in (*train, *heldout))


def test_curves_of_counts_sampled_tokens():
    steps = [
        {"phase": "rl", "step": step, "tokens_per_second": 10.0, "seconds": 3.0, "accuracy": 0.5, "response_length": 4.0}
        for step in (1, 2)
    ]
    evaluations = [{"phase": "eval", "step": step, "accuracy": 0.1 * step, "seconds": 1.0} for step in (0, 2)]
    found = curves_of([evaluations[0], *steps, evaluations[1]])
    assert found["tokens"] == {"0": 0, "2": 60}
    assert found["entropy"] == [None, None], "a step without an update has no entropy"
    assert at_tokens(found, 30) == pytest.approx(0.1)


@pytest.mark.parametrize("experiment", COMMITTED, ids=lambda experiment: experiment.name)
def test_committed_results_match_settings(experiment, tmp_path):
    """The committed page matches the rows, and the rows were produced with the current settings."""
    rows = rows_of(experiment)
    assert [row["settings"] for row in rows] == list(map(partial(settings_of, experiment), rows))
    page = (FOLDER / f"{experiment.name}.md").read_text()
    assert report(experiment, rows) in page
    if all("tokens" in row for row in rows) and len(experiment.arms) > 1:
        assert report_by_tokens(experiment, rows) in page
    plot(experiment, rows, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert (FOLDER / f"{experiment.name}.png").is_file()


@pytest.mark.parametrize("experiment", [ADDITION, COMPARISON, ON_CPU], ids=lambda experiment: experiment.name)
def test_committed_runs_learned_to_add(experiment):
    for row in rows_of(experiment):
        first, *_, last = row["accuracy"].values()
        assert last > first + 0.3, (row["arm"], row["seed"])


def test_committed_sampler_gap_is_small():
    """Sampler and scorer computed almost the same probabilities, in float32 with TF32 products on a GPU."""
    for row in rows_of(COMPARISON):
        assert np.nanmax(np.asarray(row["sampler_gap"], float)) < 1e-4


def play_sum(answer, *turns):
    """Play an episode of the calculator environment and return its steps."""
    environment, steps = Sums(), []
    state = environment.reset(rljax.Problem("", answer))
    for turn in turns:
        steps.append(environment.step(state, turn))
        state = steps[-1].state
    return steps


def test_calculator_call_costs_and_returns_sum():
    called, answered = play_sum("9999", "calc(4000 + 5999)", "9999")
    assert called.observation == [{"role": "user", "content": "= 9999"}]
    assert (called.reward, called.done, answered.reward, answered.correct) == (-COST, False, 1.0, True)
    assert [step.correct for step in play_sum("7", "It is 7.")] == [True]
    assert [step.correct for step in play_sum("7", "calc(3+4)")] == [False]


def test_calculator_sums_are_disjoint(tmp_path):
    train, heldout = read_problems(write_calculator_sums(tmp_path))
    questions = [{row["prompt"][-1]["content"] for row in rows} for rows in (train, heldout)]
    assert len(heldout) == 64
    assert not questions[0] & questions[1]
    assert [sum(is_small(row["answer"]) for row in rows) / len(rows) for rows in (train, heldout)] == [0.5, 0.5]


def test_calculator_measures_by_sum_size():
    texts = {"calc(40 + 50)\n= 90\n90": "90", "90": "90", "7": "7"}
    found = {name: [measure(*each) for each in texts.items()] for name, measure in CALCULATOR_TOOL.measures.items()}
    assert found["with a call, large sums"] == [True, False, None]
    assert found["right, small sums"] == [None, None, True]


def test_the_page_of_arms_with_different_seeds_has_a_command_for_each_group_of_arms():
    rows = [{"arm": arm, "seed": seed} for arm, seeds in {"VAPO": 2, "GRPO": 3, "DAPO": 2}.items() for seed in range(seeds)]
    script = "python experiments/real/addition_on_cpu.py"
    assert (
        commands_of(ON_CPU, rows) == f"{script} --arms 'GRPO' --seeds 0 1 2` and `{script} --arms 'DAPO' 'VAPO' --seeds 0 1"
    )


@pytest.mark.parametrize("experiment", COMMITTED, ids=lambda experiment: experiment.name)
def test_the_committed_page_has_the_commands_of_its_rows(experiment):
    page = (FOLDER / f"{experiment.name}.md").read_text()
    assert page.startswith(f"`{commands_of(experiment, rows_of(experiment))}` (")
