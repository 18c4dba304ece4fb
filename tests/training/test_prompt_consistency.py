"""`--prompt-consistency`: answers paired with changed prompts, the gradient of their loss, and complete runs."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from logit_table import bigram, loop_gradient
from run_states import first_state, read_checkpoint
from small_runs import STEPPED, even_length, stopping_after

import rljax
from rljax.algorithms import Rollout
from rljax.errors import InputError
from rljax.options.prompt_consistency import (
    NAME,
    Examples,
    append_answers,
    changed_prompts,
    choose_right_answers,
    empty_rows,
    make_gradient,
)
from rljax.rollout import Groups, Sequences, pack_one_per_row
from rljax.tracking.rows import read_metrics
from rljax.training.interrupt import Interrupted
from rljax.training.state import create

ORDER = STEPPED.replace(operands=(2, 3), max_prompt_tokens=8, train_problems=60, prompt_consistency={"order": 0.5}, steps=3)


def gradient_with(table, examples):
    """A gradient of ones plus the gradient of the loss on these examples."""
    params, options = {"table": jnp.asarray(table)}, {NAME: jax.tree.map(jnp.asarray, examples)}
    state = create(params, optax.sgd(1.0), 0, with_reference=False, options=options)
    return make_gradient(bigram)(state, {}, {"table": jnp.ones_like(params["table"])}, None)


def test_the_gradient_matches_the_formula():
    table = np.random.default_rng(0).normal(size=(7, 7)).astype(np.float32)
    prompts = np.array([[2, 3], [0, 4]], np.int32)
    answers = np.array([[5, 1, 0], [6, 3, 1]], np.int32)
    sequences = Sequences(prompts, prompts > 0, answers, answers > 0)
    weights = (0.25 * sequences.attention / sequences.attention.sum()).astype(np.float32)
    after, metrics = gradient_with(table, Examples(pack_one_per_row(sequences), weights))
    np.testing.assert_allclose(after["table"], 1 + 0.25 * loop_gradient(table, sequences), atol=1e-6)
    assert float(metrics["prompt_consistency_loss"]) > 0


def test_answers_follow_changed_prompts_and_other_rows_are_masked():
    attention = np.array([[[1, 1], [1, 0]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]], bool)
    groups = Groups(
        Rollout(attention, attention.astype(np.float32), np.zeros((3, 2), np.float32)),
        prompt_ids=np.array([1, 0, -1]),
        prompt_tokens=np.array([[0, 7, 8], [4, 5, 6], [0, 0, 0]], np.int32),
        prompt_attention=np.array([[0, 1, 1], [1, 1, 1], [0, 0, 0]], bool),
        tokens=np.arange(12, dtype=np.int32).reshape(3, 2, 2),
        attention=attention,
        version=np.zeros((3, 2), np.int32),
        turns=np.ones((3, 2), np.int32),
        failed=np.zeros((3, 2), np.int8),
    )
    rows = append_answers(groups, np.array([1, 1, -1]), [None, [9, 9, 8]], padding=0)
    assert rows.prompt_tokens.tolist() == [[9, 9, 8], [4, 5, 6], [0, 0, 0]]
    assert rows.tokens.tolist() == [[2, 3], [6, 7], [10, 11]]
    assert rows.learned.tolist() == [[True, False], [False, False], [False, False]]
    without = append_answers(groups, np.array([-1, 1, -1]), [None, [9, 9, 8]], padding=0)
    assert not without.learned.any()


def test_right_answers_are_chosen_in_rotation():
    mask = np.ones((3, 4, 1), bool)
    rewards = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    rollout = Rollout(
        mask, mask.astype(np.float32), rewards, valid=np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1]], bool)
    )
    assert [choose_right_answers(rollout, step).tolist() for step in range(5)] == [
        [1, -1, 0],
        [1, -1, 2],
        [3, -1, 2],
        [3, -1, 3],
        [1, -1, 0],
    ]


def test_a_changed_prompt_that_is_too_long_or_equal_is_left_out():
    config = ORDER.replace(tokenizer="bytes", prompt_consistency={"spaces": 0.1}, max_prompt_tokens=16)
    setup, _ = first_state(config, reward=even_length)
    changed = changed_prompts(setup, "spaces")
    assert len(changed) == len(setup.train.prompts.tokens)
    for new, old in zip(changed, setup.train.prompts.tokens, strict=True):
        assert new is None or (len(new) <= setup.prompt_length and new != old)
    equal = [None if len(set(problem.prompt[:-1].split("+"))) == 1 else problem for problem in setup.train.prompts.problems]
    found = changed_prompts(setup, "order")
    assert [row is None for row in found] == [problem is None for problem in equal]


def test_a_run_learns_from_changed_prompts_and_resumes_exactly(tmp_path):
    config = ORDER.replace(run=str(tmp_path / "done"), learning_rate=1e-2)
    rljax.train(config, reward=even_length)
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(tmp_path / "again")), reward=stopping_after(2))
    rljax.train(resume=tmp_path / "again", reward=even_length)
    states = [read_checkpoint(config, tmp_path / name, reward=even_length).state for name in ("done", "again")]
    chex.assert_trees_all_equal(*states)
    examples = states[0].options[NAME]
    assert float(examples.weights.sum()) == pytest.approx(0.5)
    losses = [
        row["prompt_consistency_loss"] for row in read_metrics(tmp_path / "done/metrics.jsonl") if row["phase"] == "rl"
    ]
    assert len(losses) == 3
    assert min(losses) > 0


def test_a_weight_of_the_loss_changes_the_update(tmp_path):
    params = []
    for weight in (0.1, 1.0):
        config = ORDER.replace(prompt_consistency={"order": weight}, steps=1, run=str(tmp_path / str(weight)))
        params.append(jax.device_get(rljax.train(config, reward=even_length).params))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(*params)


def test_rows_without_tokens_give_no_gradient():
    rows = Examples(pack_one_per_row(empty_rows(2, 2, 3)), np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(gradient_with(np.zeros((7, 7), np.float32), rows)[0]["table"], 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_consistency": {"order": -0.1}}, "give positive weights"),
        ({"prompt_consistency": {"noise": 0.1}}, "no perturbation 'noise'"),
        ({"prompt_consistency": {"typos": 0.1}}, "needs words of at least four letters"),
        ({"prompt_consistency": {"spaces": 0.1}}, "--prompt-consistency makes prompts that this model cannot read"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        first_state(ORDER.replace(**changes), reward=even_length)


def test_an_environment_is_refused():
    with pytest.raises(InputError, match="an environment writes the prompts"):
        first_state(ORDER.replace(environment="guessing", tokenizer="bytes", max_prompt_tokens=128))
