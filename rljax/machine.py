"""Floor 0: what kind of machine this is."""

import hashlib
import os
import platform
from pathlib import Path


def processor(listed: Path = Path("/proc/cpuinfo")) -> str:
    """Name of this kind of processor: its architecture, and a checksum of the instructions that it knows.

    Args:
        listed: file in which Linux lists them; without it, the checksum is that of the processor's name.
    """
    lines = listed.read_text(errors="replace").splitlines() if listed.is_file() else [platform.processor()]
    known = next((line for line in lines if line.lower().startswith(("flags", "features"))), lines[0] if lines else "")
    return f"{platform.machine()}-{hashlib.sha256(known.encode()).hexdigest()[:8]}"


def usable_processors() -> int:
    """Number of processors that this process may use.

    Example:
        >>> usable_processors() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
