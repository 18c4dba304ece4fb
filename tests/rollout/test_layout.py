"""Tests of packing sequences into rows: no token is lost, padding is small, and every loss and gradient is unchanged.

Losses and gradients are compared in float64, where the order of summation makes no visible difference.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.models import Model, TransformerConfig, init_params, score_tokens
from rljax.rollout import Sequences, lay_out, pack_one_per_row
from rljax.rollout.layout import MAX_SEQUENCES_PER_ROW, balance, best_fit_rows, dense_rows
from rljax.training.update import rows_of

PROMPTS, GROUP, PROMPT_LENGTH, LENGTH, VOCAB = 6, 4, 4, 9, 13
COUNT = PROMPTS * GROUP
RANDOM = np.random.default_rng(3)
MODEL = Model(
    TransformerConfig(
        vocab_size=VOCAB, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=24, compute_dtype="float64"
    )
)


def make_sequences(lengths, prompt_lengths):
    """Build sequences of random tokens, with responses of `lengths` tokens and prompts of `prompt_lengths` tokens."""
    attention, count = np.arange(LENGTH) < np.asarray(lengths)[:, None], len(lengths)
    return Sequences(
        prompt_tokens=RANDOM.integers(2, VOCAB, (count, PROMPT_LENGTH)).astype(np.int32),
        prompt_attention=np.arange(PROMPT_LENGTH) >= PROMPT_LENGTH - np.asarray(prompt_lengths)[:, None],
        tokens=RANDOM.integers(2, VOCAB, (count, LENGTH)).astype(np.int32),
        attention=attention,
        policy_logp=np.where(attention, -RANDOM.random((count, LENGTH)), np.nan).astype(np.float32),
    )


SEQUENCES = make_sequences(RANDOM.integers(1, LENGTH + 1, COUNT), RANDOM.integers(1, PROMPT_LENGTH + 1, COUNT))


@pytest.mark.parametrize(("rows", "devices"), [(1, 1), (4, 1), (4, 2), (32, 8)])
def test_lay_out_gives_each_chosen_token_one_slot(rows, devices):
    chosen = RANDOM.random(COUNT) < 0.7
    layout = lay_out(SEQUENCES, SEQUENCES.attention & chosen[:, None], rows=rows, devices=devices)
    packed = layout.packed
    assert packed.tokens.shape == (-(-COUNT // rows), rows, PROMPT_LENGTH + LENGTH)
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


@pytest.mark.parametrize("most", MAX_SEQUENCES_PER_ROW)
@pytest.mark.parametrize("seed", range(2))
def test_fill_rows_never_overfills_a_row(seed, most):
    lengths = np.random.default_rng(seed).integers(1, 101 if most == 8 else 9, 300)
    rows = best_fit_rows(lengths, 100, most=most)
    assert sorted(sequence for row in rows for sequence in row) == list(range(300))
    assert max(lengths[row].sum() for row in rows) <= 100
    assert max(map(len, rows)) <= most
    assert len(rows) <= 1.1 * max(lengths.sum() / 100, 300 / most if most > 8 else 0) + 1


def sample_lengths(seed, count, limit, mean, sigma):
    """Sample sequence lengths: lognormal response lengths, clipped to `limit` tokens, plus uniform prompt lengths."""
    random = np.random.default_rng(seed)
    response_lengths = np.clip(random.lognormal(np.log(mean * limit) - sigma**2 / 2, sigma, count), 1, limit).astype(int)
    return response_lengths + random.integers(limit // 64, limit // 32, count)


@pytest.mark.parametrize("sigma", [0.6, 1.0])
@pytest.mark.parametrize("mean", [0.05, 0.1, 0.15, 0.3])
@pytest.mark.parametrize(("count", "devices"), [(64, 1), (512, 1), (1024, 8)])
def test_dense_rows_have_at_most_a_tenth_of_padding(count, devices, mean, sigma):
    """Each device has enough tokens for about ten rows or more. The smallest batches may have 12% padding."""
    slots, programs = 8192 + 256, set()
    for seed in range(4):
        lengths = sample_lengths(seed, count, 8192, mean, sigma)
        found = dense_rows(lengths, slots, count=count, rows=devices)
        computed = -(-len(found.rows) // devices) * devices * found.slots
        programs.add((found.slots, found.most))
        assert sorted(sequence for row in found.rows for sequence in row) == list(range(count))
        assert max(lengths[row].sum() for row in found.rows) <= found.slots
        assert max(map(len, found.rows)) <= found.most
        max_padding = 0.1 if count > 64 or mean > 0.05 else 0.12
        assert 1 - lengths.sum() / computed <= max_padding
    assert len(programs) <= 3


def test_padding_of_few_rows_and_program_count_of_small_batches():
    """64 responses fill only one or two rows on each of eight devices. Batches of a few thousand tokens use one program."""
    padding = []
    for seed in range(4):
        lengths = sample_lengths(seed, 64, 8192, 0.15, 1.0)
        found = dense_rows(lengths, 8448, count=64, rows=8)
        padding.append(1 - lengths.sum() / (-(-len(found.rows) // 8) * 8 * found.slots))
    assert 0.1 < max(padding) < 0.5
    small_batches = [
        dense_rows(sample_lengths(seed, 64, 256, mean, 0.6), 288, count=64, rows=4)
        for seed in range(4)
        for mean in (0.05, 0.2)
    ]
    assert {(found.slots, found.most) for found in small_batches} == {(288, 8)}


@pytest.mark.parametrize(("rows", "devices"), [(8, 8), (8, 2), (16, 8)])
def test_balance_keeps_device_totals_within_one_row(rows, devices):
    for seed in range(4):
        lengths = sample_lengths(seed, 1000 + seed, 8192, 0.15, 1.0)
        shared = dense_rows(lengths, 8448, count=1003, rows=rows).rows
        tokens = np.array([lengths[row].sum() for row in shared])
        row_indices = np.array(balance(tokens, rows=rows, devices=devices))
        assert sorted(row_indices[row_indices >= 0]) == list(range(len(shared)))
        row_tokens = np.where(row_indices >= 0, tokens[row_indices], 0).reshape(-1, devices, rows // devices)
        totals = row_tokens.sum((0, 2))
        rounds = [tokens[begin : begin + devices] for begin in range(0, len(tokens), devices)]
        assert np.ptp(totals) <= max(max(group) - (min(group) if len(group) == devices else 0) for group in rounds)
        assert np.ptp(totals) <= 8448
        in_order = np.pad(tokens, (0, -len(tokens) % rows)).reshape(row_tokens.shape).sum((0, 2))
        assert np.ptp(totals) <= np.ptp(in_order), "totals must differ less than without balancing"


@pytest.mark.parametrize("seed", range(3))
def test_lay_out_leaves_little_padding(seed):
    """512 responses with a mean length of 30% of 256 tokens need at most 10% padding, and no token is lost."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(np.log(0.25 * 256), 0.6, 512), 1, 256).astype(int)
    prompt_lengths = random.integers(16, 33, 512)
    blank = np.zeros((512, 256), np.int32)
    attention, prompts = np.arange(256) < lengths[:, None], np.arange(32) >= 32 - prompt_lengths[:, None]
    layout = lay_out(Sequences(blank[:, :32], prompts, blank, attention), attention, rows=16)
    computed = layout.packed.segments[(layout.responses >= 0).any(-1)]
    assert (computed > 0).sum() == lengths.sum() + prompt_lengths.sum()
    assert (computed == 0).mean() <= 0.10
    assert 1 - (lengths.sum() + prompt_lengths.sum()) / (512 * 288) > 0.6, "without packing, most slots would be padding"


def batch_shapes(*, count, rows, longest):
    """Return the distinct layout shapes of 20 batches. Each batch has its own length limit, of at most `longest` tokens."""
    shapes = set()
    for seed in range(20):
        random = np.random.default_rng(seed)
        limit = random.integers(1, longest + 1)
        sequences = make_sequences(random.integers(1, limit + 1, count), random.integers(1, PROMPT_LENGTH + 1, count))
        mask = sequences.attention & (random.random((count, 1)) < 0.8)
        shapes.add(str(jax.tree.map(np.shape, lay_out(sequences, mask, rows=rows))))
    return shapes


def test_lay_out_needs_at_most_two_shapes():
    assert len(batch_shapes(count=COUNT, rows=4, longest=LENGTH)) <= 2


def test_accelerators_need_fewer_shapes_than_cpus(monkeypatch):
    """On accelerators, a batch needs a quarter of a million slots before shorter rows are worth another program."""
    sizes = {"count": 4096, "rows": 128, "longest": LENGTH}
    on_cpus = batch_shapes(**sizes)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert len(batch_shapes(**sizes)) <= 2 < len(on_cpus)


SCORE = jax.jit(partial(score_tokens, MODEL))


@pytest.fixture(scope="module")
def params():
    with jax.enable_x64(True):
        return jax.tree.map(lambda x: 1.5 * x.astype(jnp.float64), init_params(MODEL.config, jax.random.key(0)))


@pytest.fixture(scope="module")
def rollout(params):
    """A rollout with all fields that algorithms read."""
    shape = (PROMPTS, GROUP, LENGTH)
    mask = SEQUENCES.attention.reshape(shape)
    with jax.enable_x64(True):
        logp = np.asarray(SCORE(params, pack_one_per_row(SEQUENCES)).logp).reshape(shape)
    noise = RANDOM.normal(size=(4, *shape)) / 5
    ends = mask & ~np.pad(mask, ((0, 0), (0, 0), (0, 1)))[..., 1:]
    return Rollout(
        mask=mask,
        behaviour_logp=np.where(mask, logp + noise[0], 0),
        rewards=RANDOM.integers(0, 2, shape[:2]).astype(np.float64),
        policy_logp=np.where(mask, logp + noise[0], 0),
        ref_logp=np.where(mask, logp + noise[1], 0),
        truncated=RANDOM.random(shape[:2]) < 0.2,
        values=noise[2],
        step_rewards=np.where(ends, noise[3], 0),
        step_end=ends,
        behaviour_entropy=np.abs(noise[2]),
        teacher_logp=np.where(mask, logp + noise[2], 0),
        square_sum=np.abs(noise[3]),
        greedy_rewards=np.linspace(0, 1, PROMPTS),
        reward_parts={"form": np.abs(noise[0, ..., 0])},
    )


@jax.jit
def backpropagate(params, packed, gradient):
    """Return the parameters' gradient from the scores' gradient; all algorithms share this program."""
    return jax.vjp(lambda params: score_tokens(MODEL, params, packed), params)[1](gradient)[0]


def make_loss_and_gradient(algorithm, params):
    """Return a function that computes an algorithm's loss and its gradient on packed rows."""

    def loss_of_scores(scores, batch):
        return loss(algorithm, scores.logp, batch, entropy=scores.entropy, teacher_divergence=scores.entropy)[0]

    from_scores = jax.jit(jax.value_and_grad(loss_of_scores))

    def call(packed, batch):
        value, gradient = from_scores(SCORE(params, packed), batch)
        return value, backpropagate(params, packed, gradient)

    return call


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", BY_NAME)
def test_packing_keeps_loss_and_gradient(params, rollout, name):
    algorithm = BY_NAME[name]()
    batch = prepare(algorithm, rollout, progress=0.5 if algorithm.needs("progress") else None)
    loss_and_gradient = make_loss_and_gradient(algorithm, params)
    expected = loss_and_gradient(pack_one_per_row(SEQUENCES), batch)
    layout = lay_out(SEQUENCES, np.asarray(batch.mask), rows=4, devices=2)
    used = np.flatnonzero((layout.responses >= 0).any(-1))
    assert used.size < COUNT / 4
    parts = [
        loss_and_gradient(jax.tree.map(lambda array, i=i: array[i], layout.packed), rows_of(batch, layout.responses[i]))
        for i in used
    ]
    actual = jax.tree.map(lambda *values: sum(values), *parts)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
