"""Reading and writing of Hugging Face folders: config.json and safetensors, for Llama, Mistral, Qwen 2 and Qwen 3."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
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

from rljax.errors import InputError
from rljax.models.checkpoint_tensors import entries, get_at, put_at, same
from rljax.models.config import RopeScaling, TransformerConfig
from rljax.models.config_json import checked_config, read_window, window_entries
from rljax.models.language_model import abstract_params
from rljax.models.model_folder import (
    CODES,
    DTYPES,
    INDEX,
    WEIGHTS,
    ModelContents,
    Tensor,
    read_json,
    write_model,
)
from rljax.models.policy import HostParams, Params
from rljax.text import one_line

FAMILY_NAMES: Mapping[str, str] = MappingProxyType(
    {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
)
"""Family in config.json -> its name in the classes of `transformers`."""
FAMILIES = tuple(FAMILY_NAMES)


MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files of a hub id that a model is read from."""


def locate(name_or_folder: str, files: Collection[str] = MODEL_FILES) -> Path:
    """Find a model folder on disk, or download a hub id with `huggingface_hub`.

    Args:
        name_or_folder: the folder or hub id.
        files: patterns of the files to download.

    Raises:
        InputError: the name is neither a folder nor a hub id that can be downloaded.
    """
    folder = Path(name_or_folder).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or name_or_folder.startswith(".") or name_or_folder.count("/") > 1:
        raise InputError(
            f"The model folder {name_or_folder!r} does not exist; give a folder with config.json, or a hub id."
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
    folder: Path, *, compute_dtype: str = "float32", remat: str = "none", attention: str = "blockwise"
) -> TransformerConfig:
    """Read config.json.

    Args:
        folder: the model's folder.
        compute_dtype: precision of matrix products.
        remat: what layers compute again in the backward pass, one of `rljax.models.config.REMATS`.
        attention: program of the attention of whole sequences.

    Raises:
        InputError: config.json is missing, the family is unknown, or it needs a feature that this transformer lacks.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise InputError(f"The model folder {str(folder)!r} has no config.json; give a folder that save_pretrained wrote.")
    if (folder / "checkpoints").is_dir():
        raise InputError(
            f"{str(folder)!r} is the folder of a run, not of a model; write one with `rljax export {folder} MODEL`."
        )
    raw = read_json(file)
    family = raw.get("model_type")
    if isinstance(family, str) and family not in FAMILIES:
        raise InputError(f"{file} is of the family {family!r}, which is not supported; choose among {', '.join(FAMILIES)}.")
    raw = checked_config(raw, file)
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(f"{file} asks for the activation {raw['hidden_act']!r}; only 'silu' is supported.")
    heads = raw["num_attention_heads"]
    theta, scaling = _read_rope(raw, file)
    window, full_layers = read_window(raw, family, file)
    return TransformerConfig(
        vocab_size=raw["vocab_size"],
        width=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        hidden=raw["intermediate_size"],
        norm_eps=raw["rms_norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
        tied_head=raw.get("tie_word_embeddings", False),
        qkv_bias=family == "qwen2" or raw.get("attention_bias", False),
        output_bias=family in ("llama", "qwen3") and raw.get("attention_bias", False),
        qk_norm=family == "qwen3",
        window=window,
        full_layers=full_layers,
        compute_dtype=compute_dtype,
        remat=remat,
        attention=attention,
    )


def _read_rope(raw: dict, file: Path) -> tuple[float, RopeScaling | None]:
    """Read the rotary base and its scaling, in the older and the newer spelling."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = rope.get("rope_theta", raw.get("rope_theta", 10_000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise InputError(f"{file} asks for rotary scaling of type {kind!r}; only 'default' and 'llama3' are supported.")
    scaling = RopeScaling(
        factor=rope["factor"],
        low_frequency=rope["low_freq_factor"],
        high_frequency=rope["high_freq_factor"],
        original_length=rope["original_max_position_embeddings"],
    )
    return theta, scaling


def _files(folder: Path) -> dict[str, Path]:
    """Map the name of each tensor to its file."""
    index = folder / INDEX
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise InputError(f"{index} has no weight_map from the names of tensors to those of files; restore it.")
        outside = next((file for file in weight_map.values() if Path(file).name != file), None)
        if outside is not None:
            raise InputError(
                f"{index} names the file {outside!r:.80}, which is not in the folder of the model; correct it."
            )
        return {name: folder / file for name, file in weight_map.items()}
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise InputError(
            f"The model folder {str(folder)!r} has a config.json but no {WEIGHTS} (nor {INDEX}); "
            "download the weights, or convert them with save_pretrained(..., safe_serialization=True). Pickled weights (.bin) are "
            "never opened, because they can run code."
        )
    with opened_weights(weights) as opened:
        return dict.fromkeys(opened.keys(), weights)


@contextmanager
def opened_weights(file: Path) -> Generator[Any]:
    """Open a file of safetensors.

    Raises:
        InputError: it does not exist, or is damaged.
    """
    try:
        with safe_open(file, framework="numpy") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} cannot be read ({one_line(error)}); download or export it again.") from error


def _check_all_used(names: Iterable[str], config: TransformerConfig, folder: Path, besides: Collection[str]) -> None:
    """Refuse a checkpoint with a tensor that this transformer would not compute with."""
    # A tied head may be stored beside the embedding, and older checkpoints hold the rotary frequencies, which config.json gives.
    copies = {"lm_head.weight"} if config.tied_head else set()
    known = {entry.name for entry in entries(config)} | copies | set(besides)
    strange = sorted(name for name in names if name not in known and not name.endswith(".rotary_emb.inv_freq"))
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise InputError(
            f"The weights in {str(folder)!r} hold the tensor {strange[0]!r}{more}, which this transformer does not have; "
            "its results would differ from those of the checkpoint's model."
        )


def load_params(
    folder: Path,
    config: TransformerConfig,
    *,
    besides: Collection[str] = (),
    shardings: PyTree[Sharding] | None = None,
    convert: Callable[[KeyPath, Array], Any] | None = None,
) -> Params:
    """Read the weights of a folder into float32 parameters, tensor by tensor; this host holds one whole tensor at a time.

    Args:
        folder: of the model.
        config: its shape.
        besides: names of further tensors that the caller reads itself, such as a value head.
        shardings: where each parameter lies; None: on the default device.
        convert: (path, parameter) -> what stands in its place; the parameter is dropped before the next one is read. None keeps it.

    Raises:
        InputError: the weights or one tensor are missing, a tensor's shape differs from config.json, or a tensor is not used.
    """
    files = _files(folder)
    _check_all_used(files, config, folder, besides)
    expected = abstract_params(config)
    params: dict[str | int, Any] = {}
    for entry in entries(config):
        if entry.name not in files:
            raise InputError(f"The weights in {str(folder)!r} lack the tensor {entry.name!r} that config.json implies.")
        tensor = _read(files[entry.name], entry.name)
        shape = jax.eval_shape(entry.write, get_at(expected, entry.path)).shape
        if tensor.shape != shape:
            raise InputError(
                f"{entry.name!r} in {str(folder)!r} has shape {tensor.shape}, but config.json implies {shape}."
            )
        array = np.ascontiguousarray(entry.read(tensor))
        sharding = None if shardings is None else get_at(shardings, entry.path)
        leaf = jnp.asarray(array) if sharding is None else _sharded(array, sharding)
        put_at(params, entry.path, leaf if convert is None else convert(tuple(map(DictKey, entry.path)), leaf))
    return params


def _read(file: Path, name: str) -> Float32[np.ndarray, "..."]:
    with opened_weights(file) as opened:
        return opened.get_tensor(name).astype(np.float32)


def _sharded(array: np.ndarray, sharding: Sharding) -> Array:
    """Put each device's part where it belongs; every host gives the same array and moves only what its devices hold."""
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def load_tensor(folder: Path, name: str) -> Float[Array, "..."] | None:
    """Read one tensor of a folder's weights, as float32; None if there is none of that name."""
    files = _files(folder)
    if name not in files:
        return None
    return jnp.asarray(_read(files[name], name))


def stored_types(folder: Path) -> dict[str, np.dtype]:
    """Type of each tensor of a folder's weights.

    Raises:
        InputError: a tensor has a type that rljax cannot write.
    """
    names = {code: name for name, code in CODES.items()}
    types: dict[str, np.dtype] = {}
    files = _files(folder)
    for file in dict.fromkeys(files.values()):
        with safe_open(file, framework="numpy") as opened:
            for name in (name for name, place in files.items() if place == file):
                code = opened.get_slice(name).get_dtype()
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
    """config.json and weights of a model, as Hugging Face writes them (Llama, Mistral, Qwen 2 or Qwen 3).

    Args:
        config: shape of the transformer.
        params: its parameters, wherever they lie.
        bos: token that opens a sequence.
        eos: token that ends a response.
        source: folder of the checkpoint that the model was trained from: its config.json is kept, and each tensor has the type
            that it has there. None for a model that began with random weights.
        extra: further tensors by name; in the type of the embedding.

    Raises:
        InputError: the source cannot be read, it holds weights of another type, or no family has biases at these projections,
            or a window in these layers.
    """
    if source is None:
        raw, types = _raw_config(config, bos=bos, eos=eos), {}
    else:
        raw, types = read_json(source / "config.json"), stored_types(source)
    own = list(entries(config))
    usual = types.get(own[0].name, DTYPES["float32"])
    tensors = [Tensor(e.name, get_at(params, e.path), types.get(e.name, usual), e.write) for e in own]
    tensors += [Tensor(name, array, usual, same) for name, array in extra.items()]
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
    """Write config.json and float32 safetensors as Hugging Face writes them, with extra tensors; `write_model` has more options."""
    contents = model_contents(config, params, bos=bos, eos=eos, extra=extra)
    write_model(folder, contents)


def _raw_config(config: TransformerConfig, *, bos: int | None, eos: int) -> dict[str, Any]:
    """config.json of a model that does not come from a checkpoint.

    Raises:
        InputError: no family has biases at these projections, or a window in these layers.
    """
    plain = "llama" if config.window is None else "mistral"
    family = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias and not config.output_bias else plain
    if family != "qwen2" and config.qkv_bias != config.output_bias:
        raise InputError(
            f"A {family} model has biases at all projections of its attention or at none; this one has "
            f"qkv_bias={config.qkv_bias} and output_bias={config.output_bias}."
        )
    rope: dict = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
            "original_max_position_embeddings": scaling.original_length,
        }
    return {
        "architectures": [f"{FAMILY_NAMES[family]}ForCausalLM"],
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
        **window_entries(config, family),
        "bos_token_id": bos,
        "eos_token_id": eos,
        "dtype": "float32",
    }
