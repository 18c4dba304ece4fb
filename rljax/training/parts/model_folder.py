"""Write models that other programs can open: weights, tokenizer, chat template and sampling defaults in one folder."""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rljax.data.tokenizer import Tokenizer
from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError
from rljax.models import Params, Policy, ValueFunction
from rljax.models.huggingface import locate
from rljax.models.model_folder import DEFAULT_SHARD_BYTES, GENERATION, read_json, with_token_ids, write_json, write_model
from rljax.parallel import fetch, fetch_once, is_first, run_on_first, run_together
from rljax.training.config import SamplingConfig, TrainConfig
from rljax.training.parts.tokenizer import all_end_tokens


class Companions(NamedTuple):
    """Files and settings that accompany the weights in a model's folder."""

    tokenizer: Tokenizer
    """Tokenizer of the model."""
    source: Path | None
    """Folder of the model that training started from, whose generation_config.json is kept; None for random weights."""
    sampling: SamplingConfig | None
    """Sampling settings of training, which become the defaults of `generate` if the source has none."""
    ends: tuple[int, ...] = ()
    """Tokens that end a response, in addition to the tokenizer's end token."""


def companions(config: TrainConfig, tokenizer: Tokenizer) -> Companions:
    """Return the files and settings that accompany the weights of a run's models."""
    source = None if config.model.path is None else locate(config.model.path)
    return Companions(tokenizer, source, config.sampling, all_end_tokens(config.model, tokenizer, config.sampling.stop_ids))


def save_model(
    folder: Path,
    model: Policy | ValueFunction,
    params: Params,
    extras: Companions,
    *,
    dtype: str | None = None,
    quantize: str | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> None:
    """Write the weights (tensor by tensor), tokenizer and generation_config.json. Every process must call this; the first writes.

    Args:
        folder: folder of the model.
        model: the policy or the critic. A model without `contents` writes its own folder, to which nothing is added.
        params: parameters of the model, on the mesh.
        extras: files and settings that accompany the weights.
        dtype: dtype of the stored weights; None keeps the dtype in the checkpoint.
        quantize: "int8" or "int4" stores the matrices of the layers as integers, see `rljax.models.packed_integers`.
        max_shard_bytes: maximum size of a weight file, in bytes.

    Raises:
        InputError: `dtype` is unknown, the matrices cannot be quantized, or either is set for a model that writes its own folder.
    """
    if model.contents is None:
        for name, value in {"dtype": dtype, "quantize": quantize}.items():
            if value is not None:
                raise InputError(
                    f"{name}={value!r} cannot be used with a policy that writes its own folder; leave {name} out."
                )
        host = fetch(params)
        run_on_first(lambda: model.save(host, folder))
        return
    contents = model.contents(params)
    contents = contents if dtype is None else contents.stored_as(dtype)
    if quantize is not None:
        from rljax.models.packed_integers import packed_contents  # noqa: PLC0415  few models are quantized

        contents = packed_contents(contents, quantize)
    contents = contents._replace(config=_with_token_ids(contents.config, extras))
    run_together(
        lambda: write_model(folder, contents, max_shard_bytes=max_shard_bytes, fetch=fetch_once, writes=is_first())
    )
    run_on_first(lambda: write_companions(folder, extras, is_policy=isinstance(model, Policy)))


def weights_writer(config: TrainConfig, policy: Policy, tokenizer: Tokenizer) -> Callable[[Path, Params], None]:
    """Return the function that writes a run's policy as a model folder, in the dtype of the learner's matrix products."""
    files, dtype = companions(config, tokenizer), None if policy.contents is None else config.model.dtype
    return lambda folder, params: write_atomically(
        folder, lambda part: save_model(part, policy, params, files, dtype=dtype)
    )


def write_companions(folder: Path, extras: Companions, *, is_policy: bool = True) -> None:
    """Write the tokenizer and, for a policy, generation_config.json into a model's folder."""
    save_tokenizer_files(extras.tokenizer, folder)
    if is_policy:
        write_json(folder / GENERATION, generation_config(extras))


def generation_config(extras: Companions) -> dict[str, Any]:
    """Return the contents of generation_config.json: the source model's settings, or else the training's, with token ids.

    Args:
        extras: the tokenizer, the source model's folder, and the sampling settings of training.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> raw = generation_config(Companions(ByteTokenizer(), None, SamplingConfig(max_response_tokens=8)))
        >>> raw["do_sample"], raw["max_new_tokens"], raw["eos_token_id"], raw["pad_token_id"]
        (True, 8, 2, 0)
    """
    if extras.source is not None and (extras.source / GENERATION).is_file():
        return _with_token_ids(read_json(extras.source / GENERATION), extras)
    sampling = extras.sampling
    raw: dict[str, Any] = {}
    if sampling is not None:
        raw = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": 0 if sampling.top_k is None else sampling.top_k,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "max_new_tokens": sampling.max_response_tokens,
        }
    return _with_token_ids(raw, extras)


def _with_token_ids(raw: Mapping[str, Any], extras: Companions) -> dict[str, Any]:
    tokenizer = extras.tokenizer
    ids = {"eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    return with_token_ids(raw, bos=tokenizer.bos_token_id, **ids, more=extras.ends)


def write_atomically(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder under a temporary name and then rename it, so that it is complete or absent. Every process must call this.

    An existing folder is renamed first, and deleted after the new folder has its name.
    """
    temporary, old = (folder.with_name(f".unfinished-{folder.name}-{secrets.token_hex(4)}") for _ in range(2))

    def move() -> None:
        if folder.exists():
            os.replace(folder, old)
        os.replace(temporary, folder)
        shutil.rmtree(old, ignore_errors=True)

    try:
        write(temporary)
        run_on_first(move)
    except BaseException:
        if is_first():
            shutil.rmtree(temporary, ignore_errors=True)
        raise
