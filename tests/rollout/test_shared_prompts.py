"""Responses that share their prompt in a row: the same scores and gradients as without sharing, with fewer slots.

Scores and gradients are compared in float64, where the order of a sum does not matter.
"""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models import Model, TransformerConfig, init_params, score_tokens, transformer_policy
from rljax.models.attention import attend, attend_within
from rljax.models.language_model import reads_shared_prompts
from rljax.models.packed import MEMBERS, visible_slots
from rljax.parallel import make_mesh, put_rows
from rljax.rollout import Sequences, lay_out, pack
from rljax.rollout.layout import full_responses, lay_out_shared, row_slots

PROMPTS, GROUP, BEFORE, LENGTH, VOCAB = 6, 4, 12, 9, 13
COUNT = PROMPTS * GROUP
RANDOM = np.random.default_rng(5)
CONFIG = TransformerConfig(VOCAB, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=24, compute_dtype="float64")


def make_groups(lengths, before):
    """Random prompts and responses of these lengths; responses to the same prompt are next to each other."""
    prompts = RANDOM.integers(2, VOCAB, (PROMPTS, BEFORE)).astype(np.int32)
    attention = np.arange(LENGTH) < np.asarray(lengths)[:, None]
    return Sequences(
        prompt_tokens=prompts.repeat(GROUP, axis=0),
        prompt_attention=(np.arange(BEFORE) >= BEFORE - np.asarray(before)[:, None]).repeat(GROUP, axis=0),
        tokens=RANDOM.integers(2, VOCAB, (COUNT, LENGTH)).astype(np.int32),
        attention=attention,
        policy_logp=np.where(attention, -RANDOM.random((COUNT, LENGTH)), 0).astype(np.float32),
    )


SEQUENCES = make_groups(RANDOM.integers(1, LENGTH + 1, COUNT), [1, 2, 7, 12, 12, 10])
FULL = make_groups([LENGTH] * COUNT, [BEFORE] * PROMPTS)


@pytest.fixture(scope="module")
def params():
    """Random weights of unit size, in float64."""
    with jax.enable_x64(True):
        return jax.tree.map(lambda x: 4 * x.astype(jnp.float64), init_params(CONFIG, jax.random.key(0)))


def score_layout(layout, params):
    """Log-probability and entropy `[B, T]` of the responses of a layout."""
    score = jax.jit(partial(score_tokens, Model(CONFIG)))
    found = np.zeros((2, COUNT, LENGTH))
    for part in range(len(layout.responses)):
        packed, responses = jax.tree.map(lambda array, part=part: array[part], layout)
        scores = score(params, packed)
        found[:, responses[responses >= 0]] = np.stack([each[responses >= 0] for each in scores])
    return found


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("sequences", [SEQUENCES, FULL])
@pytest.mark.parametrize(("rows", "devices"), [(4, 1), (8, 2), (24, 1), (32, 8)])
def test_scores_match_rows_of_one_sequence(params, sequences, rows, devices):
    layout = lay_out_shared(sequences, sequences.attention, rows=rows, devices=devices)
    assert sorted(layout.responses[layout.responses >= 0]) == list(range(COUNT))
    assert layout.packed.segments.max() > MEMBERS
    expected = np.stack(score_tokens(Model(CONFIG), params, pack(sequences)))
    np.testing.assert_allclose(
        score_layout(layout, params)[:, sequences.attention], expected[:, sequences.attention], rtol=1e-10, atol=1e-12
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rows", [4, 24])
def test_gradients_match_rows_of_one_sequence(params, rows):
    mask = SEQUENCES.attention & (RANDOM.random((COUNT, 1)) < 0.8)
    weights = RANDOM.normal(size=mask.shape)

    @jax.jit
    @jax.grad
    def gradient(params, packed, responses):
        logp, entropy = score_tokens(Model(CONFIG), params, packed)
        used = jnp.where(jnp.asarray(mask)[responses] & (responses >= 0)[:, None], jnp.asarray(weights)[responses], 0)
        return (used * (logp + 0.3 * entropy)).sum()

    total = jax.tree.map(jnp.zeros_like, params)
    layout = lay_out_shared(SEQUENCES, mask, rows=rows)
    assert layout.packed.segments.max() > MEMBERS
    for part in range(len(layout.responses)):
        packed, responses = jax.tree.map(lambda array, part=part: array[part], layout)
        total = jax.tree.map(jnp.add, total, gradient(params, packed, responses))
    expected = gradient(params, pack(SEQUENCES), np.arange(COUNT))
    chex.assert_trees_all_close(total, expected, rtol=1e-9, atol=1e-10)


def test_a_batch_takes_fewer_slots():
    """Four responses of nine tokens to a prompt of twelve take 11 + 4 x 10 slots instead of 4 x 21."""
    alone, shared = (arrange(FULL, FULL.attention, rows=4) for arrange in (lay_out, lay_out_shared))
    assert alone.packed.tokens.shape == (6, 4, 21)
    assert shared.packed.tokens.shape == (6, 1, 51)
    assert (shared.responses >= 0).any(-1).all()
    short = FULL._replace(attention=FULL.attention & (np.arange(LENGTH) < 3))
    used = (lay_out_shared(short, short.attention, rows=4).responses >= 0).any(-1)
    assert used.tolist() == [True] * 4 + [False] * 2, (
        "6 groups of 27 slots in rows of 51: two groups are split over two rows"
    )


def test_any_number_of_rows_is_replaced_by_longer_ones():
    """Five rows of 21 slots become two rows of 51 slots, each with the four responses to a prompt."""
    layout = lay_out_shared(FULL, FULL.attention, rows=5)
    assert layout.packed.tokens.shape == (5, 2, 51)
    assert (layout.responses >= 0).sum(-1).tolist() == [8, 8, 8, 0, 0]


def test_the_program_depends_only_on_the_largest_lengths():
    shapes = set()
    for seed in range(8):
        lengths = np.random.default_rng(seed).integers(LENGTH // 2, LENGTH + 1, COUNT)
        sequences = make_groups(lengths, [BEFORE] * PROMPTS)
        shapes.add(str(jax.tree.map(np.shape, lay_out_shared(sequences, sequences.attention, rows=4))))
    assert len(shapes) <= 2, "the scored slots are rounded to quarters"


def test_prompts_are_not_shared_if_that_saves_little():
    """With short prompts and long responses, the rows are the same as from `lay_out`, slot by slot."""
    short = SEQUENCES._replace(prompt_tokens=SEQUENCES.prompt_tokens[:, -2:], prompt_attention=np.ones((COUNT, 2), bool))
    chex.assert_trees_all_equal(lay_out_shared(short, short.attention, rows=4), lay_out(short, short.attention, rows=4))


def test_sequences_that_do_not_fit_share_nothing():
    """Groups of an unusual size may need more rows than there are."""
    odd = FULL._replace(prompt_tokens=FULL.prompt_tokens.copy())
    odd.prompt_tokens[::GROUP, 0] = 1  # one response of each group is now alone
    chex.assert_trees_all_equal(lay_out_shared(odd, odd.attention, rows=4), lay_out(odd, odd.attention, rows=4))


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 12])
@pytest.mark.parametrize("size", [1, 4, 6, 16])
@pytest.mark.parametrize(("prompt", "response"), [(1, 1), (100, 50), (1_000, 100), (16, 4_096), (4_096, 4_096)])
def test_the_number_of_responses_per_row(prompt, response, size, rows):
    full = full_responses(prompt, response, size, rows)
    assert size % full == 0
    longer = -(-rows // full)
    assert longer * full >= rows, "as many responses of full length"
    assert longer * row_slots(prompt, response, full) <= rows * row_slots(prompt, response, 1)
    assert row_slots(prompt, response, 1) == prompt + response
    assert full == 1 or row_slots(prompt, response, full) <= 0.8 * full * (prompt + response)


def test_blocks_of_queries_see_what_a_full_row_sees():
    layout = lay_out_shared(SEQUENCES, SEQUENCES.attention, rows=4)
    segments = jnp.asarray(layout.packed.segments[0])
    keys = jax.random.split(jax.random.key(0), 3)
    slots = segments.shape[1]
    query = jax.random.normal(keys[0], (1, slots, 2, 2, 8))
    key, value = (jax.random.normal(each, (1, 2, slots, 8)) for each in keys[1:])
    whole = attend(query, key, value, visible_slots(segments))
    chex.assert_trees_all_close(attend_within(query, key, value, segments, block=8), whole, rtol=1e-5, atol=1e-6)


def test_a_token_sees_the_beginning_and_its_own_response():
    row = jnp.array([[MEMBERS, MEMBERS, MEMBERS + 1, MEMBERS + 1, MEMBERS + 2, 2 * MEMBERS, 2 * MEMBERS + 1, 0]])
    expected = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [5], [5, 6], [7]]
    assert [np.flatnonzero(line).tolist() for line in visible_slots(row)[0]] == expected


def test_only_the_plain_score_of_a_model_without_windows_reads_shared_prompts():
    policy = transformer_policy(replace(CONFIG, compute_dtype="float32"), eos=1)
    assert reads_shared_prompts(policy.score)
    assert not reads_shared_prompts(lambda params, packed, temperature: policy.score(params, packed, 2 * temperature))
    assert not reads_shared_prompts(partial(len, []))
    near = transformer_policy(replace(CONFIG, compute_dtype="float32", window=4), eos=1)
    assert not reads_shared_prompts(near.score)


@pytest.mark.parametrize("axes", [(1, 1), (2, 2, 2), (8, 1)])
def test_shared_prompts_give_the_same_scores_on_a_mesh(params, axes):
    mesh = make_mesh(*axes)
    layout = lay_out_shared(FULL, FULL.attention, rows=32, devices=8)
    packed = jax.tree.map(lambda array: array[0], put_rows(mesh, layout.packed, leading=1))
    model = Model(replace(CONFIG, compute_dtype="float32"), mesh)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    logp = jax.jit(partial(score_tokens, model))(single, packed).logp
    responses = layout.responses[0]
    expected = score_tokens(Model(replace(CONFIG, compute_dtype="float32")), single, pack(FULL)).logp
    np.testing.assert_allclose(logp[responses >= 0], expected[responses[responses >= 0]], rtol=1e-4, atol=1e-4)
