"""The manifest of a checkpoint: length and SHA-256 of each of its files, written after all of them.

A checkpoint is whole if its manifest is there and every file is what the manifest says. A kill in the middle of a save, a full
disk, a lost file or a flipped bit is therefore noticed before anything is read.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from rljax.files import atomic_write

MANIFEST = "sha256.json"
"""Name of the manifest in the folder of a checkpoint."""
UNREADABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError)
"""Raised by a manifest that is missing or damaged."""
Rows = Mapping[str, tuple[int, str]]
"""A manifest: relative path of each file -> its length and its SHA-256."""


def files_of(checkpoint: Path) -> dict[str, Path]:
    """The files of a checkpoint by their relative path, without the manifest."""
    files = {path.relative_to(checkpoint).as_posix(): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name != MANIFEST}


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _flushed_digest(path: Path) -> str:
    _flush(path)
    return digest(path)


def write_manifest(checkpoint: Path, known: Rows = MappingProxyType({})) -> None:
    """Write the manifest of a checkpoint whose other files are complete, after these are on the disk.

    Args:
        checkpoint: its folder.
        known: rows of files that need not be read.
    """
    for name in known:
        _flush(checkpoint / name)
    files = {name: path for name, path in files_of(checkpoint).items() if name not in known}
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        digests = pool.map(_flushed_digest, files.values())
        rows = {name: (path.stat().st_size, sha256) for (name, path), sha256 in zip(files.items(), digests, strict=True)}
    atomic_write(checkpoint / MANIFEST, json.dumps(dict(sorted({**rows, **known}.items())), indent=1).encode())


def sound_rows(checkpoint: Path, part: str, *, by_hash: bool = True) -> Rows | None:
    """Rows of the files in a folder of a checkpoint; None if one of them has changed, or there is none.

    Args:
        checkpoint: its folder.
        part: folder in it.
        by_hash: whether the content is compared, too, and not the lengths alone.
    """
    try:
        rows = {name: row for name, row in _rows_of(checkpoint).items() if name.startswith(f"{part}/")}
    except UNREADABLE:
        return None
    return rows if rows and _fault_of_files(checkpoint, rows, by_hash=by_hash) is None else None


def fault_of(checkpoint: Path) -> str | None:
    """Why a checkpoint is not whole, in words; None if it is.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "weights").write_bytes(b"1234")
        >>> fault_of(folder)
        'it has no manifest: its save was not finished, or an older rljax wrote it'
        >>> write_manifest(folder)
        >>> fault_of(folder)
        >>> _ = (folder / "weights").write_bytes(b"123")
        >>> fault_of(folder)
        'weights has 3 bytes instead of 4'
    """
    try:
        rows = _rows_of(checkpoint)
    except FileNotFoundError:
        return "it has no manifest: its save was not finished, or an older rljax wrote it"
    except UNREADABLE as error:
        return f"{MANIFEST} cannot be read ({error})"
    return _fault_of_files(checkpoint, rows)


def _rows_of(checkpoint: Path) -> Rows:
    rows = json.loads((checkpoint / MANIFEST).read_bytes())
    return {str(name): (int(size), str(sha256)) for name, (size, sha256) in rows.items()}


def _fault_of_files(checkpoint: Path, rows: Rows, *, by_hash: bool = True) -> str | None:
    files = files_of(checkpoint)
    with ThreadPoolExecutor() as pool:
        faults = list(pool.map(lambda name: _fault_of_file(name, files.get(name), *rows[name], by_hash=by_hash), rows))
    return next((fault for fault in faults if fault is not None), None)


def _fault_of_file(name: str, path: Path | None, size: int, sha256: str, *, by_hash: bool) -> str | None:
    if path is None:
        return f"{name} is missing"
    if (found := path.stat().st_size) != size:
        return f"{name} has {found} bytes instead of {size}"
    return None if not by_hash or digest(path) == sha256 else f"{name} has other content than was saved"
