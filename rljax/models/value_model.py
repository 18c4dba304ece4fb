"""A transformer that values: the decoder's hidden states under a linear head of a few numbers a token.

On disk it is a Hugging Face model "for sequence classification": the trunk, and the head as `score.weight`. So reward models
from elsewhere are read as they are, and a critic that was trained here can be taken up by any later run.
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


class ValueModel(NamedTuple):
    """A decoder with a value head, without its numbers; its parameters are `{"trunk": ..., "head": [N, D]}`."""

    trunk: Model
    size: int
    """Numbers that the head gives for each token."""


def value_model(policy: Model, size: int) -> ValueModel:
    """Describe a critic with the policy's shape, less its output head."""
    return ValueModel(Model(replace(policy.config, tied_head=True)), size)


def init_value_params(model: ValueModel, key: PRNGKeyArray, policy: Params | None = None) -> Params:
    """Draw a head, and a trunk too if there is no policy to copy it from.

    The head is drawn with standard deviation 1/(D + 1), so that first values are about a tenth of the reward's unit.
    """
    config = model.trunk.config
    for_trunk, for_head = jax.random.split(key)
    if policy is None:
        trunk = init_params(config, for_trunk)
    else:
        trunk = jax.tree.map(jnp.copy, {name: part for name, part in policy.items() if name != "head"})
    return {"trunk": trunk, "head": jax.random.normal(for_head, (model.size, config.width)) / (config.width + 1)}


def value_outputs(
    model: ValueModel, params: Params, tokens: Int[Array, "B S"], valid: Bool[Array, "B S"], *, start: int
) -> Float[Array, "B T N"]:
    """What the head says before each token from slot `start` on, that is at the slots `start - 1` to the last but one.

    Args:
        model: the decoder with a value head.
        params: its parameters.
        tokens: prompts and responses, `[B, S]`.
        valid: which slots hold tokens, `[B, S]`.
        start: slot of the first response token, at least 1.

    Returns:
        `[B, S - start, N]`, float32; what stands before invalid slots has no meaning and must be masked.
    """
    hidden = hidden_states(model.trunk, params["trunk"], tokens, valid)[:, start - 1 : -1]
    weight = params["head"].astype(hidden.dtype)
    return jnp.einsum("BTD,ND->BTN", hidden, weight, preferred_element_type=jnp.float32)


def save_value_model(folder: Path, model: ValueModel, params: Params, *, bos: int | None, eos: int) -> None:
    """Write config.json and model.safetensors, the head as `score.weight` `[N, D]`."""
    extra = {HEAD: np.asarray(jax.device_get(params["head"]))}
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
        like: what the model must be able to stand in for: its vocabulary and its head's size are compared, and the runtime
            settings (precision, remat) are taken from it.

    Returns:
        The model and its parameters.

    Raises:
        InputError: the folder is not of such a model, or its vocabulary or its head differ from what is needed.
    """
    runtime = {} if like is None else {"compute_dtype": like.trunk.config.compute_dtype, "remat": like.trunk.config.remat}
    config = replace(read_config(folder, **runtime), tied_head=True)
    head = load_tensor(folder, HEAD)
    if head is None:
        raise InputError(
            f"The model in {str(folder)!r} has no {HEAD!r}, so it is no critic and no reward model; give a folder that a run "
            "with a critic saved, or a sequence-classification model."
        )
    model = ValueModel(Model(config), head.shape[0])
    if like is not None:
        _check_stands_in(folder, model, like)
    return model, {"trunk": load_params(folder, config), "head": head}


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
