"""A policy that is a table of logits by position: it writes a fixed script, and only the digits at its `?` are free."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rljax.data.tokenizer import load_tokenizer
from rljax.models import Decoder, policy_of_logits
from rljax.models.packed import Features, before_scored

TOKENIZER = load_tokenizer("bytes")
PROMPT = 5
"""Tokens of a prompt, such as `1+2=`, including the beginning-of-sequence token."""


def places(script):
    """Positions whose logits predict the free digits."""
    return [PROMPT - 1 + place for place, sign in enumerate(script) if sign == "?"]


def token(sign):
    """Id of a character's token."""
    return int(TOKENIZER.encode(sign)[-1])


def table(script, favourites):
    """Parameters: at a free place, the favorite digit has odds of 3 to 1 against each of three other digits."""
    logits = np.zeros((PROMPT + len(script) + 1, TOKENIZER.vocab_size), np.float32)
    for place, sign in enumerate(script, start=PROMPT - 1):
        for digit in "1359" if sign == "?" else sign:
            logits[place, token(digit)] = 14 + math.log(3) * (digit == favourites.get(place))
    logits[PROMPT - 1 + len(script), TOKENIZER.eos_token_id] = 14
    return {"table": jnp.asarray(logits)}


def at_position(params, packed):
    """Logits of every slot, which depend only on its position."""
    return params["table"][jnp.minimum(packed.positions, len(params["table"]) - 1)]


def features(params, packed):
    """The same logits as factors."""
    return Features(before_scored(at_position(params, packed), packed), jnp.eye(TOKENIZER.vocab_size))


def begin(params, tokens, attention, budget):
    """Logits after the prompt, and the position of the next token."""
    lengths = attention.sum(-1, dtype=jnp.int32)
    return params["table"][lengths - 1], lengths


def advance(params, token, position):
    """Logits after a token."""
    return params["table"][jnp.minimum(position, len(params["table"]) - 1)], position + 1


def scripted_policy(start):
    """The policy whose initial parameters are `start`."""
    policy = policy_of_logits(
        TOKENIZER.vocab_size, partial(_copy_start, start), at_position, decoder=Decoder(begin, advance)
    )
    return policy._replace(features=features)


def _copy_start(start, key):
    """A copy of the initial parameters, because the trainer donates their buffers."""
    return jax.tree.map(jnp.array, start)


def probability(params, place, digit):
    """Probability of a digit at a place."""
    return float(jax.nn.softmax(params["table"][place])[token(digit)])
