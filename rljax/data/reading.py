"""Read the rows of files and hub datasets, each with its location, such as "line 3".

A row that cannot be read is returned as a `BadRowError`, not raised, so that reading can continue.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.data.bad_rows import BadRowError, Fault, describe_value
from rljax.data.cells import shortest_decimal
from rljax.data.plain_text import is_text, read_texts
from rljax.errors import RELOCATE_HINT, InputError
from rljax.files import check_local
from rljax.text import one_line, parse_json

SUFFIXES = (".jsonl", ".json", ".parquet")
"""The suffixes of the files that can be read."""
_LISTED = ".jsonl, .json or .parquet"

Row = tuple[str, object]
"""The location of a row ("line 3"), and its content: usually a dict, but a `BadRowError` if the row cannot be read."""


def open_rows(dataset: str | Path | Iterable[object], split: str) -> tuple[str, Iterator[Row]]:
    """Open a file, folder or hub dataset, and return its name and its rows.

    Args:
        dataset: a `.jsonl`, `.json` or `.parquet` file; a folder that contains one such file, named after the split; a hub id; the
            name of a plain-text source (see `rljax.data.plain_text`); or the rows themselves.
        split: the split of a folder or hub dataset.

    Returns:
        The name of the file or dataset to show in messages, and its rows in order.

    Raises:
        InputError: the file does not exist or has another suffix, or a package is missing. Raised during iteration: the file
            is not a list of rows, or the hub cannot be read.
    """
    if not isinstance(dataset, str | Path):
        rows = _with_shortest_decimals(dataset, _schema_of(dataset))
        return "the dataset", ((f"row {number}", row) for number, row in enumerate(rows, start=1))
    name = str(dataset)
    if is_text(name):
        return f"the text ({split})", read_texts(name, split)
    path = locate(dataset, split)
    if path is None:
        return f"{name} ({split})", _read_hub(name, split)
    readers = {".jsonl": _read_json_lines, ".json": _read_json, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise InputError(f"the dataset {str(path)!r} is not a {_LISTED} file; convert it to one of these.")
    return str(path), readers[path.suffix](path)


def check_row(row: object) -> Mapping[str, object]:
    """Return a row if it is an object with columns; otherwise raise a `BadRowError`."""
    if isinstance(row, BadRowError):
        raise row
    if not isinstance(row, Mapping):
        raise BadRowError(
            f"a row must be an object with named columns, not {describe_value(row)}", "rewrite it as an object"
        )
    return row


def check_loaded(source: str, noun: str, loaded: Sequence[object], faults: Sequence[Fault], on_error: str) -> None:
    """Reject a dataset without usable rows, or with bad rows if they are fatal."""
    if faults and (on_error == "fatal" or not loaded):
        rest = len(faults) - 1
        others = f" {rest} more row{'s' if rest > 1 else ''} cannot be used either." if rest else ""
        raise InputError(f"{faults[0]}{others}")
    if not loaded:
        raise InputError(f"{source} contains no {noun}; give a dataset with at least one row.")


def locate(path_or_id: str | Path, split: str) -> Path | None:
    """Find the file of a dataset; None for a dataset on the hub. It raises the errors of `open_rows`."""
    check_local(path_or_id, "dataset")
    path = Path(path_or_id).expanduser()
    name = str(path_or_id)
    if not name:
        raise InputError("the name of the dataset is empty; give a file, a folder or the id of a dataset.")
    if path.is_dir():
        candidates = [path / f"{split}{suffix}" for suffix in SUFFIXES]
        found = [file for file in candidates if file.is_file()]
        if len(found) != 1:
            state = f"contains {len(found)} of" if found else "contains none of"
            raise InputError(
                f"the folder {name!r} {state} {', '.join(file.name for file in candidates)}; give the path of the file to read."
            )
        return found[0]
    if path.is_file():
        return path
    if path.suffix in SUFFIXES or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"the dataset {name!r} does not exist; give an existing {_LISTED} file{RELOCATE_HINT}.")
    return None


def _read_json_lines(path: Path) -> Iterator[Row]:
    # Read as bytes, because only b"\n" ends a line (JSON text may contain U+2028), and a single line may be in another encoding.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"line {number}", _parse_line(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def _parse_line(line: bytes) -> object:
    try:
        return parse_json(line.decode())
    except UnicodeDecodeError as error:
        return BadRowError(f"the line is not in UTF-8 ({error})", "save the file in UTF-8")
    except (ValueError, RecursionError) as error:
        return BadRowError(f"the line is not JSON ({error})", "fix the line")


def _read_json(path: Path) -> Iterator[Row]:
    try:
        rows = parse_json(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not in UTF-8 ({error}); save it in UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error}); fix it, or rename it to .jsonl if each line is a separate object."
        ) from error
    if not isinstance(rows, list):
        raise InputError(f"{path} must contain one list of objects, not {describe_value(rows)}; rewrite it as a list.")
    for number, row in enumerate(rows, start=1):
        yield f"entry {number}", row


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow  # noqa: PLC0415  (an optional package)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise InputError(
            f"reading {path} needs the package pyarrow; run `pip install pyarrow`, or convert the file to .jsonl."
        ) from error
    try:
        schema = parquet.read_schema(path)
        repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
        if repeated is not None:
            raise InputError(f"{path} has the column {repeated!r} more than once; give each column a unique name.")
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a readable parquet file ({one_line(error)}); recreate it.") from error
    for number, row in enumerate(_with_shortest_decimals(table.to_pylist(), table.schema), start=1):
        yield f"row {number}", row


def _with_shortest_decimals(rows: Iterable[Any], schema: Any) -> Iterator[Any]:
    """Yield rows, with half- and single-precision numbers at any depth converted to their shortest decimal form.

    Args:
        rows: objects with the columns of the schema.
        schema: the rows' Arrow schema. If it is None, the rows are unchanged.
    """
    by_name = {} if schema is None else {field.name: _converter_for(field.type) for field in schema}
    converters = {name: converter for name, converter in by_name.items() if converter is not _unchanged}
    for row in rows:
        is_converted = converters and isinstance(row, Mapping)
        yield {name: converters.get(name, _unchanged)(entry) for name, entry in row.items()} if is_converted else row


def _converter_for(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts a value of an Arrow type; `_unchanged` if no part of the type is half or single precision."""
    from pyarrow import types  # noqa: PLC0415  (an optional package)

    if types.is_float16(kind) or types.is_float32(kind):
        scalar = np.float16 if types.is_float16(kind) else np.float32
        return lambda value: None if value is None else shortest_decimal(scalar(value))
    if types.is_struct(kind):
        parts = {field.name: _converter_for(field.type) for field in kind}
        if all(converter is _unchanged for converter in parts.values()):
            return _unchanged
        return lambda entries: entries and {name: parts[name](entry) for name, entry in entries.items()}
    if types.is_map(kind):
        convert_name, convert_item = _converter_for(kind.key_type), _converter_for(kind.item_type)
        return lambda pairs: pairs and [(convert_name(name), convert_item(item)) for name, item in pairs]
    if hasattr(kind, "storage_type"):  # an extension type
        return _converter_for(kind.storage_type)
    # a list of any size, a dictionary, or a scalar
    convert = _converter_for(kind.value_type) if hasattr(kind, "value_type") else _unchanged
    return (
        convert if convert is _unchanged or types.is_dictionary(kind) else lambda values: values and [*map(convert, values)]
    )


def _unchanged(value: Any) -> Any:
    return value


def _read_hub(name: str, split: str) -> Iterator[Row]:
    try:
        from datasets import load_dataset  # noqa: PLC0415  # pyright: ignore[reportMissingImports]  (an optional package)
    except ImportError as error:
        raise InputError(
            f"the dataset {name!r} is not a local file, and reading it from the Hugging Face hub needs the package datasets; "
            f"check the path, or run `pip install datasets`."
        ) from error
    repository, _, configuration = name.partition(":")
    try:
        rows = load_dataset(repository, None if configuration == "" else configuration, split=split)
    except Exception as error:  # network, authorization and parsers can raise many kinds of errors
        raise InputError(
            f"the dataset {name!r} with the split {split!r} cannot be read from the Hugging Face hub ({one_line(error)}); "
            f"check the id, the split and the network; to select a configuration, write `id:configuration`; or give a file."
        ) from error
    for number, row in enumerate(_with_shortest_decimals(rows, _schema_of(rows)), start=1):
        yield f"row {number}", row


def _schema_of(rows: Any) -> Any:
    """Return the Arrow schema of a dataset of the package `datasets`; None for other rows."""
    return rows.features.arrow_schema if hasattr(rows, "features") and hasattr(rows.features, "arrow_schema") else None
