"""Small complete runs: what they write, and what custom functions receive.

The shared run trains a transformer; other tests train a bigram model, which compiles in a third of the time.
"""

import json

import chex
import jax
import numpy as np
import pytest
from bigram import BIGRAM
from run_states import first_state, read_checkpoint
from shared_run import TINY, distances, rows
from small_runs import even_length

import rljax
from rljax.algorithms import BY_NAME
from rljax.cli import main
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.parallel import make_mesh
from rljax.training.checkpoints.checkpoint import LAST
from rljax.training.memory_plan import rows_at_once
from rljax.training.run import Run
from rljax.training.state import RL, WARM_START


def test_a_run_writes_all_of_its_files(finished):
    path = finished.run
    assert json.loads((path / "config.json").read_text())["sampling"]["prompts"] == TINY.sampling.prompts
    phases = [row["phase"] for row in rows(path)]
    assert [phases.count(phase) for phase in ("warm_start", "rl", "eval")] == [4, 4, 5]
    samples = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {1, 2, 4}
    assert {"prompt", "completion", "answer", "reward"} <= set(samples[0])
    assert (path / "curves.png").read_bytes().startswith(b"\x89PNG")
    answers = [json.loads(line) for line in (path / "heldout.jsonl").read_text().splitlines()]
    assert [(row["step"], row["problem"]) for row in answers] == [
        (step, problem) for step in (0, 4) for problem in range(TINY.data.heldout_problems)
    ]
    for step, accuracy in ((0, finished.accuracy_before), (4, finished.accuracy_after)):
        rewards = [row["reward"] for row in answers if row["step"] == step]
        assert np.mean([reward > 0 for reward in rewards]) == pytest.approx(accuracy)
    assert list((path / "tensorboard").iterdir())
    assert {folder.name for folder in (path / "checkpoints").iterdir()} == {"last", "best"}


def test_metrics_have_plausible_values(finished):
    phase_fractions = []
    for row in rows(finished.run, timed=True):
        if row["phase"] == "rl":
            assert 0 <= row["filtered_ratio"] <= 1
            assert 0 <= row["truncated_share"] <= 1
            assert 1 <= row["response_length"] <= TINY.sampling.max_response_tokens
            np.testing.assert_allclose(row["reward"], row["accuracy"], rtol=1e-6, err_msg="this reward is 0 or 1")
            sampled = (
                row["tries"]
                * round(TINY.sampling.prompts * TINY.sampling.oversample)
                * TINY.sampling.group_size
                * row["response_length"]
            )
            inside = sum(row[f"{phase}_seconds"] for phase in ("sample", "judge", "score", "update"))
            assert inside <= row["seconds"], "the phases take no longer than the step"
            phase_fractions.append(inside / row["seconds"])
            assert ("save_seconds" in row) == (row["step"] in (3,)), (
                "only the row after a step that saved a checkpoint has save_seconds"
            )
            np.testing.assert_allclose(row["tokens_per_second"] * row["seconds"], sampled, rtol=1e-6)
    assert np.median(phase_fractions) > 0.5, "the phases take most of a step, unless the machine pauses between them"


def test_the_policy_changes_and_the_best_checkpoint_is_kept(finished):
    assert min(distances(finished.params, first_state(TINY)[1].params)) > 0
    evaluations = {row["step"]: row["accuracy"] for row in rows(finished.run) if row["phase"] == "eval"}
    best = read_checkpoint(TINY, finished.run, "best", reward=even_length)
    assert best.notes.best_quality is not None
    assert best.notes.best_quality[:2] == (max(evaluations.values()), max(evaluations.values()))
    assert int(best.state.step) == max(step for step, value in evaluations.items() if value == max(evaluations.values()))
    assert (finished.accuracy_before, finished.accuracy_after) == (evaluations[0], evaluations[4])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 1e38}, r"far too large, in 5 training steps .* lower --learning-rate"),
        ({"learning_rate": 1e4, "eval_every": 0, "checkpoint_every": 1}, r"in 5 training steps .* lower --learning-rate"),
        (
            {"warm_start_learning_rate": 1e38, "warm_start_accuracy": None},
            "in 5 training steps .* lower --warm-start-learning-rate",
        ),
    ],
    ids=["in RL", "a little in RL", "in the warm start"],
)
def test_a_run_with_broken_parameters_ends_in_an_error(tmp_path, settings, message):
    def anything(completions):
        return [1.0 + len(completion) for completion in completions]

    config = TINY.replace(run=str(tmp_path / "run"), algorithm="grpo", algorithm_options={}, steps=6, warm_start_steps=6)
    config = config.replace(**settings)
    with pytest.raises(InputError, match=message):
        rljax.train(config, anything, policy=BIGRAM)
    saved = [which.name for which in (tmp_path / "run" / "checkpoints").glob("*")]
    assert "last" in saved
    for which in saved:
        state = read_checkpoint(config, tmp_path / "run", which, reward=anything, policy=BIGRAM).state
        assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(state.params)) < 10


def test_a_run_without_an_evaluation_at_its_start(tmp_path, capsys):
    """The first later evaluation is the best so far, and commands read the run as any other."""
    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, skip_first_eval=True)
    result = rljax.train(config, even_length, policy=BIGRAM)
    assert [row["step"] for row in rows(result.run) if row["phase"] == "eval"] == [2, 4]
    assert np.isnan(result.accuracy_before)
    assert 0 <= result.accuracy_after <= 1
    assert read_checkpoint(config, result.run, "best", reward=even_length, policy=BIGRAM).notes.best_step in (2, 4)
    assert "accuracy: not measured before RL, " in " ".join(
        capsys.readouterr().out.replace("rewards above 0", "accuracy").split()
    )
    assert main(["doctor", str(result.run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "before RL" not in shown
    assert f"last (step 4) {result.accuracy_after:.1%} (" in shown, "with its interval"


def test_a_run_without_rl_cannot_skip_its_only_evaluation(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), steps=0, skip_first_eval=True)
    with pytest.raises(InputError, match=r"skip_first_eval=True.*has none"):
        rljax.train(config, even_length, policy=BIGRAM)


def test_a_folder_that_contains_a_run_is_not_overwritten(finished):
    before = {file: file.read_bytes() for file in finished.run.glob("*.json*")}
    with pytest.raises(InputError, match="already contains a run"):
        rljax.train(TINY.replace(run=str(finished.run)), even_length)
    assert {file: file.read_bytes() for file in finished.run.glob("*.json*")} == before


def test_a_run_takes_custom_problems_and_a_custom_algorithm(tmp_path):
    """The reward gets one prompt and one value of each extra column per completion."""
    problems = [Problem(f"{n}+1=", str(n + 1), columns={"level": n % 3}) for n in range(8)]
    calls = []

    def reward(prompts, completions, level, **columns):
        calls.append((prompts, level, columns))
        return [float(len(completion) > 3) for completion in completions]

    config = TINY.replace(run=str(tmp_path / "own"), warm_start_steps=0, steps=1, minibatches=1, algorithm_options={})
    own = BY_NAME["dr_grpo"](max_length=8)._replace(keep_group=None)
    parts = {"policy": BIGRAM, "algorithm": own, "problems": (problems[:6], problems[6:])}
    result = rljax.train(config, reward, **parts)
    chex.assert_tree_all_finite(result.params)
    prompts, level, columns = calls[1]
    assert len(prompts) == TINY.sampling.prompts * TINY.sampling.group_size
    assert all(level[i] == int(prompts[i].split("+")[0]) % 3 for i in range(len(prompts)))
    assert set(columns) == {"answer"}


def test_the_state_is_saved_once_between_the_warm_start_and_rl(tmp_path, monkeypatch):
    saves, save = [], Run.save

    def recording_save(run, which, checkpoint):
        saves.append((which, int(checkpoint.state.phase)))
        save(run, which, checkpoint)

    monkeypatch.setattr(Run, "save", recording_save)
    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=1, eval_every=0, checkpoint_every=9)
    rljax.train(config, even_length, policy=BIGRAM)
    assert [phase for which, phase in saves if which == LAST] == [
        WARM_START,
        RL,
        RL,
    ]  # at the start, before RL and after RL


def test_the_policy_is_unchanged_if_no_group_is_kept(tmp_path, capsys):
    config = TINY.replace(run=str(tmp_path / "flat"), warm_start_steps=0, steps=1, max_tries=2)
    result = rljax.train(config, lambda completions: [0.0] * len(completions), policy=BIGRAM)
    chex.assert_trees_all_equal(result.params, first_state(config, policy=BIGRAM)[1].params)
    (row,) = (row for row in rows(result.run) if row["phase"] == "rl")
    assert not {"loss", "ratio", "kl", "grad_norm"} & set(row), "nothing was learned, so these metrics do not exist"
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 steps found fewer than 4 groups with a signal (4 missing in total)" in shown


def test_responses_on_which_the_reward_abstains_are_left_out(tmp_path):
    config = TINY.replace(run=str(tmp_path / "none"), warm_start_steps=0, steps=1)
    abstain_on_short = lambda completions: [None if len(c) < 4 else float(len(c) % 2) for c in completions]  # noqa: E731
    result = rljax.train(config, abstain_on_short, policy=BIGRAM)
    chex.assert_tree_all_finite(result.params)


@pytest.mark.parametrize(
    ("response", "responses", "rows"),
    [(44, 128, 21), (44, 8000, 250), (500, 256, 8), (500, 2048, 32), (20_000, 256, 1)],
)
@pytest.mark.parametrize("devices", [1, 8])
def test_micro_batches_have_a_bounded_number_of_tokens(response, responses, rows, devices):
    """Each prompt is padded to six tokens."""
    config = TINY.replace(max_response_tokens=response, microbatch_rows=None)
    sized = first_state(TINY)[0]._replace(config=config, mesh=make_mesh(devices, 1), prompt_length=6)
    assert sized.rows_at_once(responses) == max(rows // devices, 1) * devices
    assert rows * (response + 6) <= 16_384 or rows == 1


@pytest.mark.parametrize(("chosen", "responses", "rows"), [(None, 128, 32), (None, 16, 16), (8, 128, 8), (64, 16, 16)])
def test_micro_batch_rows_on_accelerators_and_cpus(chosen, responses, rows):
    """A row has 512 tokens. On CPUs, a micro-batch has 1/32 of the responses, but at least 2."""
    config = TINY.replace(max_response_tokens=506, microbatch_rows=chosen)
    assert rows_at_once(config, make_mesh(1, 1), 6, responses) == rows
    assert rows_at_once(config, make_mesh(1, 1), 6, responses, on_cpus=True) == max(responses // 32, 2)


def test_best_checkpoint_has_the_highest_mean_reward(tmp_path, capsys):
    calls = []

    def negative(completions):
        """Called alternately for an evaluation and a rollout: calls 1, 3, 5 and 7 are evaluations."""
        calls.append(None)
        return [-0.25 if len(calls) == 5 else -0.5] * len(completions)

    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=3, eval_every=1)
    rljax.train(config.replace(algorithm="rloo", algorithm_options={}), negative, policy=BIGRAM)
    shown = capsys.readouterr().out
    assert "Held-out rewards above 0: 0.0% (mean reward -0.500) before RL, 0.0% (mean reward -0.500) after" in shown
    assert "step 2, rewards above 0 0.0% (mean reward -0.250) (" in shown


def test_a_difficulty_window_skips_problems_that_are_too_easy(tmp_path):
    """Half of the problems are always solved; the window [0, 0.9] samples them once and rarely again."""

    def solve_below_50(prompts, completions):
        return [float(int(prompt[0]) < 5) for prompt in prompts]

    problems = [Problem(f"{n // 10}+{n % 10}=", str(n // 10 + n % 10)) for n in range(10, 90)]
    config = TINY.replace(run=str(tmp_path / "run"), algorithm="rloo", algorithm_options={}, warm_start_steps=0, steps=16)
    config = config.replace(prompts=8, difficulty_window=(0.0, 0.9), tokenizer="characters")
    config = config.replace(sample_every=0, eval_every=0, checkpoint_every=16)
    parts = {"problems": (problems, problems[:4]), "policy": BIGRAM}
    rljax.train(config, solve_below_50, **parts)
    setup, _ = first_state(config, **parts)
    found = read_checkpoint(config, tmp_path / "run", **parts)
    has_tokens = found.history.tokens > 0
    assert has_tokens.all(), "128 prompts from 80 problems: every problem was sampled"
    assert int(found.state.position) > 8 * 16, "some problems were skipped"
    easy = np.array([problem.prompt[0] < "5" for problem in setup.train.prompts.problems])
    rounds = found.history.attempts / TINY.sampling.group_size
    assert rounds[easy].mean() < 1.2 < rounds[~easy].mean()


def test_a_custom_tracker_receives_what_the_files_contain(tmp_path):
    class Recorder:
        def __init__(self):
            self.rows, self.shown, self.closed = [], [], 0

        def log(self, phase, step, metrics):
            self.rows.append({"phase": phase, "step": step, **metrics})

        def samples(self, step, rows):
            self.shown.append((step, len(rows)))

        def close(self):
            self.closed += 1

    recorder = Recorder()
    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=1)
    result = rljax.train(config, even_length, policy=BIGRAM, trackers=[recorder])
    assert [list(row) for row in recorder.rows] == [list(row) for row in rows(result.run, timed=True)]
    assert recorder.shown == [(1, config.run.shown_samples)]
    assert recorder.closed == 1
