"""Sequences that share rows: nothing is lost, little is padding, and every algorithm has the same loss and gradient."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.models import Model, TransformerConfig, init_params, score_tokens
from rljax.rollout import Sequences, lay_out, pack
from rljax.rollout.layout import MOST_IN_A_ROW, shared_rows
from rljax.training.update import rows_of

PROMPTS, GROUP, BEFORE, LENGTH, VOCAB = 6, 4, 4, 9, 13
COUNT = PROMPTS * GROUP
RANDOM = np.random.default_rng(3)
MODEL = Model(TransformerConfig(vocab_size=VOCAB, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=24))


def sequences_with(lengths, before):
    """Random tokens; prompts of `before` tokens stand at the right end of their slots."""
    attention = np.arange(LENGTH) < np.asarray(lengths)[:, None]
    return Sequences(
        prompt_tokens=RANDOM.integers(2, VOCAB, (COUNT, BEFORE)).astype(np.int32),
        prompt_attention=np.arange(BEFORE) >= BEFORE - np.asarray(before)[:, None],
        tokens=RANDOM.integers(2, VOCAB, (COUNT, LENGTH)).astype(np.int32),
        attention=attention,
        policy_logp=np.where(attention, -RANDOM.random((COUNT, LENGTH)), np.nan).astype(np.float32),
    )


SEQUENCES = sequences_with(RANDOM.integers(1, LENGTH + 1, COUNT), RANDOM.integers(1, BEFORE + 1, COUNT))


@pytest.mark.parametrize("rows", [1, 4, 32])
def test_every_token_of_every_chosen_sequence_has_one_slot(rows):
    chosen = RANDOM.random(COUNT) < 0.7
    layout = lay_out(SEQUENCES, SEQUENCES.attention & chosen[:, None], rows=rows)
    packed = layout.packed
    assert packed.tokens.shape == (-(-COUNT // rows), rows, BEFORE + LENGTH)
    assert sorted(layout.responses[layout.responses >= 0]) == np.flatnonzero(chosen).tolist()
    found = {}
    for part, row in np.ndindex(packed.tokens.shape[:2]):
        for segment in range(1, packed.segments[part, row].max() + 1):
            slots = np.flatnonzero(packed.segments[part, row] == segment)
            assert packed.positions[part, row, slots].tolist() == list(range(slots.size))
            found.setdefault(tuple(packed.tokens[part, row, slots].tolist()), []).append(
                packed.policy_logp[part, row, slots]
            )
    for response in np.flatnonzero(chosen):
        prompt = SEQUENCES.prompt_tokens[response][SEQUENCES.prompt_attention[response]]
        attended = SEQUENCES.attention[response]
        (logp,) = found.pop((*prompt.tolist(), *SEQUENCES.tokens[response][attended].tolist()))
        np.testing.assert_array_equal(logp, [0.0] * prompt.size + SEQUENCES.policy_logp[response][attended].tolist())
    assert not found


@pytest.mark.parametrize("seed", range(5))
def test_best_fit_never_overfills_a_row(seed):
    lengths = np.random.default_rng(seed).integers(1, 101, 300)
    rows = shared_rows(lengths, 100)
    assert sorted(sequence for row in rows for sequence in row) == list(range(300))
    assert max(lengths[row].sum() for row in rows) <= 100
    assert max(map(len, rows)) <= MOST_IN_A_ROW
    assert len(rows) <= 1.1 * lengths.sum() / 100 + 1


@pytest.mark.parametrize("seed", range(3))
def test_little_of_the_used_micro_batches_is_padding_at_lognormal_lengths(seed):
    """512 responses with a mean of 30 % of 256 tokens: at most 10 % of the computed slots are padding."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(np.log(0.25 * 256), 0.6, 512), 1, 256).astype(int)
    before = random.integers(16, 33, 512)
    blank = np.zeros((512, 256), np.int32)
    attention, prompts = np.arange(256) < lengths[:, None], np.arange(32) >= 32 - before[:, None]
    layout = lay_out(Sequences(blank[:, :32], prompts, blank, attention), attention, rows=16)
    computed = layout.packed.segments[(layout.responses >= 0).any(-1)]
    assert (computed > 0).sum() == lengths.sum() + before.sum()
    assert (computed == 0).mean() <= 0.10
    assert 1 - (lengths.sum() + before.sum()) / (512 * 288) > 0.6, "without packing"


def test_few_shapes_are_compiled():
    shapes = set()
    for seed in range(20):
        random = np.random.default_rng(seed)
        sequences = sequences_with(random.integers(1, LENGTH + 1, COUNT), random.integers(1, BEFORE + 1, COUNT))
        shapes.add(
            str(jax.tree.map(np.shape, lay_out(sequences, sequences.attention & (random.random((COUNT, 1)) < 0.8), rows=4)))
        )
    assert len(shapes) <= 2


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda x: x * 1.5, init_params(MODEL.config, jax.random.key(0)))


@pytest.fixture(scope="module")
def rollout(params):
    """A rollout with all that any algorithm reads."""
    shape = (PROMPTS, GROUP, LENGTH)
    mask = SEQUENCES.attention.reshape(shape)
    logp = score_tokens(MODEL, params, jax.tree.map(jnp.asarray, pack(SEQUENCES))).logp.reshape(shape)
    noise = RANDOM.normal(size=(4, *shape)).astype(np.float32) / 5
    ends = mask & ~np.pad(mask, ((0, 0), (0, 0), (0, 1)))[..., 1:]
    return Rollout(
        mask=mask,
        behaviour_logp=np.where(mask, logp + noise[0], 0),
        rewards=RANDOM.integers(0, 2, shape[:2]).astype(np.float32),
        policy_logp=np.where(mask, logp + noise[0], 0),
        ref_logp=np.where(mask, logp + noise[1], 0),
        truncated=RANDOM.random(shape[:2]) < 0.2,
        values=noise[2],
        step_rewards=np.where(ends, noise[3], 0),
        step_end=ends,
        behaviour_entropy=np.abs(noise[2]),
        teacher_logp=np.where(mask, logp + noise[2], 0),
        square_sum=np.abs(noise[3]),
        greedy_rewards=np.linspace(0, 1, PROMPTS, dtype=np.float32),
        reward_parts={"form": np.abs(noise[0, ..., 0])},
    )


SCORE = jax.jit(partial(score_tokens, MODEL))


@jax.jit
def pulled_back(params, packed, gradient):
    """The parameters' gradient, from the loss's gradient in the scores: one program for all algorithms."""
    return jax.vjp(lambda params: score_tokens(MODEL, params, packed), params)[1](gradient)[0]


def loss_and_gradient_of(algorithm, params):
    """Loss and gradient of a packed batch; those of the scores are compiled once for each shape."""

    def total(scores, part):
        return loss(algorithm, scores.logp, part, entropy=scores.entropy, teacher_divergence=scores.entropy)[0]

    in_scores = jax.jit(jax.value_and_grad(total))

    def call(packed, part):
        value, gradient = in_scores(SCORE(params, packed), part)
        return value, pulled_back(params, packed, gradient)

    return call


@pytest.mark.parametrize("name", BY_NAME)
def test_loss_and_gradient_are_those_of_a_row_for_each_response(params, rollout, name):
    algorithm = BY_NAME[name]()
    batch = prepare(algorithm, rollout, progress=0.5 if algorithm.needs("progress") else None)
    loss_and_gradient = loss_and_gradient_of(algorithm, params)
    expected = loss_and_gradient(pack(SEQUENCES), batch)
    layout = lay_out(SEQUENCES, np.asarray(batch.mask), rows=4)
    used = np.flatnonzero((layout.responses >= 0).any(-1))
    assert used.size < COUNT / 4
    parts = [
        loss_and_gradient(jax.tree.map(lambda array, i=i: array[i], layout.packed), rows_of(batch, layout.responses[i]))
        for i in used
    ]
    actual = jax.tree.map(lambda *numbers: sum(numbers), *parts)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=max(3e-5, 1e-4 * np.abs(theirs).max()))
