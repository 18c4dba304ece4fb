"""Two processes of one device each that talk over the loopback, as two hosts do over a network."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HOSTS = 2
CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"


def free_address() -> str:
    """An address of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def on_two_hosts(command: Sequence[str], *, seconds: float = 400, **environment: str) -> list[subprocess.CompletedProcess]:
    """Run `python COMMAND --coordinator ... --hosts 2 --host N` once as each host; how both ended."""
    given = os.environ | environment | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(CACHE)}
    joined = [sys.executable, *command, "--coordinator", free_address(), "--hosts", str(HOSTS), "--host"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*joined, str(host)], env=given, **pipes) for host in range(HOSTS)]
    try:
        said = [process.communicate(timeout=seconds) for process in running]
    finally:
        for process in running:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *both)
        for process, both in zip(running, said, strict=True)
    ]
