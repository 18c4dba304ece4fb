"""Write Hugging Face model folders: config.json, and safetensors files that are written one tensor at a time."""

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from rljax.errors import InputError
from rljax.settings.sizes import byte_count
from rljax.text import nearest_first, one_line, parse_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GENERATION = "generation_config.json"
MAX_SHARD_SIZE = "50GB"
"""Default limit on the size of a weights file, as in `transformers`."""

DTYPES: Mapping[str, np.dtype] = MappingProxyType(
    {
        "float32": np.dtype(np.float32),
        "bfloat16": np.dtype(jnp.bfloat16),
        "float16": np.dtype(np.float16),
        "float64": np.dtype(np.float64),
    }
)
"""Dtypes that weights can be stored in."""
CODES: Mapping[str, str] = MappingProxyType({"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"})
"""Name of a dtype -> its name in safetensors."""
INTEGERS: Mapping[str, str] = MappingProxyType({"int32": "I32", "int64": "I64"})
"""The same for the integer tensors of quantized matrices; see `rljax.models.packed_integers`."""
PACKED, SCALE, SHAPE = "_packed", "_scale", "_shape"
"""Suffixes of the names of the three tensors that together store one quantized matrix."""
BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the names of the two tensors that store the experts' matrices in MXFP4."""


Fetch = Callable[[Array | np.ndarray], np.ndarray]
"""Copies one array to this host; on several hosts, all of them must call it together."""


def with_matrix_names(files: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the names of the tensors that store a quantized matrix with the name of that matrix.

    Args:
        files: name of each stored tensor -> any value, such as the tensor's file.

    Raises:
        InputError: a matrix is stored twice, in full and quantized.

    Example:
        >>> with_matrix_names({"a.weight_packed": 1, "a.weight_scale": 1, "a.weight_shape": 2, "b.weight": 3})
        {'a.weight': 1, 'b.weight': 3}
        >>> with_matrix_names({"a_blocks": 1, "a_scales": 2, "a_bias": 1})
        {'a': 1, 'a_bias': 1}
    """
    others = {PACKED: (SCALE, SHAPE), BLOCKS: (SCALES,)}
    repeated = next((name for suffix in others for name in files if name + suffix in files), None)
    if repeated is not None:
        raise InputError(
            f"The weights contain {repeated!r} twice, in full and quantized, so it is unclear which one to read; delete one "
            "of them, or download the weights again."
        )
    parts = {
        name.removesuffix(suffix) + end
        for suffix, ends in others.items()
        for name in files
        if name.endswith(suffix)
        for end in ends
    }
    return {name.removesuffix(PACKED).removesuffix(BLOCKS): file for name, file in files.items() if name not in parts}


def select_expert(array: Any, index: int | None) -> Any:
    """Return one expert's part of an array that stacks all experts, or the full array if `index` is None.

    The array may be a `ShapeDtypeStruct`.

    Example:
        >>> select_expert(jax.ShapeDtypeStruct((4, 3), "float32"), 2).shape
        (3,)
    """
    if index is None:
        return array
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype) if isinstance(array, jax.ShapeDtypeStruct) else array[index]


class Tensor(NamedTuple):
    """One tensor of a model folder."""

    name: str
    """Name in the safetensors file."""
    arrays: tuple[Array | np.ndarray, ...]
    """The parameter, in its layout on the devices; several parameters if the file stores them as one tensor."""
    dtype: np.dtype
    """Dtype in the file."""
    layout: Callable[..., Any]
    """Converts the parameters to the tensor before the cast to `dtype`; it is traced to find the tensor's shape."""
    index: int | None = None
    """Index of the expert that the tensor belongs to, if the parameter stacks the tensors of all experts; otherwise None."""
    stored_shape: tuple[int, ...] | None = None
    """Shape in the file, if `layout` works only on NumPy arrays and so cannot be traced; otherwise None."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        if self.stored_shape is not None:
            return self.stored_shape
        shapes = (select_expert(jax.ShapeDtypeStruct(array.shape, array.dtype), self.index) for array in self.arrays)
        return tuple(jax.eval_shape(self.layout, *shapes).shape)

    @property
    def is_layer_matrix(self) -> bool:
        """Whether this is the matrix `[out, in]` of a linear layer inside a transformer layer."""
        return self.name.startswith("model.layers.") and self.name.endswith("_proj.weight")

    @property
    def stored_bytes(self) -> int:
        """Bytes in the file."""
        return self.value_count * self.dtype.itemsize

    @property
    def value_count(self) -> int:
        """Number of values in the tensor."""
        if self.stored_shape is not None:
            return math.prod(self.stored_shape)
        return sum(math.prod(array.shape[0 if self.index is None else 1 :]) for array in self.arrays)


class ModelContents(NamedTuple):
    """Contents of a model folder, before they are written."""

    config: Mapping[str, Any]
    """Contents of config.json."""
    tensors: tuple[Tensor, ...]
    """The weights."""

    def stored_as(self, dtype: str) -> "ModelContents":
        """Return the same model with all weights stored in one dtype.

        Raises:
            InputError: there is no such dtype.
        """
        if dtype not in DTYPES:
            advice = f"choose one of {', '.join(DTYPES)}."
            raise InputError(f"dtype {dtype!r} is unknown{nearest_first(dtype, DTYPES, advice)}")
        tensors = tuple(tensor._replace(dtype=DTYPES[dtype]) for tensor in self.tensors)
        return ModelContents(dict(self.config) | {"dtype": dtype}, tensors)


def divide_into_shards(tensors: Iterable[Tensor], limit: int) -> list[list[Tensor]]:
    """Divide tensors, in order, among files with at most `limit` bytes of tensors; a larger tensor gets its own file.

    In a file, tensors of wider dtypes come first, so that each tensor begins at a multiple of its dtype's width.
    """
    shards: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.stored_bytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.stored_bytes
    return [sorted(shard, key=lambda tensor: -tensor.dtype.itemsize) for shard in shards]


DEFAULT_SHARD_BYTES = byte_count(MAX_SHARD_SIZE)


def copy_to_host(array: Array | np.ndarray) -> Shaped[np.ndarray, "..."]:
    """Copy an array to the host; this process must be able to address all of the array's shards."""
    return np.asarray(jax.device_get(array))


def write_model(
    folder: Path,
    contents: ModelContents,
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    fetch: Fetch = copy_to_host,
    writes: bool = True,
) -> None:
    """Write config.json and the weights; an earlier model's weights in the folder are replaced.

    A host has only one complete tensor in memory at a time. If there are several hosts, all of them must call this function
    together, and each fetches every tensor.

    Args:
        folder: folder of the model.
        contents: config.json and weights of the model.
        max_shard_bytes: size limit of a weights file; larger models are divided among several files with an index.
        fetch: copies one array to this host.
        writes: whether this host writes the tensors; otherwise it only fetches them.

    Raises:
        OSError: the folder cannot be written; the tensors are still fetched, because the other hosts would wait otherwise.
        InputError: a value is too large for float16.
    """
    shards = divide_into_shards(contents.tensors, max_shard_bytes)
    arrays = (
        tuple(fetch(select_expert(array, tensor.index)) for array in tensor.arrays) for shard in shards for tensor in shard
    )
    try:
        if writes:
            folder.mkdir(parents=True, exist_ok=True)
            _write_weights(folder, shards, arrays)
            write_json(folder / "config.json", contents.config)
    finally:
        deque(arrays, maxlen=0)


def write_json(file: Path, raw: Mapping[str, Any]) -> None:
    """Write a JSON file as Hugging Face's libraries do."""
    file.write_text(json.dumps(raw, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of a model folder.

    Raises:
        InputError: the file cannot be read, or does not contain a JSON object.
    """
    try:
        raw = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} is not valid JSON ({one_line(error)}); correct or restore it.") from error
    if not isinstance(raw, dict):
        raise InputError(f"{file} must contain one JSON object, got {raw!r:.80}; correct or restore it.")
    return raw


def end_tokens(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end a response, from generation_config.json, or else from config.json; () if neither has any.

    Raises:
        InputError: the entry does not contain token ids, or contains one that the model does not have.
    """
    for file in (folder / GENERATION, folder / "config.json"):
        named = read_json(file).get("eos_token_id") if file.is_file() else None
        if named is None:
            continue
        ends = named if isinstance(named, list) else [named]
        if not all(type(end) is int and end >= 0 for end in ends):
            raise InputError(f"{file} has eos_token_id={named!r:.80}; it must be a token id or a list of them.")
        size = read_json(folder / "config.json").get("vocab_size") if (folder / "config.json").is_file() else None
        if type(size) is int and max(ends, default=0) >= size:
            raise InputError(f"{file} has eos_token_id={named!r:.80}, but the model has only the tokens 0 to {size - 1}.")
        return tuple(dict.fromkeys(ends))
    return ()


def with_token_ids(
    raw: Mapping[str, Any], *, bos: int | None, eos: int, pad: int, more: Sequence[int] = ()
) -> dict[str, Any]:
    """Update the contents of config.json or generation_config.json with the special tokens used in training.

    If the file's end tokens already include `eos`, only missing entries and the end tokens in `more` are added.

    Args:
        raw: contents of the file.
        bos: token that opens a sequence.
        eos: token that ends a response.
        pad: padding token.
        more: additional tokens that end a response.

    Example:
        >>> with_token_ids({"eos_token_id": [7, 2], "pad_token_id": 9}, bos=None, eos=2, pad=0)
        {'eos_token_id': [7, 2], 'pad_token_id': 9}
        >>> with_token_ids({"eos_token_id": 7}, bos=1, eos=2, pad=0)
        {'eos_token_id': 2, 'bos_token_id': 1, 'pad_token_id': 0}
        >>> with_token_ids({"eos_token_id": 2, "pad_token_id": 9}, bos=None, eos=2, pad=0, more=[7])
        {'eos_token_id': [2, 7], 'pad_token_id': 9}
    """
    stored = raw.get("eos_token_id")
    stored = stored if isinstance(stored, list) else [stored]
    ends = list(dict.fromkeys([*(stored if eos in stored else []), eos, *more]))
    ids = {"bos_token_id": bos, "eos_token_id": ends if len(ends) > 1 else eos, "pad_token_id": pad}
    if eos in stored:
        ids = {name: value for name, value in ids.items() if raw.get(name) is None}
        ids |= {"eos_token_id": ends} if len(ends) > len(stored) else {}
    return dict(raw) | {name: value for name, value in ids.items() if value is not None or name in raw}


def _write_weights(folder: Path, shards: Sequence[Sequence[Tensor]], arrays: Iterator[tuple[np.ndarray, ...]]) -> None:
    """Write the shards, and an index if there are several."""
    count = len(shards)
    names = [WEIGHTS] if count == 1 else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    old = {*folder.glob("model.safetensors*"), *folder.glob("model-*-of-*.safetensors")}
    for file in old:
        file.unlink()
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, arrays)
    if count > 1:
        tensors = [tensor for shard in shards for tensor in shard]
        weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        totals = {
            "total_parameters": sum(t.value_count for t in tensors),
            "total_size": sum(t.stored_bytes for t in tensors),
        }
        write_json(folder / INDEX, {"metadata": totals, "weight_map": weight_map})


def _write_shard(file: Path, tensors: Sequence[Tensor], arrays: Iterator[tuple[np.ndarray, ...]]) -> None:
    """Write one safetensors file: the length of its header, the header, and the tensors one after the other.

    The safetensors library needs all tensors in memory at once, so this writes the format directly:
    https://github.com/huggingface/safetensors#format
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.stored_bytes
        header[tensor.name] = {
            "dtype": {**CODES, **INTEGERS}[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with file.open("wb") as out:
        out.write(len(raw).to_bytes(8, "little") + raw)
        for tensor, own in zip(tensors, arrays, strict=False):
            out.write(_bytes_of(tensor, own))


def _bytes_of(tensor: Tensor, arrays: tuple[Shaped[np.ndarray, "..."], ...]) -> memoryview:
    """Return the bytes of one tensor in the file."""
    values = tensor.layout(*arrays)
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(values.astype(tensor.dtype))
    if tensor.dtype == np.float16 and not np.array_equal(np.isfinite(stored), np.isfinite(values)):
        raise InputError(
            f"{tensor.name!r} has values that float16 cannot represent; store the model as bfloat16 or float32 instead, with "
            "`rljax export --dtype bfloat16`."
        )
    return stored.reshape(-1).view(np.uint8).data
