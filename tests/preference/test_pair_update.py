"""Updates of a reward model on pairs: the same for any micro-batch and mesh, with metrics that follow from the scores."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from digit_pairs import digit_pairs

from rljax.data.preferences import Preference
from rljax.data.tokenizer import CharacterTokenizer
from rljax.models import Model, TransformerConfig
from rljax.models.value_model import init_value_params, value_model
from rljax.parallel import make_mesh, micro_batches, put, put_rows, shardings
from rljax.preference.pair_update import Pairs, PairState, encode_pairs, evaluate_on_pairs, make_pair_step
from rljax.preference.reward_model import make_score
from rljax.training.objective.optimizer import with_standard_promotion

TOKENIZER = CharacterTokenizer()
SHAPE = TransformerConfig(vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
MODEL = value_model(Model(SHAPE), 1)
ONE = make_mesh(1, 1)


@pytest.fixture(scope="module")
def params():
    return init_value_params(MODEL, jax.random.key(0))


def train_steps(params, *, microbatch, mesh, steps=3):
    """Return the parameters and metrics after updates on the same 16 pairs."""
    pairs = [replace(pair, margin=0.25 * (n % 3)) for n, pair in enumerate(digit_pairs(16, 2))]
    pairs = encode_pairs(pairs, TOKENIZER, max_tokens=16).padded(TOKENIZER.pad_token_id)
    optimizer = with_standard_promotion(optax.adamw(1e-2))
    copied = jax.tree.map(jnp.array, params)
    state = PairState(copied, optimizer.init(copied))
    state = put(state, shardings(mesh, state))
    step = make_pair_step(MODEL, optimizer, state, mesh)
    batch = micro_batches(pairs, microbatch)
    history = []
    for _ in range(steps):
        state, metrics = step(state, put_rows(mesh, batch, leading=1))
        history.append(jax.device_get(metrics))
    return jax.device_get(state.params), history


@pytest.fixture(scope="module")
def single(params):
    return train_steps(params, microbatch=16, mesh=ONE)


@pytest.mark.parametrize(("axes", "rows"), [((1, 1), 4), ((8, 1), 16), ((2, 4), 8)])
def test_micro_batches_and_devices_change_nothing(params, single, axes, rows):
    ours = train_steps(params, microbatch=rows, mesh=make_mesh(*axes))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours[0], single[0])
    for our_metrics, their_metrics in zip(ours[1], single[1], strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), our_metrics, their_metrics)


def test_metrics_follow_from_scores(params, single):
    pairs = digit_pairs(16, 2)
    score = make_score(MODEL, ONE)
    encoded = encode_pairs(pairs, TOKENIZER, max_tokens=16)
    chosen, rejected = score(params, encoded.chosen), score(params, encoded.rejected)
    losses = [
        math.log(1 + math.exp(-(c - r - 0.25 * (n % 3)))) for n, (c, r) in enumerate(zip(chosen, rejected, strict=True))
    ]
    first, *_, last = single[1]
    np.testing.assert_allclose(first.pairs.loss, np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(first.pairs.accuracy, np.mean(chosen > rejected), rtol=1e-6)
    np.testing.assert_allclose(first.pairs.lead, np.mean(chosen - rejected), atol=1e-6)
    np.testing.assert_allclose(first.pairs.score, np.mean([chosen, rejected]), atol=1e-6)
    assert first.grad_norm > 0
    assert last.pairs.loss < first.pairs.loss
    judged = evaluate_on_pairs(score, params, encoded)
    np.testing.assert_allclose(judged["lead"], first.pairs.lead, atol=1e-6)
    np.testing.assert_allclose(judged["score_deviation"], np.std([chosen, rejected]), atol=1e-6)
    without_margin = np.log1p(np.exp(rejected.astype(float) - chosen)).mean()
    np.testing.assert_allclose(judged["loss"], without_margin, rtol=1e-5)
    tied = encoded._replace(rejected=encoded.chosen)
    assert evaluate_on_pairs(score, params, tied)["accuracy"] == 0.0


def test_pairs_are_padded_to_the_longest_sequence():
    encoded = encode_pairs([Preference("1=", "22", "3"), Preference("1=", "2" * 9, "3")], TOKENIZER, max_tokens=6)
    assert encoded.dropped == 1
    pairs = encoded.padded(pad_id=7)
    assert isinstance(pairs, Pairs)
    assert pairs.tokens.shape == (1, 2, 5)
    assert pairs.attention.tolist() == [[[True] * 5, [True] * 4 + [False]]]
    assert pairs.tokens[0, 1, 4] == 7
