"""A policy whose parameters are logits per position: it writes a fixed script, except for random digits at each `?`."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rljax.data.tokenizer import load_tokenizer
from rljax.models import Decoder, policy_of_logits
from rljax.models.packed import Features, take_before_scored

TOKENIZER = load_tokenizer("bytes")
PROMPT = 5
"""Number of tokens in a prompt, such as `1+2=`, including the beginning-of-sequence token."""


def places(script):
    """Return the positions whose logits predict the digits at each `?`."""
    return [PROMPT - 1 + index for index, character in enumerate(script) if character == "?"]


def token(sign):
    """Return the id of a character's token."""
    return int(TOKENIZER.encode(sign)[-1])


def table(script, favourites):
    """Return the parameters. At a `?`, the favorite digit is three times as likely as each of the other three digits."""
    logits = np.zeros((PROMPT + len(script) + 1, TOKENIZER.vocab_size), np.float32)
    for place, sign in enumerate(script, start=PROMPT - 1):
        for character in "1359" if sign == "?" else sign:
            logits[place, token(character)] = 14 + math.log(3) * (character == favourites.get(place))
    logits[PROMPT - 1 + len(script), TOKENIZER.eos_token_id] = 14
    return {"table": jnp.asarray(logits)}


def at_position(params, packed):
    """Return the logits of every slot, which depend only on the slot's position."""
    return params["table"][jnp.minimum(packed.positions, len(params["table"]) - 1)]


def features(params, packed):
    """Return the same logits as the product of two factors."""
    return Features(take_before_scored(at_position(params, packed), packed), jnp.eye(TOKENIZER.vocab_size))


def begin(params, tokens, attention, budget):
    """Return the logits after the prompt, and the position of the next token."""
    lengths = attention.sum(-1, dtype=jnp.int32)
    return params["table"][lengths - 1], lengths


def advance(params, token, position):
    """Return the logits after a token, and the position of the next token."""
    return params["table"][jnp.minimum(position, len(params["table"]) - 1)], position + 1


def scripted_policy(start):
    """Return a policy whose initial parameters are `start`."""
    policy = policy_of_logits(
        TOKENIZER.vocab_size, partial(_copy_start, start), at_position, decoder=Decoder(begin, advance)
    )
    return policy._replace(features=features)


def _copy_start(start, key):
    """Copy the initial parameters, because the trainer donates their buffers."""
    return jax.tree.map(jnp.array, start)


def probability(params, place, digit):
    """Return the probability of a digit under the logits at position `place`."""
    return float(jax.nn.softmax(params["table"][place])[token(digit)])
