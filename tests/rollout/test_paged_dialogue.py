"""Tests of dialogues with a paged cache: the same turns as with a contiguous cache, for any number of pages."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from dialogues import (
    BUDGET,
    PARAMS,
    POLICY,
    PROMPTS,
    REQUESTS,
    SHAPE,
    assert_same,
    make_engine,
    next_turn,
    observe,
    play,
)
from run_states import first_state
from small_runs import SMALL

from rljax.errors import InputError
from rljax.models import language_model, paged_cache, transformer_policy
from rljax.parallel import make_mesh, policy_shardings, put
from rljax.rollout import paged_dialogue, paged_sampling
from rljax.rollout.begin_dialogue import RereadingDialogue, begin_dialogue
from rljax.rollout.paged_dialogue import PagedDialogue
from rljax.rollout.paged_sampling import PagedEngine, PagedSlots, PoolSizes

PAGE = 4


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    for module in (paged_cache, language_model, paged_sampling, paged_dialogue):
        monkeypatch.setattr(module, "PAGE", PAGE)


def paged_engine(slots=16, share=0.5, mesh=None, decoder=POLICY.decoder):
    return PagedEngine(decoder, make_mesh(1, 1) if mesh is None else mesh, 4, slots, None, share)


@pytest.fixture(scope="module")
def reread_turns():
    return play(RereadingDialogue(make_engine(), PARAMS, REQUESTS), REQUESTS)[0]


def check_pages(dialogue):
    """Check that each idle row owns exactly the pages of the tokens that it has read."""
    state = jax.device_get(dialogue.decoding.rows.state)
    for device in range(dialogue.devices):
        own, shared = (
            paged_cache.split_by_device(table, dialogue.devices) for table in (state.pages.own, state.pages.shared)
        )
        pages = Counter()
        for table in (own, shared):
            for owners, first in zip(table.owners[device], table.first[device], strict=True):
                pages.update({(int(owner), int(first)) for owner in owners if owner})
        assert set(pages.values()) <= {1}, "a token must be in only one page"
        rows = len(dialogue.row_tokens) // dialogue.devices
        for row in range(rows):
            index = device * rows + row
            if not dialogue.running[index]:
                blocks = {first // PAGE for owner, first in pages if owner == row + 1}
                assert blocks == set(range(-(-len(dialogue.row_tokens[index]) // PAGE))), index


class CheckedDialogue:
    """A dialogue that checks its pages after each sampling call."""

    def __init__(self, dialogue):
        self.dialogue, self.add, self.end = dialogue, dialogue.add, dialogue.end

    def sample_turns(self):
        ended = self.dialogue.sample_turns()
        check_pages(self.dialogue)
        return ended


@pytest.mark.parametrize(("slots", "share"), [(16, 1.0), (16, 0.1), (5, 0.4), (1, 0.1)])
def test_paged_dialogue_equals_rereading(reread_turns, slots, share):
    dialogue = begin_dialogue(paged_engine(slots, share), PARAMS, REQUESTS)
    assert isinstance(dialogue, PagedDialogue)
    actual, _ = play(CheckedDialogue(dialogue), REQUESTS)
    assert_same(actual, reread_turns)
    if (slots, share) == (16, 1.0):
        later_requests = [request for turns in reread_turns.values() for request, _ in turns[1:]]
        added_tokens = [1 + len(observe(request.seed >> 40, request.seed & 7)) for request in later_requests]
        assert dialogue.tokens_read == sum(map(len, PROMPTS)) + sum(added_tokens)
        assert dialogue.restarted == 0


def test_running_turns_return_their_pages_and_restart(reread_turns, monkeypatch):
    """There are only enough pages for one row of full length, and the expected length is far too small."""
    monkeypatch.setattr(paged_dialogue, "pool_sizes", lambda rows, *rest: PoolSizes(1, -(-(4 + BUDGET) // PAGE), 1))
    monkeypatch.setattr(paged_dialogue, "FEWEST_ENDED", 1000)
    dialogue = begin_dialogue(paged_engine(8, 0.01), PARAMS, REQUESTS)
    actual, _ = play(CheckedDialogue(dialogue), REQUESTS)
    assert_same(actual, reread_turns)
    assert dialogue.restarted > 3


def test_rows_share_prompt_pages_across_turns(reread_turns):
    """The five-token prompt fills one page, which three episodes share until they end."""
    dialogue = begin_dialogue(paged_engine(16, 1.0), PARAMS, REQUESTS)
    dialogue.sample_turns()
    dialogue.sample_turns()
    owners = np.asarray(dialogue.decoding.rows.state.pages.shared.owners)
    assert (owners > 0).sum(-1).max() == 3


def test_paged_dialogue_on_several_devices_equals_rereading(reread_turns):
    mesh = make_mesh(1, 2, 2)
    policy = transformer_policy(SHAPE, eos=1, mesh=mesh)
    params = put(PARAMS, policy_shardings(mesh, PARAMS, PARAMS, policy.partition))
    dialogue = begin_dialogue(paged_engine(6, 0.3, mesh, policy.decoder), params, REQUESTS)
    actual, _ = play(CheckedDialogue(dialogue), REQUESTS)
    assert_same(actual, reread_turns)


def test_later_episodes_reuse_rows_of_ended_episodes(reread_turns):
    first = {episode: REQUESTS[episode] for episode in range(6)}
    later = {episode: REQUESTS[episode] for episode in range(6, 12)}
    dialogue = begin_dialogue(paged_engine(6, 0.3), PARAMS, first, list(later.values()))
    actual, _ = play(CheckedDialogue(dialogue), first, later)
    assert_same(actual, reread_turns)


def test_turn_memory_includes_row_copies():
    shapes, mesh = POLICY.shapes(), make_mesh(1, 1)
    slots = PagedSlots(POLICY.decoder, mesh, 0, share=0.25)
    contiguous, turns = (
        each.cache_peak_bytes(32, shapes, 32, 8, 16, 240)
        for each in (slots, replace(slots, peak=paged_sampling.dialogue_peak_bytes))
    )
    row = paged_sampling.row_bytes(POLICY.decoder, shapes, mesh, 256, 0)
    sizes = paged_sampling.pool_sizes(32, 16, 240, 60, 4)
    assert (
        turns == (sizes.shared + sizes.own) * paged_sampling.row_bytes(POLICY.decoder, shapes, mesh, PAGE, 0) + 2 * 8 * row
    )
    assert contiguous < turns


def test_paged_dialogue_needs_a_first_request():
    engine = paged_engine()
    assert isinstance(begin_dialogue(engine, PARAMS, {}), RereadingDialogue)
    with pytest.raises(InputError, match="got no requests"):
        PagedDialogue(engine, PARAMS, {})


@pytest.mark.parametrize(
    "changes", [{"window": 7, "full_layers": (1,)}, {"sinks": True, "score_cap": 2.0}, {"cache_dtype": "int8"}], ids=str
)
def test_paged_dialogue_supports_windows_sinks_and_int8(changes):
    """Turns equal those of a contiguous cache. For int8, the order of a sum can change how it is quantized."""
    policy = transformer_policy(replace(SHAPE, **changes), eos=1)
    params = jax.tree.map(lambda x: x * 3, policy.init(jax.random.key(0)))
    contiguous = play(begin_dialogue(make_engine(decoder=policy.decoder), params, REQUESTS), REQUESTS)[0]
    dialogue = begin_dialogue(paged_engine(6, 0.3, decoder=policy.decoder), params, REQUESTS)
    assert_same(play(CheckedDialogue(dialogue), REQUESTS)[0], contiguous, atol=1e-3 if "cache_dtype" in changes else 1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_random_sizes_and_orders_do_not_change_turns(reread_turns, seed, monkeypatch):
    """The number of rows, the expected length, the pool sizes and the order in which turns are added are random."""
    rng = np.random.default_rng(seed)
    rows, share = int(rng.integers(1, 13)), float(rng.uniform(0.01, 0.6))
    spare_pages = [int(rng.integers(0, 40)) for _ in range(2)]
    full_row = -(-(4 + BUDGET) // PAGE)
    monkeypatch.setattr(
        paged_dialogue,
        "pool_sizes",
        lambda *sizes: PoolSizes(1 + spare_pages[0], full_row + spare_pages[1], int(rng.integers(1, 4))),
    )
    dialogue = begin_dialogue(paged_engine(rows, share), PARAMS, REQUESTS)
    actual = {episode: [] for episode in REQUESTS}
    current, pending, checked = dict(REQUESTS), {}, CheckedDialogue(dialogue)
    while True:
        for episode, response in checked.sample_turns().items():
            actual[episode].append((current[episode], response))
            next_request = next_turn(REQUESTS[episode], current[episode], response)
            pending |= {} if next_request is None else {episode: next_request}
            if next_request is None and rng.random() < 0.7:  # Calling `end` is optional.
                dialogue.end([episode])
        chosen = {episode: pending.pop(episode) for episode in list(pending) if rng.random() < 0.5}
        if not chosen and not dialogue.running.any() and not dialogue.waiting:
            chosen, pending = pending, {}
        if not chosen and not dialogue.running.any() and not dialogue.waiting:
            break
        dialogue.add(chosen)
        current |= chosen
    assert_same(actual, reread_turns)


def test_paged_run_samples_the_same_episodes():
    config = SMALL.replace(
        environment="guessing",
        tokenizer="bytes",
        max_prompt_tokens=128,
        max_response_tokens=48,
        train_problems=8,
        heldout_problems=4,
        prompts=4,
        group_size=4,
    )
    groups = []
    for share in (None, 0.3):
        setup, state = first_state(config.replace(paged_cache=share))
        groups.append(setup.train.generate(state.params, range(4), 4, jax.random.key(3)))
    contiguous, pages = groups
    np.testing.assert_array_equal(pages.tokens, contiguous.tokens)
    np.testing.assert_array_equal(pages.rollout.rewards, contiguous.rollout.rewards)
    np.testing.assert_allclose(pages.rollout.policy_logp, contiguous.rollout.policy_logp, atol=1e-4)
    assert contiguous.turns.max() > 1
