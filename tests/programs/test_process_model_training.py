"""Training of a process reward model, which learns which steps are right and judges responses step by step, also in RL."""

import json
import random
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_runs import SMALL

import rljax
from rljax.cli import main
from rljax.data.labeled_solutions import LabeledSolution
from rljax.data.problem import Problem
from rljax.data.tokenizer import CharacterTokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig
from rljax.models.value_model import init_value_params, value_model
from rljax.parallel import make_mesh, micro_batches, put, put_rows, shardings
from rljax.preference.config import RewardModelConfig
from rljax.preference.pair_update import PairState
from rljax.preference.process_update import encode_solutions, evaluate_solutions, make_process_step
from rljax.preference.reward_model import (
    RewardModel,
    load_reward_model,
    make_reward_function,
    make_step_judge,
    make_step_reward,
    make_step_scores,
)
from rljax.programs.answer_settings import GenerateSettings
from rljax.programs.prefix_values import reward_model_value
from rljax.programs.reward_model_training import train_reward_model
from rljax.programs.synthetic_data import false_steps_of, step_reward_of
from rljax.rewards.correctness import Failed
from rljax.rollout.continuations import Prefix
from rljax.training.objective.optimizer import with_standard_promotion

TOKENIZER = CharacterTokenizer()
SHAPE = TransformerConfig(vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
MODEL = value_model(Model(SHAPE), 1)
ONE = make_mesh(1, 1)


def make_solutions(count, seed):
    """Return solutions whose steps are strings of two digits; a step is right if its digits are even."""
    rng = random.Random(seed)

    def make_solution():
        labels = [rng.random() < 0.5 for _ in range(rng.randint(1, 3))]
        steps = ["".join(rng.choice("02468" if right else "13579") for _ in range(2)) for right in labels]
        return {"prompt": f"{rng.randrange(1000)}=", "completions": steps, "labels": labels}

    return [make_solution() for _ in range(count)]


def write_rows(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def labeled_solutions(rows):
    return [LabeledSolution(row["prompt"], tuple(row["completions"]), tuple(map(float, row["labels"]))) for row in rows]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A process reward model that has learned that steps with odd digits are wrong."""
    folder = tmp_path_factory.mktemp("process")
    dataset = write_rows(folder / "steps.jsonl", make_solutions(500, 0))
    config = RewardModelConfig(
        **{
            "dataset": dataset,
            "tokenizer": "characters",
            "layers": 1,
            "width": 32,
            "heads": 2,
            "kv_heads": 2,
            "hidden": 64,
        },
        **{"steps": 60, "batch": 32, "learning_rate": 1e-2, "eval_every": 0, "replicas": 1, "quiet": True},
        **{"process": True, "step_separator": ";", "output": str(folder / "model")},
    )
    return train_reward_model(config)


def test_process_model_learns_which_steps_are_right(trained):
    assert trained.accuracy_before < 0.8
    assert trained.accuracy_after > 0.97
    rows = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["eval", *["reward_model"] * 60, "eval"]
    names = {"loss", "accuracy", "score", "grad_norm", "skipped_updates", "learning_rate", "seconds"}
    assert set(rows[1]) == {"phase", "step"} | names
    assert rows[-1]["loss"] < 0.1 < rows[0]["loss"]
    assert list(json.loads((trained.folder / "settings.json").read_text())["fingerprints"]) == ["the solutions"]


def test_process_model_judges_steps_and_their_minimum(trained):
    again = load_reward_model(trained.folder)
    assert again.step_separator == ";"
    right, wrong, empty = make_step_judge(again, ONE)([Problem("7=", "")] * 3, ["24;86;08", "24;57;08;", ""])
    assert [end for end, _ in right] == [3, 6, 8]
    assert [end for end, _ in wrong] == [3, 6, 9]
    assert [score > 0.5 for _, score in (*right, *wrong)] == [True, True, True, True, False, True]
    assert [end for end, _ in empty] == [0]
    texts = ["24;86;08", "24;57;08;"]
    scores = make_reward_function(trained.folder, ONE)(["7="] * 3, [*texts, "?!"])
    np.testing.assert_allclose(scores[:2], [min(score for _, score in steps) for steps in (right, wrong)], rtol=1e-6)
    assert isinstance(scores[2], Failed)
    step_reward = make_step_reward(str(trained.folder), ONE)
    assert step_reward(["7="] * 2, texts, answer=["", ""]) == [right, wrong]
    with pytest.raises(InputError, match="cannot be encoded"):
        step_reward(["7="], ["?!"])
    prefixes = [Prefix(Problem("7=", ""), (), (), text, (), ended=False) for text in texts]
    np.testing.assert_allclose(reward_model_value(str(trained.folder), ONE, chat=False)(prefixes), scores[:2], rtol=1e-6)


def test_outcome_model_judges_no_steps(trained):
    other = load_reward_model(trained.folder)._replace(step_separator=None)
    with pytest.raises(InputError, match="scores complete responses, not steps"):
        make_step_judge(other, ONE)


def test_process_model_is_the_step_reward_of_a_run(trained, tmp_path):
    config = SMALL.replace(
        **{
            "name": "process",
            "algorithm": "grpo_process",
            "step_reward": f"model:{trained.folder}",
            "run": str(tmp_path / "run"),
        },
        **{"layers": 1, "width": 16, "hidden": 32, "warm_start_steps": 0, "steps": 1, "prompts": 4, "group_size": 4},
        **{"train_problems": 40, "heldout_problems": 6, "eval_every": 0, "sample_every": 0, "microbatch_rows": 4},
    )
    rljax.train(config)
    (row,) = [
        row
        for row in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        if row["phase"] == "rl"
    ]
    assert row["skipped_updates"] == 0
    assert row["grad_norm"] > 0


def test_false_steps_of_generated_data_are_found(trained):
    config = SMALL.replace(step_reward=f"model:{trained.folder}")
    problems = [Problem("7=", "")]
    rows = [{"problem": 0, "sample": n, "completion": text} for n, text in enumerate(["24;86;08", "24;57;08"])]
    step_reward = step_reward_of(GenerateSettings(), config, problems)
    assert false_steps_of(step_reward, rows, problems) == {(0, 1)}


def train_steps(*, microbatch, mesh, steps=3):
    """Return parameters and metrics after updates on the same 16 solutions, and the encoded solutions."""
    encoded = encode_solutions(
        labeled_solutions(make_solutions(16, 2)), TOKENIZER, max_tokens=32, chat=False, separator=";"
    )
    params = init_value_params(MODEL, jax.random.key(0))
    optimizer = with_standard_promotion(optax.adamw(1e-2))
    state = PairState(params, optimizer.init(params))
    state = put(state, shardings(mesh, state))
    step = make_process_step(MODEL, optimizer, state, mesh)
    batch, history = micro_batches(encoded.padded(TOKENIZER.pad_token_id), microbatch), []
    for _ in range(steps):
        state, metrics = step(state, put_rows(mesh, batch, leading=1))
        history.append(jax.device_get(metrics))
    return jax.device_get(state.params), history, encoded


@pytest.mark.parametrize(("axes", "rows"), [((1, 1), 4), ((8, 1), 16)])
def test_micro_batches_and_devices_change_nothing(axes, rows):
    ours, theirs = train_steps(microbatch=rows, mesh=make_mesh(*axes)), train_steps(microbatch=16, mesh=ONE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours[:2], theirs[:2])


def test_loss_is_the_mean_over_steps():
    _, history, encoded = train_steps(microbatch=16, mesh=ONE, steps=1)
    params, losses, hits = init_value_params(MODEL, jax.random.key(0)), [], []
    scores = make_step_scores(MODEL, ONE)
    for row, labels in zip(scores(params, [*zip(encoded.tokens, encoded.ends, strict=True)]), encoded.labels, strict=True):
        for logit, label in zip(row, labels, strict=True):
            losses.append(np.log1p(np.exp(-logit if label else logit)))
            hits.append((logit > 0) == bool(label))
    np.testing.assert_allclose(history[0].pairs.loss, np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(history[0].pairs.accuracy, np.mean(hits), rtol=1e-6)
    judged = evaluate_solutions(scores, params, encoded)
    np.testing.assert_allclose([judged["loss"], judged["accuracy"]], [np.mean(losses), np.mean(hits)], rtol=1e-5)


def test_later_steps_do_not_change_a_steps_score():
    params = init_value_params(MODEL, jax.random.key(0))
    judge = make_step_judge(RewardModel(MODEL, params, TOKENIZER, False, ";"), ONE)
    long, short = judge([Problem("7=", "")] * 2, ["24;86;08", "24;86;"])
    np.testing.assert_allclose([score for _, score in long[:2]], [score for _, score in short], rtol=1e-5)
    assert jnp.isfinite(long[2][1])


def test_command_reports_steps_that_contain_the_separator(tmp_path, capsys):
    rows = [*make_solutions(30, 5), {"prompt": "5=", "completions": ["2;4"], "labels": [0.5]}]
    file = write_rows(tmp_path / "steps.jsonl", rows)
    common = [
        "--layers",
        "1",
        "--width",
        "16",
        "--heads",
        "2",
        "--kv-heads",
        "2",
        "--hidden",
        "32",
        "--replicas",
        "1",
        "--quiet",
    ]
    command = ["reward-model", file, "--process", "--step-separator", ";", "--tokenizer", "characters", "--steps", "2"]
    assert main([*command, "--batch", "8", "--output", str(tmp_path / "model"), *common]) == 0
    text = capsys.readouterr().out
    assert "1 step contains the separator" in text
    assert "Held-out steps judged like their labels" in text
    assert f"--step-reward model:{tmp_path / 'model'}" in text
    note = json.loads((tmp_path / "model" / "rljax_reward.json").read_text())
    assert note["step_separator"] == ";"


def test_settings_for_pairs_are_refused():
    config = RewardModelConfig(dataset="-", process=True)
    with pytest.raises(InputError, match="are for pairs"):
        replace(config, chosen_column="better")
    with pytest.raises(InputError, match="add process=True"):
        replace(config, process=False, step_separator=";")
    with pytest.raises(InputError, match="is empty"):
        replace(config, step_separator="")
    with pytest.raises(InputError, match="process=True trains on labeled steps"):
        train_reward_model(config, preferences=([], []))


def test_overlong_solutions_are_dropped_or_refused():
    rows = labeled_solutions([{"prompt": "1=", "completions": ["2" * 20], "labels": [1]}, *make_solutions(3, 1)])
    options = {"chat": False, "separator": ";"}
    assert encode_solutions(rows, TOKENIZER, max_tokens=16, **options).dropped == 1
    with pytest.raises(InputError, match="every solution has more than max_tokens=2 tokens"):
        encode_solutions(rows, TOKENIZER, max_tokens=2, **options)
    with pytest.raises(InputError, match="there are no solutions to train on"):
        encode_solutions([], TOKENIZER, max_tokens=2, **options)
