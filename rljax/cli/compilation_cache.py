"""Folder for compiled programs between commands, so that the second run of a shape starts without compiling."""

import os
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from rljax.machine import processor

DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
SHORTEST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
MOST_BYTES = 4 * 2**30
"""Size above which the oldest programs are removed. JAX's own limit locks at every read, and a kill can break it for good."""


def cache_folder(environment: MutableMapping[str, str]) -> Path:
    """The folder of compiled programs: JAX's own variable if it is set, else rljax's part of the user's cache folder.

    Each kind of processor has its own, because programs for a CPU hold its instructions, and machines may share a home folder.

    Example:
        >>> cache_folder({"XDG_CACHE_HOME": "/scratch/cache"}).parent.as_posix()
        '/scratch/cache/rljax/compiled'
    """
    if folder := environment.get(DIRECTORY):
        return Path(folder)
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or tempfile.gettempdir()) / ".cache"
    return Path(caches) / "rljax" / "compiled" / processor()


def writable(folder: Path) -> bool:
    """True if files can be made in a folder, which is made if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def keep_compiled_programs(environment: MutableMapping[str, str]) -> None:
    """Let JAX keep compiled programs in the user's cache folder; variables of JAX that are set already are left alone.

    JAX reads the variables when it is imported. `JAX_ENABLE_COMPILATION_CACHE=false` switches the cache off.

    Args:
        environment: the environment of this process, which is changed.
    """
    if DIRECTORY in environment or not writable(folder := cache_folder(environment)):
        return
    remove_oldest(folder, MOST_BYTES)
    environment[DIRECTORY] = str(folder)
    environment.setdefault(SHORTEST, "0.1")  # a small run is many short compilations


def remove_oldest(folder: Path, most_bytes: int) -> None:
    """Remove the oldest files of a folder until the others are no larger than a limit; another process may do the same."""
    room = most_bytes
    with suppress(OSError):  # a file that another process has removed
        files = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
        for path, status in sorted(files, key=lambda file: file[1].st_mtime, reverse=True):
            room -= status.st_size
            if room < 0:
                path.unlink(missing_ok=True)


def cache_text(environment: MutableMapping[str, str]) -> str:
    """A line that says where compiled programs are kept, or why they are not."""
    if environment.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in ("0", "false", "off", "no"):
        return "compiled programs: not kept (JAX_ENABLE_COMPILATION_CACHE)"
    if environment.get(DIRECTORY) == "":
        return f"compiled programs: not kept ({DIRECTORY} is empty)"
    folder = cache_folder(environment)
    return f"compiled programs: {folder}" if writable(folder) else f"compiled programs: not kept ({folder} is not writable)"
