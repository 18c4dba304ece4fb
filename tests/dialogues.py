"""Multi-turn episodes with a tiny model, for dialogue tests: what follows a turn, and a loop that plays episodes."""

import jax
import numpy as np

from rljax.models import TransformerConfig, transformer_policy
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Sampling
from rljax.rollout.engine_protocols import check_responses

SHAPE = TransformerConfig(vocab_size=10, width=16, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=32)
POLICY = transformer_policy(SHAPE, eos=1)
EOS, BUDGET = 1, 60
SAMPLING = Sampling(BUDGET, (EOS,), temperature=0.9)
PARAMS = jax.tree.map(lambda x: x * 3, POLICY.init(jax.random.key(0)))
PROMPTS = [(2, 3, 4), (5,), (6, 7, 8, 9, 2), (3, 3)]
REQUESTS = {
    episode: Request(PROMPTS[episode % 4], episode % 4, episode % 4, SAMPLING, seed=(episode << 40) + 24)
    for episode in range(12)
}
"""Episode -> its first request; the number of the turn is added to the seed, whose value makes some episodes end truncated."""
TURNS = {episode: 1 + (episode + 2) % 4 for episode in range(20)}
"""Episode -> its number of turns."""


def make_engine(slots=16, *, text=None, mesh=None, decoder=POLICY.decoder):
    return DecodingEngine(decoder, make_mesh(1, 1) if mesh is None else mesh, 4, slots, text)


def observe(episode, turn):
    """The environment's observation after a turn: zero to nine tokens."""
    return tuple(np.random.default_rng((episode, turn)).integers(2, 10, (episode + 3 * turn) % 10).tolist())


def next_turn(first, request, response):
    """The request for the next turn, with the remaining token budget; None if the episode is over."""
    turn = 1 + (request.seed - first.seed)
    episode = first.seed >> 40
    context = (*request.prompt_tokens, *response.tokens.tolist(), *observe(episode, turn))
    left = first.sampling.max_tokens - (len(context) - len(first.prompt_tokens))
    if response.truncated or turn == TURNS[episode] or left < 1:
        return None
    sampling = first.sampling._replace(max_tokens=left)
    return request._replace(prompt_tokens=context, sampling=sampling, seed=first.seed + turn)


def play(dialogue, requests, later=()):
    """Play the episodes, adding those in `later` after the first sampling call.

    Returns:
        turns: episode -> (request, response) of each of its turns.
        waves: the number of responses that each sampling call finished.
    """
    first, current = {**requests, **dict(later)}, dict(requests)
    turns, waves = {episode: [] for episode in first}, []
    while ended := dialogue.sample_turns():
        waves.append(len(ended))
        added = dict(later) if len(waves) == 1 else {}
        for episode, response in ended.items():
            turns[episode].append((current[episode], response))
            request = next_turn(first[episode], current[episode], response)
            if request is not None:
                added[episode] = request
        if hasattr(dialogue, "end"):
            dialogue.end(ended.keys() - added.keys())
        dialogue.add(added)
        current |= added
    return turns, waves


def assert_same(actual, expected, atol=1e-4):
    assert actual.keys() == expected.keys()
    for episode, turns in expected.items():
        assert len(actual[episode]) == len(turns), episode
        for (_, one), (request, other) in zip(actual[episode], turns, strict=True):
            check_responses([request], [one])
            assert (one.prompt_id, one.finish) == (other.prompt_id, other.finish)
            np.testing.assert_array_equal(one.tokens, other.tokens, err_msg=str(episode))
            for name in ("behaviour_logp", "policy_logp"):
                np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=atol)
