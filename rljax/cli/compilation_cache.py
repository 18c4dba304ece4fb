"""Folder for programs compiled by earlier commands, so that a second run with the same shapes starts without compiling."""

import os
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from rljax.machine import processor_name

FOLDER_VARIABLE, FOLDER_OPTION = "JAX_COMPILATION_CACHE_DIR", "jax_compilation_cache_dir"
MIN_SECONDS_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
MOST_BYTES = 4 * 2**30
"""Size in bytes above which the oldest programs are removed. JAX's own size limit is not used, because it takes a lock at every
read, and a killed process can leave the cache locked."""


def cache_folder(environment: MutableMapping[str, str]) -> Path:
    """Return the folder of compiled programs: the one in JAX's own variable if set, else one in the user's cache folder.

    Each kind of processor has its own folder, because CPU programs depend on the processor's instruction set, and machines with
    different processors may share a home folder.

    Example:
        >>> cache_folder({"XDG_CACHE_HOME": "/scratch/cache"}).parent.as_posix()
        '/scratch/cache/rljax/compiled'
    """
    if folder := environment.get(FOLDER_VARIABLE):
        return Path(folder)
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or tempfile.gettempdir()) / ".cache"
    return Path(caches) / "rljax" / "compiled" / processor_name()


def writable(folder: Path) -> bool:
    """Return True if files can be created in a folder; the folder is created if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def keep_compiled_programs(environment: MutableMapping[str, str]) -> None:
    """Let JAX keep compiled programs in the user's cache folder; do not change JAX variables that are already set.

    JAX reads the variables when it is imported. `JAX_ENABLE_COMPILATION_CACHE=false` disables the cache.

    Args:
        environment: the environment of this process, which is changed.
    """
    if FOLDER_VARIABLE in environment or not writable(folder := cache_folder(environment)):
        return
    remove_oldest(folder, MOST_BYTES)
    environment[FOLDER_VARIABLE] = str(folder)
    environment.setdefault(MIN_SECONDS_VARIABLE, "0.1")  # a small run consists of many short compilations


def use_compilation_cache() -> Path | None:
    """Let JAX keep compiled programs in the folder that the commands use, so that the next process need not compile them again.

    A library does not change JAX's configuration by itself, so a Python program calls this once, before its first computation.
    If JAX already has a folder (`JAX_COMPILATION_CACHE_DIR` or `jax_compilation_cache_dir`), that folder is used.

    Returns:
        The folder; None if programs are not kept, because the variable is set but empty or the user's cache folder is not writable.
    """
    import jax  # noqa: PLC0415  the commands set the variables before they import JAX

    known = jax.config.values[FOLDER_OPTION]
    if known is not None or FOLDER_VARIABLE in os.environ:
        return Path(known) if known else None
    environment = dict(os.environ)
    keep_compiled_programs(environment)
    if FOLDER_VARIABLE not in environment:
        return None
    jax.config.update(FOLDER_OPTION, environment[FOLDER_VARIABLE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", float(environment[MIN_SECONDS_VARIABLE]))
    return Path(environment[FOLDER_VARIABLE])


def remove_oldest(folder: Path, most_bytes: int) -> None:
    """Remove a folder's oldest files until the rest fit a size limit; other processes may do so at the same time."""
    room = most_bytes
    with suppress(OSError):  # another process may have removed a file
        files = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
        for path, status in sorted(files, key=lambda file: file[1].st_mtime, reverse=True):
            room -= status.st_size
            if room < 0:
                path.unlink(missing_ok=True)


def cache_text(environment: MutableMapping[str, str]) -> str:
    """Return a line that reports where compiled programs are kept, or why they are not."""
    if environment.get("JAX_ENABLE_COMPILATION_CACHE", "").lower() in ("0", "false", "off", "no"):
        return "compiled programs: not kept (JAX_ENABLE_COMPILATION_CACHE)"
    if environment.get(FOLDER_VARIABLE) == "":
        return f"compiled programs: not kept ({FOLDER_VARIABLE} is empty)"
    folder = cache_folder(environment)
    return f"compiled programs: {folder}" if writable(folder) else f"compiled programs: not kept ({folder} is not writable)"
