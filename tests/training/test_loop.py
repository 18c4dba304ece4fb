"""Whole runs, small: what they leave behind, exact resume, Ctrl-C, and refusals that overwrite nothing."""

import json
import re
import shutil
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
from reopened import checkpoint_of, first_state
from small_runs import SMALL, even_length, is_time, stopping_after

import rljax
from rljax.algorithms import BY_NAME
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.parallel import make_mesh
from rljax.rewards.failure import Failed
from rljax.rewards.protocol import Weighted
from rljax.tracking.display import PlainDisplay
from rljax.tracking.run_folder import RunFolder
from rljax.training.beginning import rl_state
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.learner import make_learner
from rljax.training.loop import ABANDONED
from rljax.training.metrics import present
from rljax.training.rollouts import for_algorithm

TINY = SMALL.replace(
    name="tiny",
    train_problems=40,
    heldout_problems=6,
    algorithm_options={"max_length": 12, "cache": 2},
    warm_start_steps=4,
    warm_start_batch=8,
    warm_start_accuracy=1.0,
    warm_start_eval_every=2,
    steps=4,
    prompts=4,
    group_size=4,
    oversample=2.0,
    minibatches=2,
    microbatch_rows=4,
    learning_rate=1e-2,
    eval_every=2,
    checkpoint_every=2,
    sample_every=2,
)


CRITICS = {name for name in BY_NAME if BY_NAME[name]().critic is not None}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    return rljax.train(TINY.replace(run=str(path)), even_length)


def last_checkpoint(path):
    return checkpoint_of(TINY, path, reward=even_length)


def distances(ours, theirs):
    return jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), ours, theirs))


def rows(path, *, timed=False):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if timed or not is_time(name)} for line in lines]


def test_a_run_leaves_everything_behind(finished):
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


def test_metrics_are_in_their_units(finished):
    for row in rows(finished.run, timed=True):
        if row["phase"] == "rl":
            assert 0 <= row["filtered_ratio"] <= 1
            assert 0 <= row["truncated_share"] <= 1
            assert 1 <= row["response_length"] <= TINY.sampling.max_response_tokens
            np.testing.assert_allclose(row["reward"], row["accuracy"], rtol=1e-6, err_msg="this reward is 0 or 1")
            sampled = row["tries"] * TINY.sampling.sampled_prompts * TINY.sampling.group_size * row["response_length"]
            inside = sum(row[f"{phase}_seconds"] for phase in ("sample", "judge", "score", "update"))
            assert 0.5 * row["seconds"] < inside <= row["seconds"], "the phases are most of a step, and not more than it"
            assert ("save_seconds" in row) == (row["step"] in (3,)), "the row after a step that saved"
            np.testing.assert_allclose(row["tokens_per_second"] * row["seconds"], sampled, rtol=1e-6)


def test_the_policy_moved_and_the_best_is_kept(finished):
    assert min(distances(finished.params, first_state(TINY)[1].params)) > 0
    evaluations = {row["step"]: row["accuracy"] for row in rows(finished.run) if row["phase"] == "eval"}
    best = checkpoint_of(TINY, finished.run, "best", reward=even_length)
    assert best.notes.best_quality == (max(evaluations.values()), max(evaluations.values()))
    assert int(best.state.step) == min(step for step, value in evaluations.items() if value == max(evaluations.values()))
    assert (finished.accuracy_before, finished.accuracy_after) == (evaluations[0], evaluations[4])


@pytest.mark.parametrize("calls", [1, 5], ids=["in the warm start", "in reinforcement learning"])
def test_resuming_gives_the_run_that_was_never_stopped(finished, tmp_path, calls, capsys):
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(TINY.replace(run=str(path)), stopping_after(calls))
    hint = f"\nTo go on:\n  rljax.train(resume={str(path)!r}, reward=reward)\n"
    assert capsys.readouterr().out.endswith(hint), "a command cannot pass the reward"
    stopped = last_checkpoint(path)
    assert int(stopped.state.warm_step) + int(stopped.state.step) < TINY.warm_start.steps + TINY.optimization.steps
    rljax.train(None, even_length, resume=path)
    ours, theirs = last_checkpoint(path), last_checkpoint(finished.run)
    chex.assert_trees_all_equal(ours.state, theirs.state)
    assert ours.carried is not None, "the case must carry groups over"
    chex.assert_trees_all_equal(ours.carried, theirs.carried)
    assert ours.notes == theirs.notes
    assert rows(path) == rows(finished.run)


def test_the_same_command_again_goes_on_by_itself(finished, tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"))
    RunFolder.create(tmp_path / "run", {"killed": "before its first save"})
    (tmp_path / "run" / "checkpoints" / "last" / "0.orbax-checkpoint-tmp").mkdir(parents=True)
    (tmp_path / "run" / ".lock").touch()
    with pytest.raises(Interrupted):
        rljax.train(config, stopping_after(5), resume="auto")
    assert ABANDONED not in (tmp_path / "run" / "log.txt").read_text(), "it begins anew"
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "moved" / ".lock").touch()
    (tmp_path / "moved" / ".unfinished-last-1").mkdir()
    moved = config.replace(run=str(tmp_path / "moved"))
    rljax.train(moved, even_length, resume="auto")
    (tmp_path / "moved").rename(tmp_path / "run")
    assert "Resumed at RL step" in (tmp_path / "run" / "log.txt").read_text()
    assert ABANDONED in (tmp_path / "run" / "log.txt").read_text()
    assert not list((tmp_path / "run").glob(".*"))
    chex.assert_trees_all_equal(last_checkpoint(tmp_path / "run").state, last_checkpoint(finished.run).state)
    assert rows(tmp_path / "run") == rows(finished.run)
    with pytest.raises(InputError, match="cannot change learning_rate"):
        rljax.train(config.replace(learning_rate=1e-7), even_length, resume="auto")
    with pytest.raises(InputError, match=r"resume='auto' continues the run in a folder that you name; pass run=FOLDER"):
        rljax.train(TINY, even_length, resume="auto")


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
def test_a_run_never_ends_well_with_broken_parameters(tmp_path, settings, message):
    def anything(completions):
        return [1.0 + len(completion) for completion in completions]

    config = TINY.replace(run=str(tmp_path / "run"), algorithm="grpo", algorithm_options={}, steps=6, warm_start_steps=6)
    config = config.replace(**settings)
    with pytest.raises(InputError, match=message):
        rljax.train(config, anything)
    saved = [which.name for which in (tmp_path / "run" / "checkpoints").glob("*")]
    assert "last" in saved
    for which in saved:
        state = checkpoint_of(config, tmp_path / "run", which, reward=anything).state
        assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(state.params)) < 10


def test_damaged_saves_are_passed_over(finished, tmp_path):
    """The newest checkpoint is shortened: the run goes on from the one before it, says so, and ends as it would have."""
    path = tmp_path / "run"
    shutil.copytree(finished.run, path)
    newest, older = sorted((int(save.name) for save in (path / "checkpoints" / "last").iterdir()), reverse=True)
    weights = max((path / "checkpoints" / "last" / str(newest)).rglob("*"), key=lambda file: file.stat().st_size)
    weights.write_bytes(weights.read_bytes()[:-1])
    (path / "samples.jsonl").unlink()
    rljax.train(None, even_length, resume=path)
    shown = (path / "log.txt").read_text()
    assert re.search(rf"last/{newest} is damaged: \S+ has \d+ bytes instead of \d+\.", shown), shown
    assert "samples.jsonl is gone: its rows up to the checkpoint are lost." in shown
    assert [save.name.rpartition("-")[0] for save in (path / "checkpoints" / "damaged").iterdir()] == [f"last-{newest}"]
    chex.assert_trees_all_equal(last_checkpoint(path).state, last_checkpoint(finished.run).state)
    assert rows(path) == rows(finished.run)
    assert older < newest


def test_resume_without_the_reward_that_was_passed_is_refused(finished):
    with pytest.raises(InputError, match="reward passed to train"):
        rljax.train(resume=finished.run)


def test_a_folder_that_holds_a_run_is_not_overwritten(finished):
    before = {file: file.read_bytes() for file in finished.run.glob("*.json*")}
    with pytest.raises(InputError, match="already holds a run"):
        rljax.train(TINY.replace(run=str(finished.run)), even_length)
    assert {file: file.read_bytes() for file in finished.run.glob("*.json*")} == before


def test_own_problems_and_own_algorithm(tmp_path):
    """The reward sees the prompts and every extra column, one entry a completion."""
    problems = [Problem(f"{n}+1=", str(n + 1), columns={"level": n % 3}) for n in range(8)]
    calls = []

    def reward(prompts, completions, level, **columns):
        calls.append((prompts, level, columns))
        return [float(len(completion) > 3) for completion in completions]

    config = TINY.replace(run=str(tmp_path / "own"), warm_start_steps=0, steps=1, minibatches=1)
    own = BY_NAME["dr_grpo"](max_length=8)._replace(keep_group=None)
    result = rljax.train(config, reward, algorithm=own, problems=(problems[:6], problems[6:]))
    chex.assert_tree_all_finite(result.params)
    prompts, level, columns = calls[1]
    assert len(prompts) == TINY.sampling.prompts * TINY.sampling.group_size
    assert all(level[i] == int(prompts[i].split("+")[0]) % 3 for i in range(len(prompts)))
    assert set(columns) == {"answer"}


def test_no_kept_group_leaves_the_policy_as_it_is(tmp_path, capsys):
    config = TINY.replace(run=str(tmp_path / "flat"), warm_start_steps=0, steps=1, max_tries=2)
    result = rljax.train(config, lambda completions: [0.0] * len(completions))
    chex.assert_trees_all_equal(result.params, first_state(config)[1].params)
    (row,) = (row for row in rows(result.run) if row["phase"] == "rl")
    assert not {"loss", "ratio", "kl", "grad_norm"} & set(row), "nothing was learnt, so nothing was measured of it"
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 steps found fewer than 4 groups with a signal (4 missing in all)" in shown


def test_opinionless_responses_take_no_part(tmp_path):
    config = TINY.replace(run=str(tmp_path / "none"), warm_start_steps=0, steps=1)
    silent_on_short = lambda completions: [None if len(c) < 4 else float(len(c) % 2) for c in completions]  # noqa: E731
    result = rljax.train(config, silent_on_short)
    chex.assert_tree_all_finite(result.params)


JUDGE = """
def parity(prompts, completions, **columns):
    return [[(len(text), float(len(text) % 2))] if text else [] for text in completions]
"""
ONE_STEP = TINY.replace(
    algorithm_options={}, warm_start_steps=0, steps=1, minibatches=1, microbatch_rows=None, eval_every=0, max_tries=1
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A file with a function that judges steps."""
    file = tmp_path_factory.mktemp("judge") / "judge.py"
    file.write_text(JUDGE)
    return f"{file}:parity"


@pytest.mark.parametrize("name", ["grpo_process", "vapo_grpo"])
def test_a_run_with_credit_of_another_kind(tmp_path, judge, name):
    """Steps that are judged, and a critic beside a group; the runs of the other tests have groups or a critic alone."""
    config = ONE_STEP.replace(
        run=str(tmp_path / name), algorithm=name, step_reward=judge if name == "grpo_process" else None
    )
    result = rljax.train(config.replace(value_pretraining_steps=1 if name in CRITICS else None), even_length)
    (row,) = (row for row in rows(result.run) if row["phase"] == "rl")
    assert all(np.isfinite(value) for value in row.values() if isinstance(value, float))
    assert max(distances(result.params, first_state(TINY)[1].params)) > 0


@pytest.fixture(scope="module")
def sampled(judge):
    """A rollout with judged steps, whose groups have responses of both rewards."""
    setup, state = first_state(ONE_STEP.replace(algorithm="grpo_process", step_reward=judge), reward=even_length)
    groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
    rewards = np.tile(np.array([1, 0], np.float32), (4, 2))
    return groups._replace(rollout=groups.rollout._replace(rewards=rewards))


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"gkd", "on_policy_distillation", "remax"}))
def test_every_algorithm_learns(judge, sampled, name):
    """The updates of a step, with all that the trainer prepares for them."""
    config = ONE_STEP.replace(algorithm=name, step_reward=judge if name == "grpo_process" else None)
    setup, state = first_state(config, reward=even_length)
    state = rl_state(setup, state)
    before = jax.device_get(state.params)
    state, metrics = make_learner(setup, state)(state, sampled)
    numbers = present(metrics)
    assert all(np.isfinite(value) for value in numbers.values())
    assert ("explained_variance" in numbers) == (name in CRITICS)
    assert max(distances(state.params, before)) > 0


def test_several_rewards_reach_the_algorithm_one_by_one_with_their_weights():
    def length(completions):
        return [float(len(completion)) for completion in completions]

    learned = []
    for weights in (None, (1.0, -2.0)):
        config = ONE_STEP.replace(algorithm="gdpo", reward_weights=weights)
        setup, state = first_state(config, reward=[even_length, length])
        state = rl_state(setup, state)
        groups = setup.train.generate(state.params, range(4), 4, jax.random.key(0))
        parts = for_algorithm(groups).reward_parts
        factors = dict(zip(parts, weights or (1.0, 1.0), strict=True))
        total = sum(factors[name] * part for name, part in parts.items())
        np.testing.assert_allclose(total, groups.rollout.rewards, rtol=1e-6)
        before = jax.device_get(state.params)
        state, _ = make_learner(setup, state)(state, groups)
        assert max(distances(state.params, before)) > 0
        learned.append(jax.device_get(state.params))
    assert max(distances(*learned)) > 0, "the weights decide"


def test_one_reward_is_its_only_part(sampled):
    parts = for_algorithm(sampled).reward_parts
    assert list(parts) == ["reward"]
    np.testing.assert_array_equal(parts["reward"], sampled.rollout.rewards)


def test_a_greedy_response_to_each_prompt_is_judged_and_not_trained_on():
    config = ONE_STEP.replace(algorithm="remax", prompts=4, group_size=1)
    setup, state = first_state(config, reward=even_length)
    state = rl_state(setup, state)
    groups = setup.train.generate(state.params, range(4), 1, jax.random.key(0))
    greedy = setup.train.drawn_with(temperature=0.0).answer(state.params, range(4), jax.random.key(1))
    texts = [setup.train.judge.completion(response) for response in greedy]
    assert groups.rollout.greedy_rewards.tolist() == even_length(texts)
    assert groups.rollout.mask.shape[:2] == (4, 1)
    silent = replace(setup.train, judge=setup.train.judge._replace(reward=lambda completions: [None] * len(completions)))
    assert not silent.generate(state.params, range(4), 1, jax.random.key(0)).rollout.valid.any()
    rewards = 1 - groups.rollout.greedy_rewards[:, None]
    groups = groups._replace(rollout=groups.rollout._replace(rewards=rewards))
    before = jax.device_get(state.params)
    state, _ = make_learner(setup, state)(state, groups)
    assert max(distances(state.params, before)) > 0
    assert not setup.heldout.compares_with_greedy


def test_a_moving_reference_follows_the_policy(tmp_path):
    config = TINY.replace(run=str(tmp_path / "moving"), algorithm="t1", algorithm_options={}, warm_start_steps=0, steps=2)
    rljax.train(config, even_length)
    state, start = checkpoint_of(config, tmp_path / "moving", reward=even_length).state, first_state(config)[1].params
    first, reference, now = (np.asarray(tree["embedding"]) for tree in (start, state.reference, state.params))
    assert 0 < np.abs(reference - first).max() < np.abs(now - first).max()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "dado"}, "algorithm 'dado' is unknown; choose one of .*dapo"),
        ({"algorithm_options": {"clip": 1}}, "dapo has no option 'clip'; it has cache, clip_high"),
        ({"algorithm_options": {"clip_low": -1.0}}, "options .*-1.* cannot train .* low must"),
        ({"group_size": 1, "microbatch_rows": None}, "group_size=1 responses: rewards must hold groups of at least 2"),
        ({"replicas": 3, "fsdp": 3}, "needs 9 devices, but there are 8"),
        (
            {"replicas": 8, "microbatch_rows": 4, "minibatches": 4},
            "microbatch_rows is 4 rows, which 8 devices cannot share",
        ),
        ({"dataset": "nothing.jsonl"}, "nothing.jsonl"),
        ({"reward": "excat"}, "excat"),
        ({"max_response_tokens": 8}, "every demonstration is longer than the limit of 8 tokens, the shortest has 9"),
        ({"max_prompt_tokens": 2}, "every prompt is longer than the limit of 2 tokens"),
        ({"model": "./nowhere"}, "model folder './nowhere' does not exist"),
        ({"tokenizer": "./nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, change, message):
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
        ({"oversample": 0.5}, "oversample is 0.5"),
        ({"heads": 3}, "width=16 over heads=3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(untyped, change, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(**change)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda completions: 1 / 0, "ZeroDivisionError"),
        (lambda completions: [1.0], "1"),
        (lambda completions: [float("nan")] * len(completions), "nan"),
    ],
)
def test_rewards_that_fail_are_named(tmp_path, reward, message):
    with pytest.raises(InputError, match=message):
        rljax.train(TINY.replace(run=str(tmp_path / "bad"), warm_start_steps=0), reward)


@pytest.mark.parametrize(
    ("response", "responses", "rows"),
    [(44, 128, 21), (44, 8000, 250), (500, 256, 8), (500, 2048, 32), (20_000, 256, 1)],
)
@pytest.mark.parametrize("devices", [1, 8])
def test_micro_batches_hold_a_bounded_number_of_tokens(response, responses, rows, devices):
    """With prompts of six slots."""
    config = TINY.replace(max_response_tokens=response, microbatch_rows=None)
    sized = first_state(TINY)[0]._replace(config=config, mesh=make_mesh(devices, 1), prompt_length=6)
    assert sized.rows_at_once(responses) == max(rows // devices, 1) * devices
    assert rows * (response + 6) <= 16_384 or rows == 1


def test_configuration_survives_json():
    assert TrainConfig.from_json(json.loads(json.dumps(TINY.to_json()))) == TINY
    with pytest.raises(InputError, match="unknown to this version of rljax: colour"):
        TrainConfig.from_json({**TINY.to_json(), "colour": 1})
    with pytest.raises(InputError, match="unknown to this version of rljax: learning_rte"):
        TrainConfig.from_json({**TINY.to_json(), "optimization": {"learning_rte": 1.0}})


def test_a_configuration_or_a_run_to_resume_is_needed():
    with pytest.raises(InputError, match="needs a configuration, or resume=FOLDER"):
        rljax.train()


def test_a_finished_run_is_extended_as_if_it_had_been_longer_from_the_start(finished, tmp_path, capsys):
    path = tmp_path / "short"
    rljax.train(TINY.replace(run=str(path), steps=2), even_length)
    rljax.train(TINY.replace(eval_every=2, microbatch_rows=4, shown_samples=1), even_length, resume=path)
    ours, theirs = last_checkpoint(path), last_checkpoint(finished.run)
    chex.assert_trees_all_equal(ours.state, theirs.state)
    chex.assert_trees_all_equal(ours.carried, theirs.carried)
    assert rows(path) == rows(finished.run)
    text = (path / "log.txt").read_text()
    assert "Resumed at RL step 2 of 4." in text
    assert "Changed: steps: 2 -> 4, shown_samples: 3 -> 1." in text
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d held-out accuracy so far: .{2,} -> ", text, re.MULTILINE)
    assert json.loads((path / "config.json").read_text())["optimization"]["steps"] == 4
    first, second = (json.loads(line) for line in (path / "starts.jsonl").read_text().splitlines())
    assert [row["step"] for row in (first, second)] == [0, 2]
    assert second["changes"][0] == {"name": "steps", "before": 2, "after": 4}
    assert {"jax", "jaxlib", "python", "rljax"} <= set(first["versions"])
    unchanged = (path / "config.json").read_bytes()
    for changes, message in (
        ({"learning_rate": 1.0, "quiet": False}, "cannot change learning_rate: 0.01 -> 1.0: what"),
        ({"steps": 3}, "steps is 3, but the run has made 4 RL steps"),
        ({"run": "elsewhere"}, "cannot change run: .*short -> elsewhere"),
        ({"task": "iteration", "iterations": (2, 3)}, "cannot change task: sums -> iteration"),
    ):
        with pytest.raises(InputError, match=message):
            rljax.train(TINY.replace(**changes), even_length, resume=path)
    assert (path / "config.json").read_bytes() == unchanged


def test_a_reward_that_raises_is_named_with_its_line_and_leaves_no_folder(tmp_path):
    def broken(completions):
        return [json.loads(completion) for completion in completions]

    with pytest.raises(
        InputError, match=rf"broken raised JSONDecodeError.* at {re.escape(__file__)}:\d+; fix the function"
    ):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0), broken)
    assert not list(tmp_path.iterdir())


def test_parts_and_failures_of_a_reward_are_logged_apart(tmp_path):
    def sometimes_fails(completions):
        return [Failed("timed_out", "too long") if i % 8 == 0 else 1.0 for i in range(len(completions))]

    reward = Weighted({"even": even_length, "done": sometimes_fails}, {"even": 1.0, "done": 0.5})
    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=2, checkpoint_every=1, max_failure_share=0.2)
    result = rljax.train(config.replace(algorithm="rloo", algorithm_options={}, eval_every=0), reward)
    for row in rows(result.run):
        if row["phase"] == "rl":
            assert row["reward_timed_out"] == TINY.sampling.prompts * TINY.sampling.group_size / 8
            assert row["reward_done"] == 1.0
            assert 0 < row["reward_even"] < 1
            assert row["reward"] == pytest.approx(row["reward_even"] + 0.5, abs=0.15)


def test_the_best_checkpoint_is_of_the_highest_mean_reward(tmp_path, capsys):
    calls = []

    def negative(completions):
        """Asked about an evaluation, then in turn about a rollout and an evaluation: 1, 3, 5 and 7 are evaluations."""
        calls.append(None)
        return [-0.25 if len(calls) == 5 else -0.5] * len(completions)

    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=3, eval_every=1)
    rljax.train(config.replace(algorithm="rloo", algorithm_options={}), negative)
    shown = capsys.readouterr().out
    assert "Held-out rewards above 0: 0.0% (mean reward -0.500) before RL, 0.0% (mean reward -0.500) after" in shown
    assert "step 2, rewards above 0 0.0% (mean reward -0.250) (" in shown


def test_the_display_is_told_how_far_the_judging_is(tmp_path, monkeypatch):
    reported = []
    monkeypatch.setattr(PlainDisplay, "judging", lambda self, done, total: reported.append((done, total)))

    def telling(completions, progress):
        for done in range(len(completions)):
            progress(done + 1, len(completions))
        return even_length(completions)

    rljax.train(TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=1), telling)
    rows = TINY.data.heldout_problems
    assert reported[:rows] == [(done, rows) for done in range(1, rows + 1)]
    assert len(reported) > rows


def test_a_reward_that_fails_too_often_stops_the_run(tmp_path):
    def fails(completions):
        return [Failed("raised", "KeyError: 'x'")] * len(completions)

    with pytest.raises(InputError, match="more than the 10% that may fail"):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0), fails)


def test_a_difficulty_window_passes_over_what_is_too_easy(tmp_path):
    """Half of the problems are always solved; within the window [0, 0.9] they are asked once, and hardly again."""

    def easy_below_50(prompts, completions):
        return [float(int(prompt[0]) < 5) for prompt in prompts]

    problems = [Problem(f"{n // 10}+{n % 10}=", str(n // 10 + n % 10)) for n in range(10, 90)]
    config = TINY.replace(run=str(tmp_path / "run"), algorithm="rloo", algorithm_options={}, warm_start_steps=0, steps=16)
    config = config.replace(prompts=8, sample_every=0, difficulty_window=(0.0, 0.9), eval_every=0, tokenizer="characters")
    rljax.train(config, easy_below_50, problems=(problems, problems[:4]))
    setup, _ = first_state(config, problems=(problems, problems[:4]))
    found = checkpoint_of(config, tmp_path / "run", problems=(problems, problems[:4]))
    asked = found.history.tokens > 0
    assert asked.all(), "80 problems, 128 questions: one epoch is done"
    assert int(found.state.position) > 8 * 16, "some were passed over"
    easy = np.array([problem.prompt[0] < "5" for problem in setup.train.prompts.problems])
    rounds = found.history.attempts / TINY.sampling.group_size
    assert rounds[easy].mean() < 1.2 < rounds[~easy].mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"difficulty_window": (0.9, 0.1)}, "difficulty_window is .*; give two pass rates in order"),
        ({"difficulty_window_end": (0.1, 0.9)}, "difficulty_window_end is set and difficulty_window is not"),
        ({"history_decay": 0.0}, "history_decay is 0.0; it must be above 0"),
    ],
)
def test_a_window_that_is_none_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(**change)


def test_a_tracker_of_one_s_own_hears_what_the_files_hold(tmp_path):
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
    result = rljax.train(config, even_length, trackers=[recorder])
    assert [list(row) for row in recorder.rows] == [list(row) for row in rows(result.run, timed=True)]
    assert recorder.shown == [(1, config.run.shown_samples)]
    assert recorder.closed == 1
