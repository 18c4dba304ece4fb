"""The value model: a linear head on the decoder's hidden states with a few outputs per token.

On disk it is a Hugging Face model "for sequence classification": the trunk, and the head as `score.weight`. Reward models from
other libraries can therefore be read unchanged, and a critic trained here can initialize any later run. A critic that reads
log-probabilities also has a tensor `surprisal.weight`, which other libraries do not read.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from rljax.errors import InputError
from rljax.models.attention import facts_of
from rljax.models.config_json import CAUSAL, CLASSIFIERS
from rljax.models.dtypes import check_dtype
from rljax.models.families import FAMILIES
from rljax.models.huggingface import load_params, load_tensor, model_contents, read_config
from rljax.models.language_model import Model, hidden_states, init_params
from rljax.models.model_folder import ModelContents
from rljax.models.packed import Packed, take_before_scored, to_batch
from rljax.models.policy import HostParams, Params
from rljax.ops.arrays import sum_dtype

HEAD = "score.weight"
SURPRISAL = "surprisal.weight"


class ValueModel(NamedTuple):
    """A decoder with a value head, without its parameters.

    Its parameters are `{"trunk": ..., "head": [N, D]}`, and `"surprisal": [D]` if it reads log-probabilities.
    """

    trunk: Model
    """The decoder."""
    size: int
    """Number of outputs of the head per token."""
    surprisal: bool = False
    """Whether the model also reads the policy's log-probability of each response token."""


def value_model(policy: Model, size: int, *, surprisal: bool = False) -> ValueModel:
    """Describe a critic with the shape of the policy, but without the policy's output head."""
    return ValueModel(policy._replace(config=replace(policy.config, tied_head=True)), size, surprisal)


def init_value_params(model: ValueModel, key: PRNGKeyArray, policy: Params | None = None) -> Params:
    """Initialize a random head, and a trunk that is a copy of the policy's or, without a policy, random.

    The head is initialized with standard deviation 1/(D + 1), so that initial values are small compared with a reward of 1.
    The vector that multiplies log-probabilities is initialized like an embedding, with standard deviation 0.02.
    """
    config = model.trunk.config
    for_trunk, for_head = jax.random.split(key)
    if policy is None:
        trunk = init_params(config, for_trunk)
    else:
        trunk = jax.tree.map(jnp.copy, {name: part for name, part in policy.items() if name != "head"})
    params = {"trunk": trunk, "head": jax.random.normal(for_head, (model.size, config.width)) / (config.width + 1)}
    if model.surprisal:
        params["surprisal"] = 0.02 * jax.random.normal(jax.random.fold_in(key, 2), (config.width,))
    return params


def value_outputs(model: ValueModel, params: Params, packed: Packed) -> Float[Array, "B T N"]:
    """Compute the outputs of the value head at the slot before each token of a batch.

    If the model reads log-probabilities, its input for response token a_t is ::

        E[a_t] + w log π(a_t | s_t)

    with the embedding E and the learned direction w. The value before a token depends only on earlier tokens and their
    log-probabilities, so it remains a baseline that does not bias the policy gradient.

    Args:
        model: the decoder with a value head.
        params: its parameters.
        packed: the packed rows, with `policy_logp` for models that read it.

    Returns:
        `[B, T, N]`, float32 at least; entries without a token in the batch are meaningless and must be masked.

    Raises:
        ValueError: the model reads log-probabilities and `packed` has none.
    """
    offset = None
    if model.surprisal:
        if packed.policy_logp is None:
            raise ValueError("policy_logp is missing: this critic reads the log-probability of each response token")
        offset = jnp.einsum("RS,D->RSD", packed.policy_logp, params["surprisal"])
    rows = packed.tokens, packed.positions, packed.segments
    hidden = take_before_scored(hidden_states(model.trunk, params["trunk"], *rows, offset=offset), packed)
    weight = params["head"].astype(hidden.dtype)
    return to_batch(jnp.einsum("RKD,ND->RKN", hidden, weight, preferred_element_type=sum_dtype(hidden)), packed)


def value_contents(
    model: ValueModel, params: Params | HostParams, *, bos: int | None, eos: int, source: Path | None = None
) -> ModelContents:
    """Build config.json and weights of a critic or reward model; `score.weight` is the head `[N, D]`. See `model_contents`."""
    names = {HEAD: "head"} | ({SURPRISAL: "surprisal"} if model.surprisal else {})
    extra = {tensor: params[name] for tensor, name in names.items()}
    contents = model_contents(model.trunk.config, params["trunk"], bos=bos, eos=eos, source=source, extra=extra)
    changes = {
        "architectures": [f"{FAMILIES[contents.config['model_type']].class_prefix}ForSequenceClassification"],
        "num_labels": model.size,
    }
    return contents._replace(config=dict(contents.config) | changes)


def load_value_model(
    folder: Path,
    *,
    vocab_size: int | None = None,
    size: int | None = None,
    surprisal: bool | None = None,
    compute_dtype: str = "float32",
    remat: str = "none",
) -> tuple[ValueModel, Params]:
    """Read a critic or a reward model.

    Args:
        folder: folder with config.json and weights, which include `score.weight`.
        vocab_size: the policy's vocabulary size, which the model must share; None: any size.
        size: number of outputs per token that the algorithm needs; None: any.
        surprisal: whether the model must read log-probabilities; None: either.
        compute_dtype: precision of matrix products.
        remat: what layers recompute in the backward pass, one of `rljax.models.config.REMATS`.

    Returns:
        The model and its parameters.

    Raises:
        InputError: the folder contains no critic or reward model; a tensor's shape differs from config.json; the model's
            vocabulary, head or input differs from the required one; or the devices do not support the dtype of the products.
    """
    shape = read_config(folder, compute_dtype=compute_dtype, remat=remat, classes=(*CAUSAL, *CLASSIFIERS))
    config = replace(shape, tied_head=True)
    check_dtype(facts_of(config, None))
    head = load_tensor(folder, HEAD)
    if head is None:
        raise InputError(
            f"The model in {str(folder)!r} has no {HEAD!r}, so it is neither a critic nor a reward model; give the folder of a "
            "critic that a run saved, or a sequence-classification model."
        )
    direction = load_tensor(folder, SURPRISAL)
    _check_shapes(folder, config.width, head, direction)
    model = ValueModel(Model(config), head.shape[0], direction is not None)
    _check_fits(folder, model, vocab_size=vocab_size, size=size, surprisal=surprisal)
    params = {"trunk": load_params(folder, config, also_read=(HEAD, SURPRISAL)), "head": head}
    return model, params if direction is None else params | {"surprisal": direction}


def _check_shapes(folder: Path, width: int, head: Array, direction: Array | None) -> None:
    """Refuse a head, or a vector that multiplies log-probabilities, whose width differs from the trunk's."""
    if head.ndim != 2 or head.shape[1] != width:
        raise InputError(
            f"{HEAD!r} in {str(folder)!r} has shape {head.shape}, but config.json implies (N, {width}) for N outputs per token."
        )
    if direction is not None and direction.shape != (width,):
        raise InputError(
            f"{SURPRISAL!r} in {str(folder)!r} has shape {direction.shape}, but config.json implies ({width},)."
        )


def _check_fits(
    folder: Path, model: ValueModel, *, vocab_size: int | None, size: int | None, surprisal: bool | None
) -> None:
    """Refuse a model that does not fit the required critic."""
    found = model.trunk.config.vocab_size
    if vocab_size not in (None, found):
        raise InputError(
            f"The critic in {str(folder)!r} has a vocabulary of {found} tokens, but the policy's has {vocab_size}; both must read "
            "the same tokens. Give a critic or reward model made for the policy's tokenizer."
        )
    if size not in (None, model.size):
        raise InputError(
            f"The critic in {str(folder)!r} gives {model.size} outputs per token, but the algorithm's value head expects {size}; "
            "choose the head that it was trained with, or another critic."
        )
    if surprisal not in (None, model.surprisal):
        needed, found = ("does", "does not read") if surprisal else ("does not", "reads")
        raise InputError(
            f"The critic in {str(folder)!r} {found} log-probabilities, but the configured critic {needed}; set "
            "--critic-surprisal as it was when that critic was trained, or choose another critic."
        )
