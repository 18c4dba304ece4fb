"""Tests of multi-turn episodes that reuse the KV cache: the same responses as without reuse, but fewer tokens read."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from dialogues import (
    BUDGET,
    EOS,
    PARAMS,
    POLICY,
    PROMPTS,
    REQUESTS,
    SAMPLING,
    SHAPE,
    assert_same,
    make_engine,
    observe,
    play,
)

from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.parallel import make_mesh, policy_shardings, put
from rljax.rollout import cached_dialogue as dialogue_module
from rljax.rollout import engine as engine_module
from rljax.rollout.begin_dialogue import RereadingDialogue, begin_dialogue
from rljax.rollout.cached_dialogue import CachedDialogue, row_decoder, turn_engine
from rljax.rollout.decode_sizes import FittingSlots, row_bytes
from rljax.rollout.engine_protocols import DialogueEngine


class TokenCountingEngine:
    """An engine without a dialogue: each turn reads its full context. The engine counts the tokens of distinct contexts."""

    def __init__(self, engine):
        self.engine, self.tokens_read = engine, 0

    def generate(self, params, requests):
        self.tokens_read += sum(map(len, {request.prompt_tokens for request in requests}))
        return self.engine.generate(params, requests)


@pytest.fixture(scope="module")
def reread_turns():
    """All turns of the episodes without cache reuse, and the number of tokens read."""
    engine = TokenCountingEngine(make_engine())
    assert not isinstance(engine, DialogueEngine)
    turns, _ = play(RereadingDialogue(engine, PARAMS, REQUESTS), REQUESTS)
    turn_counts = [len(turns[episode]) for episode in REQUESTS]
    assert {1, 2, 3, 4} <= set(turn_counts), "the test needs episodes that end at different turns"
    assert any(response.truncated for pairs in turns.values() for _, response in pairs)
    return turns, engine.tokens_read


@pytest.mark.parametrize("slots", [16, 5, 1])
def test_cached_dialogue_equals_rereading(reread_turns, slots):
    """With fewer rows than episodes, each row plays several episodes, one after another."""
    expected, tokens = reread_turns
    dialogue = begin_dialogue(make_engine(slots), PARAMS, REQUESTS)
    actual, waves = play(dialogue, REQUESTS)
    assert_same(actual, expected)
    assert len(waves) > 4, "rows must end their turns at different times"
    states = jax.tree.leaves(dialogue.decoding.rows.state.state)
    assert {leaf.shape[0] for leaf in states} == {min(slots, 12)}
    assert {max(leaf.shape[2:]) for leaf in states} == {8 + BUDGET}, "a row must have room for exactly one episode"
    if slots == 16:
        later_requests = [request for turns in expected.values() for request, _ in turns[1:]]
        added_tokens = [1 + len(observe(request.seed >> 40, request.seed & 7)) for request in later_requests]
        assert dialogue.tokens_read == sum(map(len, PROMPTS)) + sum(added_tokens), (
            "it should read each prompt once, then in each turn the last sampled token and the observation"
        )
        assert dialogue.tokens_read < tokens / 4


@pytest.mark.parametrize("slots", [16, 8])
def test_long_dialogue_grows_its_cache(reread_turns, slots, monkeypatch):
    """The cache has room for 15 tokens after a prompt, then 30, then 60. A context that is read again may skip a size."""
    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", 36)
    dialogue = begin_dialogue(make_engine(slots), PARAMS, REQUESTS)
    rooms = []

    def current_room():
        (row_slots,) = {max(leaf.shape[2:]) for leaf in jax.tree.leaves(dialogue.decoding.rows.state.state)}
        assert row_slots == 8 + dialogue.decoding.room
        return dialogue.decoding.room

    def sample_and_record(sample=dialogue.sample_turns):
        rooms.append(current_room())
        return sample()

    monkeypatch.setattr(dialogue, "sample_turns", sample_and_record)
    assert_same(play(dialogue, REQUESTS)[0], reread_turns[0])
    assert list(dict.fromkeys(rooms)) == [15, 30, 60]


def bytes_on_first_device(tree):
    """Return the number of bytes that a pytree's arrays use on the first device."""
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == jax.devices()[0])


@pytest.mark.parametrize("axes", [(1, 1), (2, 1, 2)])
@pytest.mark.parametrize(("long", "fewest"), [(128, 8), (36, 8), (36, 2)])
def test_dialogue_allocates_the_planned_cache_memory(axes, long, fewest, monkeypatch):
    """Peak memory: the rows plus copies of the rows that are reading, or a cache and its larger replacement."""
    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", long)
    monkeypatch.setattr("rljax.rollout.decode_sizes.FEWEST_ROWS", fewest)
    mesh = make_mesh(*axes)
    policy = transformer_policy(SHAPE, eos=EOS, mesh=mesh)
    params = put(PARAMS, policy_shardings(mesh, PARAMS, PARAMS, policy.partition))
    used_bytes = []

    def record_bytes(module, name, state_of):
        function = getattr(module, name)

        def call(*args, **keywords):
            result = function(*args, **keywords)
            used_bytes.append(bytes_on_first_device(state_of(*args)) + bytes_on_first_device(result.state))
            return result

        monkeypatch.setattr(module, name, call)

    record_bytes(dialogue_module, "read_turns", lambda turns, params, rows, *_: rows)
    record_bytes(dialogue_module, "empty_rows", lambda *_: ())
    record_bytes(engine_module, "grow_rows", lambda decoder, rows: rows.state)
    slots = FittingSlots(policy.decoder, mesh, 0)
    memory = turn_engine(make_engine(slots, mesh=mesh), policy.decoder.turns).slots.cache_peak_bytes(
        6, params, 16, 16, 8, BUDGET
    )
    dialogue = begin_dialogue(
        make_engine(replace(slots, memory=memory), mesh=mesh, decoder=policy.decoder), params, REQUESTS
    )
    play(dialogue, REQUESTS)
    assert len(dialogue.requests) == 6
    assert max(used_bytes) == pytest.approx(memory, rel=0.01)


def test_dialogue_needs_memory_for_row_copies():
    slots = FittingSlots(POLICY.decoder, make_mesh(1, 1), 0)
    bytes_per_row = row_bytes(POLICY.decoder, PARAMS, slots.mesh, 8, BUDGET)
    with pytest.raises(InputError, match=r"cache_memory is .* one row, 8 tokens of prompt and 60 of response, take"):
        begin_dialogue(make_engine(replace(slots, memory=bytes_per_row)), PARAMS, REQUESTS)
    assert len(begin_dialogue(make_engine(replace(slots, memory=2 * bytes_per_row)), PARAMS, REQUESTS).requests) == 1


def test_dialogue_on_several_devices_equals_rereading(reread_turns):
    mesh = make_mesh(2, 1, 2)
    policy = transformer_policy(SHAPE, eos=EOS, mesh=mesh)
    params = put(PARAMS, policy_shardings(mesh, PARAMS, PARAMS, policy.partition))
    dialogue = begin_dialogue(make_engine(mesh=mesh, decoder=policy.decoder), params, REQUESTS)
    assert_same(play(dialogue, REQUESTS)[0], reread_turns[0])


@pytest.mark.parametrize("slots", [16, 3])
def test_episodes_can_be_added_during_sampling(reread_turns, slots):
    first = {episode: REQUESTS[episode] for episode in range(6)}
    later = {episode: REQUESTS[episode] for episode in range(6, 12)}
    actual, waves = play(begin_dialogue(make_engine(slots), PARAMS, first), first, later)
    assert waves[0] < min(slots, len(first)), "some rows must be in the middle of a turn when episodes are added"
    assert_same(actual, reread_turns[0])


def test_episode_continues_after_losing_its_row(reread_turns):
    """Another episode uses the only row between two turns, so the first episode's context is read again."""
    expected = reread_turns[0]
    one = next(episode for episode in REQUESTS if len(expected[episode]) > 2)
    other = next(episode for episode in REQUESTS if episode != one)
    dialogue = begin_dialogue(make_engine(1), PARAMS, {one: REQUESTS[one]})
    for turn, (request, response) in enumerate(expected[one]):
        before = dialogue.tokens_read
        if turn > 0:
            dialogue.add({one: request})
        assert dialogue.sample_turns()[one].tokens.tolist() == response.tokens.tolist()
        assert dialogue.tokens_read == before + len(request.prompt_tokens)
        dialogue.add({other: REQUESTS[other]})
        assert dialogue.sample_turns()[other].tokens.tolist() == expected[other][0][1].tokens.tolist()
    assert dialogue.sample_turns() == {}


def test_tokens_after_stop_string_are_dropped():
    """Text is not checked after every token, so sampling may continue past a stop string."""

    def text(tokens):
        return "".join(chr(ord("a") + token) for token in tokens)

    sampling = SAMPLING._replace(stop=("df", "eg", "hh", "fi"))._replace(max_tokens=150)
    requests = {episode: request._replace(sampling=sampling) for episode, request in REQUESTS.items()}
    engine = make_engine(text=text)
    expected, _ = play(RereadingDialogue(TokenCountingEngine(engine), PARAMS, requests), requests)
    ends = [text(response.tokens[-2:]) for turns in expected.values() for _, response in turns[:-1]]
    assert sum(end in sampling.stop for end in ends) > 4
    assert_same(play(begin_dialogue(engine, PARAMS, requests), requests)[0], expected)
    with pytest.raises(InputError, match="stop strings are searched for in decoded text"):
        begin_dialogue(make_engine(), PARAMS, requests)


def test_turn_decoder_decodes_single_turn_responses():
    requests = list(REQUESTS.values())
    expected, actual = (
        make_engine(5, decoder=decoder).generate(PARAMS, requests)
        for decoder in (POLICY.decoder, row_decoder(POLICY.decoder.turns))
    )
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.behaviour_logp, other.behaviour_logp, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": SAMPLING._replace(temperature=0.5)}, "all turns must have the same sampling settings"),
        ({"prompt_tokens": (2,) * 9}, "68 with its context; episode 3 needs 60 and 69"),
        ({"sampling": SAMPLING._replace(max_tokens=61)}, "a turn can have at most 60 tokens"),
        ({}, "the turn of episode 3 has not ended"),
    ],
)
def test_unsuitable_turns_are_rejected(changes, message):
    dialogue = begin_dialogue(make_engine(), PARAMS, REQUESTS)
    with pytest.raises(InputError, match=f"^dialogue: .*{message}"):
        dialogue.add({3: REQUESTS[3]._replace(**changes)})


def test_dialogue_may_begin_without_requests(reread_turns):
    """Without requests, there are no responses, as from an engine's `generate`; requests may be added later."""
    assert make_engine().generate(PARAMS, []) == []
    for dialogue in (
        begin_dialogue(make_engine(), PARAMS, {}),
        RereadingDialogue(TokenCountingEngine(make_engine()), PARAMS, {}),
    ):
        assert dialogue.sample_turns() == {}
        dialogue.add({0: REQUESTS[0]})
        np.testing.assert_array_equal(dialogue.sample_turns()[0].tokens, reread_turns[0][0][0][1].tokens)
    with pytest.raises(InputError, match=r"^dialogue: the first turns determine the lengths .*; got no requests\."):
        CachedDialogue(make_engine(), PARAMS, {})


class EngineOfEarlierVersion(TokenCountingEngine):
    """An engine whose dialogue has the earlier method `draw`."""

    def dialogue(self, params, requests):
        dialogue = RereadingDialogue(self.engine, params, requests)
        return SimpleNamespace(add=dialogue.add, draw=dialogue.sample_turns)


def test_the_earlier_method_draw_works_with_a_warning(reread_turns):
    with pytest.warns(DeprecationWarning, match=r"^Dialogue\.draw is now Dialogue\.sample_turns; .* next version"):
        dialogue = begin_dialogue(EngineOfEarlierVersion(make_engine()), PARAMS, REQUESTS)
    assert_same(play(dialogue, REQUESTS)[0], reread_turns[0])
    for dialogue in (begin_dialogue(make_engine(), PARAMS, REQUESTS), RereadingDialogue(make_engine(), PARAMS, {})):
        with pytest.warns(
            DeprecationWarning, match=r"^\w+Dialogue\.draw is now \w+Dialogue\.sample_turns; .* next version"
        ):
            assert dialogue.draw == dialogue.sample_turns


def test_decoder_without_turns_rereads_contexts(reread_turns):
    engine = make_engine(decoder=POLICY.decoder._replace(turns=None))
    dialogue = begin_dialogue(engine, PARAMS, REQUESTS)
    assert isinstance(dialogue, RereadingDialogue)
    assert_same(play(dialogue, REQUESTS)[0], reread_turns[0])
