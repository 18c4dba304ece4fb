"""`--also-heldout`: each extra set gets its own metrics, answers and curve, without affecting the rest of a run."""

import json
from dataclasses import replace

import chex
import numpy as np
import pytest
from run_states import first_state, read_checkpoint
from small_runs import STEPPED, even_length, is_time, stopping_after

import rljax
from rljax.cli.doctor_output import describe_outcome
from rljax.errors import InputError
from rljax.evaluation.heldout import evaluate
from rljax.tracking.plots import held_out_accuracy, plot_curves
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.summary import summarize
from rljax.training.interrupt import Interrupted

EASY = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(1, 6)]
LONG = [{"prompt": f"{n}0+{n}1+2=", "answer": str(20 * n + 3)} for n in range(1, 4)]
CONFIG = STEPPED.replace(max_prompt_tokens=12, steps=2, eval_every=1, heldout_problems=4)


@pytest.fixture
def sets(tmp_path):
    found = {}
    for name, rows in (("easy", EASY), ("long", LONG)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        found[name] = str(file)
    return found


def rows_of(run, phase):
    return [row for row in read_metrics(run / "metrics.jsonl") if row["phase"] == phase]


def without(row, *endings):
    return {name: value for name, value in row.items() if not is_time(name) and not name.endswith(endings)}


def test_extra_sets_are_evaluated_without_changing_training(tmp_path, sets):
    with_sets, plain = (
        rljax.train(CONFIG.replace(run=str(tmp_path / name), also_heldout=also), reward=even_length)
        for name, also in (("sets", sets), ("plain", {}))
    )
    chex.assert_trees_all_equal(with_sets.params, plain.params)
    assert (with_sets.accuracy_before, with_sets.accuracy_after) == (plain.accuracy_before, plain.accuracy_after)
    found, expected = (rows_of(result.run, "eval") for result in (with_sets, plain))
    assert [without(row, "_on_easy", "_on_long") for row in found] == [without(row) for row in expected]
    assert {row["judged_on_easy"] for row in found} == {4}  # only the first --heldout-problems=4 are used
    assert {row["judged_on_long"] for row in found} == {3}

    folder = RunFolder.open(with_sets.run)
    assert folder.read_heldout() == RunFolder.open(plain.run).read_heldout()
    further = folder.read_further_heldout()
    assert list(further) == ["easy", "long"]
    for name, count, data in (("easy", 4, EASY), ("long", 3, LONG)):
        assert [row["prompt"] for row in further[name]] == [row["prompt"] for row in data[:count]] * 2
        assert [row["problem"] for row in further[name]] == [*range(count)] * 2
        for position, step in enumerate((0, 2)):
            rewards = [row["reward"] for row in further[name] if row["step"] == step]
            assert rewards == even_length([row["completion"] for row in further[name] if row["step"] == step])
            logged = next(row for row in found if row["step"] == step)
            assert logged[f"accuracy_on_{name}"] == pytest.approx(np.mean(rewards)), position
    assert (
        len([line for line in describe_outcome(folder, summarize(folder)) if " on easy: " in line or " on long: " in line])
        == 2
    )


def test_joint_evaluation_equals_separate_evaluations(sets):
    setup, state = first_state(CONFIG.replace(also_heldout=sets), reward=even_length)
    params = setup.full_params(state.params)
    together = evaluate(setup.heldout, params)
    for name in sets:
        alone = evaluate(setup.heldout.extra_sets[name], params)
        chex.assert_trees_all_equal(alone.groups, together.extra_sets[name].groups)
        assert together.metrics()[f"reward_on_{name}"] == alone.metrics()["reward"]
    longest = max(map(len, setup.heldout.extra_sets["long"].prompts.tokens))
    assert longest > setup.prompt_length, "an extra set may have longer prompts than the training problems"


def test_the_curves_have_a_line_for_each_set(tmp_path):
    row = {"phase": "eval", "step": 0, "accuracy": 0.5, "judged": 4, "accuracy_on_easy": 0.25, "judged_on_easy": 8}
    trained = {"phase": "rl", "step": 4, "reward": 0.5, "accuracy": 0.5}
    rows = [row, trained, row | {"step": 4, "accuracy_on_easy": 0.75}]
    curve = held_out_accuracy(rows, warm_scale=None, name="easy")
    assert (curve.steps.tolist(), curve.values.tolist(), curve.judged.tolist()) == ([0, 4], [0.25, 0.75], [8, 8])
    for name, used in (("with", rows), ("without", [without(each, "_on_easy") for each in rows])):
        plot_curves(used, tmp_path / f"{name}.svg", title="run")
    comments = [(tmp_path / f"{name}.svg").read_text().count("<!-- easy -->") for name in ("with", "without")]
    assert comments == [1, 0]


def test_best_metric_may_be_of_an_extra_set(tmp_path, sets):
    config = CONFIG.replace(run=str(tmp_path / "run"), also_heldout=sets, best_metric="accuracy_on_easy", steps=3)
    result = rljax.train(config, reward=even_length)
    rows = rows_of(result.run, "eval")
    expected, best = [], (-1.0, -1.0)
    for row in rows:
        quality = (row["accuracy_on_easy"], row["reward"])
        expected.append(float(quality >= best))
        best = max(best, quality)
    assert [row["is_best"] for row in rows] == expected
    with pytest.raises(InputError, match=r"--best-metric accuracy_on_aime is not a metric.*accuracy_on_easy"):
        rljax.train(config.replace(run=str(tmp_path / "other"), best_metric="accuracy_on_aime"), reward=even_length)


def test_run_resumes_exactly_and_refuses_changed_rows(tmp_path, sets):
    config = CONFIG.replace(also_heldout=sets, steps=4, checkpoint_every=1)
    done = rljax.train(config.replace(run=str(tmp_path / "done")), reward=even_length)
    stopped = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(stopped)), reward=stopping_after(14))
    assert 0 < read_checkpoint(config, stopped, reward=even_length).state.step < 4
    with open(sets["easy"], "a") as file:
        file.write('{"prompt": "9+9=", "answer": "18"}\n')  # not used, because it is beyond --heldout-problems
    resumed = rljax.train(resume=stopped, reward=even_length)
    chex.assert_trees_all_equal(resumed.params, done.params)
    for phase in ("rl", "eval"):
        assert [without(row) for row in rows_of(stopped, phase)] == [without(row) for row in rows_of(done.run, phase)]
    assert (stopped / "heldout.jsonl").read_bytes() == (done.run / "heldout.jsonl").read_bytes()
    with open(sets["easy"], "w") as file:
        file.write('{"prompt": "9+9=", "answer": "18"}\n')
    with pytest.raises(InputError, match=r"held-out rows"):
        rljax.train(resume=stopped, reward=even_length)


def test_notes_report_omitted_and_shared_rows(sets):
    setup, _ = first_state(CONFIG.replace(also_heldout=sets), reward=even_length)
    assert "easy: 1 row is left out: beyond the first heldout_problems=4" in setup.omissions
    prompts = [problem.prompt for problem in setup.train.prompts.problems]
    shared = sum(row["prompt"] in prompts for row in EASY[:4])
    assert any("also training prompts" in note for note in setup.omissions) == bool(shared)
    with open(sets["easy"], "a") as file:
        file.write(json.dumps(LONG[0]) + "\n")
    config = CONFIG.replace(also_heldout={"mixed": sets["easy"]}, max_prompt_tokens=6, heldout_problems=9)
    setup, _ = first_state(config, reward=even_length)
    assert "mixed: 1 row is left out: prompt longer than max_prompt_tokens=6" in setup.omissions


def test_unusable_sets_are_refused(tmp_path, sets):
    with pytest.raises(InputError, match=r"also_heldout is \{'a b': 'x'\}; give each set a name"):
        CONFIG.replace(also_heldout={"a b": "x"})
    with pytest.raises(InputError, match="missing"):
        first_state(CONFIG.replace(also_heldout={"a": str(tmp_path / "missing.jsonl")}), reward=even_length)
    (tmp_path / "bare.jsonl").write_text('{"prompt": "1+1=", "tests": ["assert True"]}\n')
    with pytest.raises(InputError, match=r"also_heldout bare=.*no problem of this set has one"):
        first_state(replace(CONFIG.replace(also_heldout={"bare": str(tmp_path / "bare.jsonl")})))
    rows = [{"prompt": f"{n}+1=", "tests": ["assert True"]} for n in range(12)]
    (tmp_path / "tested.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code = CONFIG.replace(task=None, dataset=str(tmp_path / "tested.jsonl"), reward="code", warm_start_steps=0)
    first_state(code.replace(also_heldout={"bare": str(tmp_path / "bare.jsonl")}))
    with pytest.raises(
        InputError, match=r"also_heldout easy=.*the reward code needs tests, but no problem of this set has any"
    ):
        first_state(code.replace(also_heldout={"easy": sets["easy"]}))


def test_what_held_out_prompts_leave_out_is_reported(tmp_path, sets):
    (tmp_path / "choices.jsonl").write_text('{"prompt": "1+1=", "answer": "2", "choices": ["2", "3"]}\n')
    note, choices = "the prompts leave out the column 'choices'; add it to the prompts", str(tmp_path / "choices.jsonl")
    rows = {"task": None, "dataset": sets["easy"], "warm_start_steps": 0}
    for changes, expected in (
        ({"also_heldout": {"mine": choices}}, f"mine: {note}"),
        ({"heldout_dataset": choices, **rows}, note),
        ({**rows}, None),
    ):
        setup, _ = first_state(CONFIG.replace(**changes), reward=even_length)
        assert [text for text in setup.omissions if "leave out" in text] == [expected] * (expected is not None)
