"""A bigram policy and a bigram critic, for tests of code that works with any policy.

Its training programs compile in a third of the time that the smallest transformer needs.
"""

from functools import partial

import jax
import jax.numpy as jnp
from safetensors.numpy import save_file

from rljax.data.tokenizer import load_tokenizer
from rljax.models import Decoder, Features, ValueFunction, policy_of_logits
from rljax.models.packed import take_before_scored, to_batch

VOCAB_SIZE = load_tokenizer("characters").vocab_size


def init_table(key):
    """Return random next-token logits `[V, V]`, one row per preceding token."""
    return 0.3 * jax.random.normal(key, (VOCAB_SIZE, VOCAB_SIZE))


def init(key):
    """Return initial parameters of the policy."""
    return {"table": init_table(key)}


def logits(params, packed):
    """Return the next-token logits at every packed position."""
    return params["table"][packed.tokens]


def begin(params, tokens, attention, budget):
    """Return the logits after the prompt, and an empty decoder state."""
    return params["table"][tokens[:, -1]], ()


def advance(params, token, state):
    """Return the logits after a token, and the unchanged decoder state."""
    return params["table"][token], state


def features(params, packed):
    """Return the logits as features, with the identity as the output matrix."""
    return Features(take_before_scored(logits(params, packed), packed), jnp.eye(VOCAB_SIZE))


def init_value(size, key, policy):
    """Return an initial critic; its table is a copy of the policy's, or random if there is no policy."""
    table_key, head_key = jax.random.split(key)
    table = init_table(table_key) if policy is None else jnp.copy(policy["table"])
    return {"trunk": {"table": table}, "head": jax.random.normal(head_key, (VOCAB_SIZE, size)) / VOCAB_SIZE}


def value_outputs(params, packed):
    """Return the critic's outputs before each token."""
    return to_batch(take_before_scored(logits(params["trunk"], packed), packed) @ params["head"], packed)


def save(params, folder):
    """Write the arrays of a policy or a critic."""
    folder.mkdir(parents=True)
    arrays = jax.tree_util.tree_leaves_with_path(params)
    save_file({jax.tree_util.keystr(path): array for path, array in arrays}, folder / "model.safetensors")


def value_function(size, reads_logp):
    """Return a critic with `size` outputs per token."""
    if reads_logp:
        raise ValueError("the bigram critic does not read log-probabilities")
    return ValueFunction(size, partial(init_value, size), value_outputs, save)


BIGRAM = policy_of_logits(VOCAB_SIZE, init, logits, decoder=Decoder(begin, advance), save=save)._replace(
    features=features, value_function=value_function
)
