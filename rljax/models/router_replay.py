"""Rollout routing replay (R3): the learner passes each token through the experts that the sampler used for it.

In a mixture of experts, a rounding error can change which experts a router chooses, and then the learner's log-probability
of a token is far from the sampler's. So the sampler records its choices, and the learner repeats them. Only the choice is
repeated: the weights of the experts come from the learner's own router, which therefore still gets a gradient.

Axes: B rows, S prompt positions, T response positions, R packed rows, D width, Y layers, E experts, and C experts chosen
for each token.

Source: arXiv:2510.11370, Section 4.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Int16

from rljax.caching import cached_partial
from rljax.errors import InputError
from rljax.models.axes import spec_of
from rljax.models.config import Routing
from rljax.models.experts import Experts, route
from rljax.models.language_model import (
    DecodeState,
    Model,
    advance_decode,
    begin_decode,
    grow_decode,
    insert_prompts,
    pad_axis,
    state_spec,
)
from rljax.models.policy import Decoder, Params, insert_rows
from rljax.models.transformer import Transformer
from rljax.ops.arrays import sum_dtype

UNKNOWN = -1
"""Stands in for an expert's index if no choice was recorded; the router then chooses."""


def route_to_recorded(
    scores: Float[Array, "B T E"], recorded: Int[Array, "B T C"], routing: Routing
) -> tuple[Float[Array, "B T C"], Int[Array, "B T C"]]:
    """Weight the recorded experts of each token by the router's own scores.

    ::

        p_e = exp(s_e) / Σ_e' exp(s_e')        w_e = p_e / Σ_{e' recorded} p_e'        (w_e = p_e without normalization)

    Args:
        scores: s, the router's scores.
        recorded: the experts to use; negative for a token whose experts the router chooses.
        routing: sets the number of experts, and whether their weights are normalized.

    Returns:
        The weights, in at least float32, and the indices of the experts.

    Example:
        >>> scores = jnp.log(jnp.array([[[0.125, 0.25, 0.625], [0.125, 0.25, 0.625]]]))
        >>> weights, chosen = route_to_recorded(scores, jnp.array([[[0, 1], [-1, -1]]]), Routing(3, 2, normalized=False))
        >>> chosen.tolist(), weights.round(3).tolist()
        ([[[0, 1], [2, 1]]], [[[0.125, 0.25], [0.625, 0.25]]])

    Source:
        arXiv:2510.11370, Section 4: the replayed gates.
    """
    _, own = route(scores, routing)
    chosen = jnp.where(recorded < 0, own, recorded)
    probability = jax.nn.softmax(scores.astype(sum_dtype(scores)))
    weights = jnp.take_along_axis(probability, chosen, axis=-1)
    return (weights / weights.sum(-1, keepdims=True) if routing.normalized else weights), chosen


class _ReplayingExperts(nnx.Module):
    """A mixture of experts with recorded choices."""

    def __init__(self, experts: Experts, recorded: Int[Array, "B T C"]):
        self.experts, self.recorded = experts, nnx.Variable(recorded)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        scores = self.experts.scores(x)
        return self.experts.mix(x, *route_to_recorded(scores, self.recorded[...].astype(jnp.int32), self.experts.routing))


def replay_experts(module: Transformer, recorded: Int[Array, "R S Y C"]) -> None:
    """Make each layer of a module use the recorded experts, in place.

    Args:
        module: the transformer, merged from its parameters for this call only.
        recorded: the experts of each token; see `rljax.models.Packed.experts`.

    Raises:
        InputError: the model has no experts, or a different number of layers or of experts per token than were recorded.
    """
    routing, layers = module.config.routing, len(module.layers)
    expected = None if routing is None else (layers, routing.chosen)
    if recorded.shape[2:] != expected:
        needed = "but the model has no experts" if expected is None else f"but the model needs {list(expected)}"
        raise InputError(
            f"experts: the sampler recorded [layers, experts per token] = {list(recorded.shape[2:])} for each token, {needed}; let "
            "the same model sample and learn, or leave the records out."
        )
    for index, layer in enumerate(module.layers):
        layer.feed_forward = _ReplayingExperts(layer.feed_forward, recorded[:, :, index])  # pyright: ignore[reportArgumentType]  has experts


class _RecordingExperts:
    """A mixture of experts that also appends its choices to a list."""

    def __init__(self, experts: Experts, choices: list[Int16[Array, "B T C"]]):
        self._experts, self._choices = experts, choices

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        weights, chosen = route(self._experts.scores(x), self._experts.routing)
        self._choices.append(chosen.astype(jnp.int16))
        return self._experts.mix(x, weights, chosen)


class _RecordingModel(Model):
    """A model whose layers append their choices of experts to a list, in the order of the layers."""

    choices: list[Int16[Array, "B T C"]]

    def __new__(cls, model: Model) -> "_RecordingModel":
        recording = super().__new__(cls, *model)
        recording.choices = []
        return recording

    def module(self, params: Params) -> Transformer:
        module = super().module(params)
        for layer in module.layers:
            layer.feed_forward = _RecordingExperts(layer.feed_forward, self.choices)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        return module


class RecordedState(NamedTuple):
    """Decoding state, and the experts of the tokens that the model has read."""

    decode: DecodeState
    """The state without the records."""
    prompt_experts: Int16[Array, "B S Y C"]
    """Experts of the prompt's tokens, which are at the right end; `UNKNOWN` at padding."""
    response_experts: Int16[Array, "B T Y C"]
    """Experts of the sampled tokens, in order; meaningless from index `read_count` on, and after the end of a response."""
    read_count: Int[Array, "B"]
    """Number of sampled tokens that the model has read."""


def begin_recorded(
    model: Model, params: Params, tokens: Int[Array, "B S"], attention: Bool[Array, "B S"], budget: int
) -> tuple[Float[Array, "B V"], RecordedState]:
    """Read prompts as `begin_decode` does, and record the experts of their tokens."""
    recording = _RecordingModel(model)
    logits, state = begin_decode(recording, params, tokens, attention, budget)
    prompt = jnp.where(attention[..., None, None], jnp.stack(recording.choices, axis=2), UNKNOWN)
    rows, _, *layers = prompt.shape
    empty = jnp.full((rows, budget, *layers), UNKNOWN, jnp.int16)
    return logits, RecordedState(state, prompt, empty, jnp.zeros(rows, jnp.int32))


def advance_recorded(
    model: Model, params: Params, token: Int[Array, "B"], state: RecordedState
) -> tuple[Float[Array, "B V"], RecordedState]:
    """Read one more token of each row as `advance_decode` does, and record the token's experts."""
    recording = _RecordingModel(model)
    logits, decode = advance_decode(recording, params, token, state.decode)
    chosen = jnp.stack(recording.choices, axis=2)[:, 0]
    response = state.response_experts.at[jnp.arange(len(token)), state.read_count].set(chosen, mode="drop")
    return logits, RecordedState(decode, state.prompt_experts, response, state.read_count + 1)


def insert_recorded(state: RecordedState, fresh: RecordedState, source: Int[Array, "B"]) -> RecordedState:
    """Put rows of `fresh`, which may have room for fewer tokens, into `state`, as `insert_prompts` does."""
    decode, fresh = (
        insert_prompts(state.decode, fresh.decode, source),
        resize_records(fresh, state.response_experts.shape[1]),
    )
    return insert_rows(state._replace(decode=()), fresh._replace(decode=()), source)._replace(decode=decode)


def grow_recorded(state: RecordedState, more: int) -> RecordedState:
    """Make room for more tokens, as `grow_decode` does."""
    grown = resize_records(state, state.response_experts.shape[1] + more)
    return grown._replace(decode=grow_decode(state.decode, more))


def resize_records(state: RecordedState, length: int) -> RecordedState:
    """Pad the records to a length of this many sampled tokens."""
    return state._replace(
        response_experts=pad_axis(state.response_experts, axis=1, more=length - state.response_experts.shape[1])
    )


def recorded_spec(path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
    """Return the mesh axes of an array of a recorded state."""
    return state_spec(path, shape) if path[0] == "decode" else spec_of(("rows",))


def recording_decoder(decoder: Decoder | None) -> Decoder | None:
    """Return a decoder that records the experts; None if `decoder` is None or not the built-in transformer's.

    The new decoder reads the full context again in each turn of a dialogue, and has no paged cache.
    """
    begin = None if decoder is None else decoder.begin
    if decoder is None or not isinstance(begin, partial) or begin.func is not begin_decode:
        return None
    (model,) = begin.args
    plain = Model(replace(model.config, remat="none", scan_layers=False), model.mesh)
    return decoder._replace(
        begin=cached_partial(begin_recorded, plain),
        advance=cached_partial(advance_recorded, plain),
        insert=insert_recorded,
        grow=grow_recorded,
        turns=None,
        partition=None if decoder.partition is None else recorded_spec,
        paged=None,
    )
