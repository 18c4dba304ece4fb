"""The manifest of a checkpoint, with the length and SHA-256 of each file, and the deletion of old checkpoints.

The manifest is written last: a checkpoint is complete if its manifest exists and all files match it. An interrupted save, a full
disk, a lost file or a flipped bit is therefore detected before the checkpoint is used.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rljax.files import atomic_write, no_room
from rljax.parallel import is_first

MANIFEST = "sha256.json"
"""Name of the manifest in the folder of a checkpoint."""
READ_ERRORS = (OSError, ValueError, TypeError, AttributeError, RecursionError)
"""Exceptions raised when a manifest that is missing or damaged is read."""
ManifestRows = Mapping[str, tuple[int, str]]
"""A manifest: relative path of each file -> its length and its SHA-256."""


def files_of(checkpoint: Path) -> dict[str, Path]:
    """Return the files of a checkpoint by relative path, without the manifest."""
    files = {path.relative_to(checkpoint).as_posix(): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name != MANIFEST}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _flushed_digest(path: Path) -> str:
    _flush(path)
    return digest(path)


def write_manifest(checkpoint: Path, known: ManifestRows = MappingProxyType({})) -> None:
    """Flush the files of a checkpoint to the disk, and then write its manifest. The files must be complete.

    Args:
        checkpoint: folder of the checkpoint.
        known: manifest rows of files whose hashes are already known.
    """
    for name in known:
        _flush(checkpoint / name)
    files = {name: path for name, path in files_of(checkpoint).items() if name not in known}
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        digests = pool.map(_flushed_digest, files.values())
        rows = {name: (path.stat().st_size, sha256) for (name, path), sha256 in zip(files.items(), digests, strict=True)}
    atomic_write(checkpoint / MANIFEST, json.dumps(dict(sorted({**rows, **known}.items())), indent=1).encode())


def intact_rows(checkpoint: Path, part: str, *, by_hash: bool = True) -> ManifestRows | None:
    """Return the manifest rows of a checkpoint's subfolder; None if it has no rows, or if a file does not match its row.

    Args:
        checkpoint: folder of the checkpoint.
        part: name of the subfolder.
        by_hash: whether to compare the files' hashes in addition to their lengths.
    """
    try:
        rows = {name: row for name, row in _rows_of(checkpoint).items() if name.startswith(f"{part}/")}
    except READ_ERRORS:
        return None
    return rows if rows and _fault_of_files(checkpoint, rows, by_hash=by_hash) is None else None


def fault_of(checkpoint: Path) -> str | None:
    """Explain why a checkpoint is not complete; None if it is complete.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "weights").write_bytes(b"1234")
        >>> fault_of(folder)
        'it has no manifest: its save was not finished, or an older version of rljax wrote it'
        >>> write_manifest(folder)
        >>> fault_of(folder)
        >>> _ = (folder / "weights").write_bytes(b"123")
        >>> fault_of(folder)
        'weights has 3 bytes instead of 4'
    """
    try:
        rows = _rows_of(checkpoint)
    except FileNotFoundError:
        return "it has no manifest: its save was not finished, or an older version of rljax wrote it"
    except READ_ERRORS as error:
        return f"{MANIFEST} cannot be read ({error})"
    return _fault_of_files(checkpoint, rows)


def _rows_of(checkpoint: Path) -> ManifestRows:
    rows = json.loads((checkpoint / MANIFEST).read_bytes())
    return {str(name): (int(size), str(sha256)) for name, (size, sha256) in rows.items()}


def _fault_of_files(checkpoint: Path, rows: ManifestRows, *, by_hash: bool = True) -> str | None:
    files = files_of(checkpoint)
    with ThreadPoolExecutor() as pool:
        faults = list(pool.map(lambda name: _fault_of_file(name, files.get(name), *rows[name], by_hash=by_hash), rows))
    return next((fault for fault in faults if fault is not None), None)


def _fault_of_file(name: str, path: Path | None, size: int, sha256: str, *, by_hash: bool) -> str | None:
    if path is None:
        return f"{name} is missing"
    if (found := path.stat().st_size) != size:
        return f"{name} has {found} bytes instead of {size}"
    return None if not by_hash or digest(path) == sha256 else f"{name} differs from the file that was saved"


class Retention(NamedTuple):
    """The rule for which checkpoints of one kind are kept."""

    max_to_keep: int = 2
    """Number of newest checkpoints to keep. With at least 2, a damaged newest checkpoint can be replaced by the one before it."""
    keep_period: int | None = None
    """If this is n, also keep the checkpoint of every n-th RL step, in `step-N` next to the folder of the kind."""


def prune(folder: Path, step: int, keep: Retention) -> None:
    """Delete old checkpoints, and then copy the newest one to `step-N` if its step is a multiple of the period.

    Only checkpoints with a manifest count toward the number to keep. An older checkpoint without a manifest was never complete, and
    is deleted. If this function fails, it can be called again.

    Args:
        folder: folder with the checkpoints of one kind; the newest one must be complete.
        step: RL step of the newest checkpoint.
        keep: the rule for which checkpoints are kept.
    """
    newest, *older = sorted(numbers_in(folder), reverse=True)
    saved = [number for number in older if (folder / str(number) / MANIFEST).exists()]
    for number in set(older) - set(saved[: keep.max_to_keep - 1]):
        # Delete the manifest first, so that a checkpoint whose deletion is interrupted does not look complete.
        (folder / str(number) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder / str(number))
    if keep.keep_period is not None and step and step % keep.keep_period == 0:
        _copy_permanently(folder / str(newest), folder.parent / f"step-{step}" / "0")


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder, complete or not."""
    return [int(path.name) for path in folder.glob("*") if path.is_dir() and path.name.isdecimal()]


@contextmanager
def remove_on_error(folder: Path, number: int) -> Generator[None]:
    """If saving a checkpoint fails, let the first process remove the files written so far."""
    try:
        yield
    except BaseException:
        if is_first():
            for leftover in (folder / str(number), *folder.glob(f"{number}.*")):
                shutil.rmtree(leftover, ignore_errors=True)
        raise


def _copy_permanently(checkpoint: Path, place: Path) -> None:
    """Copy a checkpoint to `place`, through hard links if the disk supports them; an earlier copy there is replaced."""
    unfinished = place.with_name(f".unfinished-{secrets.token_hex(4)}")
    try:
        link_folder(checkpoint, unfinished)
        shutil.rmtree(place, ignore_errors=True)
        unfinished.rename(place)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def link_folder(source: Path, place: Path) -> None:
    """Copy a folder to `place`, which must not exist yet, through hard links if the disk supports them."""
    for path in (source, *source.rglob("*")):  # `shutil.copytree` would hide a full disk
        target = place / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True)
            continue
        try:
            os.link(path, target)
        except OSError as error:
            if no_room(error) is not None:
                raise
            shutil.copy2(path, target)
