"""The policy as the trainer sees it: a record of functions, so that any model can be trained.

The built-in transformer is one value of this record (`rljax.models.transformer_policy`). A model of your own needs `init` and
`score` to be trained on responses of an engine of your own, and a `decoder` for the built-in engine to sample from it.
`policy_of_logits` makes all of them from a function that gives logits.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from rljax.errors import InputError
from rljax.models.packed import Packed, Scores, batched, before_scored, scored_tokens
from rljax.records import documented

Params = PyTree[Array]
HostParams = PyTree[np.ndarray]
"""Parameters that were fetched to this host, to be written."""


@documented
class Bound(NamedTuple):
    """A function with its first argument. Equal ones are equal keys of a compilation cache, which `functools.partial` is not."""

    function: Callable[..., Any]
    argument: Any
    """Hashable."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self.function(self.argument, *arguments, **keywords)


@runtime_checkable
class Begin(Protocol):
    """Read prompts before the first token is drawn."""

    def __call__(
        self, params: Params, tokens: Int[Array, "B L"], attention: Bool[Array, "B L"], budget: int
    ) -> tuple[Float[Array, "B V"], PyTree]:
        """Return the logits of the first token, and a state with room for `budget` more tokens."""
        ...


@runtime_checkable
class Advance(Protocol):
    """Read the token that was drawn."""

    def __call__(self, params: Params, token: Int[Array, "B"], state: PyTree) -> tuple[Float[Array, "B V"], PyTree]:
        """Return the logits of the next token, and the new state, of the same shapes."""
        ...


@documented
class Decoder(NamedTuple):
    """What the built-in engine needs to sample from a model. Both functions are traced, and have to be hashable."""

    begin: Begin
    """(params, prompts [B, L] with their tokens at the right end, attention [B, L], budget) -> (logits [B, V], state)."""
    advance: Advance
    """(params, token [B], state) -> (logits [B, V], state)."""


@documented
class ValueFunction(NamedTuple):
    """A critic's model, as a record of functions."""

    size: int
    """Numbers that it gives for each token: N."""
    init: Callable[[PRNGKeyArray, Params | None], Params]
    """(key, the policy's parameters or None for a fresh start) -> parameters, with the entry `head` for the last layer."""
    outputs: Callable[[Params, Packed], Float[Array, "B T N"]]
    """(params, packed) -> numbers before each token, from which a value head reads the value."""
    save: Callable[[HostParams, Path], None]
    """(params on the host, folder) -> a model folder."""


@documented
class Policy(NamedTuple):
    """A language model that can be trained."""

    vocab_size: int
    """Number of token ids that it knows."""
    init: Callable[[PRNGKeyArray], Params]
    """Random key -> first parameters, a pytree of arrays; a checkpoint's loader takes no notice of the key."""
    score: Callable[[Params, Packed, float], Scores]
    """(params, packed, temperature) -> log-probability and entropy of each token of the batch, `[B, T]`, under
    softmax(logits / temperature); differentiable in the parameters."""
    partition: Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec]
    """(path of a parameter, its shape) -> the mesh axes ("data", "fsdp") that its axes are spread over."""
    save: Callable[[HostParams, Path], None]
    """(params on the host, folder) -> a folder that the model can be loaded from."""
    decoder: Decoder | None = None
    """For the built-in engine; None: responses come from an engine of your own."""
    value_function: Callable[[int, bool], ValueFunction] | None = None
    """(N, whether it reads log-probabilities) -> a critic of the policy's shape; None: no algorithm with a critic."""


def on_every_device(path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
    """Copy every parameter to every device: a `Policy.partition` for small models.

    Example:
        >>> tuple(on_every_device(("embedding",), (11, 16)))
        (None, None)
    """
    del path
    return PartitionSpec(*[None] * len(shape))


def not_saved(params: HostParams, folder: Path) -> None:
    """Refuse to write a model: a `Policy.save` for models that have no format of their own.

    Raises:
        InputError: always.
    """
    del params
    raise InputError(f"policy.save: this policy has no way to write a model folder, so {str(folder)!r} was not written.")


def scores_of_logits(logits: Float[Array, "R S V"], packed: Packed, temperature: float) -> Scores:
    """Log-probability and entropy of a batch's tokens from the logits of every slot.

    ::

        log π(a_t) = log softmax(z_{t-1} / τ)[a_t]        H_t = -Σ_v π_v log π_v

    Args:
        logits: of the next token, at every slot of the rows, `[R, S, V]`.
        packed: the rows.
        temperature: τ, positive; the one that was sampled with.

    Returns:
        `Scores` over `[B, T]`, float32.
    """
    scaled = before_scored(logits, packed).astype(jnp.float32) / temperature
    logp = jax.nn.log_softmax(scaled, axis=-1)
    chosen = jnp.take_along_axis(logp, scored_tokens(packed)[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(logp) * logp).sum(-1)
    return Scores(batched(chosen, packed), batched(entropy, packed))


def policy_of_logits(
    vocab_size: int,
    init: Callable[[PRNGKeyArray], Params],
    logits: Callable[[Params, Packed], Float[Array, "R S V"]],
    *,
    decoder: Decoder | None = None,
    partition: Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec] = on_every_device,
    save: Callable[[HostParams, Path], None] = not_saved,
) -> Policy:
    """Make a policy of a model that gives the logits of every slot.

    Args:
        vocab_size: V, number of token ids.
        init: random key -> parameters.
        logits: (params, packed) -> logits of the next token at every slot, `[R, S, V]`. It has to keep the sequences of a row
            apart (`packed.segments`) and to leave padding out (segment 0).
        decoder: for the built-in engine.
        partition: where parameters lie on a mesh; by default a copy on every device.
        save: how a model folder is written; by default not at all.

    Returns:
        The policy, without a critic of its own.
    """

    def score(params: Params, packed: Packed, temperature: float) -> Scores:
        return scores_of_logits(logits(params, packed), packed, temperature)

    return Policy(vocab_size, init, score, partition, save, decoder)
