"""A policy mixed with rules: each token is sampled and scored with the probability α π_network + (1 - α) π_rules.

Rules are a state machine that reads a sequence token by token; its memory is a few integers. At some positions the rules return a
distribution over the next token; elsewhere they abstain, and the network alone decides. The decoder and the score use the same
function of memory and logits, so that the ratio of their probabilities is 1 while the parameters are unchanged. The gradient is
the gradient of the mixture, so the network learns little from a token that the rules would have written anyway.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PyTree

from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models.axes import spec_of
from rljax.models.packed import Packed, Scores, soft_cap, take_before_scored
from rljax.models.policy import Copied, Decoder, Params, Policy, cast_parameter, insert_rows, scores_of_distributions
from rljax.ops.arrays import Number, at_least_float32, sum_dtype
from rljax.ops.unpublished.mixture import neural_symbolic_mixture
from rljax.records import required


class Rules(NamedTuple):
    """A state machine that reads tokens and, at some positions, predicts the next token. Its functions are traced."""

    start: tuple[int, ...]
    """Memory of F integers before the first token of a sequence."""
    read: Callable[[Int[Array, "*N F"], Int[Array, "*N"]], Int[Array, "*N F"]]
    """(memory, token) -> memory."""
    predict: Callable[[Int[Array, "*N F"]], tuple[Float[Array, "*N V"], Bool[Array, "*N"]]]
    """memory -> log-probabilities of the next token, -inf for forbidden tokens, and False if the rules abstain."""


SplitParams = Callable[[Params], tuple[Params, Number]]
"""Parameters of a mixture -> the network's parameters, and 1 - α, the weight of the rules."""


class MixedState(NamedTuple):
    """The decode state of a mixed policy."""

    network: PyTree
    """State of the network's decoder."""
    rules: Int[Array, "B F"]
    """Memory of the rules."""


def compute_memories(
    rules: Rules, tokens: Int[Array, "R S"], first: Bool[Array, "R S"], has_token: Bool[Array, "R S"]
) -> Int[Array, "R S F"]:
    """Compute the memory of the rules after each slot of each row.

    Args:
        rules: the state machine.
        tokens: token ids.
        first: mask of the slots where a sequence begins.
        has_token: mask of the slots that contain a token; other slots are not read.
    """
    start = jnp.asarray(rules.start, jnp.int32)[None]

    def step(memory: Int[Array, "R F"], slot: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        token, is_first, is_read = slot
        before = jnp.where(is_first[:, None], start, memory)
        after = jnp.where(is_read[:, None], rules.read(before, token), before)
        return after, after

    initial = jnp.broadcast_to(start, (tokens.shape[0], start.shape[1]))
    return jnp.moveaxis(jax.lax.scan(step, initial, (tokens.T, first.T, has_token.T))[1], 0, 1)


def mixed_logits(
    rules: Rules, logits: Float[Array, "*N V"], memory: Int[Array, "*N F"], share: Number
) -> Float[Array, "*N V"]:
    """Compute the log-probabilities of the mixture, or of the network alone where the rules abstain, in float32 at least.

    Args:
        rules: the state machine.
        logits: logits of the network.
        memory: memory of the rules after the tokens that the logits follow.
        share: 1 - α, the weight of the rules where they do not abstain.
    """
    logp = jax.nn.log_softmax(at_least_float32(logits), axis=-1)
    symbolic, has_verdict = rules.predict(memory)
    mixed = neural_symbolic_mixture(logp, symbolic, alpha=1 - share)
    return jnp.where(has_verdict[..., None], mixed, logp)


@cache_results
def mixed_policy(policy: Policy, rules: Rules, *, share: float) -> Policy:
    """Mix a policy with rules, in its decoder and in its score.

    The warm start and the auxiliary loss train the network alone, so that it also learns the tokens that the rules predict. The
    temperature applies to the mixture, not to the network alone. A saved folder contains only the network. All logits of the
    scored tokens are in memory at once, so the vocabulary should be small.

    Args:
        policy: the network; it needs `decoder` and `features`.
        rules: the state machine.
        share: 1 - α, the weight of the rules, above 0 and below 1; at 1 no gradient would reach the network.

    Returns:
        The policy, without `features`: algorithms that read full distributions cannot be used.

    Raises:
        InputError: `share` is out of range, or the policy lacks a decoder or features.

    Source:
        unpublished: `rljax.ops.unpublished.mixture.neural_symbolic_mixture`. Our addition: rules may abstain.
    """
    if not 0 < share < 1:
        raise InputError(f"the share of the rules is {share}; it must be between 0 and 1.")
    return with_mixture(policy, rules, lambda params: (params, share))


def with_mixture(policy: Policy, rules: Rules, split: SplitParams) -> Policy:
    """Mix a policy with rules; `split` gets the network's parameters and the rules' weight from the parameters of the mixture.

    Raises:
        InputError: the policy lacks a decoder or features.
    """
    if policy.decoder is None or policy.features is None:
        raise InputError("a mixture with rules needs a policy with `decoder` and `features`; pass a policy that has both.")
    return policy._replace(
        score=_mixed_score(policy, rules, split),
        decoder=_mixed_decoder(policy.decoder, rules, split),
        features=None,
        supervised_score=policy.score,
    )


def _mixed_score(policy: Policy, rules: Rules, split: SplitParams) -> Callable[[Params, Packed, float], Scores]:
    features = required(policy.features, "policy.features")

    def score(params: Params, packed: Packed, temperature: float) -> Scores:
        network, share = split(params)
        hidden, head, copy, cap = features(network, packed)
        weight = cast_parameter(head if copy is None else Copied(head, copy), hidden.dtype)
        logits = soft_cap(jnp.einsum("RKD,VD->RKV", hidden, weight, preferred_element_type=sum_dtype(hidden)), cap)
        tokens, positions, segments = (jnp.asarray(part) for part in (packed.tokens, packed.positions, packed.segments))
        memory = compute_memories(rules, tokens, positions == 0, segments > 0)
        logp = jax.nn.log_softmax(
            mixed_logits(rules, logits, take_before_scored(memory, packed), share) / temperature, axis=-1
        )
        return scores_of_distributions(logp, packed)

    return score


def _mixed_decoder(decoder: Decoder, rules: Rules, split: SplitParams) -> Decoder:
    def begin(
        params: Params, tokens: Int[Array, "B L"], attention: Bool[Array, "B L"], budget: int
    ) -> tuple[Float[Array, "B V"], MixedState]:
        network, share = split(params)
        logits, state = decoder.begin(network, tokens, attention, budget)
        memory = compute_memories(rules, tokens, jnp.zeros_like(attention), attention)[:, -1]
        return mixed_logits(rules, logits, memory, share), MixedState(state, memory)

    def advance(params: Params, token: Int[Array, "B"], state: MixedState) -> tuple[Float[Array, "B V"], MixedState]:
        network, share = split(params)
        logits, after = decoder.advance(network, token, state.network)
        memory = rules.read(state.rules, token)
        return mixed_logits(rules, logits, memory, share), MixedState(after, memory)

    def insert(state: MixedState, fresh: MixedState, source: Int[Array, "B"]) -> MixedState:
        network = decoder.insert(state.network, fresh.network, source)
        return MixedState(network, insert_rows(state.rules, fresh.rules, source))

    def grow(state: MixedState, more: int) -> MixedState:
        return state._replace(network=required(decoder.grow, "decoder.grow")(state.network, more))

    def partition(path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
        if path == ("rules",):
            return spec_of(("rows", "features"))
        return required(decoder.partition, "decoder.partition")(path[1:], shape)

    return Decoder(
        begin,
        advance,
        insert,
        decoder.weights,
        None if decoder.grow is None else grow,
        partition=None if decoder.partition is None else partition,
    )
