"""A bigram language model, whose logits depend only on the previous token, and its loss gradient computed by a loop."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models import Scores


def bigram(params, packed):
    """Score packed tokens with `params["table"]`, the logits indexed by the previous token."""
    logp = jax.nn.log_softmax(params["table"][jnp.asarray(packed.tokens)], axis=-1)
    before = jnp.take_along_axis(logp, (packed.scored - 1)[..., None], axis=1)
    tokens = jnp.take_along_axis(jnp.asarray(packed.tokens), packed.scored, axis=1)
    chosen = jnp.take_along_axis(before, tokens[..., None], axis=-1)[..., 0].reshape(-1)[packed.place]
    return Scores(chosen, jnp.zeros_like(chosen))


def loop_gradient(table, sequences):
    """Gradient of the mean of -log softmax(table[previous token])[token] over the tokens, computed token by token."""
    gradient, count = np.zeros_like(table), 0
    for prompt, tokens, attention in zip(sequences.prompt_tokens, sequences.tokens, sequences.attention, strict=True):
        before = prompt[-1]
        for token in tokens[attention]:
            p = np.exp(table[before]) / np.exp(table[before]).sum()
            gradient[before] += p - np.eye(len(p))[token]
            before, count = token, count + 1
    return gradient / count
