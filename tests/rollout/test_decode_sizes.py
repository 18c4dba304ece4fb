"""Tests of how many rows fit into memory: the size of a row, the chosen number of rows, and the engine's use of it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import SMALL, even_length, live_caches

from rljax.errors import InputError
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.mixed_policy import Rules, mixed_policy
from rljax.parallel import make_mesh, put, put_rows, row_shards
from rljax.rollout import DecodingEngine, Request, Sampling, engine
from rljax.rollout.cached_dialogue import row_decoder
from rljax.rollout.decode_sizes import FittingSlots, compiled_rows, row_bytes
from rljax.rollout.environment import Step
from rljax.rollout.sampling import decode, empty_rows, move_rows, read_prompts
from rljax.training import setup
from rljax.training.memory_plan import DEFAULT_SLOTS, decode_slots, sampling_memory
from rljax.training.parts.custom_parts import BUILT_IN
from rljax.training.parts.policy import make_policy
from rljax.training.parts.tokenizer import make_tokenizer

SHAPE = TransformerConfig(vocab_size=32, width=16, layers=2, heads=2, kv_heads=2, head_dim=8, hidden=32)
MESH = make_mesh(1, 1)
POLICY = transformer_policy(SHAPE, eos=1, mesh=MESH)
CONFIG = SMALL.replace(task="sums", train_problems=16, heldout_problems=4)


def fitting_slots(memory, **options):
    return FittingSlots(POLICY.decoder, MESH, memory, **options)


NO_RULES = Rules(
    (0,), lambda memory, token: memory, lambda memory: (jnp.zeros((*memory.shape[:-1], 32)), memory[..., 0] > 0)
)


def bytes_on_first_device(tree):
    """Return the number of bytes that a pytree's arrays use on the first device."""
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0])


@pytest.mark.parametrize("axes", [(1, 1, 1), (2, 2, 1), (2, 2, 2)])
@pytest.mark.parametrize("kind", ["transformer", "turns", "rules", "own"])
def test_row_bytes_match_allocated_arrays(axes, kind):
    mesh = make_mesh(*axes)
    policy = transformer_policy(SHAPE, eos=1, mesh=mesh)
    decoder = {
        "transformer": policy.decoder,
        "turns": row_decoder(policy.decoder.turns),
        "rules": mixed_policy(policy, NO_RULES, share=0.5).decoder,
        "own": policy.decoder._replace(partition=None),
    }[kind]
    shapes, shards = policy.shapes(), row_shards(mesh)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    state = empty_rows(decoder, params, rows=shards, length=6, room=10, sampling=Sampling(10, ()), mesh=mesh).state
    found, cache_bytes = row_bytes(decoder, shapes, mesh, 6, 10), 2 * 2 * 16 * 16 * 4
    assert found == bytes_on_first_device(state)
    assert 0 < found - cache_bytes // (1 if kind == "own" else mesh.shape["tensor"]) < 100, (
        "a row needs its keys and values, and a few other values"
    )


def test_empty_cache_is_sharded_like_a_filled_one():
    mesh = make_mesh(2, 2, 2)
    policy = transformer_policy(SHAPE, eos=1, mesh=mesh)
    params = policy.init(jax.random.key(0))
    empty = empty_rows(policy.decoder, params, rows=8, length=6, room=10, sampling=Sampling(10, ()), mesh=mesh).state
    prompts = put_rows(mesh, (np.full((8, 6), 3, np.int32), np.ones((8, 6), bool)))
    read = read_prompts(policy.decoder, params, *prompts, budget=10).state
    for name, part in (("keys", (2, 1, 8, 16)), ("values", (2, 1, 16, 8))):
        for layer in (*empty.cache, *read.cache):
            assert {shard.data.shape for shard in getattr(layer, name).addressable_shards} == {part}


@settings(max_examples=25)
@given(
    st.integers(1, 400),
    st.integers(0, 2_000),
    st.sampled_from([12, 200]),
    st.sampled_from([0, 5_000]),
    st.sampled_from([1, 8]),
)
def test_fitting_slots_chooses_the_most_rows_that_fit(requests, kilobytes, budget, bytes_per_row, group_size):
    slots = fitting_slots(1_000 * kilobytes, per_row=bytes_per_row, refuses=False)
    params = POLICY.shapes()
    wanted = (params, requests, max(1, requests // group_size), 8, budget)
    rows = slots(*wanted)

    def needed(rows):
        return slots.cache_peak_bytes(rows, *wanted) + compiled_rows(rows, 1) * bytes_per_row

    assert rows == 1 or needed(rows) <= slots.memory
    assert rows == requests or needed(rows + 1) > slots.memory
    assert fitting_slots(1_000 * kilobytes, per_row=bytes_per_row, refuses=False, max_rows=7)(*wanted) == min(7, rows)


def test_too_little_memory_error_states_the_needed_bytes():
    with pytest.raises(
        InputError, match=r"cache_memory is 10 bytes on each device, .* set cache_memory to at least (\d+)B"
    ) as error:
        fitting_slots(10)(POLICY.shapes(), 4, 1, 6, 12)
    needed = int(str(error.value).split("at least ")[1].split("B")[0])
    assert fitting_slots(needed)(POLICY.shapes(), 4, 1, 6, 12) == 1
    with pytest.raises(InputError, match="set cache_memory to at least"):
        fitting_slots(needed - 1)(POLICY.shapes(), 4, 1, 6, 12)


def test_number_of_rows_does_not_change_responses(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        engine,
        "empty_rows",
        lambda *arguments, rows, **rest: sizes.append(rows) or empty_rows(*arguments, rows=rows, **rest),
    )
    params = put(POLICY.init(jax.random.key(0)), jax.tree.map(lambda leaf: leaf.sharding, POLICY.init(jax.random.key(0))))
    requests = [Request((2, 3 + i % 5), i, 0, Sampling(12, (1,)), seed=i << 40) for i in range(20)]
    memory = fitting_slots(0).cache_peak_bytes(6, params, 20, 5, 6, 12)
    few_rows, many_rows = (
        DecodingEngine(POLICY.decoder, MESH, 6, slots).generate(params, requests) for slots in (fitting_slots(memory), 20)
    )
    assert sizes == [6, 20]
    for one, other in zip(few_rows, many_rows, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.policy_logp, other.policy_logp, atol=1e-5)


def test_accelerators_shrink_batches_less_often(monkeypatch):
    """Each batch size needs a compiled program, so accelerators use fewer sizes. The responses have 1 to 12 tokens."""
    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", 8)
    params = POLICY.init(jax.random.key(0))
    requests = [Request((2, 3), i, 0, Sampling(1 + i * 12 // 32, (-1,)), seed=i) for i in range(32)]
    found = []
    for on_cpus in (True, False):
        sizes = []

        def record_move(decoder, params, rows, source, sizes=sizes, **batch):
            sizes.append(source.size)
            return move_rows(decoder, params, rows, source, **batch)

        monkeypatch.setattr(engine, "move_rows", record_move)
        monkeypatch.setattr(engine, "is_on_cpus", lambda mesh, on_cpus=on_cpus: on_cpus)
        responses = DecodingEngine(POLICY.decoder, MESH, 6, 32).generate(params, requests)
        found.append((sizes, [response.tokens.tolist() for response in responses]))
    (cpu_sizes, cpu_tokens), (accelerator_sizes, accelerator_tokens) = found
    assert (cpu_sizes, accelerator_sizes) == ([16, 8], [16])
    assert cpu_tokens == accelerator_tokens


@pytest.mark.parametrize(
    ("longer", "expected"),
    [
        (2, [(32, 3), (16, 3), (16, 6), (16, 12)]),
        (3, [(32, 3), (16, 6), (16, 12)]),
        (6, [(32, 3), (32, 6), (16, 12)]),
    ],
)
def test_half_of_a_batch_has_twice_the_room(longer, expected, monkeypatch):
    """If more than half of its room is used. A quarter of the responses has 1 token, a quarter `longer`, and half 12."""
    params = POLICY.init(jax.random.key(0))
    limits = [1] * 8 + [longer] * 8 + [12] * 16
    requests = [Request((2, 3), i, 0, Sampling(limit, (-1,)), seed=i) for i, limit in enumerate(limits)]

    def sample():
        return [each.tokens.tolist() for each in DecodingEngine(POLICY.decoder, MESH, 6, 32).generate(params, requests)]

    sizes = []

    def record_sizes(decoder, params, rows, *arguments, **keywords):
        sizes.append((len(rows.ended), rows.state.attention.shape[1] - 6))
        return decode(decoder, params, rows, *arguments, **keywords)

    whole = sample()
    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", 12)
    monkeypatch.setattr("rljax.rollout.decode_sizes.FEWEST_ROWS", 16)
    monkeypatch.setattr(engine, "decode", record_sizes)
    assert sample() == whole
    assert list(dict.fromkeys(sizes)) == expected


@pytest.mark.parametrize("axes", [(1, 1), (2, 1, 2)])
@pytest.mark.parametrize("group_size", [1, 8])
@pytest.mark.parametrize(("long", "parts"), [(128, 8_192), (16, 8_192), (128, 24)])
def test_decode_allocates_the_planned_cache_memory(axes, group_size, long, parts, monkeypatch):
    """Counts caches of rows, waiting prompts and shrunken batches, for 32 responses of 16 tokens in 8 rows."""
    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", long)
    monkeypatch.setattr("rljax.rollout.decode_sizes.PROMPT_TOKENS_AT_ONCE", parts)
    mesh = make_mesh(*axes)
    policy = transformer_policy(SHAPE, eos=1, mesh=mesh)
    params = policy.init(jax.random.key(0))
    slots = FittingSlots(policy.decoder, mesh, 0)
    slots = replace(slots, memory=slots.cache_peak_bytes(8, params, 32, 32 // group_size, 12, 16))
    before, peak_bytes, sizes = live_caches(), [], []

    def record_memory(name):
        program = getattr(engine, name)

        def call(*arguments, **keywords):
            result = program(*arguments, **keywords)
            peak_bytes.append(live_caches() - before)
            sizes.extend([keywords["rows"]] if name == "empty_rows" else [])
            return result

        monkeypatch.setattr(engine, name, call)

    for name in ("empty_rows", "read_prompts", "fill_rows", "grow_rows", "decode"):
        record_memory(name)
    requests = [
        Request((2,) * 8 + (3 + i // group_size,) * 4, i // group_size, 0, Sampling(16, (-1,)), seed=i) for i in range(32)
    ]
    DecodingEngine(policy.decoder, mesh, 12, slots).generate(params, requests)
    assert sizes == [8]
    assert max(peak_bytes) == pytest.approx(slots.memory, rel=0.02), "keys and values must account for nearly all memory"


def test_settings_determine_the_number_of_rows():
    tokenizer = make_tokenizer(CONFIG)
    policy = make_policy(CONFIG.model, tokenizer, MESH)

    def count_rows(left=None, platform="gpu", **changes):
        config = CONFIG.replace(prompts=100, **changes)
        return sampling_memory(config, policy, MESH, 6, left=left, platform=platform).rows

    cache_bytes_per_row = row_bytes(policy.decoder, policy.shapes(), MESH, 6, CONFIG.sampling.max_response_tokens)
    cache_of_forty = sampling_memory(CONFIG.replace(prompts=100, decode_slots=40), policy, MESH, 6, left=10**9).cache
    logit_bytes_per_row = 16 * policy.vocab_size
    cache_of_eight = sampling_memory(CONFIG.replace(prompts=100, decode_slots=8), policy, MESH, 6, left=10**9).cache
    assert count_rows() == DEFAULT_SLOTS, "with unknown free memory, the default applies"
    assert count_rows(left=10**9) == compiled_rows(800, 1), "all requests must fit"
    assert count_rows(left=10**9, platform="cpu") == DEFAULT_SLOTS
    assert count_rows(left=10**9, decode_slots=48) == count_rows(cache_memory="1GB", decode_slots=48) == 48
    assert 40 * cache_bytes_per_row < cache_of_forty < 48 * cache_bytes_per_row, (
        "the cache must also have room for a block of prompts"
    )
    assert count_rows(cache_memory=f"{cache_of_forty}B") == count_rows(left=10**9, cache_memory=f"{cache_of_forty}B") == 40
    assert count_rows(left=0) == 1
    assert count_rows(left=cache_of_eight + 8 * logit_bytes_per_row) == 8, (
        "logits must be counted if rows fill all remaining memory"
    )
    assert decode_slots(CONFIG.replace(decode_slots=5), policy, MESH, left=None) == 5


class SilentEnvironment:
    """A two-turn environment with empty observations."""

    max_turns = 2

    def reset(self, problem):
        return problem

    def step(self, state, completion):
        return Step(state)


def test_environment_needs_memory_for_two_full_rows():
    """The needed memory is computed before any weights are initialized."""

    def needed_bytes(**parts):
        with pytest.raises(
            InputError, match=r"cache_memory is 100 bytes on each device, .* set cache_memory to at least"
        ) as error:
            setup.make_setup(CONFIG.replace(cache_memory="100B"), BUILT_IN._replace(**parts))
        return int(str(error.value).split("at least ")[1].split("B")[0])

    row, single_turn = needed_bytes(environment=SilentEnvironment()) // 2, needed_bytes(reward=even_length)
    assert row < single_turn < 2 * row, "the copy must contain only the prompt, without room for a response"


def test_too_little_memory_is_rejected_before_initialization(monkeypatch):
    monkeypatch.setattr(
        setup,
        "make_worker",
        lambda *arguments, **keywords: pytest.fail("make_worker was called before the memory was checked"),
    )
    with pytest.raises(
        InputError, match=r"cache_memory is 1,000 bytes on each device, .* 12 of response, take 1,\d+ bytes"
    ):
        setup.make_setup(CONFIG.replace(cache_memory="1KB"), BUILT_IN._replace(reward=even_length))
    with pytest.raises(InputError, match="the size 'much' must be a positive number with a unit, such as 5GB"):
        CONFIG.replace(cache_memory="much")
    monkeypatch.undo()
    made = setup.make_setup(CONFIG.replace(cache_memory="20KB"), BUILT_IN._replace(reward=even_length))
    assert made.train.engine.slots == FittingSlots(made.policy.decoder, made.mesh, 20_000)
