"""Tests of the paged key/value cache: the same tokens as with a contiguous cache, and no page has two owners."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import LLAMA, random_params
from small_runs import SMALL

from rljax.errors import InputError
from rljax.models import language_model, paged_cache, transformer_policy
from rljax.models.attention import LayerCache
from rljax.models.paged_cache import PagedLayer, PagedPrompts, PagedState, PagesInUse, PageTable
from rljax.parallel import make_mesh, put
from rljax.rollout import DecodingEngine, Request, Sampling, decode_sizes, paged_sampling
from rljax.rollout.decode_sizes import FittingSlots
from rljax.rollout.paged_sampling import PagedEngine, PagedSampler, PagedSlots, pool_sizes, steps_for
from rljax.training.memory_plan import sampling_memory
from rljax.training.worker import make_engine

MODELS = {
    "grouped": replace(LLAMA, layers=1, vocab_size=13),
    "window": replace(LLAMA, layers=2, vocab_size=13, window=7, full_layers=(1,), qk_norm=True),
    "sinks": replace(LLAMA, layers=1, vocab_size=13, sinks=True, score_cap=2.0, kv_heads=4),
}
BUDGET, LONGEST, PAGE = 40, 19, 4


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    for module in (paged_cache, language_model, paged_sampling):
        monkeypatch.setattr(module, "PAGE", PAGE)


def make_requests(prompts, group_size):
    """Build `group_size` requests for each of `prompts` random prompts, which have 1 to `LONGEST` tokens."""
    rng = np.random.default_rng(0)
    token_lists = [tuple(rng.integers(2, 13, rng.integers(1, LONGEST + 1)).tolist()) for _ in range(prompts)]
    sampling = Sampling(BUDGET, (1,), temperature=0.8)
    return [
        Request(token_lists[i // group_size], i // group_size, 0, sampling, seed=i << 33)
        for i in range(prompts * group_size)
    ]


def check_equal(actual, expected):
    assert len({len(response.tokens) for response in actual}) > 5, "the test needs different lengths"
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.policy_logp, other.policy_logp, atol=1e-5)
        assert one.finish == other.finish


@pytest.mark.parametrize(
    ("name", "axes", "share", "group_size"),
    [("grouped", (1, 1), 0.1, 8), ("window", (1, 1), 0.4, 3), ("sinks", (1, 1), 0.4, 1), ("grouped", (1, 2, 2), 0.2, 4)],
)
def test_paged_engine_equals_contiguous_cache(name, axes, share, group_size, monkeypatch):
    """If responses are expected to use only a tenth of the limit, pages run out, and some rows must begin again."""
    returned = []
    original = PagedSampler._free
    monkeypatch.setattr(PagedSampler, "_free", lambda self: returned.append(len(self.returned)) or original(self))
    mesh = make_mesh(*axes)
    policy = transformer_policy(MODELS[name], eos=1, mesh=mesh)
    params = put(random_params(MODELS[name]), jax.tree.map(lambda leaf: leaf.sharding, policy.init(jax.random.key(0))))
    requests = make_requests(24 // group_size, group_size)
    contiguous = DecodingEngine(policy.decoder, mesh, LONGEST, 8).generate(params, requests)
    check_equal(contiguous, PagedEngine(policy.decoder, mesh, LONGEST, 8, share=share).generate(params, requests))
    assert max(returned) > 0 or share > 0.1, "some rows must run out of pages"


def test_last_rows_move_to_smaller_pools(monkeypatch):
    monkeypatch.setattr(decode_sizes, "LONG_BUDGET", 8)
    monkeypatch.setattr(paged_sampling, "is_on_cpus", lambda mesh: False)
    policy, sizes = transformer_policy(MODELS["grouped"], eos=1, mesh=(mesh := make_mesh(1, 1))), []
    params, requests = random_params(MODELS["grouped"]), make_requests(8, 4)

    def record_sizes(name):
        program = getattr(paged_sampling, name)

        def call(*arguments, **options):
            moved = program(*arguments, **options)
            sizes.append((moved.ended.size, options["sizes"]))
            return moved

        monkeypatch.setattr(paged_sampling, name, call)

    for name in ("empty_paged_rows", "move_paged_rows"):
        record_sizes(name)
    contiguous = DecodingEngine(policy.decoder, mesh, LONGEST, 32).generate(params, requests)
    check_equal(contiguous, PagedEngine(policy.decoder, mesh, LONGEST, 32, share=0.4).generate(params, requests))
    assert [rows for rows, _ in sizes] == [32, 16]
    assert sizes[1][1].own == sizes[0][1].own / 2


def empty_state(rows, shared, own, sharers):
    """Return empty page pools for one layer with one head of one feature."""
    zeros = np.zeros

    def pool(count):
        return LayerCache(zeros((count, 1, 1, PAGE), np.float32), zeros((count, 1, PAGE, 1), np.float32))

    tables = [
        PageTable(zeros((count, most), np.int32), zeros(count, np.int32)) for count, most in ((shared, sharers), (own, 1))
    ]
    pages = PagesInUse(*tables, zeros(rows, np.int32), zeros(rows, np.int32))
    return jax.tree.map(jnp.asarray, PagedState((PagedLayer(pool(shared), pool(own)),), pages))


def read_keys(state, row):
    """Return a row's keys from its pages, in token order."""
    found = {}
    for pool, table in zip(state.cache[0], state.pages[:2], strict=True):
        for page in np.flatnonzero((np.asarray(table.owners) == row + 1).any(-1)):
            for offset in range(PAGE):
                position = int(table.first[page]) + offset
                if position < int(state.pages.lengths[row]):
                    assert position not in found, "a token must be in only one page"
                    found[position] = float(pool.keys[page, 0, 0, offset])
    return [found[position] for position in range(len(found))]


def test_pages_match_lists_after_random_operations():
    """Rows begin, grow and end at random; `lists` contains the numbers that each row's pages should contain."""
    rng, rows, state = np.random.default_rng(3), 5, empty_state(5, 8, 16, 3)
    insert, grow, free = (
        jax.jit(function)
        for function in (paged_cache.insert_prompts_in_pages, paged_cache.take_pages, paged_cache.release_pages)
    )
    attend, lists = jax.jit(paged_cache.attend_pages), {}
    for _ in range(60):
        kind = rng.integers(3)
        free_shared, free_own = (int(part) for part in paged_cache.count_free(state.pages))
        if kind == 0:  # Begin up to three rows with the same prompt.
            chosen = rng.permutation(rows)[: rng.integers(1, 4)].tolist()
            length = int(rng.integers(1, 12))
            shared, own = paged_cache.pages_needed(length, len(chosen), 3)
            if shared > free_shared or own > free_own:
                continue
            tokens = rng.normal(size=12).astype(np.float32)
            blocks = LayerCache(tokens.reshape(1, 3, 1, 1, PAGE), tokens.reshape(1, 3, 1, PAGE, 1))
            source = np.full(rows, -1, np.int32)
            source[chosen] = 0
            state = insert(state, PagedPrompts((blocks,), jnp.array([length], jnp.int32)), jnp.array(source))
            lists |= {row: tokens[:length].tolist() for row in chosen}
        elif kind == 1 and lists:  # Append a token to each row.
            lengths = np.array([len(values) for values in lists.values()])
            if steps_for(lengths, free_own, 1) < 1:
                continue
            new = jnp.asarray(rng.normal(size=rows), jnp.float32)
            pages = grow(state.pages)
            query = jnp.ones((rows, 1, 1, 1))
            attended, layer = attend(query, new[:, None, None], new[:, None, None], state.cache[0], pages)
            state = PagedState((layer,), pages._replace(lengths=pages.lengths + 1))
            for row, values in lists.items():
                values.append(float(new[row]))
                scores = np.exp(np.array(values, np.float64))
                np.testing.assert_allclose(attended[row, 0, 0, 0], (scores * values).sum() / scores.sum(), atol=1e-5)
        elif lists:
            ended = int(rng.choice(list(lists)))
            del lists[ended]
            kept = np.array([row in lists for row in range(rows)])
            state = state._replace(pages=free(state.pages, jnp.array(kept)))
        for row, values in lists.items():
            np.testing.assert_array_equal(read_keys(state, row), np.array(values, np.float32))
    assert len(lists) > 1


def test_steps_for_matches_page_usage():
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths, free = rng.integers(1, 30, 4), int(rng.integers(0, 12))
        taken = [sum((length + step) % PAGE == 0 for length in lengths) for step in range(60)]
        expected = next((steps for steps in range(61) if sum(taken[: steps + 1]) > free), 60)
        assert steps_for(lengths, free, 60) == min(expected, 60)


def test_short_responses_allow_four_times_as_many_rows(monkeypatch):
    """Prompts of 1,024 tokens, shared by eight responses, whose expected length is 15% of the 8,192-token limit."""
    for module in (paged_cache, language_model, paged_sampling):
        monkeypatch.setattr(module, "PAGE", 64)
    policy, mesh = transformer_policy(MODELS["grouped"], eos=1, mesh=(mesh := make_mesh(1, 1))), make_mesh(1, 1)
    memory = FittingSlots(policy.decoder, mesh, 0).cache_peak_bytes(64, policy.shapes(), 1024, 128, 1024, 8192)
    slot_counts = FittingSlots(policy.decoder, mesh, memory), PagedSlots(policy.decoder, mesh, memory, share=0.15)
    contiguous, pages = (count_rows(policy.shapes(), 1024, 128, 1024, 8192) for count_rows in slot_counts)
    assert contiguous == 64
    assert 4.5 * contiguous < pages < 6.5 * contiguous
    sizes = pool_sizes(pages, 1024, 8192, 0.15 * 8192, 8)
    assert (sizes.shared + sizes.own) * 64 < 9216 * 64 * 1.5


def test_paged_cache_setting_is_passed_on_or_rejected():
    policy, mesh = transformer_policy(MODELS["grouped"], eos=1, mesh=make_mesh(1, 1)), make_mesh(1, 1)
    config = SMALL.replace(paged_cache=0.2, cache_memory="1MB")
    assert make_engine(config, policy, mesh, 4, free_bytes=None, text=str).share == 0.2
    with pytest.raises(InputError, match=r"paged_cache is 1\.5"):
        SMALL.replace(paged_cache=1.5)
    with pytest.raises(InputError, match=r"paged_cache=0\.5 is for the built-in engine"):
        SMALL.replace(paged_cache=0.5, engine_url="http://127.0.0.1:8000")
    with pytest.raises(InputError, match=r"paged_cache=0\.5 needs a decoder"):
        PagedEngine(policy.decoder._replace(paged=None), mesh, LONGEST, 8, share=0.5)


def test_memory_plan_counts_pages():
    """If responses use a tenth of the limit, more rows fit, and the planned cache is the size of their page pools."""
    policy, mesh = transformer_policy(MODELS["grouped"], eos=1, mesh=(mesh := make_mesh(1, 1))), make_mesh(1, 1)
    config = SMALL.replace(prompts=16, group_size=8, max_response_tokens=400, decode_slots=None, cache_memory="400KB")
    contiguous = sampling_memory(config, policy, mesh, 8, left=None)
    pages = sampling_memory(config.replace(paged_cache=0.1), policy, mesh, 8, left=None)
    assert pages.rows > 3 * contiguous.rows
    assert 200_000 < pages.cache <= 400_000
    assert 200_000 < contiguous.cache <= 400_000
