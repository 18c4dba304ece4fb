"""`rljax adapt` learns from a queue of feedback; no line is used twice or lost."""

import json
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared_run import TINY, distances, rows
from small_cli import printed, refused

import rljax
from rljax.algorithms import Rollout, loss, prepare
from rljax.cli import main
from rljax.data.feedback import LineLocation
from rljax.errors import InputError
from rljax.programs import adaptation_run
from rljax.programs.adaptation import clipped_feedback, find_wrong_logp, make_batch_learner, relative_rewards, rollout_of
from rljax.programs.adaptation_config import AdaptationConfig
from rljax.programs.adaptation_folder import (
    HeldoutEvaluation,
    adapt_settings,
    begin_adaptation,
    best_evaluation,
    better_evaluation,
    make_served_setup,
)
from rljax.programs.adaptation_run import adapt
from rljax.programs.feedback_log import Example
from rljax.programs.trained_policy import load
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.interrupt import Interrupted
from rljax.training.lifecycle.initial_state import first_params, place_state

REWARD = """
def short(completions):
    return [float(len(completion) < 6) for completion in completions]
"""
BATCH = 24


def is_short(text):
    """The reward in the feedback: 1 for a short response."""
    return float(len(text) < 6)


def make_feedback(policy, prompts, *, count, seed, judge=is_short):
    """Return lines of feedback on a policy's responses, in random order."""
    texts = policy.sample(prompts, count=count, temperature=1.0, seed=seed)
    pairs = [(prompt, text) for prompt, row in zip(prompts, texts, strict=True) for text in row]
    order = np.random.default_rng(seed).permutation(len(pairs)).tolist()
    return [
        json.dumps({"id": f"{seed}-{i}", "prompt": pairs[i][0], "response": pairs[i][1], "reward": judge(pairs[i][1])})
        + "\n"
        for i in order
    ]


def short_fraction(folder, prompts):
    """Return the fraction of short responses among a model's new responses."""
    texts = load(folder, which="last").sample(prompts, count=8, temperature=1.0, seed=99)
    return float(np.mean([is_short(text) for row in texts for text in row]))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A run that ended before RL, its prompts, and feedback on its responses."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "mine.py").write_text(REWARD)
    sizes = {"digits": 2, "max_prompt_tokens": 8, "max_response_tokens": 14, "heldout_problems": 24}
    sizes |= {"algorithm_options": {"max_length": 14, "cache": 2}, "warm_start_optimizer": "adamw"}
    sizes |= {"warm_start_eval_every": 50, "checkpoint_every": 50}
    config = TINY.replace(run=str(folder / "run"), steps=0, reward=f"{folder / 'mine.py'}:short", **sizes)
    rljax.train(config)
    policy = load(folder / "run", which="last")
    prompts = [problem.prompt for problem in policy.worker.prompts.problems]
    return SimpleNamespace(
        run=folder / "run", prompts=prompts, lines=make_feedback(policy, prompts, count=4, seed=1), policy=policy
    )


def make_config(run, folder, /, **settings):
    """Return settings of an adaptation that learns fast."""
    options = {"batch": BATCH, "learning_rate": 2e-2, "max_kl": None, "passes": 4, "clip": 1.0, "once": True}
    return AdaptationConfig(str(run.run), folder / "queue.jsonl", folder / "adapted", **{**options, **settings})


SETTINGS_AS_FLAGS = (
    *("--batch", str(BATCH), "--learning-rate", "2e-2", "--max-kl", "None", "--passes", "4", "--clip", "1.0"),
)
"""The same settings as flags, so that the command reuses the compiled programs of the other adaptations."""


def write_queue(served, folder, lines=None):
    """Write a queue of feedback in a folder, and return its path."""
    queue = folder / "queue.jsonl"
    queue.write_text("".join(served.lines if lines is None else lines))
    return queue


@pytest.fixture(scope="module")
def uninterrupted(served, tmp_path_factory):
    """An uninterrupted adaptation to all lines."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    write_queue(served, folder)
    lines = []
    adapt(make_config(served, folder), lines.append)
    return SimpleNamespace(run=folder / "adapted", lines=lines)


def read_log(run, name="feedback.jsonl"):
    """Read the rows of a JSON Lines file in a run's folder."""
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def test_rewarded_responses_become_more_frequent(served, uninterrupted):
    before, after = short_fraction(served.run, served.prompts), short_fraction(uninterrupted.run, served.prompts)
    assert after > before + 0.1
    assert [row["outcome"] for row in read_log(uninterrupted.run, "updates.jsonl")] == ["kept"] * 5


def test_other_commands_open_an_adaptation(uninterrupted, served, tmp_path, capsys):
    refused(capsys, "then add --trust", "eval", str(uninterrupted.run))  # the run's reward is in a file of Python code
    assert "accuracy" in printed(capsys, "eval", str(uninterrupted.run), "--trust")
    assert printed(capsys, "sample", str(uninterrupted.run), "--prompt", served.prompts[0]).startswith(served.prompts[0])
    printed(capsys, "export", str(uninterrupted.run), str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").is_file()
    refused(capsys, "started with algorithm passed to train", "train", "--resume", str(uninterrupted.run), "--steps", "3")


def test_log_has_every_line_once(served, uninterrupted):
    found = read_log(uninterrupted.run)
    assert [row["line"] for row in found] == list(range(1, 4 * BATCH + 1))
    assert [row["step"] for row in found] == np.repeat(range(1, 5), BATCH).tolist()
    assert [row["reward"] for row in found] == [json.loads(line)["reward"] for line in served.lines[: 4 * BATCH]]
    assert f"queue.jsonl, lines 1 to {BATCH}): mean reward" in "".join(uninterrupted.lines)


class Killed(BaseException):
    """Simulates the death of the process."""


def test_killed_adaptation_resumes_exactly(served, uninterrupted, tmp_path, monkeypatch):
    """The first start is killed before its second save, the second after its third save, the third before its third save."""
    write_queue(served, tmp_path)
    config, real = make_config(served, tmp_path), checkpoints.save
    for kill, after_save in ((2, False), (3, True), (3, False)):
        calls = []

        def save(*arguments, kill=kill, after_save=after_save, calls=calls):
            calls.append(None)
            if len(calls) == kill and not after_save:
                raise Killed
            real(*arguments)
            if len(calls) == kill:
                raise Killed

        monkeypatch.setattr(checkpoints, "save", save)
        with pytest.raises(Killed):
            adapt(config, lambda line: None)
    monkeypatch.setattr(checkpoints, "save", real)
    adapt(config, lambda line: None)
    assert (
        max(distances(load(uninterrupted.run, which="last").params, load(tmp_path / "adapted", which="last").params)) == 0
    )
    assert rows(tmp_path / "adapted") == rows(uninterrupted.run)
    for name in ("feedback.jsonl", "updates.jsonl"):
        ours, theirs = (
            [{**row, "file": None} for row in read_log(run, name)] for run in (tmp_path / "adapted", uninterrupted.run)
        )
        assert ours == theirs


def test_stopped_adaptation_resumes_exactly(served, uninterrupted, tmp_path):
    """The adaptation is stopped once after a batch, and once while it waits for lines."""
    write_queue(served, tmp_path)
    lines = []

    def stop_after(beginning):
        def print_line(line):
            lines.append(line)
            if line.startswith(beginning):
                signal.raise_signal(signal.SIGTERM)

        return print_line

    for beginning in ("Batch 2 ", "Batch 4 "):
        with pytest.raises(Interrupted):
            adapt(make_config(served, tmp_path, once=False), stop_after(beginning))
    assert lines.count("Stopping after this batch.") == 2
    assert "  the same command again" in lines
    assert "Continuing after batch 2; the earlier batches used 48 lines of the queue." in lines
    adapt(make_config(served, tmp_path), lines.append)
    assert (
        max(distances(load(uninterrupted.run, which="last").params, load(tmp_path / "adapted", which="last").params)) == 0
    )
    assert rows(tmp_path / "adapted") == rows(uninterrupted.run)
    assert "Batch 4 " in (tmp_path / "adapted" / "log.txt").read_text()


def test_adaptation_killed_before_its_first_save_restarts(served, tmp_path, monkeypatch):
    write_queue(served, tmp_path, [])
    config = make_config(served, tmp_path, heldout=0)

    def save(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", save)
        with pytest.raises(Killed):
            adapt(config, lambda line: None)
    assert adapt(config, lambda line: None) == tmp_path / "adapted"


def test_lines_wait_for_a_full_batch_and_bad_lines_are_rejected(served, tmp_path, capsys):
    few = served.lines[: BATCH - 1]
    long = json.dumps({"prompt": "1" * 30, "response": "2", "thumbs": True}) + "\n"
    queue = write_queue(served, tmp_path, [few[0], "{\n", few[0], long, *few[1:], '{"prompt'])
    words = ["adapt", str(served.run), "--feedback", str(queue), "--run", str(tmp_path / "adapted"), "--heldout", "0"]
    words += ["--once", *SETTINGS_AS_FLAGS]
    text = printed(capsys, *words)
    assert f"rejected: {queue}, line 2: the line is not JSON" in text
    assert f"rejected: {queue}, line 3, column 'id': the id '1-" in text
    assert f"is already used in {queue}, line 1" in text
    assert f"{queue}, line 4, column 'prompt': the prompt has" in text
    assert f"{BATCH - 1} lines left over: too few for a batch of {BATCH} until" in text
    assert f"The last line of {queue} does not end in a newline" in text
    assert "Lines learned from: 0, rejected: 3." in text
    rejects = read_log(tmp_path / "adapted", "rejects.jsonl")
    assert [row["line"] for row in rejects] == [2, 3, 4]
    assert rejects[0]["text"] == "{"
    assert not (tmp_path / "adapted" / "feedback.jsonl").exists()
    with queue.open("a") as file:
        wrong = {"prompt": served.prompts[0], "response": [4, 5], "logp": [-0.1, -60.0], "reward": 1}
        file.write('": 1}\n' + json.dumps(wrong) + "\n" + served.lines[BATCH])
    text = printed(capsys, *words)
    assert "Continuing after batch 0" in text
    assert f"Lines learned from: {BATCH}, rejected: 5." in text
    assert f"{queue}, line {BATCH + 4}, column 'logp': logp is -60 for token 2 of the response" in text
    found = read_log(tmp_path / "adapted")
    assert [row["line"] for row in found] == list(range(1, BATCH + 6))
    assert [row["line"] for row in read_log(tmp_path / "adapted", "rejects.jsonl")] == [2, 3, 4, BATCH + 3, BATCH + 4]
    assert main(words) == 0
    assert read_log(tmp_path / "adapted") == found, "no line is trained on twice"


def test_guard_keeps_the_earlier_model(served, tmp_path, monkeypatch):
    """The evaluation is faked: it returns fixed accuracies for the served model and after each of three batches."""
    write_queue(served, tmp_path, served.lines[: 3 * BATCH])
    accuracies, evaluated = [0.5, 0.75, 0.25, 0.7], []

    def evaluation(learner, state):
        accuracy = accuracies[len(evaluated)]
        evaluated.append(jax.device_get(state.params))
        metrics = {"accuracy": accuracy, "reward": accuracy, "judged": 24, "answers": 24}
        return HeldoutEvaluation((np.arange(24) < 24 * accuracy).astype(float), metrics)

    monkeypatch.setattr(adaptation_run, "evaluate_heldout", evaluation)
    lines = []
    adapt(make_config(served, tmp_path, guard=True), lines.append)
    updates = read_log(tmp_path / "adapted", "updates.jsonl")
    assert [row["outcome"] for row in updates] == ["kept", "kept", "worse", "kept"]
    assert any("the accuracy is lower, so the earlier model is kept" in line for line in lines)
    assert [row["step"] for row in rows(tmp_path / "adapted") if row["phase"] == "eval"] == [0, 1, 3]
    best, last = (load(tmp_path / "adapted", which=which).params for which in ("best", "last"))
    assert max(distances(best, evaluated[1])) == 0
    assert max(distances(last, evaluated[3])) == 0
    assert [row["step"] for row in read_log(tmp_path / "adapted")] == np.repeat([1, 2, 3], BATCH).tolist(), (
        "a rejected batch is consumed too"
    )


def test_best_model_is_chosen_anew_after_a_change_of_the_heldout_problems(served, tmp_path, monkeypatch):
    """The accuracy on 4 problems is not compared with the earlier accuracy on 24; the evaluation is faked."""
    found = [(24, 0.5), (24, 0.75), (4, 0.25)]

    def evaluation(learner, state):
        count, accuracy = found.pop(0)
        metrics = {"accuracy": accuracy, "reward": accuracy, "judged": count, "answers": count}
        return HeldoutEvaluation((np.arange(count) < count * accuracy).astype(float), metrics)

    monkeypatch.setattr(adaptation_run, "evaluate_heldout", evaluation)
    for heldout, batches in ((None, 1), (4, 2)):
        write_queue(served, tmp_path, served.lines[: batches * BATCH])
        adapt(make_config(served, tmp_path, heldout=heldout), lambda line: None)
        assert (tmp_path / "adapted" / "checkpoints" / "best" / str(batches)).is_dir()
    starts = read_log(tmp_path / "adapted", "starts.jsonl")
    assert [(row["step"], bool(row["command"])) for row in starts] == [(0, True), (1, True)]


def test_updates_beyond_max_kl_are_undone(served, tmp_path):
    write_queue(served, tmp_path, [*served.lines, *(line.replace('"id": "1-', '"id": "2-') for line in served.lines)])
    with pytest.raises(InputError, match="beyond --max-kl 1e-09 and was undone in 5 batches in a row"):
        adapt(make_config(served, tmp_path, max_kl=1e-9, heldout=4), lambda line: None)
    found = [(row["outcome"], row["updates"]) for row in read_log(tmp_path / "adapted", "updates.jsonl")]
    assert found == [("kept", 0), *[("too far", 0)] * 5]
    assert max(distances(load(served.run, which="best").params, load(tmp_path / "adapted", which="last").params)) == 0
    assert rows(tmp_path / "adapted")[-1]["kl_to_reference"] > 1e-9
    assert len(read_log(tmp_path / "adapted")) == 5 * BATCH, "the lines of undone batches are consumed"


def test_policy_of_a_response(served, tmp_path):
    """The policy is the served checkpoint or the newest one; log-probabilities in the line are used instead of its own."""
    setup, _ = make_served_setup(make_config(served, tmp_path), None)
    state = place_state(setup, begin_adaptation(setup, first_params(setup)))
    state = state._replace(params=jax.tree.map(lambda leaf: leaf * 1.1, state.params))
    place = LineLocation("q", "q", 1, 1, "")
    logp = (-0.5, -0.25, -1.0)
    examples = [Example(place, None, [2, 3], [4, 5, 1], 1.0, None), Example(place, None, [2], [4, 5, 1], 0.0, logp)]
    found = {}
    for which in ("first", "newest"):
        learner = make_batch_learner(make_config(served, tmp_path, served=which), setup, state)
        found[which] = rollout_of(learner, state, examples, [])
    for rollout in found.values():
        np.testing.assert_array_equal(rollout.behaviour_logp[1, 0, :3], np.float32(logp))
        assert rollout.mask.sum() == 6
    first, newest = found["first"], found["newest"]
    np.testing.assert_array_equal(first.behaviour_logp[0], first.ref_logp[0])
    np.testing.assert_array_equal(first.ref_logp, newest.ref_logp)
    assert np.abs(newest.behaviour_logp[0, 0, :3] - newest.ref_logp[0, 0, :3]).min() > 1e-4
    np.testing.assert_allclose(first.rewards[:, 0], [2.0, -2.0])


def test_wrong_logp_is_reported(served, tmp_path):
    setup, _ = make_served_setup(make_config(served, tmp_path), None)
    state = place_state(setup, begin_adaptation(setup, first_params(setup)))
    learner = make_batch_learner(make_config(served, tmp_path), setup, state)
    places = [LineLocation("q", "q", line, 1, "") for line in range(3)]
    without = [Example(place, None, [2, 3], [4, 5, 1], 1.0, None) for place in places]
    assert find_wrong_logp(learner, state, without) == {}
    sampled_logp = rollout_of(learner, state, without, []).behaviour_logp[0, 0, :3]
    near, far = sampled_logp - 15, sampled_logp - np.array([0, 25, 0])
    found = find_wrong_logp(
        learner, state, [without[0], without[1]._replace(logp=tuple(near)), without[2]._replace(logp=tuple(far))]
    )
    assert list(found) == [places[2]]
    assert "for token 2 of the response" in str(found[places[2]])


def test_inapplicable_settings_of_the_served_run_are_reset(served, tmp_path):
    before = served.policy.config
    before = replace(before, sampling=replace(before.sampling, delay=1, remembered_rewards=2))
    sampling = adapt_settings(before, make_config(served, tmp_path)).sampling
    assert (sampling.delay, sampling.remembered_rewards, sampling.oversample) == (0, 0, 1.0)
    assert sampling.max_response_tokens == before.sampling.max_response_tokens


def test_folder_of_another_command_is_not_changed(served, tmp_path):
    """The folder has only the config.json of a run that was killed before its first save, or only a run's other files."""
    write_queue(served, tmp_path)
    folder = tmp_path / "adapted"
    folder.mkdir()
    for name, message in (
        ("config.json", "contains a run that is not an adaptation"),
        ("metrics.jsonl", "already contains a run"),
    ):
        (folder / name).write_text("{}")
        with pytest.raises(InputError, match=message):
            adapt(make_config(served, tmp_path), lambda line: None)
        assert [file.name for file in folder.iterdir()] == [name]
        (folder / name).unlink()


def test_concurrent_start_keeps_the_files_of_the_first(served, tmp_path, monkeypatch):
    """Both starts find no adaptation in the folder; the second then finds the files of the first and must not remove them."""
    write_queue(served, tmp_path, [])
    folder = tmp_path / "adapted"
    folder.mkdir()
    config = make_config(served, tmp_path, heldout=0)
    with monkeypatch.context() as patch:
        patch.setattr(adaptation_run, "prepare_to_continue", lambda path: False)
        (folder / "served.json").write_text("{}")
        (folder / "metrics.jsonl").write_text("")
        with pytest.raises(InputError, match="already contains a run"):
            adapt(config, lambda line: None)
    assert sorted(file.name for file in folder.iterdir()) == ["metrics.jsonl", "served.json"]


def test_relative_rewards_match_formula():
    batch, earlier = np.array([1.0, 0.0, 3.0]), np.array([2.0, 2.0])
    everyone = [*batch, *earlier]
    mean = sum(everyone) / 5
    scale = (sum((reward - mean) ** 2 for reward in everyone) / 5) ** 0.5
    expected = [(reward - (sum(everyone) - reward) / 4) / scale for reward in batch]
    np.testing.assert_allclose(relative_rewards(batch, earlier), expected)
    np.testing.assert_allclose(relative_rewards(5 * batch + 1, 5 * earlier + 1), expected)
    for reward in (1.0, 0.1, 0.7):
        np.testing.assert_array_equal(relative_rewards(np.full(3, reward), np.full(2, reward)), np.zeros(3))


def test_clipped_feedback_loss_matches_formula():
    generator = np.random.default_rng(0)
    old, ref, logp = (-generator.uniform(0.1, 2.0, (4, 1, 3)).astype(np.float32) for _ in range(3))
    advantage = np.float32([[1.0], [-1.0], [2.0], [-0.5]])
    mask = np.array([[[1, 1, 1]], [[1, 1, 0]], [[1, 0, 0]], [[1, 1, 1]]], bool)
    algorithm = clipped_feedback(0.2, 0.1)
    batch = prepare(algorithm, Rollout(mask, old, advantage, ref_logp=ref))
    total = 0.0
    for b in range(4):
        for t in range(3):
            if mask[b, 0, t]:
                ratio, a = np.exp(logp[b, 0, t] - old[b, 0, t]), advantage[b, 0]
                term = min(ratio * a, np.clip(ratio, 0.8, 1.2) * a)
                term = max(term, 3 * a) if a < 0 else term
                total -= term / mask.sum()
                log_ref_ratio = ref[b, 0, t] - logp[b, 0, t]
                total += 0.1 * ratio * (np.exp(log_ref_ratio) - 1 - log_ref_ratio) / mask.sum()
    np.testing.assert_allclose(loss(algorithm, jnp.asarray(logp[:, 0]), batch)[0], total, rtol=1e-5)


def test_best_evaluation_ignores_rejected_models(tmp_path):
    file = tmp_path / "updates.jsonl"
    assert best_evaluation(file) is None
    found = [("kept", "0100"), ("worse", "1111"), ("kept", "-110"), ("kept", "0110")]
    file.write_text("".join(json.dumps({"outcome": outcome, "right": right}) + "\n" for outcome, right in found))
    np.testing.assert_array_equal(best_evaluation(file), [np.nan, 1, 1, 0])
    np.testing.assert_array_equal(better_evaluation(np.ones(3), np.zeros(2)), np.zeros(2))
    file.write_text('{"outcome": "kept", "right": "2"}\n')
    with pytest.raises(InputError, match=r"updates\.jsonl line 1 must have"):
        best_evaluation(file)


def test_invalid_runs_and_settings_are_refused(served, uninterrupted, tmp_path, capsys):
    queue = write_queue(served, tmp_path)
    words = ["--feedback", str(queue), "--run", str(tmp_path / "adapted"), "--once"]
    refused(capsys, "is not the folder of a run", "adapt", str(tmp_path), *words)
    shutil.copytree(served.run, tmp_path / "own")
    config = tmp_path / "own" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"seams": ["reward"]}))
    refused(capsys, "The run was started with reward passed to train", "adapt", str(tmp_path / "own"), *words)
    for flags, message in (
        (["--batch", "1"], "batch is 1; it must be"),
        (["--guard", "--heldout", "0"], "--guard compares held-out"),
    ):
        assert main(["adapt", str(served.run), *words, *flags]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    missing = ["--feedback", str(tmp_path / "none.jsonl"), "--once"]
    refused(capsys, "the feedback queue '.*none.jsonl' does not exist", "adapt", str(served.run), *missing)
    refused(
        capsys, "contains a run that is not an adaptation", "adapt", str(served.run), *words[:2], "--run", str(served.run)
    )
    copy = tmp_path / "other"
    shutil.copytree(uninterrupted.run, copy)
    other = ["--checkpoint", "last", "--run", str(copy)]
    refused(capsys, "contains the adaptation of checkpoint 'best' of", "adapt", str(served.run), *words[:2], *other)
    assert not (tmp_path / "adapted").exists()
