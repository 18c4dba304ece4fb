"""Read and write Hugging Face model folders (config.json and safetensors) of the families in `rljax.models.families`."""

import sys
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jax.tree_util import DictKey, KeyPath
from jaxtyping import Array, Float, Float32, PyTree
from safetensors import SafetensorError, safe_open

from rljax.errors import RELOCATE_HINT, InputError
from rljax.files import check_local
from rljax.models.checkpoint_tensors import Entry, entries_by_stored_name, get_at, identity, joiner_of, put_at, split_tensor
from rljax.models.config import FactorScaling, RopeScaling, TransformerConfig
from rljax.models.config_json import (
    CAUSAL,
    check_architectures,
    check_config,
    family_of,
    read_rope,
    read_window,
    window_entries,
)
from rljax.models.families import FAMILIES
from rljax.models.folder_notes import notes_on_folder
from rljax.models.language_model import abstract_params
from rljax.models.model_folder import (
    BLOCKS,
    CODES,
    DTYPES,
    INDEX,
    SCALE,
    WEIGHTS,
    ModelContents,
    Tensor,
    read_json,
    select_expert,
    with_matrix_names,
    write_model,
)
from rljax.models.policy import HostParams, Params
from rljax.models.transformer import rope_frequencies
from rljax.text import one_line

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""Names of two tensors, which are equal in a tied model."""
FREQUENCIES = ".rotary_emb.inv_freq"
"""Suffix of the name of a tensor with rotary frequencies; config.json defines these, too."""

ADAPTER_CONFIG = "adapter_config.json"
"""The file that marks a folder with a low-rank adapter."""
MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Patterns of the files to download for a hub id."""


def locate(name_or_folder: str, files: Collection[str] = MODEL_FILES) -> Path:
    """Find a model folder on disk, or download a hub id with `huggingface_hub`.

    Args:
        name_or_folder: the folder or hub id.
        files: patterns of the files to download.

    Raises:
        InputError: the name is neither a folder nor a hub id that can be downloaded.
    """
    check_local(name_or_folder, "model")
    folder = Path(name_or_folder).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name_or_folder.startswith(".") or name_or_folder.count("/") > 1:
        raise InputError(
            f"The model folder {name_or_folder!r} does not exist; give a folder with config.json, or a hub id{RELOCATE_HINT}."
        )
    from huggingface_hub import snapshot_download  # noqa: PLC0415  a local folder needs no network code
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        return Path(snapshot_download(name_or_folder, allow_patterns=list(files)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise InputError(
            f"The model {name_or_folder!r} is neither a folder here nor a hub id that can be downloaded now "
            f"({type(error).__name__}); check the spelling and the network, or give a folder."
        ) from error


def read_config(
    folder: Path,
    *,
    compute_dtype: str = "float32",
    remat: str = "none",
    attention: str = "blockwise",
    classes: tuple[str, ...] = CAUSAL,
) -> TransformerConfig:
    """Read a `TransformerConfig` from a model folder's config.json.

    If the weights contain an output head that differs from the embedding, the head is used even if `tie_word_embeddings` is true,
    as in `transformers`.

    Args:
        folder: the model's folder.
        compute_dtype: precision of matrix products.
        remat: what layers recompute in the backward pass, one of `rljax.models.config.REMATS`.
        attention: implementation of attention over complete sequences, see `rljax.models.attention`.
        classes: suffixes of the accepted class names of `transformers`.

    Raises:
        InputError: config.json is missing, or describes a model of an unknown family, with a feature that rljax's transformer
            lacks, or of a class that is not accepted.
    """
    file = folder / "config.json"
    if (folder / ADAPTER_CONFIG).is_file():
        raise InputError(
            f"{str(folder)!r} contains a low-rank adapter. If the folder has no config.json, `rljax train --model` can continue "
            "the adapter and `rljax eval` can open it; for anything else, merge it into its model with peft's merge_and_unload."
        )
    if not file.is_file():
        raise InputError(f"The model folder {str(folder)!r} has no config.json; give a folder that save_pretrained wrote.")
    if (folder / "checkpoints").is_dir():
        raise InputError(
            f"{str(folder)!r} is the folder of a run, not of a model; write one with `rljax export {folder} MODEL`."
        )
    raw = read_json(file)
    check_architectures(raw, file, classes)
    raw = check_config(raw, file)
    return TransformerConfig(
        **_shape_fields(raw, file),
        tied_head=bool(raw.get("tie_word_embeddings")) and not _has_own_head(folder),
        compute_dtype=compute_dtype,
        remat=remat,
        attention=attention,
    )


def check_length(folder: Path, tokens: int) -> None:
    """Refuse sequences that are too long for the rotary frequencies that were read.

    Args:
        folder: folder of the model.
        tokens: length of the longest sequence.

    Raises:
        InputError: the longest sequence exceeds the model's original context, beyond which the frequencies change.
    """
    longest = read_config(folder).longest
    if longest is not None and tokens > longest:
        raise InputError(
            f"sequences have up to {tokens} tokens, but the rotary frequencies of {str(folder)!r} change beyond {longest}, so a "
            "longer response would have probabilities that no single policy assigns; lower max_prompt_tokens or "
            f"max_response_tokens.{LONG_FACTORS if has_factors(folder) else ''}"
        )


LONG_FACTORS = (
    " To use the long factors at every length, write the list long_factor in place of short_factor in the config.json of a copy of "
    "the folder."
)
"""Advice for a model with LongRoPE."""


def has_factors(folder: Path) -> bool:
    """Return True if the model's config.json has LongRoPE, with a divisor for each rotary frequency."""
    return isinstance(read_config(folder).rope_scaling, FactorScaling)


def _shape_fields(raw: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Read the fields of `TransformerConfig` from a checked config.json."""
    heads, (window, full_layers), rope = raw["num_attention_heads"], read_window(raw, file), read_rope(raw, file)
    if window is not None and rope.get("longest") is not None and window >= rope["longest"]:
        window, full_layers = None, ()  # no sequence is longer than the window
    return {
        "vocab_size": raw["vocab_size"],
        "width": raw["hidden_size"],
        "layers": raw["num_hidden_layers"],
        "heads": heads,
        "kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // heads,
        "hidden": raw["intermediate_size"],
        "norm_eps": raw["rms_norm_eps"],
        "window": window,
        "full_layers": full_layers,
        **rope,
        **family_of(raw, file).fields(raw),
    }


def _has_own_head(folder: Path) -> bool:
    """Return True if the weights contain an output head that differs from the embedding; False if there are no weights."""
    files = _find_files(folder) if any((folder / name).is_file() for name in (WEIGHTS, INDEX)) else {}
    if not {EMBEDDING, HEAD} <= set(files):
        return False
    stamps = tuple(files[name].stat().st_mtime_ns for name in (EMBEDDING, HEAD))
    return not _is_same_tensor(files[EMBEDDING], files[HEAD], stamps)


@lru_cache(maxsize=8)
def _is_same_tensor(embedding: Path, head: Path, stamps: tuple[int, ...]) -> bool:
    """Compare two tensors, some rows at a time; `stamps`, the files' modification times, make the cache miss after a change."""
    del stamps
    with open_weights(embedding) as first, open_weights(head) as second:
        one, other = first.get_slice(EMBEDDING), second.get_slice(HEAD)
        if one.get_shape() != other.get_shape():
            return False
        rows = one.get_shape()[0]
        parts = (slice(start, min(start + 4_096, rows)) for start in range(0, rows, 4_096))
        return all(np.array_equal(one[part], other[part]) for part in parts)


def _find_files(folder: Path) -> dict[str, Path]:
    """Map the name of each tensor to its file; a single weights file takes precedence over an index, which is then stale."""
    weights, index = folder / WEIGHTS, folder / INDEX
    if weights.is_file():
        shards = [weights]
    elif index.is_file():
        shards = _read_index(index)
    else:
        raise InputError(
            f"The model folder {str(folder)!r} has a config.json but no {WEIGHTS} (nor {INDEX}); "
            "download the weights, or convert them with save_pretrained(..., safe_serialization=True). Pickled weights (.bin) are "
            "never opened, because they can run code."
        )
    files: dict[str, Path] = {}
    for shard in shards:
        with open_weights(shard) as opened:
            names = opened.keys()
        repeated = next((name for name in names if name in files), None)
        if repeated is not None:
            raise InputError(
                f"{repeated!r} is in both {files[repeated]} and {shard}; delete the older file, or restore {index}."
            )
        files |= dict.fromkeys(names, shard)
    if not weights.is_file():
        _check_indexed(index, files)
    return files


def _check_indexed(index: Path, files: Mapping[str, Path]) -> None:
    """Refuse an index with a tensor that no file contains, except embedding or head: a tied model may store only one of the two."""
    weight_map = read_json(index)["weight_map"]
    absent = next((name for name in weight_map if name not in {*files, HEAD, EMBEDDING}), None)
    if absent is not None:
        raise InputError(
            f"{index} names the tensor {absent!r} in {weight_map[absent]!r}, but that file does not contain it; download the file "
            "again, or restore the index."
        )


def _read_index(index: Path) -> list[Path]:
    """Return the files that an index names."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(f"{index} has no weight_map from tensor names to file names; restore the original file.")
    outside = next((file for file in weight_map.values() if Path(file).name != file), None)
    if outside is not None:
        raise InputError(f"{index} names the file {outside!r:.80}, which is not in the folder of the model; correct it.")
    missing = next((file for file in weight_map.values() if not (index.parent / file).is_file()), None)
    if missing is not None:
        raise InputError(
            f"{index} names the file {missing!r}, which is not in the folder; download it, or, if the index is left from another "
            "model, delete it."
        )
    named = set(weight_map.values())
    unnamed = sorted(file.name for file in index.parent.glob("model-*-of-*.safetensors") if file.name not in named)
    if unnamed:
        raise InputError(
            f"{index} does not name the weights file {unnamed[0]!r} in its folder, so the file's tensors would not be used; "
            "restore the index, or, if the file is left from another model, delete it."
        )
    return [index.parent / file for file in sorted(named)]


@contextmanager
def open_weights(file: Path) -> Generator[Any]:
    """Open a safetensors file.

    Raises:
        InputError: the file does not exist, or is damaged.
    """
    try:
        with safe_open(file, framework="numpy") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} cannot be read ({one_line(error)}); download or export it again.") from error


def _check_all_used(files: Mapping[str, Path], config: TransformerConfig, folder: Path, also_read: Collection[str]) -> None:
    """Refuse a checkpoint with a tensor that this transformer would not use."""
    # A tied head may be stored as well; older checkpoints contain the rotary frequencies, which config.json defines.
    copies = {HEAD} if config.tied_head else set()
    known = set(entries_by_stored_name(config)) | copies | set(also_read)
    unused = []
    for name in sorted(set(files) - known):
        if name.endswith(FREQUENCIES):
            _check_frequencies(files[name], name, config)
        else:
            unused.append(name)
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise InputError(
            f"The weights in {str(folder)!r} contain the tensor {unused[0]!r}{more}, which this transformer does not have, so its "
            "results would differ from those of the checkpoint's model."
        )


def _check_frequencies(file: Path, name: str, config: TransformerConfig) -> None:
    """Refuse stored rotary frequencies that match config.json neither with nor without its scaling."""
    stored = _read(file, name)
    shapes = [
        replace(config, rope_theta=theta) for theta in {config.rope_theta, config.window_rope_theta or config.rope_theta}
    ]
    shapes += [replace(shape, rope_scaling=None) for shape in shapes]
    expected = [frequencies for shape in shapes if (frequencies := rope_frequencies(shape)).shape == stored.shape]
    # Tolerances: half of bfloat16's epsilon, because the frequencies may once have been bfloat16, and the smallest float16.
    if not any(np.allclose(stored, frequencies, rtol=2**-8, atol=2**-24) for frequencies in expected):
        raise InputError(
            f"{name!r} in {str(file)!r} contains rotary frequencies that differ from those in config.json; correct rope_theta and "
            "the scaling in config.json, or delete the tensor."
        )


def load_params(
    folder: Path,
    config: TransformerConfig,
    *,
    also_read: Collection[str] = (),
    shardings: PyTree[Sharding] | None = None,
    convert: Callable[[KeyPath, Array], Any] | None = None,
) -> Params:
    """Read a folder's weights into float32 parameters, with only one full parameter in this host's memory at a time.

    Entries of config.json and weight files that are not read are listed on stderr.

    Args:
        folder: folder of the model.
        config: configuration of the model.
        also_read: names of additional tensors that the caller reads itself, such as a value head.
        shardings: sharding of each parameter; None: the default device.
        convert: (path, parameter) -> the parameter's replacement; the parameter is freed before the next one is read. None:
            parameters are not replaced.

    Raises:
        InputError: the weights or a tensor are missing; or a tensor is not used, has a different shape than config.json implies, or
            has values that are not finite.
    """
    stored = _find_files(folder)
    files = with_matrix_names(stored)
    _check_all_used(files, config, folder, also_read)
    for note in notes_on_folder(folder, set(stored.values())) if jax.process_index() == 0 else ():
        print(f"note: {note}.", file=sys.stderr)
    names = _stored_names(files, config)
    expected = abstract_params(config)
    params: dict[str | int, Any] = {}
    experts: list[np.ndarray] = []
    for own, parts in entries_by_stored_name(config).items():
        name = names.get(own, own)
        if name not in files:
            raise InputError(f"The weights in {str(folder)!r} lack the tensor {own!r} that config.json implies.")
        for entry, tensor in _check_and_split(folder, files[name], _read_any(stored, name), parts, expected):
            array = np.ascontiguousarray(entry.read(tensor))
            if entry.index is not None:
                experts.append(array)
                if len(experts) < len(get_at(expected, entry.path)):
                    continue
                array, experts = np.stack(experts), []
            sharding = None if shardings is None else get_at(shardings, entry.path)
            if sharding is None:
                leaf = jnp.asarray(array)
            else:  # every host has the full array, and copies only its own devices' shards
                leaf = jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
            put_at(params, entry.path, leaf if convert is None else convert(tuple(map(DictKey, entry.path)), leaf))
    return params


def _check_and_split(
    folder: Path, file: Path, tensor: Float32[np.ndarray, "..."], parts: list[Entry], expected: PyTree
) -> list[tuple[Entry, Float32[np.ndarray, "..."]]]:
    """Check a stored tensor's shape and values, and split it into pairs of an entry and the entry's tensor."""
    own = parts[0].stored_name
    arrays = [select_expert(get_at(expected, entry.path), entry.index) for entry in parts]
    shape = jax.eval_shape(joiner_of(parts), *arrays).shape
    if tensor.shape != shape:
        raise InputError(f"{own!r} in {str(folder)!r} has shape {tensor.shape}, but config.json implies {shape}.")
    if not np.isfinite(tensor).all():
        raise InputError(f"{own!r} in {str(file)!r} has values that are NaN or infinite; download it again.")
    sizes = [jax.eval_shape(entry.write, array).shape for entry, array in zip(parts, arrays, strict=True)]
    return list(zip(parts, split_tensor(tensor, parts, sizes), strict=True))


def _stored_names(files: Collection[str], config: TransformerConfig) -> dict[str, str]:
    """Map tensors to their names in the files if the names differ, because a tied model may store only the head."""
    return {EMBEDDING: HEAD} if config.tied_head and EMBEDDING not in files else {}


def _read(file: Path, name: str) -> Float32[np.ndarray, "..."]:
    with open_weights(file) as opened:
        code = opened.get_slice(name).get_dtype()
        if code not in CODES.values():
            raise InputError(f"{name!r} in {str(file)!r} is stored as {code}; {', '.join(CODES.values())} is expected.")
        return opened.get_tensor(name).astype(np.float32)


def _read_any(stored: Mapping[str, Path], name: str) -> Float32[np.ndarray, "..."]:
    """Read a tensor that may be stored as integers or in MXFP4."""

    def read(part: str) -> np.ndarray:
        with open_weights(stored[part]) as opened:
            return opened.get_tensor(part)

    if name in stored:
        return _read(stored[name], name)
    if name + BLOCKS in stored:
        from rljax.models.mxfp4 import read_blocks  # noqa: PLC0415  few folders have weights in MXFP4

        return read_blocks(name, read)
    from rljax.models.packed_integers import read_packed  # noqa: PLC0415  few folders have integer weights

    return read_packed(name, read)


def load_tensor(folder: Path, name: str) -> Float[Array, "..."] | None:
    """Read one tensor of a folder's weights as float32; None if there is no tensor of that name."""
    files = _find_files(folder)
    if name not in files:
        return None
    return jnp.asarray(_read(files[name], name))


def stored_types(folder: Path) -> dict[str, np.dtype]:
    """Return the dtype of each tensor of a folder's weights.

    For a matrix that is stored as integers, the dtype is that of the matrix's scales; for experts in MXFP4, it is bfloat16.

    Raises:
        InputError: a tensor has a dtype that rljax cannot write.
    """
    names = {code: name for name, code in CODES.items()}
    stored = _find_files(folder)
    names_here = with_matrix_names(stored)
    types: dict[str, np.dtype] = {name: DTYPES["bfloat16"] for name in names_here if name + BLOCKS in stored}
    files = {name: name if name in stored else name + SCALE for name in names_here if name not in types}
    for file in dict.fromkeys(stored[part] for part in files.values()):
        with safe_open(file, framework="numpy") as opened:
            for name, part in ((name, part) for name, part in files.items() if stored[part] == file):
                code = opened.get_slice(part).get_dtype()
                if code not in names:
                    raise InputError(
                        f"{name!r} in {str(folder)!r} is stored as {code}; rljax writes {', '.join(CODES.values())}."
                    )
                types[name] = DTYPES[names[code]]
    return types


def model_contents(
    config: TransformerConfig,
    params: Params | HostParams,
    *,
    bos: int | None,
    eos: int,
    source: Path | None = None,
    extra: Mapping[str, Array | np.ndarray] = MappingProxyType({}),
) -> ModelContents:
    """Make config.json and the weights of a model as Hugging Face writes them.

    Args:
        config: configuration of the transformer.
        params: the transformer's parameters, on devices or on the host.
        bos: token that opens a sequence; this and `eos` are written only if `source` is None.
        eos: token that ends a response.
        source: folder of the checkpoint that training started from; its config.json and each tensor's dtype are kept. None: the
            model began with random weights, and is written as Llama, Mistral, Qwen 2 or Qwen 3.
        extra: name -> additional tensor, stored in the dtype of the embedding.

    Raises:
        InputError: the source cannot be read or has weights of an unsupported dtype; or there is no source, and none of the four
            families has these biases, windows, norms or scales.
    """
    if source is None:
        raw, types = _raw_config(config, bos=bos, eos=eos), {}
    else:
        raw, types = read_json(source / "config.json"), stored_types(source)
        raw.pop("quantization_config", None)  # the written weights are not quantized
        types |= {name: types[stored] for name, stored in _stored_names(types, config).items() if stored in types}
        raw |= (
            {"tie_word_embeddings": config.tied_head} if raw.get("tie_word_embeddings", False) != config.tied_head else {}
        )
    stored = entries_by_stored_name(config)
    default = types.get(next(iter(stored)), DTYPES["float32"])
    tensors = [
        Tensor(
            name,
            tuple(get_at(params, part.path) for part in parts),
            types.get(name, default),
            joiner_of(parts),
            parts[0].index,
        )
        for name, parts in stored.items()
    ]
    tensors += [Tensor(name, (array,), default, identity) for name, array in extra.items()]
    return ModelContents(raw, tuple(tensors))


def save_pretrained(
    folder: Path,
    config: TransformerConfig,
    params: Params | HostParams,
    *,
    bos: int | None,
    eos: int,
    extra: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> None:
    """Write config.json and float32 safetensors as Hugging Face does, with extra tensors; `write_model` has more options."""
    contents = model_contents(config, params, bos=bos, eos=eos, extra=extra)
    write_model(folder, contents)


def _raw_config(config: TransformerConfig, *, bos: int | None, eos: int) -> dict[str, Any]:
    """Make config.json for a model that does not come from a checkpoint.

    Raises:
        InputError: no family that can be written has these biases, windows, norms or scales.
    """
    plain = "llama" if config.window is None else "mistral"
    family = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias and not config.output_bias else plain
    if family != "qwen2" and config.qkv_bias != config.output_bias:
        raise InputError(
            f"A {family} model has biases at all projections of its attention or at none; this one has "
            f"qkv_bias={config.qkv_bias} and output_bias={config.output_bias}."
        )
    rope: dict = {"rope_type": "default", "rope_theta": config.rope_theta}
    scaling = config.rope_scaling
    if isinstance(scaling, RopeScaling):
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
            "original_max_position_embeddings": scaling.original_length,
        }
    raw = {
        "architectures": [f"{FAMILIES[family].class_prefix}ForCausalLM"],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.hidden,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tied_head,
        "attention_bias": config.output_bias,
        **({"mlp_bias": True} if config.hidden_bias else {}),
        **window_entries(config, family),
        "bos_token_id": bos,
        "eos_token_id": eos,
        "dtype": "float32",
    }
    file = Path("config.json")
    read = _shape_fields(check_config(raw, file), file)
    lost = [f"{name}={getattr(config, name)!r}" for name, value in read.items() if getattr(config, name) != value]
    lost += [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in fields(config)
        if field.name not in (*read, "tied_head", "compute_dtype", "remat", "attention", "scan_layers")
        and getattr(config, field.name) != field.default
    ]
    if lost:
        raise InputError(f"This model would be written as a {family} model, which cannot have {', '.join(lost)}.")
    return raw
