"""Tests of streaming a response during sampling: the pieces contain the same tokens as the result of `generate`."""

from itertools import chain

import jax
import pytest

from rljax.models import TransformerConfig, init_params, transformer_policy
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Sampling
from rljax.rollout.token_stream import stream_tokens

CONFIG = TransformerConfig(vocab_size=13, width=16, layers=2, heads=4, kv_heads=2, head_dim=4, hidden=24)
PROMPT = (5, 6, 7)


@pytest.fixture(scope="module")
def params():
    # Larger weights than usual, so that the token distribution is neither flat nor deterministic.
    return jax.tree.map(lambda x: x * 4, init_params(CONFIG, jax.random.key(0)))


@pytest.mark.parametrize("budget", [10, 200])  # With a budget of 200, the cache must grow.
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("devices", [1, 4])
def test_streamed_pieces_make_up_the_response(params, temperature, budget, devices):
    engine = DecodingEngine(transformer_policy(CONFIG, eos=1).decoder, make_mesh(1, devices), 4)
    requests = [Request(PROMPT, 0, 0, Sampling(budget, (1,), temperature=temperature), seed) for seed in range(4)]
    for request in requests:
        pieces = list(stream_tokens(engine, params, request, every=3))
        (response,) = engine.generate(params, [request])
        assert list(chain.from_iterable(pieces)) == response.tokens.tolist()
        assert all(len(piece) <= 3 + (not index) for index, piece in enumerate(pieces))
        assert len(pieces) >= len(response.tokens) // 4
