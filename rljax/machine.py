"""The processors of this machine, and the limit on open files of this process."""

import hashlib
import os
import platform
import resource
from pathlib import Path

from rljax.errors import InputError


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return a name for this machine's kind of processor: its architecture, and a hash of the instruction sets that it supports.

    Args:
        cpuinfo: file in which Linux lists the instruction sets; if it does not exist, the processor's name is hashed instead.
    """
    lines = cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.is_file() else [platform.processor()]
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), lines[0] if lines else "")
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def usable_processors() -> int:
    """Return the number of processors that this process may use.

    Example:
        >>> usable_processors() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def raise_open_file_limit(*, least: int = 64, enough: int = 4096) -> None:
    """Raise this process's limit on open files if the system allows it, because a checkpoint is written to many files at once.

    Args:
        least: the minimum limit with which a run can work.
        enough: the new limit if the current limit is lower; the system may allow less.

    Raises:
        InputError: the process may open fewer than `least` files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = enough if hard == resource.RLIM_INFINITY else min(hard, enough)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft = target
    if soft != resource.RLIM_INFINITY and soft < least:
        raise InputError(
            f"this process may open only {soft} files; raise the limit, for example with `ulimit -n {enough}`."
        )
