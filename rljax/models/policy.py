"""The policy as the trainer sees it: a record of functions, so that any model can be trained.

The built-in transformer is one such record (`rljax.models.transformer_policy`). Your own model needs `init` and `score` for
training on responses from your own engine, and a `decoder` if the built-in engine is to sample from it. `policy_of_logits`
builds `score` from a function that returns logits, and fills in the rest; start there.

Parameters may be any pytree of floating-point arrays, and every function receives that pytree. `score` and the decoder are
called under `jax.jit`, so they compute with `jax.numpy` and branch only on shapes. Build the record once, because new function
objects are compiled again. The trainer traces all functions before it writes a run folder, and refuses those with wrong shapes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.tree_util import KeyPath, keystr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from rljax.errors import InputError
from rljax.models.model_folder import ModelContents
from rljax.models.packed import (
    MASKED_LOGIT,
    Features,
    Packed,
    Scores,
    sampling_mask,
    scored_tokens,
    take_before_scored,
    to_batch,
)

Copies = PyTree[Any]
"""A pytree with the structure of the parameters, with a copy or None in place of each parameter."""


class Copied(NamedTuple):
    """A parameter and its copy, which replace the parameter in the pytree."""

    parameter: Float[Array | np.ndarray, "*S"]
    """The parameter, which receives the gradient."""
    copy: Float[Array, "*S"]
    """The same values in the dtype of the matrix products."""


def with_copies(params: PyTree[Array], copies: Copies | None) -> PyTree:
    """Pair each copy with its parameter.

    Args:
        params: any pytree of arrays.
        copies: a pytree of the same structure, with None for a parameter without a copy; None: no parameter has one.

    Returns:
        The parameters, with a `Copied` in place of each parameter that has a copy.

    Example:
        >>> import jax.numpy as jnp
        >>> found = with_copies({"gate": jnp.ones(2), "norm": jnp.ones(2)}, {"gate": jnp.ones(2, jnp.bfloat16), "norm": None})
        >>> type(found["gate"]).__name__, found["norm"].tolist()
        ('Copied', [1.0, 1.0])
    """
    if copies is None:
        return params
    return jax.tree.map(lambda leaf, copy: leaf if copy is None else Copied(leaf, copy), params, copies)


@jax.custom_jvp
def copy_of(parameter: Float[Array, "*S"], copy: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Return the copy, differentiated as if it were a cast of the parameter.

    Example:
        >>> import jax.numpy as jnp
        >>> slope = jax.grad(lambda parameter: 3 * copy_of(parameter, jnp.bfloat16(2.0)))(jnp.float32(2.0))
        >>> slope.item(), slope.dtype.name
        (3.0, 'float32')
    """
    del parameter
    return copy


@copy_of.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    copy = primals[1]
    return copy, tangents[0].astype(copy.dtype)


def cast_parameter(parameter: Array | np.ndarray | Copied, dtype: Any) -> Array:
    """Return a parameter in this dtype: its copy if it has one, otherwise a cast.

    Raises:
        ValueError: the copy has another dtype.
    """
    if not isinstance(parameter, Copied):
        return jnp.asarray(parameter).astype(dtype)
    if parameter.copy.dtype != dtype:
        raise ValueError(f"the copy of a parameter is {parameter.copy.dtype}, but the product needs {jnp.dtype(dtype)}")
    return copy_of(jnp.asarray(parameter.parameter), parameter.copy)


def without_copy(parameter: Array | np.ndarray | Copied) -> Array | np.ndarray:
    """Return the parameter itself, without its copy."""
    return parameter.parameter if isinstance(parameter, Copied) else parameter


Params = PyTree[Array]
HostParams = PyTree[np.ndarray]
"""Parameters on this host, for saving."""


@runtime_checkable
class Begin(Protocol):
    """Read prompts before the first token is sampled. The tokens of a prompt are at the right end of its row."""

    def __call__(
        self, params: Params, tokens: Int[Array, "B L"], attention: Bool[Array, "B L"], budget: int
    ) -> tuple[Float[Array, "B V"], PyTree]:
        """Read prompts of different lengths.

        Args:
            params: parameters of the policy.
            tokens: token ids, meaningless where `attention` is False.
            attention: mask of the slots that contain a token, which are the last slots of each row; at least one per row.
            budget: maximum number of tokens that will be sampled; `advance` is called fewer times than that. For a decoder that
                can `grow`: number of tokens that the state needs room for at first, which may be 0.

        Returns:
            Logits of the first token, before any temperature, and a state: any pytree of arrays whose shapes stay the same, such as
            a cache with room for `budget` more tokens.
        """
        ...


@runtime_checkable
class Advance(Protocol):
    """Read the sampled token of each row."""

    def __call__(self, params: Params, token: Int[Array, "B"], state: PyTree) -> tuple[Float[Array, "B V"], PyTree]:
        """Read one token of each row. Rows that have ended are still read, but their logits are ignored.

        Returns:
            Logits of the next token, before any temperature, and the new state, with the shapes and dtypes of the old state.
        """
        ...


@runtime_checkable
class Insert(Protocol):
    """Put newly read prompts into idle rows, or move the last rows of a decode into a smaller decode."""

    def __call__(self, state: PyTree, fresh: PyTree, source: Int[Array, "B"]) -> PyTree:
        """Replace some rows of a decode.

        Args:
            state: state of B rows; all zeros before the first prompts are put into it.
            fresh: state of any number of rows, with the same prompt length and budget. Its prompts were just read, or it is in
                the middle of a decode. If the decoder can `grow`, `fresh` may have room for fewer tokens.
            source: for each row of `state`, the row of `fresh` that replaces it, or a negative number to keep it. A row of
                `fresh` may be used several times.

        Returns:
            The new state of B rows, with the shapes and dtypes of the old state.
        """
        ...


@runtime_checkable
class Grow(Protocol):
    """Make room for more tokens in the middle of a decode."""

    def __call__(self, state: PyTree, more: int) -> PyTree:
        """Enlarge a state.

        Args:
            state: state with room for n tokens after the prompts; no slot has been written twice.
            more: number of additional tokens, at least 1.

        Returns:
            The state with room for n + `more` tokens, with the shapes that `begin` returns for that budget.
        """
        ...


@runtime_checkable
class Extend(Protocol):
    """Read several more tokens in each row: the first or the next turn of a dialogue."""

    def __call__(
        self, params: Params, tokens: Int[Array, "B T"], first: Int[Array, "B"], count: Int[Array, "B"], state: PyTree
    ) -> tuple[Float[Array, "B V"], PyTree]:
        """Read new tokens after the earlier tokens that each row keeps.

        Args:
            params: parameters of the policy.
            tokens: token ids, starting at the left end of each row; meaningless from index `count`.
            first: number of earlier tokens that the row keeps, 0 for a new row; the row forgets all other earlier tokens.
            count: number of new tokens in each row, at least 1.
            state: state of B rows. Tokens for which the state has no room may be ignored, because they are never needed.

        Returns:
            Logits of the next token of each row, before any temperature, and the new state, with the shapes and dtypes of the old
            state.
        """
        ...


def insert_rows(state: PyTree, fresh: PyTree, source: Int[Array, "B"]) -> PyTree:
    """Replace rows of a state in which the first axis of every array is the row: the `Insert` of most decoders.

    Example:
        >>> insert_rows(jnp.array([[1], [2], [3]]), jnp.array([[7], [8]]), jnp.array([1, -1, 1])).tolist()
        [[8], [2], [8]]
    """

    def replace(old: Array, new: Array) -> Array:
        is_new = (source >= 0).reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(is_new, new[jnp.maximum(source, 0)], old)

    return jax.tree.map(replace, state, fresh)


def unchanged(params: Params) -> Params:
    """Return the parameters: the `Decoder.weights` of most decoders."""
    return params


class TurnDecoder(NamedTuple):
    """Functions that decode dialogues: each row also reads tokens that were not sampled, and has its own length.

    The first axis of every array in their state is the row.
    """

    empty: Callable[[int, int], PyTree]
    """(rows, slots) -> an empty state with room for that many tokens per row."""
    extend: Extend
    """(params, tokens [B, T], first [B], count [B], state) -> (logits [B, V], state)."""
    grow: Grow | None = None
    """(state, more) -> state with room for `more` additional tokens per row, with the shapes that `empty` returns; rows of long
    episodes then begin with little room. None: rows have room for the full budget from the start."""
    partition: Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec] | None = None
    """The same as `Decoder.partition`, for this state."""


class PagedDecoder(NamedTuple):
    """Functions for rows whose keys and values are in pages; see `rljax.models.paged_cache`."""

    begin: Begin
    """The same as `Decoder.begin`, but the state can only be inserted into a `PagedState`."""
    advance: Advance
    """The same as `Decoder.advance`."""
    empty: Callable[[int, int, int, int], PyTree]
    """(rows, shared pages, other pages, rows that may share a page) -> a `PagedState` whose pages are all free."""


class Decoder(NamedTuple):
    """Functions with which the built-in engine samples from a model. All of them are traced and must be hashable."""

    begin: Begin
    """(params, prompts [B, L] with their tokens at the right end, attention [B, L], budget) -> (logits [B, V], state)."""
    advance: Advance
    """(params, token [B], state) -> (logits [B, V], state)."""
    insert: Insert = insert_rows
    """(state, fresh state, source [B]) -> state; the default works if the first axis of every array in the state is the row."""
    weights: Callable[[Params], Params] = unchanged
    """params -> the params that the other functions receive, prepared once for all tokens of a call: cast to the compute
    precision, and sharded for reading."""
    grow: Grow | None = None
    """(state, more) -> state with room for `more` additional tokens; the state of a long decode begins with little room. None:
    `begin` makes room for the full budget."""
    turns: TurnDecoder | None = None
    """For episodes of several turns: each turn reads only its new tokens. None: each turn reads its full context again."""
    partition: Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec] | None = None
    """(path of an array of the state, its shape) -> the mesh axes that its axes are sharded over, as in `Policy.partition`, so that
    the first, empty state is sharded like later ones. None: arrays whose first axis is the row are sharded over rows only, and
    others are replicated."""
    paged: PagedDecoder | None = None
    """For the setting `paged_cache`; None: every row always has room for the longest response."""


class ValueFunction(NamedTuple):
    """A critic's model, as a record of functions."""

    size: int
    """N, number of outputs per token."""
    init: Callable[[PRNGKeyArray, Params | None], Params]
    """(key, the policy's parameters or None for a fresh start) -> parameters, with the entry `head` for the last layer."""
    outputs: Callable[[Params, Packed], Float[Array, "B T N"]]
    """(params, packed) -> the outputs before each token, from which a value head computes the value."""
    save: Callable[[HostParams, Path], None]
    """(params on the host, folder) -> a model folder."""
    contents: Callable[[Params], ModelContents] | None = None
    """(params, on devices or host) -> contents of the critic's model folder, which is then written tensor by tensor; None: `save`
    writes the folder."""


class Policy(NamedTuple):
    """A language model that can be trained."""

    vocab_size: int
    """V, number of token ids that the model has logits for; at least as many as the tokenizer has."""
    init: Callable[[PRNGKeyArray], Params]
    """Random key -> initial parameters, a pytree of floating-point arrays; a function that loads a checkpoint ignores the key.
    `init` is also called to find the shapes when a run is resumed or reopened, so the same key must give the same shapes."""
    score: Callable[[Params, Packed, float], Scores]
    """(params, packed, temperature) -> log-probability and entropy of each token of the batch, `[B, T]`, under
    softmax(logits / temperature); differentiable with respect to the parameters. The decoder must give the same distributions."""
    partition: Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec]
    """(path of a parameter, its shape) -> a PartitionSpec: the mesh axes ("data", "fsdp", "tensor") that its axes are sharded over.
    The path contains the names in the pytree, e.g. ("layers", "0", "kernel"). The optimizer's moments are sharded like their
    parameter."""
    save: Callable[[HostParams, Path], None]
    """(params on the host, a folder that does not exist yet) -> None; makes the folder and writes the files that the model
    can be loaded from. `rljax.export` calls it; checkpoints do not need it."""
    decoder: Decoder | None = None
    """For the built-in engine; None if responses come from your own engine."""
    value_function: Callable[[int, bool], ValueFunction] | None = None
    """(N, whether the critic reads log-probabilities) -> a critic of the policy's shape; None: algorithms with a critic
    cannot be used."""
    contents: Callable[[Params], ModelContents] | None = None
    """(params, on devices or host) -> config.json and the tensors of a Hugging Face folder. `rljax.export` then writes them one
    by one, together with the tokenizer, so that the full model is never in a host's memory; None: `rljax.export` calls `save`."""
    shapes: Callable[[], PyTree[jax.ShapeDtypeStruct]] | None = None
    """Shapes and dtypes of the parameters, without initializing or reading them; None: they are computed from `init`."""
    features: Callable[[Params, Packed], Features] | None = None
    """(params, packed) -> hidden states `[R, K, D]` and a matrix `[V, D]`, whose products are the logits of the scored tokens;
    differentiable with respect to the parameters. None: algorithms that read full distributions (gkd, otb) cannot be used."""
    copies: Callable[[Params], Copies | None] | None = None
    """params -> copies of the parameters in the dtype of the matrix products, made once for all micro-batches of an update: a
    pytree with None for each parameter without a copy, or None if there are no copies. `score` and `features` then
    receive a `rljax.models.policy.Copied` in place of each parameter with a copy, and read it with `cast_parameter`. None: they
    always receive the plain parameters."""
    quantized: Callable[..., Params] | None = None
    """(random key, kind="int8" or "nf4") -> the parameters of `init`, quantized one after the other for use under an adapter;
    see `rljax.models.quantization`. None: this policy cannot be quantized."""
    supervised_score: Callable[[Params, Packed, float], Scores] | None = None
    """`score` for the warm start and the auxiliary loss, if these train other parameters than RL does, such as only the network of
    a mixture with rules. None: `score`."""


def check_policy(policy: Policy) -> None:
    """Reject a policy whose fields do not have the right types.

    Raises:
        InputError: a field has the wrong type; the message names it.
    """
    size = policy.vocab_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"policy.vocab_size: a positive integer is needed; got {size!r:.80}.")
    if not isinstance(policy.decoder, Decoder | None):
        raise InputError(f"policy.decoder: an rljax.Decoder or None is needed; got {policy.decoder!r:.80}.")
    functions = policy._asdict()
    del functions["vocab_size"], functions["decoder"]
    for name, function in functions.items():
        is_optional = name in Policy._field_defaults
        if not callable(function) and not (is_optional and function is None):
            raise InputError(
                f"policy.{name}: a function{' or None' if is_optional else ''} is needed; got {function!r:.80}."
            )


def path_names(path: KeyPath) -> tuple[str, ...]:
    """Return the names along the path of a leaf.

    Example:
        >>> [path_names(path) for path, _ in jax.tree_util.tree_leaves_with_path({"a": [1, 2]})]
        [('a', '0'), ('a', '1')]
    """
    return tuple(keystr((key,), simple=True) for key in path)


def on_every_device(path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
    """Replicate every parameter on every device: a `Policy.partition` for small models.

    Example:
        >>> tuple(on_every_device(("embedding",), (11, 16)))
        (None, None)
    """
    del path
    return PartitionSpec(*[None] * len(shape))


def refuse_to_save(params: HostParams, folder: Path) -> None:
    """Refuse to write a model: a `Policy.save` for models without a file format.

    Raises:
        InputError: always.
    """
    del params
    raise InputError(f"policy.save: this policy cannot write a model folder, so {str(folder)!r} was not written.")


def scores_of_logits(logits: Float[Array, "R S V"], packed: Packed, temperature: float) -> Scores:
    """Compute the log-probability and entropy of a batch's tokens from the logits of every slot.

    ::

        log π(a_t) = log softmax(z_{t-1} / τ)[a_t]        H_t = -Σ_v π_v log π_v

    Args:
        logits: next-token logits at every slot of the rows, `[R, S, V]`.
        packed: the packed rows.
        temperature: τ, positive; the sampling temperature.

    Returns:
        `Scores` over `[B, T]`, float32.
    """
    scaled = take_before_scored(logits, packed).astype(jnp.float32) / temperature
    return scores_of_distributions(jax.nn.log_softmax(scaled, axis=-1), packed)


def scores_of_distributions(logp: Float[Array, "R K V"], packed: Packed) -> Scores:
    """Compute the same as `scores_of_logits`, but from log-probabilities of the full vocabulary at each scored token.

    A token of probability 0 adds nothing to the entropy, nor to its gradient.
    """
    if packed.kept is not None:
        mask = sampling_mask(jnp.asarray(packed.kept), scored_tokens(packed), logp.shape[-1])
        logp = jax.nn.log_softmax(jnp.where(mask, logp, MASKED_LOGIT), axis=-1)
    chosen = jnp.take_along_axis(logp, scored_tokens(packed)[..., None], axis=-1)[..., 0]
    entropy = -(jnp.exp(logp) * jnp.where(jnp.isneginf(logp), 0.0, logp)).sum(-1)
    return Scores(to_batch(chosen, packed), to_batch(entropy, packed))


def policy_of_logits(
    vocab_size: int,
    init: Callable[[PRNGKeyArray], Params],
    logits: Callable[[Params, Packed], Float[Array, "R S V"]],
    *,
    decoder: Decoder | None = None,
    partition: Callable[[tuple[str, ...], tuple[int, ...]], PartitionSpec] = on_every_device,
    save: Callable[[HostParams, Path], None] = refuse_to_save,
) -> Policy:
    """Make a policy from a model that returns the logits of every slot.

    A row of `packed` contains one or several sequences, prompt and response together, and padding at either end. Slot s belongs to
    sequence `packed.segments[r, s]` of its row, counted from 1 (0 is padding), at position `packed.positions[r, s]`, counted
    from 0. The logits at a slot predict the token after it, and may depend on the slot's sequence up to and including the slot.

    Args:
        vocab_size: V, number of token ids.
        init: random key -> parameters.
        logits: (params, packed) -> next-token logits at every slot, `[R, S, V]`, before any temperature. It must keep the
            sequences of a row apart and ignore padding; `rljax.models.packed.visible_slots` is the attention mask for that, and
            a recurrent model resets its state at position 0.
        decoder: for the built-in engine; None if responses come from your own engine.
        partition: how parameters are sharded over a mesh; by default they are replicated on every device.
        save: writes a model folder; the default raises an error.

    Returns:
        The policy. It has no critic.

    Example:
        A bigram model: a token's logits are a row of a table, and the decoder needs no state.

        >>> def init(key):
        ...     return {"table": jax.random.normal(key, (5, 5))}
        >>> def begin(params, tokens, attention, budget):
        ...     return params["table"][tokens[:, -1]], ()
        >>> def advance(params, token, state):
        ...     return params["table"][token], state
        >>> bigram = policy_of_logits(
        ...     5, init, lambda params, packed: params["table"][packed.tokens], decoder=Decoder(begin, advance)
        ... )
        >>> ones, place = jnp.ones((1, 3), int), jnp.arange(2)[None]
        >>> tokens, positions = jnp.array([[4, 2, 3]]), jnp.arange(3)[None]
        >>> packed = Packed(tokens=tokens, positions=positions, segments=ones, scored=place + 1, place=place)
        >>> scores = bigram.score({"table": jnp.zeros((5, 5))}, packed, 1.0)
        >>> scores.logp.shape, bool(jnp.allclose(scores.logp, -jnp.log(5)))
        ((1, 2), True)
    """

    def score(params: Params, packed: Packed, temperature: float) -> Scores:
        return scores_of_logits(logits(params, packed), packed, temperature)

    return Policy(vocab_size, init, score, partition, save, decoder)
