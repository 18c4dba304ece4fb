"""Keys and values in pages: the same tokens as with contiguous caches, and pages that belong to one group of rows at a time."""

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


def make_requests(prompts, each):
    """Groups of requests; the prompts have 1 to `LONGEST` tokens."""
    numbers = np.random.default_rng(0)
    texts = [tuple(numbers.integers(2, 13, numbers.integers(1, LONGEST + 1)).tolist()) for _ in range(prompts)]
    sampling = Sampling(BUDGET, (1,), temperature=0.8)
    return [Request(texts[i // each], i // each, 0, sampling, seed=i << 33) for i in range(prompts * each)]


def check_equal(responses, others):
    assert len({len(response.tokens) for response in responses}) > 5, "the test needs different lengths"
    for one, other in zip(responses, others, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.policy_logp, other.policy_logp, atol=1e-5)
        assert one.finish == other.finish


@pytest.mark.parametrize(
    ("name", "axes", "share", "each"),
    [("grouped", (1, 1), 0.1, 8), ("window", (1, 1), 0.4, 3), ("sinks", (1, 1), 0.4, 1), ("grouped", (1, 2, 2), 0.2, 4)],
)
def test_pages_give_the_tokens_of_a_contiguous_cache(name, axes, share, each, monkeypatch):
    """With a share of 0.1, pages run out, and rows give theirs back and begin again."""
    returned = []
    original = PagedSampler._free
    monkeypatch.setattr(PagedSampler, "_free", lambda self: returned.append(len(self.returned)) or original(self))
    mesh = make_mesh(*axes)
    policy = transformer_policy(MODELS[name], eos=1, mesh=mesh)
    params = put(random_params(MODELS[name]), jax.tree.map(lambda leaf: leaf.sharding, policy.init(jax.random.key(0))))
    requests = make_requests(24 // each, each)
    usual = DecodingEngine(policy.decoder, mesh, LONGEST, 8).generate(params, requests)
    check_equal(usual, PagedEngine(policy.decoder, mesh, LONGEST, 8, share=share).generate(params, requests))
    assert max(returned) > 0 or share > 0.1, "this share must be too small"


def test_the_last_rows_continue_in_smaller_pools(monkeypatch):
    monkeypatch.setattr(decode_sizes, "LONG_BUDGET", 8)
    monkeypatch.setattr(paged_sampling, "is_on_cpus", lambda mesh: False)
    policy, sizes = transformer_policy(MODELS["grouped"], eos=1, mesh=(mesh := make_mesh(1, 1))), []
    params, requests = random_params(MODELS["grouped"]), make_requests(8, 4)
    original = PagedSampler._empty
    monkeypatch.setattr(
        PagedSampler, "_empty", lambda self, rows, pools: sizes.append((rows, pools)) or original(self, rows, pools)
    )
    usual = DecodingEngine(policy.decoder, mesh, LONGEST, 32).generate(params, requests)
    check_equal(usual, PagedEngine(policy.decoder, mesh, LONGEST, 32, share=0.4).generate(params, requests))
    assert [rows for rows, _ in sizes] == [32, 16]
    assert sizes[1][1].own == sizes[0][1].own / 2


def small_state(rows, shared, own, sharers):
    """Empty pools of one layer with one head of one feature."""
    zeros = np.zeros

    def pool(count):
        return LayerCache(zeros((count, 1, 1, PAGE), np.float32), zeros((count, 1, PAGE, 1), np.float32))

    tables = [
        PageTable(zeros((count, most), np.int32), zeros(count, np.int32)) for count, most in ((shared, sharers), (own, 1))
    ]
    pages = PagesInUse(*tables, zeros(rows, np.int32), zeros(rows, np.int32))
    return jax.tree.map(jnp.asarray, PagedState((PagedLayer(pool(shared), pool(own)),), pages))


def content_of(state, row):
    """Return the keys of a row in order, from its pages."""
    found = {}
    for pool, table in zip(state.cache[0], state.pages[:2], strict=True):
        for page in np.flatnonzero((np.asarray(table.owners) == row + 1).any(-1)):
            for offset in range(PAGE):
                place = int(table.first[page]) + offset
                if place < int(state.pages.lengths[row]):
                    assert place not in found, "two pages for one token"
                    found[place] = float(pool.keys[page, 0, 0, offset])
    return [found[place] for place in range(len(found))]


def test_pages_hold_the_tokens_of_their_rows_whatever_begins_grows_and_ends():
    """Random steps, compared with lists of numbers."""
    numbers, rows, state = np.random.default_rng(3), 5, small_state(5, 8, 16, 3)
    insert, grow, free = (
        jax.jit(function)
        for function in (paged_cache.insert_prompts_in_pages, paged_cache.take_pages, paged_cache.release_pages)
    )
    attend, lists = jax.jit(paged_cache.attend_pages), {}
    for _ in range(60):
        kind = numbers.integers(3)
        free_shared, free_own = (int(part) for part in paged_cache.count_free(state.pages))
        if kind == 0:  # begin up to three rows with one prompt
            chosen = numbers.permutation(rows)[: numbers.integers(1, 4)].tolist()
            length = int(numbers.integers(1, 12))
            shared, own = paged_cache.pages_needed(length, len(chosen), 3)
            if shared > free_shared or own > free_own:
                continue
            tokens = numbers.normal(size=12).astype(np.float32)
            blocks = LayerCache(tokens.reshape(1, 3, 1, 1, PAGE), tokens.reshape(1, 3, 1, PAGE, 1))
            source = np.full(rows, -1, np.int32)
            source[chosen] = 0
            state = insert(state, PagedPrompts((blocks,), jnp.array([length], jnp.int32)), jnp.array(source))
            lists |= {row: tokens[:length].tolist() for row in chosen}
        elif kind == 1 and lists:  # a token for each row
            lengths = np.array([len(held) for held in lists.values()])
            if steps_for(lengths, free_own, 1) < 1:
                continue
            new = jnp.asarray(numbers.normal(size=rows), jnp.float32)
            pages = grow(state.pages)
            query = jnp.ones((rows, 1, 1, 1))
            mixed, layer = attend(query, new[:, None, None], new[:, None, None], state.cache[0], pages)
            state = PagedState((layer,), pages._replace(lengths=pages.lengths + 1))
            for row, held in lists.items():
                held.append(float(new[row]))
                scores = np.exp(np.array(held, np.float64))
                np.testing.assert_allclose(mixed[row, 0, 0, 0], (scores * held).sum() / scores.sum(), atol=1e-5)
        elif lists:
            ended = int(numbers.choice(list(lists)))
            del lists[ended]
            kept = np.array([row in lists for row in range(rows)])
            state = state._replace(pages=free(state.pages, jnp.array(kept)))
        for row, held in lists.items():
            np.testing.assert_array_equal(content_of(state, row), np.array(held, np.float32))
    assert len(lists) > 1


def test_steps_for_counts_the_pages_that_rows_take():
    numbers = np.random.default_rng(0)
    for _ in range(50):
        lengths, free = numbers.integers(1, 30, 4), int(numbers.integers(0, 12))
        taken = [sum((length + step) % PAGE == 0 for length in lengths) for step in range(60)]
        expected = next((steps for steps in range(61) if sum(taken[: steps + 1]) > free), 60)
        assert steps_for(lengths, free, 60) == min(expected, 60)


def test_four_times_as_many_rows_fit_if_responses_have_a_seventh_of_the_limit(monkeypatch):
    """Limits of 1,024 and 8,192 tokens, and a mean of 15 %; eight responses share a prompt."""
    for module in (paged_cache, language_model, paged_sampling):
        monkeypatch.setattr(module, "PAGE", 64)
    policy, mesh = transformer_policy(MODELS["grouped"], eos=1, mesh=(mesh := make_mesh(1, 1))), make_mesh(1, 1)
    memory = FittingSlots(policy.decoder, mesh, 0).cache(64, policy.shapes(), 1024, 128, 1024, 8192)
    both = FittingSlots(policy.decoder, mesh, memory), PagedSlots(policy.decoder, mesh, memory, share=0.15)
    usual, pages = (rows(policy.shapes(), 1024, 128, 1024, 8192) for rows in both)
    assert usual == 64
    assert 4.5 * usual < pages < 6.5 * usual
    sizes = pool_sizes(pages, 1024, 8192, 0.15 * 8192, 8)
    assert (sizes.shared + sizes.own) * 64 < 9216 * 64 * 1.5


def test_the_setting_reaches_the_engine_and_is_refused_where_it_cannot_work():
    policy, mesh = transformer_policy(MODELS["grouped"], eos=1, mesh=make_mesh(1, 1)), make_mesh(1, 1)
    config = SMALL.replace(paged_cache=0.2, cache_memory="1MB")
    assert make_engine(config, policy, mesh, 4, free_bytes=None, text=str).share == 0.2
    with pytest.raises(InputError, match=r"paged_cache is 1\.5"):
        SMALL.replace(paged_cache=1.5)
    with pytest.raises(InputError, match=r"paged_cache=0\.5 is for the built-in engine"):
        SMALL.replace(paged_cache=0.5, engine_url="http://127.0.0.1:8000")
    with pytest.raises(InputError, match=r"paged_cache=0\.5 needs a decoder"):
        PagedEngine(policy.decoder._replace(paged=None), mesh, LONGEST, 8, share=0.5)


def test_the_memory_plan_counts_pages():
    """With responses of a tenth of the limit more rows fit, and they take the bytes of their pools."""
    policy, mesh = transformer_policy(MODELS["grouped"], eos=1, mesh=(mesh := make_mesh(1, 1))), make_mesh(1, 1)
    config = SMALL.replace(prompts=16, group_size=8, max_response_tokens=400, decode_slots=None, cache_memory="400KB")
    usual = sampling_memory(config, policy, mesh, 8, left=None)
    pages = sampling_memory(config.replace(paged_cache=0.1), policy, mesh, 8, left=None)
    assert pages.rows > 3 * usual.rows
    assert 200_000 < pages.cache <= 400_000
    assert 200_000 < usual.cache <= 400_000
