"""Files: atomic writes, errors that mean a full disk, paths in a run's settings, and hashes that identify stored results."""

import errno
import hashlib
import json
import os
import re
import resource
import secrets
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from rljax.errors import InputError
from rljax.text import map_texts, parse_json

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Error numbers for a full disk, an exhausted quota and a read-only disk."""
LIMITS = {
    errno.EMFILE: "this process cannot open more files; raise the limit, for example with `ulimit -n 4096`",
    errno.EFBIG: "this process cannot write so large a file; raise the limit, for example with `ulimit -f unlimited`",
}
"""Error number of an exceeded process limit -> message with the command to type."""
PATH_SETTINGS = ("model", "tokenizer", "teacher", "anchor_problems", "lora_start", "dataset", "heldout_dataset", "critic")
"""Settings whose value may be the path of a folder or file."""
TEXT = "text:"
"""Prefix of the name of a plain-text dataset; the files follow, quoted as for a shell."""
NOT_PATHS = ("bytes", "characters", "ids", "policy", "fresh", "self")
"""Values of the settings in `PATH_SETTINGS` that are never paths, even if a folder has this name."""
PATH_MAP_SETTINGS = ("also_heldout",)
"""Settings that map names to paths of folders or files."""
OPTIONS_SETTING = "environment_options"
"""Setting whose value is a JSON object, in which any text may be a path or name code."""
CODE_SETTINGS = ("reward", "step_reward", "algorithm", "environment")
"""Settings whose value may name a function in a file, or a reward that is built from a folder or file."""


def read_toml(package: str, name: str) -> dict[str, Any]:
    """Read a TOML file of a package.

    Example:
        >>> list(read_toml("rljax.book", "choosing.toml"))
        ['algorithm', 'part']
    """
    return tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file atomically: a reader finds either the old or the new content, never a part of it, even after a crash.

    The data is written to a temporary file in the same folder and flushed to disk; then the temporary file replaces the target. If
    anything fails, the target is unchanged and the temporary file is removed.

    Args:
        path: the file to create or replace. It gets the default mode of a new file, as set by the umask.
        data: the complete content.

    Raises:
        OSError: the folder does not exist or cannot be written, the disk is full, or `path` is a folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     atomic_write(Path(folder) / "a.txt", b"data")
        ...     (Path(folder) / "a.txt").read_bytes()
        b'data'
    """
    temporary = path.with_name(f".unfinished-{secrets.token_hex(8)}")
    file = temporary.open("xb")  # not `tempfile`, whose files have mode 0600
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class AppendFile:
    """A file to append data to; each piece of data is written completely or not at all.

    Args:
        path: the file; it is created if it does not exist.

    Raises:
        OSError: the file cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = AppendFile(Path(folder) / "rows")
        ...     file.append(b"one\\n")
        ...     file.append(b"two\\n")
        ...     file.close()
        ...     (Path(folder) / "rows").read_bytes()
        b'one\\ntwo\\n'
    """

    def __init__(self, path: Path):
        self._file = path.open("ab", buffering=0)  # a buffer would repeat a failed write later

    def append(self, data: bytes) -> None:
        """Append data. When this method returns, the operating system has the data, but it may not be on disk yet.

        Raises:
            OSError: the write failed, for example on a full disk; the file is unchanged.
        """
        end = os.fstat(self._file.fileno()).st_size
        rest = data
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            if len(rest) < len(data):
                self._file.truncate(end)
            raise

    def close(self) -> None:
        """Close the file; closing again is harmless."""
        self._file.close()


def no_room(error: BaseException) -> str | None:
    """Return the system's message if an error, or one of its causes, means that nothing can be written; None otherwise.

    Args:
        error: an error from any library. TensorStore, which writes arrays, raises a ValueError whose text has the error number.

    Example:
        >>> no_room(OSError(errno.ENOSPC, "No space left on device")), no_room(OSError(errno.ENOENT, "No such file"))
        ('No space left on device', None)
    """
    return next((os.strerror(number) for number in _error_numbers(error) if number in NO_ROOM), None)


def limit_reached(error: BaseException) -> str | None:
    """Return a message with a remedy if an error, or one of its causes, means that a process limit was reached; else None.

    Example:
        >>> limit_reached(OSError(errno.EMFILE, "Too many open files")), limit_reached(OSError(errno.ENOENT, "No such file"))
        ('this process cannot open more files; raise the limit, for example with `ulimit -n 4096`', None)
    """
    if any(isinstance(cause, RuntimeError) and "can't start new thread" in str(cause) for cause in causes(error)):
        return (
            "this process cannot start more threads; raise the limits, for example with `ulimit -u unlimited -v unlimited`"
        )
    return next((LIMITS[number] for number in _error_numbers(error) if number in LIMITS), None)


def _error_numbers(error: BaseException) -> Iterator[int]:
    """Yield the system error numbers in an error and its causes."""
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno is not None:
            yield cause.errno
        elif isinstance(cause, (ValueError, RuntimeError)):
            yield from (int(number) for number in re.findall(r"os_error_code='(\d+)'", str(cause)))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the errors that caused it or preceded it, and the members of error groups."""
    while error is not None:
        yield error
        for part in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from causes(part)
        error = error.__context__ if error.__cause__ is None and not error.__suppress_context__ else error.__cause__


def check_local(path: str | Path, name: str) -> None:
    """Reject the address of a remote store, and anything that is not a path, for settings that need a local folder or file.

    Args:
        path: the folder or file. A `Path` has lost one of the two slashes of an address.
        name: name of the setting, for the message, such as "run".

    Raises:
        InputError: the path is neither text nor a path, or begins with a scheme, such as `gs://` or `s3://`.

    Example:
        >>> check_local("runs/a", "run")
        >>> check_local("gs://bucket/run", "run")
        Traceback (most recent call last):
        ...
        rljax.errors.InputError: run is 'gs://bucket/run', an address in a remote store, but rljax only uses file systems; \
give a folder on this machine, or one where the store is mounted (gcsfuse, mountpoint-s3).
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{name} is {path!r:.80}, but text is expected: the path of a folder or file.")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", str(path))  # a single letter would be a Windows drive
    if scheme is not None:
        address = f"{scheme[1]}://{str(path)[scheme.end() :]}"
        raise InputError(
            f"{name} is {address!r}, an address in a remote store, but rljax only uses file systems; give a folder on this "
            "machine, or one where the store is mounted (gcsfuse, mountpoint-s3)."
        )


def absolute_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the settings that contain relative paths, with these paths made absolute.

    A value counts as a path only if it exists on this disk, so hub ids and names of built-in parts are left out. In the options of
    an environment, any text may be a path: a file, a folder whose name is written with a slash, or code such as `file.py:function`.

    Args:
        settings: flat name of a setting -> value.
    """
    return _changed_paths(settings, _absolute)


def moved_paths(settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return only the settings that contain the path `old`, or a path inside the folder `old`, with `old` replaced by `new`.

    Args:
        settings: flat name of a setting -> value.
        old: an absolute path.
        new: the path that replaces it.

    Example:
        >>> moved_paths({"dataset": "/a/rows.jsonl", "reward": "/a/own.py:judge", "model": "/ab"}, "/a", "/b")
        {'dataset': '/b/rows.jsonl', 'reward': '/b/own.py:judge'}
        >>> moved_paths({"reward": "exact, model:/m"}, "/a", "/b")
        {}
    """
    begin = f"{old.rstrip('/')}/"

    def move(name: str) -> str:
        return new + name[len(old.rstrip("/")) :] if f"{name}/".startswith(begin) else name

    return _changed_paths(settings, move)


def _changed_paths(settings: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Apply `change` to all paths in the settings, and return only the settings that differ."""
    folders = [name for name in PATH_SETTINGS if settings.get(name) not in (None, *NOT_PATHS)]
    found: dict[str, Any] = {name: _change_dataset(settings[name], change) for name in folders}
    for name in CODE_SETTINGS:
        names = ",".join(map(str.strip, (settings.get(name) or "").split(",")))
        if ":" in names and (moved := _change_sources(names, change)) != names:  # spaces alone are no change
            found[name] = moved
    found |= {
        name: {key: change(path) for key, path in settings[name].items()}
        for name in PATH_MAP_SETTINGS
        if settings.get(name)
    }
    if settings.get(OPTIONS_SETTING) is not None:
        found[OPTIONS_SETTING] = _change_options(settings[OPTIONS_SETTING], change)
    return {name: value for name, value in found.items() if value != settings[name]}


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.absolute()) if os.path.exists(path) else name  # `exists` is False for text that cannot be a path


def _change_dataset(name: str, change: Callable[[str], str]) -> str:
    """Change the path of a dataset, or the paths of all files in the name of a plain-text dataset.

    Example:
        >>> _change_dataset("text:a.txt 'b c.txt'", str.upper), _change_dataset("a.jsonl", str.upper)
        ("text:A.TXT 'B C.TXT'", 'A.JSONL')
    """
    return TEXT + shlex.join(map(change, shlex.split(name[len(TEXT) :]))) if name.startswith(TEXT) else change(name)


def _change_sources(names: str, change: Callable[[str], str]) -> str:
    """Change the paths in names such as `file.py:function` and `model:FOLDER`, separated by commas.

    Example:
        >>> _change_sources("package.module:function, exact,own.py:judge", str.upper)
        'package.module:function, exact,OWN.PY:judge'
    """
    return ",".join(_change_source(name, change) for name in names.split(","))


def _change_source(name: str, change: Callable[[str], str]) -> str:
    source, _, function = name.rpartition(":")
    if source.endswith(".py"):
        return f"{change(source.strip())}:{function}"
    kind, colon, rest = name.partition(":")
    if kind.strip() == "brier":
        return f"{kind}:{_change_source(rest, change)}"
    return f"{kind}:{change(rest)}" if colon and kind.strip() in ("model", "constitution") else name


def _change_options(options: str, change: Callable[[str], str]) -> str:
    """Change the paths in a JSON object of options. Text that is not JSON stays unchanged; other code rejects it."""

    def change_text(text: str) -> str:
        is_path = "/" in text or os.path.isfile(Path(text).expanduser())
        return change(text) if is_path and change(text) != text else _change_sources(text, change)

    try:
        values = parse_json(options)
    except ValueError:
        return options
    changed = map_texts(change_text, values)
    return options if changed == values else json.dumps(changed, ensure_ascii=False)


def settings_hash(*settings: Any) -> str:
    """Compute a hash of the settings that a row of results depends on.

    The row stores the hash, and is recomputed if the hash of the current settings differs. The order of named settings does not
    matter. A setting that is off (None, False or empty) counts as absent. So a new setting that is off, or a change from one of
    these values to another, does not change the hash.

    Args:
        settings: what the row depends on; a value that JSON cannot represent is converted to text with `str`.

    Example:
        >>> settings_hash({"steps": 40}, 0.5) == settings_hash({"steps": 40}, 0.5) != settings_hash({"steps": 41}, 0.5)
        True
        >>> settings_hash({"steps": 40, "top_k": None, "chat": False}) == settings_hash({"steps": 40})
        True
    """
    parts = [_without_off(part) if isinstance(part, Mapping) else part for part in settings]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def _without_off(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not off, sorted by name; 0 is not off."""
    return {
        name: value for name, value in sorted(settings.items()) if value is not False and value not in (None, (), [], {})
    }


def experiments_folder() -> Path:
    """Return the folder of rljax's experiments: inside the package in a wheel, next to it in a checkout.

    Raises:
        InputError: this installation has no experiments.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "experiments", package.parent / "experiments"):
        if folder.is_dir():
            return folder
    raise InputError("This installation of rljax has no experiments folder; install the package again, or use a checkout.")


def check_file_size(size: int) -> None:
    """Reject a run whose checkpoint needs a larger file than this process may write.

    Args:
        size: size in bytes of the state to save; Orbax splits a state of more than 2 GiB into several files.

    Raises:
        InputError: the process may write only smaller files.

    Example:
        >>> check_file_size(1)
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < min(size, 2**31):
        raise InputError(
            f"this process may write files of at most {limit:,} bytes, and a checkpoint takes {size:,}; raise the limit, "
            "for example with `ulimit -f unlimited`."
        )
