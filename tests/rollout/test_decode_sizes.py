"""How many rows fit into memory: the bytes of a row, the chosen number, and that the engine decodes no more rows."""

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
from rljax.models.symbolic import Rules, mixed_policy
from rljax.parallel import make_mesh, put, put_rows, row_shards
from rljax.rollout import DecodingEngine, Request, Sampling, engine
from rljax.rollout.decode_sizes import FittingSlots, compiled_rows, row_bytes
from rljax.rollout.dialogue import row_decoder
from rljax.rollout.environment import Step
from rljax.rollout.sampling import empty_rows, read_prompts
from rljax.training import setup
from rljax.training.memory_plan import USUAL_SLOTS, decode_slots, sampling_memory
from rljax.training.parts.custom_parts import BUILT_IN
from rljax.training.parts.policy import make_policy
from rljax.training.parts.tokenizer import make_tokenizer

SHAPE = TransformerConfig(vocab_size=32, width=16, layers=2, heads=2, kv_heads=2, head_dim=8, hidden=32)
MESH = make_mesh(1, 1)
POLICY = transformer_policy(SHAPE, eos=1, mesh=MESH)
CONFIG = SMALL.replace(task="sums", train_problems=16, heldout_problems=4)


def fitting(memory, **options):
    return FittingSlots(POLICY.decoder, MESH, memory, **options)


NO_RULES = Rules(
    (0,), lambda memory, token: memory, lambda memory: (jnp.zeros((*memory.shape[:-1], 32)), memory[..., 0] > 0)
)


def bytes_on_first_device(tree):
    """Bytes of the arrays in a pytree on the first device."""
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0])


@pytest.mark.parametrize("axes", [(1, 1, 1), (2, 2, 1), (2, 2, 2)])
@pytest.mark.parametrize("kind", ["transformer", "turns", "rules", "own"])
def test_the_bytes_of_a_row_match_the_arrays_of_a_decode(axes, kind):
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
    state = empty_rows(decoder, params, rows=shards, length=6, budget=10, room=10, mesh=mesh).state
    found, whole = row_bytes(decoder, shapes, mesh, 6, 10), 2 * 2 * 16 * 16 * 4
    assert found == bytes_on_first_device(state)
    assert 0 < found - whole // (1 if kind == "own" else mesh.shape["tensor"]) < 100, "keys and values, and a few numbers"


def test_an_empty_cache_is_sharded_like_a_filled_one():
    mesh = make_mesh(2, 2, 2)
    policy = transformer_policy(SHAPE, eos=1, mesh=mesh)
    params = policy.init(jax.random.key(0))
    empty = empty_rows(policy.decoder, params, rows=8, length=6, budget=10, room=10, mesh=mesh).state
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
def test_the_largest_number_of_rows_that_fits_is_chosen(requests, kilobytes, budget, beside, each):
    slots = fitting(1_000 * kilobytes, per_row=beside, refuses=False)
    params = POLICY.shapes()
    wanted = (params, requests, max(1, requests // each), 8, budget)
    rows = slots(*wanted)

    def needed(rows):
        return slots.cache(rows, *wanted) + compiled_rows(rows, 1) * beside

    assert rows == 1 or needed(rows) <= slots.memory
    assert rows == requests or needed(rows + 1) > slots.memory
    assert fitting(1_000 * kilobytes, per_row=beside, refuses=False, most=7)(*wanted) == min(7, rows)


def test_memory_too_small_for_one_row_is_refused_and_the_message_gives_the_bytes_needed():
    with pytest.raises(
        InputError, match=r"cache_memory is 10 bytes on each device, .* set cache_memory to at least (\d+)B"
    ) as error:
        fitting(10)(POLICY.shapes(), 4, 1, 6, 12)
    least = int(str(error.value).split("at least ")[1].split("B")[0])
    assert fitting(least)(POLICY.shapes(), 4, 1, 6, 12) == 1
    with pytest.raises(InputError, match="set cache_memory to at least"):
        fitting(least - 1)(POLICY.shapes(), 4, 1, 6, 12)


def test_the_engine_decodes_only_as_many_rows_as_fit_and_samples_the_same(monkeypatch):
    sizes = []
    monkeypatch.setattr(
        engine,
        "empty_rows",
        lambda *arguments, rows, **rest: sizes.append(rows) or empty_rows(*arguments, rows=rows, **rest),
    )
    params = put(POLICY.init(jax.random.key(0)), jax.tree.map(lambda leaf: leaf.sharding, POLICY.init(jax.random.key(0))))
    requests = [Request((2, 3 + i % 5), i, 0, Sampling(12, (1,)), seed=i << 40) for i in range(20)]
    memory = fitting(0).cache(6, params, 20, 5, 6, 12)
    few, many = (
        DecodingEngine(POLICY.decoder, MESH, 6, slots).generate(params, requests) for slots in (fitting(memory), 20)
    )
    assert sizes == [6, 20]
    for one, other in zip(few, many, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.policy_logp, other.policy_logp, atol=1e-5)


def test_an_accelerator_continues_a_decode_in_fewer_sizes_with_the_same_tokens(monkeypatch):
    """Each size is a program to compile; responses of 1 to 12 tokens end one after the other."""
    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", 8)
    params = POLICY.init(jax.random.key(0))
    requests = [Request((2, 3), i, 0, Sampling(1 + i * 12 // 32, (-1,)), seed=i) for i in range(32)]
    found = []
    for on_cpus in (True, False):
        sizes = []

        def counted(*arguments, rows, sizes=sizes, **rest):
            sizes.append(rows)
            return empty_rows(*arguments, rows=rows, **rest)

        monkeypatch.setattr(engine, "empty_rows", counted)
        monkeypatch.setattr(engine, "is_on_cpus", lambda mesh, on_cpus=on_cpus: on_cpus)
        responses = DecodingEngine(POLICY.decoder, MESH, 6, 32).generate(params, requests)
        found.append((sizes, [response.tokens.tolist() for response in responses]))
    (usual, tokens), (fewer, same) = found
    assert (usual, fewer) == ([32, 24, 16, 12], [32, 16])
    assert tokens == same


@pytest.mark.parametrize("axes", [(1, 1), (2, 1, 2)])
@pytest.mark.parametrize("each", [1, 8])
@pytest.mark.parametrize(("long", "parts"), [(128, 8_192), (16, 8_192), (128, 24)])
def test_a_decode_allocates_the_caches_that_are_counted(axes, each, long, parts, monkeypatch):
    """Caches of rows, of waiting prompts, and of smaller rows: 32 responses of 16 tokens after prompts of 12, in 8 rows."""
    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", long)
    monkeypatch.setattr("rljax.rollout.decode_sizes.PROMPT_TOKENS_AT_ONCE", parts)
    mesh = make_mesh(*axes)
    policy = transformer_policy(SHAPE, eos=1, mesh=mesh)
    params = policy.init(jax.random.key(0))
    slots = FittingSlots(policy.decoder, mesh, 0)
    slots = replace(slots, memory=slots.cache(8, params, 32, 32 // each, 12, 16))
    before, most, sizes = live_caches(), [], []

    def measured(name):
        program = getattr(engine, name)

        def call(*arguments, **keywords):
            result = program(*arguments, **keywords)
            most.append(live_caches() - before)
            sizes.extend([keywords["rows"]] if name == "empty_rows" else [])
            return result

        monkeypatch.setattr(engine, name, call)

    for name in ("empty_rows", "read_prompts", "fill_rows", "grow_rows", "decode"):
        measured(name)
    requests = [Request((2,) * 8 + (3 + i // each,) * 4, i // each, 0, Sampling(16, (-1,)), seed=i) for i in range(32)]
    DecodingEngine(policy.decoder, mesh, 12, slots).generate(params, requests)
    assert sizes == [8]
    assert max(most) == pytest.approx(slots.memory, rel=0.02), "keys and values, and little else"


def test_the_settings_determine_the_number_of_rows():
    tokenizer = make_tokenizer(CONFIG)
    policy = make_policy(CONFIG.model, tokenizer, MESH)

    def rows(left=None, platform="gpu", **changes):
        config = CONFIG.replace(prompts=100, **changes)
        return sampling_memory(config, policy, MESH, 6, left=left, platform=platform).rows

    one = row_bytes(policy.decoder, policy.shapes(), MESH, 6, CONFIG.sampling.max_response_tokens)
    forty = sampling_memory(CONFIG.replace(prompts=100, decode_slots=40), policy, MESH, 6, left=10**9).cache
    beside = 16 * policy.vocab_size
    eight = sampling_memory(CONFIG.replace(prompts=100, decode_slots=8), policy, MESH, 6, left=10**9).cache
    assert rows() == USUAL_SLOTS, "the free memory is unknown"
    assert rows(left=10**9) == compiled_rows(800, 1), "all requests"
    assert rows(left=10**9, platform="cpu") == USUAL_SLOTS
    assert rows(left=10**9, decode_slots=48) == rows(cache_memory="1GB", decode_slots=48) == 48
    assert 40 * one < forty < 48 * one, "plus the prompts of a block"
    assert rows(cache_memory=f"{forty}B") == rows(left=10**9, cache_memory=f"{forty}B") == 40
    assert rows(left=0) == 1
    assert rows(left=eight + 8 * beside) == 8, "a row's logits count if rows fill all remaining memory"
    assert decode_slots(CONFIG.replace(decode_slots=5), policy, MESH, left=None) == 5


class Silent:
    """A two-turn environment with empty observations."""

    max_turns = 2

    def reset(self, problem):
        return problem

    def step(self, state, completion):
        return Step(state)


def test_an_environment_needs_a_row_and_its_copy():
    """The needed memory is known before any weight is initialized."""

    def least(**parts):
        with pytest.raises(
            InputError, match=r"cache_memory is 100 bytes on each device, .* set cache_memory to at least"
        ) as error:
            setup.make_setup(CONFIG.replace(cache_memory="100B"), BUILT_IN._replace(**parts))
        return int(str(error.value).split("at least ")[1].split("B")[0])

    row, alone = least(environment=Silent()) // 2, least(reward=even_length)
    assert row < alone < 2 * row, "the copy holds only the prompt, with no room for a response"


def test_a_run_without_memory_for_a_row_is_refused_before_initialization(monkeypatch):
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
