"""The auxiliary supervised loss: its gradient matches the formula, and its examples depend only on the step."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from logit_table import bigram, loop_gradient
from run_states import first_state
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.data.problem import Problem
from rljax.data.prompts import encode_prompts
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.options.auxiliary_loss import examples_of, make_batches, make_examples, make_gradient
from rljax.parallel import make_mesh
from rljax.tracking.rows import read_metrics
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.state import create

TINY = SMALL.replace(
    train_problems=12,
    heldout_problems=4,
    warm_start_batch=4,
    algorithm="gpg",
    auxiliary=0.5,
    steps=2,
    prompts=2,
    group_size=4,
    minibatches=2,
    learning_rate=1e-2,
    eval_every=0,
    sample_every=0,
    checkpoint_every=1,
)
TOKENIZER = load_tokenizer("characters")


@pytest.fixture(scope="module")
def examples():
    problems = [Problem("1+1=", "2"), Problem("12+3=", "15"), Problem("7=", "7")]
    return examples_of(None, encode_prompts(problems, TOKENIZER, max_length=8), TOKENIZER)


def test_the_gradient_of_the_auxiliary_loss_matches_the_formula(examples):
    table = np.random.default_rng(0).normal(size=(TOKENIZER.vocab_size,) * 2).astype(np.float32)
    params = {"table": jnp.asarray(table)}
    state = create(params, optax.sgd(1.0), 0, with_reference=False)
    gradient = {"table": jnp.ones_like(params["table"])}
    rows = make_batches(examples, make_mesh(1, 1), TrainConfig.flat(warm_start_batch=3))(0, 0)
    add_gradient = make_gradient(bigram, 0.25)
    after, metrics = add_gradient(state, {}, gradient, rows)
    value = metrics["auxiliary_loss"]
    np.testing.assert_allclose(after["table"], 1 + 0.25 * loop_gradient(table, examples), atol=1e-6)
    step = 1e-3
    moved = {"table": params["table"] - step * (after["table"] - 1) / 0.25}
    lower = add_gradient(state._replace(params=moved), {}, gradient, rows)[1]["auxiliary_loss"]
    assert float(value - lower) == pytest.approx(step * np.square(loop_gradient(table, examples)).sum(), rel=1e-2)


def test_without_demonstrations_prompts_are_the_examples(examples):
    rows = zip(examples.prompt_tokens, examples.tokens, examples.attention, strict=True)
    texts = [TOKENIZER.decode([*first.tolist(), *tokens[real].tolist()]) for first, tokens, real in rows]
    assert texts == ["1+1=", "12+3=", "7="]
    with pytest.raises(InputError, match="auxiliary needs demonstrations, or prompts of at least 2 tokens"):
        examples_of(None, encode_prompts([Problem("7", "7")], TOKENIZER, max_length=8), TOKENIZER)


def test_the_examples_of_an_update_depend_only_on_its_step():
    setup, _ = first_state(TINY, reward=even_length)
    rows = {}
    for order in ([(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 1), (0, 0), (1, 0)]):
        config = TINY.replace(warm_start_batch=4, minibatches=2)
        examples = make_examples(config, setup.train.prompts, setup.tokenizer, setup.prompt_length)
        make_batch = make_batches(examples, setup.mesh, config)
        for position in order:
            packed, mask = jax.device_get(make_batch(*position))
            previous = rows.setdefault(position, packed.tokens)
            np.testing.assert_array_equal(packed.tokens, previous)
            assert mask.any(-1).all()
    assert len({array.tobytes() for array in rows.values()}) == 4


def test_a_run_learns_the_examples_and_resumes_exactly(tmp_path):
    uninterrupted = rljax.train(TINY.replace(run=str(tmp_path / "whole")), even_length)
    with pytest.raises(Interrupted):
        rljax.train(TINY.replace(run=str(tmp_path / "cut")), stopping_after(2))
    resumed = rljax.train(resume=tmp_path / "cut", reward=even_length)
    chex.assert_trees_all_equal(jax.device_get(resumed.params), jax.device_get(uninterrupted.params))
    first, second = (
        row["auxiliary_loss"] for row in read_metrics(uninterrupted.run / "metrics.jsonl") if row["phase"] == "rl"
    )
    assert second < first
