"""Dialogues with pages: the turns of a contiguous cache, whatever room there is, and contexts that are not read again."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from dialogues import BUDGET, PARAMS, POLICY, PROMPTS, REQUESTS, SHAPE, assert_same, make_engine, observe, play

from rljax.errors import InputError
from rljax.models import cache, language_model, transformer_policy
from rljax.parallel import make_mesh, policy_shardings, put
from rljax.rollout import paged, paged_dialogue
from rljax.rollout.begin_dialogue import RereadingDialogue, begin_dialogue
from rljax.rollout.paged import PagedEngine, PagedSlots, PoolSizes
from rljax.rollout.paged_dialogue import PagedDialogue

PAGE = 4


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    for module in (cache, language_model, paged, paged_dialogue):
        monkeypatch.setattr(module, "PAGE", PAGE)


def paged_engine(slots=16, share=0.5, mesh=None, decoder=POLICY.decoder):
    return PagedEngine(decoder, make_mesh(1, 1) if mesh is None else mesh, 4, slots, None, share)


@pytest.fixture(scope="module")
def expected():
    return play(RereadingDialogue(make_engine(), PARAMS, REQUESTS), REQUESTS)[0]


def check_pages(dialogue):
    """Each row has the pages of the tokens that it has read, and no page has a row that does not exist."""
    state = jax.device_get(dialogue.decoding.rows.state)
    for device in range(dialogue.devices):
        own, shared = (cache.by_device(table, dialogue.devices) for table in (state.pages.own, state.pages.shared))
        pages = Counter()
        for table in (own, shared):
            for owners, first in zip(table.owners[device], table.first[device], strict=True):
                pages.update({(int(owner), int(first)) for owner in owners if owner})
        assert set(pages.values()) <= {1}, "two pages for one token"
        rows = len(dialogue.read) // dialogue.devices
        for row in range(rows):
            place = device * rows + row
            if not dialogue.running[place]:
                blocks = {first // PAGE for owner, first in pages if owner == row + 1}
                assert blocks == set(range(-(-len(dialogue.read[place]) // PAGE))), place


class Checked:
    """A dialogue whose pages are checked after each sampling call."""

    def __init__(self, dialogue):
        self.dialogue, self.add = dialogue, dialogue.add

    def draw(self):
        ended = self.dialogue.draw()
        check_pages(self.dialogue)
        return ended


@pytest.mark.parametrize(("slots", "share"), [(16, 1.0), (16, 0.1), (5, 0.4), (1, 0.1)])
def test_turns_continue_from_pages_and_equal_turns_that_read_everything(expected, slots, share):
    dialogue = begin_dialogue(paged_engine(slots, share), PARAMS, REQUESTS)
    assert isinstance(dialogue, PagedDialogue)
    actual, _ = play(Checked(dialogue), REQUESTS)
    assert_same(actual, expected)
    if (slots, share) == (16, 1.0):
        later = [request for turns in expected.values() for request, _ in turns[1:]]
        added = [1 + len(observe(request.seed >> 40, request.seed & 7)) for request in later]
        assert dialogue.tokens_read == sum(map(len, PROMPTS)) + sum(added)
        assert dialogue.restarted == 0


def test_running_turns_give_their_pages_back_and_begin_again(expected, monkeypatch):
    """There are pages for one row of full length only, and the expected length is far too small."""
    monkeypatch.setattr(paged_dialogue, "pool_sizes", lambda rows, *rest: PoolSizes(1, -(-(4 + BUDGET) // PAGE), 1))
    monkeypatch.setattr(paged_dialogue, "FEWEST_ENDED", 1000)
    dialogue = begin_dialogue(paged_engine(8, 0.01), PARAMS, REQUESTS)
    actual, _ = play(Checked(dialogue), REQUESTS)
    assert_same(actual, expected)
    assert dialogue.restarted > 3


def test_rows_of_a_prompt_share_its_pages_across_turns(expected):
    """The prompts of five tokens have one full page, which three episodes read until they end."""
    dialogue = begin_dialogue(paged_engine(16, 1.0), PARAMS, REQUESTS)
    dialogue.draw()
    dialogue.draw()
    owners = np.asarray(dialogue.decoding.rows.state.pages.shared.owners)
    assert (owners > 0).sum(-1).max() == 3


def test_several_devices_have_pages_of_their_own(expected):
    mesh = make_mesh(1, 2, 2)
    policy = transformer_policy(SHAPE, eos=1, mesh=mesh)
    params = put(PARAMS, policy_shardings(mesh, PARAMS, PARAMS, policy.partition))
    dialogue = begin_dialogue(paged_engine(6, 0.3, mesh, policy.decoder), params, REQUESTS)
    actual, _ = play(Checked(dialogue), REQUESTS)
    assert_same(actual, expected)


def test_later_episodes_begin_in_rows_of_ended_ones(expected):
    first = {episode: REQUESTS[episode] for episode in range(6)}
    later = {episode: REQUESTS[episode] for episode in range(6, 12)}
    dialogue = begin_dialogue(paged_engine(6, 0.3), PARAMS, first, list(later.values()))
    actual, _ = play(Checked(dialogue), first, later)
    assert_same(actual, expected)


def test_the_memory_of_turns_counts_their_copies():
    shapes, mesh = POLICY.shapes(), make_mesh(1, 1)
    slots = PagedSlots(POLICY.decoder, mesh, 0, share=0.25)
    usual, turns = (each.cache(32, shapes, 32, 8, 16, 240) for each in (slots, replace(slots, peak=paged.turn_bytes)))
    row = paged.row_bytes(POLICY.decoder, shapes, mesh, 256, 0)
    sizes = paged.pool_sizes(32, 16, 240, 60, 4)
    assert turns == (sizes.shared + sizes.own) * paged.row_bytes(POLICY.decoder, shapes, mesh, PAGE, 0) + 2 * 8 * row
    assert usual < turns


def test_turns_need_a_first_one_to_size_the_rows_by():
    engine = paged_engine()
    assert isinstance(begin_dialogue(engine, PARAMS, {}), RereadingDialogue)
    with pytest.raises(InputError, match="got no requests"):
        PagedDialogue(engine, PARAMS, {})
