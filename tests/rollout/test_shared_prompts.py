"""Tests of rows in which several responses share one copy of a prompt: same scores and gradients, fewer slots.

Scores and gradients are compared in float64, where the order of summation makes no visible difference.
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
from rljax.models.language_model import supports_shared_prompts
from rljax.models.packed import SEGMENTS_PER_PROMPT, visible_slots
from rljax.parallel import make_mesh, put_rows
from rljax.rollout import Sequences, lay_out, pack_one_per_row
from rljax.rollout.layout import full_responses_per_row, lay_out_shared, row_slots

PROMPTS, GROUP, PROMPT_LENGTH, LENGTH, VOCAB = 6, 4, 12, 9, 13
COUNT = PROMPTS * GROUP
RANDOM = np.random.default_rng(5)
CONFIG = TransformerConfig(VOCAB, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=24, compute_dtype="float64")


def make_sequences(lengths, prompt_lengths):
    """Build random sequences: prompts of `prompt_lengths` tokens, each with GROUP responses of `lengths` tokens."""
    prompts = RANDOM.integers(2, VOCAB, (PROMPTS, PROMPT_LENGTH)).astype(np.int32)
    attention = np.arange(LENGTH) < np.asarray(lengths)[:, None]
    return Sequences(
        prompt_tokens=prompts.repeat(GROUP, axis=0),
        prompt_attention=(np.arange(PROMPT_LENGTH) >= PROMPT_LENGTH - np.asarray(prompt_lengths)[:, None]).repeat(
            GROUP, axis=0
        ),
        tokens=RANDOM.integers(2, VOCAB, (COUNT, LENGTH)).astype(np.int32),
        attention=attention,
        policy_logp=np.where(attention, -RANDOM.random((COUNT, LENGTH)), 0).astype(np.float32),
    )


SEQUENCES = make_sequences(RANDOM.integers(1, LENGTH + 1, COUNT), [1, 2, 7, 12, 12, 10])
FULL = make_sequences([LENGTH] * COUNT, [PROMPT_LENGTH] * PROMPTS)


@pytest.fixture(scope="module")
def params():
    """Random weights in float64, four times as large as usual."""
    with jax.enable_x64(True):
        return jax.tree.map(lambda x: 4 * x.astype(jnp.float64), init_params(CONFIG, jax.random.key(0)))


def score_layout(layout, params):
    """Return the log-probabilities and entropies of a layout's responses, `[2, B, T]`."""
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
def test_shared_prompts_keep_scores(params, sequences, rows, devices):
    layout = lay_out_shared(sequences, sequences.attention, rows=rows, devices=devices)
    assert sorted(layout.responses[layout.responses >= 0]) == list(range(COUNT))
    assert layout.packed.segments.max() > SEGMENTS_PER_PROMPT, "no prompt is shared"
    expected = np.stack(score_tokens(Model(CONFIG), params, pack_one_per_row(sequences)))
    np.testing.assert_allclose(
        score_layout(layout, params)[:, sequences.attention], expected[:, sequences.attention], rtol=1e-10, atol=1e-12
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rows", [4, 24])
def test_shared_prompts_keep_gradients(params, rows):
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
    assert layout.packed.segments.max() > SEGMENTS_PER_PROMPT, "no prompt is shared"
    for part in range(len(layout.responses)):
        packed, responses = jax.tree.map(lambda array, part=part: array[part], layout)
        total = jax.tree.map(jnp.add, total, gradient(params, packed, responses))
    expected = gradient(params, pack_one_per_row(SEQUENCES), np.arange(COUNT))
    chex.assert_trees_all_close(total, expected, rtol=1e-9, atol=1e-10)


def test_shared_prompts_need_fewer_slots():
    """Four nine-token responses to a twelve-token prompt need 11 + 4 x 10 slots, not 4 x 21: each repeats the last prompt token."""
    unshared, shared = (arrange(FULL, FULL.attention, rows=4) for arrange in (lay_out, lay_out_shared))
    assert unshared.packed.tokens.shape == (6, 4, 21)
    assert shared.packed.tokens.shape == (6, 1, 51)
    assert (shared.responses >= 0).any(-1).all()
    short = FULL._replace(attention=FULL.attention & (np.arange(LENGTH) < 3))
    used = (lay_out_shared(short, short.attention, rows=4).responses >= 0).any(-1)
    assert used.tolist() == [True] * 4 + [False] * 2, (
        "6 groups of 27 slots should need four rows of 51; two groups are split across two rows"
    )


def test_any_number_of_rows_becomes_fewer_longer_rows():
    """Five rows of 21 slots become two rows of 51 slots, each with the four responses to a prompt."""
    layout = lay_out_shared(FULL, FULL.attention, rows=5)
    assert layout.packed.tokens.shape == (5, 2, 51)
    assert (layout.responses >= 0).sum(-1).tolist() == [8, 8, 8, 0, 0]


def test_few_layout_shapes_are_compiled():
    shapes = set()
    for seed in range(8):
        lengths = np.random.default_rng(seed).integers(LENGTH // 2, LENGTH + 1, COUNT)
        sequences = make_sequences(lengths, [PROMPT_LENGTH] * PROMPTS)
        shapes.add(str(jax.tree.map(np.shape, lay_out_shared(sequences, sequences.attention, rows=4))))
    assert len(shapes) <= 2, "scored slots must be rounded up to quarters of a row"


def test_prompts_are_not_shared_if_it_saves_little():
    """With short prompts and long responses, the result equals that of `lay_out`."""
    short = SEQUENCES._replace(prompt_tokens=SEQUENCES.prompt_tokens[:, -2:], prompt_attention=np.ones((COUNT, 2), bool))
    chex.assert_trees_all_equal(lay_out_shared(short, short.attention, rows=4), lay_out(short, short.attention, rows=4))


def test_prompts_are_not_shared_if_rows_do_not_suffice():
    """Groups of uneven sizes may need more shared rows than are available."""
    uneven = FULL._replace(prompt_tokens=FULL.prompt_tokens.copy())
    uneven.prompt_tokens[::GROUP, 0] = 1  # One response of each group now has a prompt of its own.
    chex.assert_trees_all_equal(lay_out_shared(uneven, uneven.attention, rows=4), lay_out(uneven, uneven.attention, rows=4))


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 12])
@pytest.mark.parametrize("size", [1, 4, 6, 16])
@pytest.mark.parametrize(("prompt", "response"), [(1, 1), (100, 50), (1_000, 100), (16, 4_096), (4_096, 4_096)])
def test_full_responses_saves_slots(prompt, response, size, rows):
    full = full_responses_per_row(prompt, response, size, rows)
    assert size % full == 0
    longer_rows = -(-rows // full)
    assert longer_rows * full >= rows, "the longer rows must have room for as many full responses"
    assert longer_rows * row_slots(prompt, response, full) <= rows * row_slots(prompt, response, 1)
    assert row_slots(prompt, response, 1) == prompt + response
    assert full == 1 or row_slots(prompt, response, full) <= 0.8 * full * (prompt + response)


def test_blockwise_attention_equals_full_attention():
    layout = lay_out_shared(SEQUENCES, SEQUENCES.attention, rows=4)
    segments = jnp.asarray(layout.packed.segments[0])
    keys = jax.random.split(jax.random.key(0), 3)
    slots = segments.shape[1]
    query = jax.random.normal(keys[0], (1, slots, 2, 2, 8))
    key, value = (jax.random.normal(each, (1, 2, slots, 8)) for each in keys[1:])
    expected = attend(query, key, value, visible_slots(segments))
    chex.assert_trees_all_close(attend_within(query, key, value, segments, block=8), expected, rtol=1e-5, atol=1e-6)


def test_tokens_attend_to_the_prompt_and_their_own_response():
    first, second = SEGMENTS_PER_PROMPT, 2 * SEGMENTS_PER_PROMPT
    row = jnp.array([[first, first, first + 1, first + 1, first + 2, second, second + 1, 0]])
    expected = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [5], [5, 6], [7]]
    assert [np.flatnonzero(line).tolist() for line in visible_slots(row)[0]] == expected


def test_wrapped_or_windowed_scores_do_not_read_shared_prompts():
    policy = transformer_policy(replace(CONFIG, compute_dtype="float32"), eos=1)
    assert supports_shared_prompts(policy.score)
    assert not supports_shared_prompts(lambda params, packed, temperature: policy.score(params, packed, 2 * temperature))
    assert not supports_shared_prompts(partial(len, []))
    windowed = transformer_policy(replace(CONFIG, compute_dtype="float32", window=4), eos=1)
    assert not supports_shared_prompts(windowed.score)


@pytest.mark.parametrize("axes", [(1, 1), (2, 2, 2), (8, 1)])
def test_shared_prompts_keep_scores_on_a_mesh(params, axes):
    mesh = make_mesh(*axes)
    layout = lay_out_shared(FULL, FULL.attention, rows=32, devices=8)
    packed = jax.tree.map(lambda array: array[0], put_rows(mesh, layout.packed, leading=1))
    model = Model(replace(CONFIG, compute_dtype="float32"), mesh)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    logp = jax.jit(partial(score_tokens, model))(single, packed).logp
    responses = layout.responses[0]
    expected = score_tokens(Model(replace(CONFIG, compute_dtype="float32")), single, pack_one_per_row(FULL)).logp
    np.testing.assert_allclose(logp[responses >= 0], expected[responses[responses >= 0]], rtol=1e-4, atol=1e-4)
