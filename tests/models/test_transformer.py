"""The transformer as pure functions: cache, padding, chunks, recomputation."""

import re
from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rljax.errors import InputError
from rljax.models import (
    Model,
    Packed,
    RopeScaling,
    TransformerConfig,
    abstract_params,
    count_parameters,
    init_params,
    language_model,
)
from rljax.models.adapters import Base, init_adapter, unmerged_params
from rljax.models.config import REMATS
from rljax.models.language_model import (
    empty_cache,
    extend_rows,
    grow_decode,
    insert_prompts,
    positions_of,
)
from rljax.models.language_model import logits as logits_of
from rljax.models.transformer import Attention, product, rope_frequencies

CONFIG = TransformerConfig(vocab_size=13, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=24)
TOKENS = jnp.array([[5, 6, 7, 8, 9, 2], [3, 4, 5, 6, 2, 2]])
ATTENTION = jnp.ones_like(TOKENS, bool)
# Each is compiled as one program; run eagerly, every operation would be compiled separately for every shape.
advance_decode = jax.jit(language_model.advance_decode, static_argnums=0)
score_tokens = jax.jit(language_model.score_tokens, static_argnums=(0, 3), static_argnames="chunk")


def begin_decode(model, params, tokens, attention, budget):
    """Begin a decode; compiled again at each call, because tracing reads `PREFILL_TOKENS`."""
    return jax.jit(partial(language_model.begin_decode, model, budget=budget))(params, tokens, attention)


@partial(jax.jit, static_argnums=0)
def logits(model, params, tokens, attention):
    """Return the logits of rows with one sequence each."""
    return logits_of(model, params, tokens, positions_of(attention), attention.astype(jnp.int32))


def pack_from(start):
    """Pack `TOKENS`, of which those from slot `start` on are scored."""
    rows, slots = TOKENS.shape
    scored = jnp.tile(jnp.arange(start, slots), (rows, 1))
    place = jnp.arange(scored.size).reshape(scored.shape)
    return Packed(TOKENS, positions_of(ATTENTION), ATTENTION.astype(jnp.int32), scored, place)


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda x: x * 4, init_params(CONFIG, jax.random.key(0)))


@pytest.fixture(scope="module")
def full_logits(params):
    return logits(Model(CONFIG), params, TOKENS, ATTENTION)


def test_a_token_sees_only_what_came_before(params, full_logits):
    changed = logits(Model(CONFIG), params, TOKENS.at[:, 3].set(11), ATTENTION)
    np.testing.assert_allclose(changed[:, :3], full_logits[:, :3], atol=1e-5)
    assert float(jnp.abs(changed[:, 3:] - full_logits[:, 3:]).max()) > 0.1


def test_cached_decoding_matches_the_full_forward(params, full_logits):
    model = Model(CONFIG)
    out, state = begin_decode(model, params, TOKENS[:, :3], ATTENTION[:, :3], 5)
    np.testing.assert_allclose(out, full_logits[:, 2], atol=1e-4)
    for slot in range(3, 6):
        out, state = advance_decode(model, params, TOKENS[:, slot], state)
        np.testing.assert_allclose(out, full_logits[:, slot], atol=1e-4)


@pytest.mark.parametrize("length", [8, 11, 13])
@pytest.mark.parametrize("window", [None, 3, 6])
def test_reading_a_prompt_in_chunks_gives_the_same_cache(params, monkeypatch, length, window):
    """Left-padded rows of 2 to `length` tokens are read in chunks of at most 4, then decoded; in float64, so that the order
    of sums does not matter."""
    model, budget = Model(replace(CONFIG, window=window, compute_dtype="float64")), 3
    tokens = jnp.array(np.random.default_rng(length).integers(2, 13, (4, length)))
    attention = jnp.arange(length)[None] >= jnp.array([0, 1, length // 2, length - 2])[:, None]
    further = [jnp.full(4, token) for token in (5, 6)]
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # ints of 32 and 64 bits are mixed
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
        expected, full_state = begin_decode(model, params, tokens, attention, budget)
        monkeypatch.setattr(language_model, "PREFILL_TOKENS", 4)
        out, state = begin_decode(model, params, tokens, attention, budget)
        np.testing.assert_allclose(out, expected, atol=1e-9)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, full_state)
        chex.assert_trees_all_close(state, full_state, atol=1e-9)
        for token in further:
            out, state = advance_decode(model, params, token, state)
            expected, full_state = advance_decode(model, params, token, full_state)
            np.testing.assert_allclose(out, expected, atol=1e-9)


def test_a_cache_read_in_chunks_has_the_same_dtypes(params, monkeypatch):
    model = Model(replace(CONFIG, compute_dtype="bfloat16"))
    at_once = jax.eval_shape(partial(language_model.begin_decode, model, budget=3), params, TOKENS, ATTENTION)
    monkeypatch.setattr(language_model, "PREFILL_TOKENS", 4)
    in_chunks = jax.eval_shape(partial(language_model.begin_decode, model, budget=3), params, TOKENS, ATTENTION)
    assert at_once[1].cache[0].keys.dtype == jnp.bfloat16
    assert in_chunks == at_once


WINDOWS = {"in all layers": {"window": 2}, "in the first": {"window": 3, "full_layers": (1,)}, "none": {}}


def test_a_window_limits_what_a_token_sees(params):
    """With two layers that each see two tokens, a token changes its own hidden state and the next two."""
    model = Model(replace(CONFIG, window=2))
    full_logits, changed = (logits(model, params, tokens, ATTENTION) for tokens in (TOKENS, TOKENS.at[:, 1].set(11)))
    assert (np.abs(changed - full_logits).max((0, 2)) > 0.01).tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_wraps_around_the_ring_buffer_of_a_decode(params, window):
    """A row of six tokens fills all six slots; a prompt joins it, and the next tokens are written starting at slot 0."""
    model = Model(replace(CONFIG, **WINDOWS[window]))
    full_logits = logits(model, params, TOKENS, ATTENTION)
    out, state = begin_decode(model, params, TOKENS[:, :3], ATTENTION[:, :3], 3)
    _, fresh = begin_decode(model, params, TOKENS[:, :4], ATTENTION[:, :4], 0)
    for slot in range(3, 6):
        np.testing.assert_allclose(out, full_logits[:, slot - 1], atol=1e-4)
        out, state = advance_decode(model, params, TOKENS[:, slot], state)
    np.testing.assert_allclose(out, full_logits[:, 5], atol=1e-4)
    state = insert_prompts(state, fresh, jnp.array([1, 0]))
    assert (state.attention.shape[1], int(state.slot)) == (6, 6)
    for slot in range(4, 6):
        out, state = advance_decode(model, params, TOKENS[::-1, slot], state)
        np.testing.assert_allclose(out, full_logits[::-1, slot], atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window is 0; it must be at least 1"),
        ({"window": 4, "full_layers": (2,)}, r"full_layers is \(2,\); give indices from 0 to 1"),
        ({"window": 4, "full_layers": (1, 0)}, "in order"),
        ({"full_layers": (1,)}, "has no window"),
        ({"remat": "all"}, "remat is 'all'; choose one of none, full, dots, dots_no_batch, sqrt"),
    ],
)
def test_invalid_layer_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        replace(CONFIG, **changes)


def test_a_growing_cache_keeps_its_contents(params, full_logits):
    """Slots are added one at a time during a decode, and a prompt whose cache has fewer slots joins."""
    model = Model(CONFIG)
    _, fresh = begin_decode(model, params, TOKENS[:, :3], ATTENTION[:, :3], 0)
    state = insert_prompts(grow_decode(jax.tree.map(jnp.zeros_like, fresh), 1), fresh, jnp.arange(len(TOKENS)))
    assert (state.attention.shape[1], int(state.slot)) == (4, 3)
    for slot in range(3, 6):
        out, state = advance_decode(model, params, TOKENS[:, slot], state)
        np.testing.assert_allclose(out, full_logits[:, slot], atol=1e-4)
        state = grow_decode(state, 1)
    joined = insert_prompts(state, fresh, jnp.array([0, *[-1] * (len(TOKENS) - 1)]))
    assert int(joined.slot) == 6
    np.testing.assert_array_equal(joined.attention[0, 3:6], ATTENTION[0, :3])
    out, _ = advance_decode(model, params, TOKENS[:, 3], joined)
    np.testing.assert_allclose(out[0], full_logits[0, 3], atol=1e-4)


@pytest.mark.parametrize("most", [2, 9])
def test_rows_continue_at_their_own_positions(params, full_logits, monkeypatch, most):
    """Pieces of different lengths, some of which replace earlier tokens, are read in chunks of two and at once."""
    monkeypatch.setattr(language_model, "PREFILL_TOKENS", most)
    model = Model(CONFIG)
    cache = empty_cache(model, 2, 7)
    filler = jnp.full((2, 8), 11)
    for first, count in (((0, 0), (4, 1)), ((2, 1), (1, 4)), ((3, 5), (3, 1))):
        slots = jnp.array(first)[:, None] + jnp.arange(8)[None]
        is_new = jnp.arange(8)[None] < jnp.array(count)[:, None]
        tokens = jnp.where(is_new, jnp.take_along_axis(TOKENS, jnp.minimum(slots, 5), axis=1), filler)
        out, cache = extend_rows(model, params, tokens, jnp.array(first), jnp.array(count), cache)
        for row in range(2):
            np.testing.assert_allclose(out[row], full_logits[row, first[row] + count[row] - 1], atol=1e-4)


@pytest.mark.parametrize("window", WINDOWS)
def test_sequences_that_share_a_row_do_not_see_each_other(params, window):
    """Two sequences in one row give the same result as in separate rows, whatever the order of their tokens in the batch."""
    model = Model(replace(CONFIG, **WINDOWS[window]))
    alone = score_tokens(model, params, pack_from(2))
    shared = Packed(
        tokens=TOKENS.reshape(1, 12),
        positions=jnp.tile(jnp.arange(6), 2)[None],
        segments=jnp.repeat(jnp.array([1, 2]), 6)[None],
        scored=jnp.concatenate([jnp.arange(2, 6), jnp.arange(8, 12)])[None],
        place=jnp.arange(8).reshape(2, 4)[::-1],
    )
    together = score_tokens(model, params, shared)
    np.testing.assert_allclose(together.logp, alone.logp[::-1], atol=1e-5)
    np.testing.assert_allclose(together.entropy, alone.entropy[::-1], atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(params, full_logits, side):
    padding = (3, 0) if side == "left" else (0, 3)
    tokens = jnp.pad(TOKENS, ((0, 0), padding), constant_values=11)
    attention = jnp.pad(ATTENTION, ((0, 0), padding))
    padded = logits(Model(CONFIG), params, tokens, attention)
    kept = padded[:, 3:] if side == "left" else padded[:, :6]
    np.testing.assert_allclose(kept, full_logits, atol=1e-4)
    assert jnp.isfinite(padded).all()


def test_scores_are_the_log_softmax_of_the_logits(params, full_logits):
    scores = score_tokens(Model(CONFIG), params, pack_from(2), 0.5)
    reference = np.asarray(full_logits, np.float64)[:, 1:-1] / 0.5
    reference -= np.log(np.exp(reference).sum(-1, keepdims=True))
    chosen = np.take_along_axis(reference, np.asarray(TOKENS)[:, 2:, None], axis=-1)[..., 0]
    np.testing.assert_allclose(scores.logp, chosen, atol=1e-5)
    np.testing.assert_allclose(scores.entropy, -(np.exp(reference) * reference).sum(-1), atol=1e-5)


@pytest.mark.parametrize("variant", [{"chunk": 3}, *({"remat": remat} for remat in REMATS[1:])])
def test_saving_memory_changes_neither_value_nor_gradient(params, variant):
    def total(params, config, chunk):
        scores = score_tokens(Model(config), params, pack_from(1), chunk=chunk)
        return (scores.logp + 0.3 * scores.entropy).sum()

    config = replace(CONFIG, remat=variant.get("remat", "none"))
    differentiated = jax.jit(jax.value_and_grad(total), static_argnums=(1, 2))
    value, gradient = differentiated(params, config, variant.get("chunk", 256))
    expected, expected_gradient = differentiated(params, CONFIG, 256)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient, expected_gradient)


def test_blocks_of_layers_keep_values_gradients_and_caches():
    """Five layers in blocks of three and two; one layer has its own window."""
    config = replace(CONFIG, layers=5, window=3, full_layers=(0, 4))
    params = jax.tree.map(lambda x: x * 4, init_params(config, jax.random.key(2)))

    def total(params, remat):
        scores = score_tokens(Model(replace(config, remat=remat)), params, pack_from(1))
        return (scores.logp + 0.3 * scores.entropy).sum()

    (value, gradient), (expected, expected_gradient) = (
        jax.jit(jax.value_and_grad(total), static_argnums=1)(params, remat) for remat in ("sqrt", "none")
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient, expected_gradient)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0.01
    tokens, places = TOKENS, jnp.tile(jnp.arange(6), (len(TOKENS), 1))
    caches_in_blocks, caches_by_layer = (
        Model(replace(config, remat=remat)).module(params)(tokens, places, jnp.ones_like(tokens))[1]
        for remat in ("sqrt", "none")
    )
    assert len(caches_in_blocks) == 5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), caches_in_blocks, caches_by_layer)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_scanned_layers_keep_values_gradients_and_caches(remat):
    """Seven layers: twice a pattern of one full and two windowed layers, and one remaining layer."""
    config = replace(CONFIG, layers=7, window=3, full_layers=(0, 3, 6), remat=remat)
    params = jax.tree.map(lambda x: x * 4, init_params(config, jax.random.key(2)))

    def total(params, scan):
        scores = score_tokens(Model(replace(config, scan_layers=scan)), params, pack_from(1))
        return (scores.logp + 0.3 * scores.entropy).sum()

    differentiate = jax.jit(jax.value_and_grad(total), static_argnums=1)
    (value, gradient), (expected, expected_gradient) = (differentiate(params, scan) for scan in (True, False))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient, expected_gradient)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0.01
    loops = [differentiate.lower(params, scan).as_text().count("stablehlo.while") for scan in (True, False)]
    assert loops[0] > loops[1], "the layers are a loop"
    scanned, unrolled = (
        begin_decode(Model(replace(config, scan_layers=scan)), params, TOKENS, ATTENTION, 4) for scan in (True, False)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), scanned, unrolled)


def test_equal_layers_are_traced_once(monkeypatch):
    config, attend, traced = replace(CONFIG, layers=5, window=3, full_layers=(0, 4)), Attention.__call__, []

    def record(self, *inputs):
        traced.append(self.window)
        return attend(self, *inputs)

    monkeypatch.setattr(Attention, "__call__", record)
    jax.clear_caches()
    jax.eval_shape(partial(logits.__wrapped__, Model(config)), abstract_params(config), TOKENS, ATTENTION)
    assert traced == [None, 3]


@pytest.mark.parametrize("function", ["cosine", "sine"])
def test_rotary_angles_are_computed_once_for_all_heads_and_layers(params, function):
    def loss(params):
        return jnp.square(logits(Model(CONFIG), params, TOKENS, ATTENTION)).sum()

    program = jax.jit(jax.grad(loss)).lower(params).compile().as_text()
    assert len(re.findall(rf" {function}\(", program)) == 1


@pytest.mark.parametrize(
    ("inputs", "outputs"), [((6,), (3, 4)), ((3, 4), (6,)), ((3, 4), (20,)), ((6,), (20,)), ((5, 4), (2, 3))]
)
def test_derivatives_of_a_product_match_those_of_a_tensordot(inputs, outputs):
    x, matrix = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(2, 3, *inputs), (*inputs, *outputs)])
    )

    def gradients(multiply):
        return jax.grad(lambda *factors: jnp.sin(multiply(*factors)).sum(), argnums=(0, 1))(x, matrix)

    ours = gradients(lambda x, matrix: product(x, nnx.Param(matrix)))
    chex.assert_trees_all_close(ours, gradients(partial(jnp.tensordot, axes=len(inputs))), rtol=1e-5, atol=1e-6)


def test_layers_with_different_parameters_are_not_scanned_together(params):
    """Only the second of three layers has an adapter, so no two layers repeat, and all run one by one."""
    config = replace(CONFIG, layers=3)
    params = init_params(config, jax.random.key(2))
    adapter = init_adapter(jax.random.key(0), params, rank=2, targets=("query",))
    partly_adapted = unmerged_params(Base(params, jnp.float32(1)), adapter)
    partly_adapted["layers"][0], partly_adapted["layers"][2] = params["layers"][0], params["layers"][2]
    by_scan, by_loop = (
        score_tokens(Model(replace(config, scan_layers=scan)), partly_adapted, pack_from(1)).logp for scan in (True, False)
    )
    np.testing.assert_allclose(by_scan, by_loop, atol=1e-6)


def test_bfloat16_is_close_and_scores_stay_float32(params):
    scores = score_tokens(Model(replace(CONFIG, compute_dtype="bfloat16")), params, pack_from(1))
    exact = score_tokens(Model(CONFIG), params, pack_from(1))
    assert scores.logp.dtype == jnp.float32
    assert 0 < float(jnp.abs(scores.logp - exact.logp).max()) < 0.5


def test_parameters_are_counted_without_allocating_them():
    attention = 16 * 4 * 4 * 2 + 16 * 2 * 4 * 2
    layer = attention + 3 * 16 * 24 + 2 * 16
    assert count_parameters(abstract_params(CONFIG)) == 13 * 16 + 2 * layer + 16
    assert count_parameters(abstract_params(replace(CONFIG, tied_head=False))) == 2 * 13 * 16 + 2 * layer + 16


def test_stretched_rotary_frequencies_follow_the_definition():
    scaling = RopeScaling(factor=8.0, low_frequency=1.0, high_frequency=4.0, original_length=64)
    plain = rope_frequencies(replace(CONFIG, head_dim=16))
    stretched = rope_frequencies(replace(CONFIG, head_dim=16, rope_scaling=scaling))
    for before, after in zip(np.asarray(plain, np.float64), np.asarray(stretched), strict=True):
        wavelength = 2 * np.pi / before
        if wavelength < 64 / 4:
            expected = before
        elif wavelength > 64 / 1:
            expected = before / 8
        else:
            smooth = (64 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * before / 8 + smooth * before
        np.testing.assert_allclose(after, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"kv_heads": 3}, "heads \\(4\\) must be a multiple"),
        ({"head_dim": 3}, "head_dim is 3"),
    ],
)
def test_impossible_shapes_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        replace(CONFIG, **change)
