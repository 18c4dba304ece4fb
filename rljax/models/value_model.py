"""A transformer that values: the decoder's hidden states under a linear head of a few numbers a token.

On disk it is a Hugging Face model "for sequence classification": the trunk, and the head as `score.weight`. So reward models
from elsewhere are read as they are, and a critic that was trained here can be taken up by any later run. A critic that reads
log-probabilities has `surprisal.weight` beside, for which other libraries have no place.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from rljax.errors import InputError
from rljax.models.huggingface import load_params, load_tensor, read_config, save_pretrained
from rljax.models.language_model import Model, Params, hidden_states, init_params

HEAD = "score.weight"
SURPRISAL = "surprisal.weight"


class ValueModel(NamedTuple):
    """A decoder with a value head, without its numbers.

    Its parameters are `{"trunk": ..., "head": [N, D]}`, and `"surprisal": [D]` where it reads log-probabilities.
    """

    trunk: Model
    size: int
    """Numbers that the head gives for each token."""
    surprisal: bool = False
    """Whether it reads, beside each response token, how likely the policy found it."""


def value_model(policy: Model, size: int, *, surprisal: bool = False) -> ValueModel:
    """Describe a critic with the policy's shape, less its output head."""
    return ValueModel(Model(replace(policy.config, tied_head=True)), size, surprisal)


def init_value_params(model: ValueModel, key: PRNGKeyArray, policy: Params | None = None) -> Params:
    """Draw a head, and a trunk too if there is no policy to copy it from.

    The head is drawn with standard deviation 1/(D + 1), so that first values are about a tenth of the reward's unit, what
    log-probabilities are multiplied with like an embedding, with 0.02.
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


def value_outputs(
    model: ValueModel,
    params: Params,
    tokens: Int[Array, "B S"],
    valid: Bool[Array, "B S"],
    *,
    start: int,
    logp: Float[Array, "B T"] | None = None,
) -> Float[Array, "B T N"]:
    """What the head says before each token from slot `start` on, that is at the slots `start - 1` to the last but one.

    Where the model reads log-probabilities, response token a_t enters as ::

        E[a_t] + w log π(a_t | s_t)

    with the embedding E and the learnt direction w. The value before a token depends on the tokens before it alone, their
    log-probabilities included, so it stays a baseline that does not bias the policy gradient.

    Args:
        model: the decoder with a value head.
        params: its parameters.
        tokens: prompts and responses, `[B, S]`.
        valid: which slots hold tokens, `[B, S]`.
        start: slot of the first response token, at least 1.
        logp: log-probability of each response token under the policy that sampled it, `[B, S - start]`, nats; for models that
            read it.

    Returns:
        `[B, S - start, N]`, float32; what stands before invalid slots has no meaning and must be masked.

    Raises:
        ValueError: the model reads log-probabilities and there are none.
    """
    beside = None
    if model.surprisal:
        if logp is None:
            raise ValueError("logp is missing: this critic reads the log-probability of each response token")
        told = jnp.pad(jnp.where(valid[:, start:], logp, 0.0), ((0, 0), (start, 0)))
        beside = jnp.einsum("BS,D->BSD", told, params["surprisal"])
    hidden = hidden_states(model.trunk, params["trunk"], tokens, valid, beside=beside)[:, start - 1 : -1]
    weight = params["head"].astype(hidden.dtype)
    return jnp.einsum("BTD,ND->BTN", hidden, weight, preferred_element_type=jnp.float32)


def save_value_model(folder: Path, model: ValueModel, params: Params, *, bos: int | None, eos: int) -> None:
    """Write config.json and model.safetensors, the head as `score.weight` `[N, D]`."""
    names = {HEAD: "head"} | ({SURPRISAL: "surprisal"} if model.surprisal else {})
    extra = {tensor: np.asarray(jax.device_get(params[name])) for tensor, name in names.items()}
    save_pretrained(folder, model.trunk.config, params["trunk"], bos=bos, eos=eos, extra=extra)
    file = folder / "config.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    raw["architectures"] = [name.replace("CausalLM", "SequenceClassification") for name in raw["architectures"]]
    raw["num_labels"] = model.size
    file.write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def load_value_model(folder: Path, *, like: ValueModel | None = None) -> tuple[ValueModel, Params]:
    """Read a critic or a reward model.

    Args:
        folder: with config.json and weights, among them `score.weight`.
        like: what the model must be able to stand in for: its vocabulary, its head's size and whether it reads
            log-probabilities are compared, and the runtime settings (precision, remat) are taken from it.

    Returns:
        The model and its parameters.

    Raises:
        InputError: the folder is not of such a model, or its vocabulary, its head or what it reads differ from what is needed.
    """
    runtime = {} if like is None else {"compute_dtype": like.trunk.config.compute_dtype, "remat": like.trunk.config.remat}
    config = replace(read_config(folder, **runtime), tied_head=True)
    head = load_tensor(folder, HEAD)
    if head is None:
        raise InputError(
            f"The model in {str(folder)!r} has no {HEAD!r}, so it is no critic and no reward model; give a folder that a run "
            "with a critic saved, or a sequence-classification model."
        )
    surprisal = load_tensor(folder, SURPRISAL)
    model = ValueModel(Model(config), head.shape[0], surprisal is not None)
    if like is not None:
        _check_stands_in(folder, model, like)
    params = {"trunk": load_params(folder, config), "head": head}
    return model, params if surprisal is None else params | {"surprisal": surprisal}


def _check_stands_in(folder: Path, model: ValueModel, like: ValueModel) -> None:
    there, here = model.trunk.config.vocab_size, like.trunk.config.vocab_size
    if there != here:
        raise InputError(
            f"The critic in {str(folder)!r} has a vocabulary of {there} tokens and the policy one of {here}; both must read "
            "the same tokens. Give a critic or reward model made for the policy's tokenizer."
        )
    if model.size != like.size:
        raise InputError(
            f"The critic in {str(folder)!r} gives {model.size} numbers a token and the algorithm's value head reads {like.size}; "
            "choose the head that it was trained with, or another critic."
        )
    if model.surprisal != like.surprisal:
        here, there = ("does", "does not read") if like.surprisal else ("does not", "reads")
        raise InputError(
            f"The critic in {str(folder)!r} {there} log-probabilities and the one asked for {here}; set "
            "--critic-surprisal as it was when that critic was trained, or choose another critic."
        )
