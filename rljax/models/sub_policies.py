"""Two sub-policies that share one model: one adapter writes a response's plan, and another writes the answer after the plan.

The plan ends with a marker token. The sub-policy of the answer also reads the plan, so ::

    π(plan, answer | x) = π_plan(plan | x) π_answer(answer | x, plan)

Each sub-policy runs the full model with its own low-rank adapter, keys and values, so sampling and scoring cost twice as much as
with one policy. A single pass that switches adapters at the marker would cost half as much, but its answers would read keys and
values computed with the plan's adapter, and each layer would have to choose an adapter per token, which our layers cannot.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models.adapters import Adapter, attach_factors, init_adapter, merge
from rljax.models.axes import spec_of
from rljax.models.packed import Packed, Scores, scored_tokens
from rljax.models.policy import Decoder, Params, Policy, insert_rows, refuse_to_save
from rljax.records import required

TARGETS = ("attention", "feed_forward")
"""The adapted matrices: every matrix in every layer."""


class SubPolicies(NamedTuple):
    """Parameters of two sub-policies. In the decoder, each adapter is merged into its own model, and `shared` is empty."""

    shared: Params
    """The model under both adapters, trained only on demonstrations."""
    plan: Adapter
    """The adapter that writes plans."""
    answer: Adapter
    """The adapter that writes answers."""


class SubPolicyState(NamedTuple):
    """The decode state of two sub-policies."""

    plan: PyTree
    """State of the plan's decoder."""
    answer: PyTree
    """State of the answer's decoder."""
    ended: Bool[Array, "B"]
    """Whether the plan has ended."""


def marker_token(encode: Callable[[str], Sequence[int]], text: str) -> int:
    """Return the token id of the text that ends a plan.

    Raises:
        InputError: the text is not exactly one token.
    """
    tokens = list(encode(text))
    if len(tokens) != 1:
        raise InputError(f"plan_end is {text!r}, which is {len(tokens)} tokens; choose a text that is one token.")
    return int(tokens[0])


def is_after_marker(tokens: Int[Array, "B T"], marker: int) -> Bool[Array, "B T"]:
    """Return, for each token of a response, whether the marker occurs before it.

    Example:
        >>> is_after_marker(jnp.array([[5, 9, 6, 9], [5, 6, 7, 8]]), 9).tolist()
        [[False, False, True, True], [False, False, False, False]]
    """
    hits = (tokens == marker).astype(jnp.int32)
    return jnp.cumsum(hits, axis=-1) - hits > 0


@cache_results
def sub_policies(policy: Policy, *, marker: int, rank: int) -> Policy:
    """Make two sub-policies from a transformer.

    RL trains the two adapters, and the warm start and the auxiliary loss train the shared model.

    Args:
        policy: the transformer; it needs `decoder` and `shapes`.
        marker: the token that ends a plan; no prompt may contain it.
        rank: r, the rank of both adapters; the product of their factors is added to the matrices unscaled.

    Returns:
        The policy, whose parameters are `SubPolicies`. It has no critic, and cannot be saved as a model folder.

    Raises:
        InputError: the rank is too large, or the policy lacks a decoder or shapes.

    Source:
        Ours; a design document requires hierarchical policies, but has no equation. Adapters: LoRA, arXiv:2106.09685, Eq. 3.
    """
    if policy.decoder is None or policy.shapes is None:
        raise InputError("sub-policies need a policy with `decoder` and `shapes`; pass a policy that has both.")
    shared_shapes, new_adapter = policy.shapes, partial(init_adapter, rank=rank, targets=TARGETS)

    def init(key: PRNGKeyArray) -> SubPolicies:
        shared = policy.init(key)
        adapters = (new_adapter(jax.random.fold_in(key, number), shared_shapes()) for number in (1, 2))
        return SubPolicies(shared, *adapters)

    def shapes() -> PyTree[jax.ShapeDtypeStruct]:
        adapter = jax.eval_shape(lambda key: new_adapter(key, shared_shapes()), jax.random.key(0))
        return SubPolicies(shared_shapes(), adapter, adapter)

    def score(params: SubPolicies, packed: Packed, temperature: float) -> Scores:
        shared, scale = jax.lax.stop_gradient(params.shared), jnp.float32(1)
        plan, answer = (
            policy.score(attach_factors(shared, adapter, scale), packed, temperature)
            for adapter in (params.plan, params.answer)
        )
        ended = is_after_marker(scored_tokens(packed).reshape(-1)[jnp.asarray(packed.place)], marker)
        return Scores(*(jnp.where(ended, late, early) for early, late in zip(plan, answer, strict=True)))

    return policy._replace(
        init=init,
        score=score,
        partition=lambda path, shape: policy.partition(path[1:], shape),
        save=refuse_to_save,
        decoder=_decoder(policy.decoder, marker),
        value_function=None,
        contents=None,
        shapes=shapes,
        features=None,
        copies=None,
        quantized=None,
        supervised_score=lambda params, packed, temperature: policy.score(params.shared, packed, temperature),
    )


def _decoder(decoder: Decoder, marker: int) -> Decoder:
    """Make a decoder that runs both sub-policies, and returns the plan's logits until the marker, then the answer's."""

    def weights(params: SubPolicies) -> SubPolicies:
        merged = (merge(params.shared, adapter, jnp.float32(1)) for adapter in (params.plan, params.answer))
        return SubPolicies((), *(decoder.weights(each) for each in merged))

    def begin(
        params: SubPolicies, tokens: Int[Array, "B L"], attention: Bool[Array, "B L"], budget: int
    ) -> tuple[Float[Array, "B V"], SubPolicyState]:
        plan_logits, plan = decoder.begin(params.plan, tokens, attention, budget)
        answer_logits, answer = decoder.begin(params.answer, tokens, attention, budget)
        ended = ((tokens == marker) & attention).any(-1)
        return jnp.where(ended[:, None], answer_logits, plan_logits), SubPolicyState(plan, answer, ended)

    def advance(
        params: SubPolicies, token: Int[Array, "B"], state: SubPolicyState
    ) -> tuple[Float[Array, "B V"], SubPolicyState]:
        plan_logits, plan = decoder.advance(params.plan, token, state.plan)
        answer_logits, answer = decoder.advance(params.answer, token, state.answer)
        ended = state.ended | (token == marker)
        return jnp.where(ended[:, None], answer_logits, plan_logits), SubPolicyState(plan, answer, ended)

    def insert(state: SubPolicyState, fresh: SubPolicyState, source: Int[Array, "B"]) -> SubPolicyState:
        plan, answer = (decoder.insert(old, new, source) for old, new in zip(state[:2], fresh[:2], strict=True))
        return SubPolicyState(plan, answer, insert_rows(state.ended, fresh.ended, source))

    def grow(state: SubPolicyState, more: int) -> SubPolicyState:
        enlarge = required(decoder.grow, "decoder.grow")
        return state._replace(plan=enlarge(state.plan, more), answer=enlarge(state.answer, more))

    def partition(path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
        if path == ("ended",):
            return spec_of(("rows",))
        return required(decoder.partition, "decoder.partition")(path[1:], shape)

    return Decoder(
        begin,
        advance,
        insert,
        weights,
        None if decoder.grow is None else grow,
        partition=None if decoder.partition is None else partition,
    )
