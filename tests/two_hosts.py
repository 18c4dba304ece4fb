"""Two processes that communicate over the loopback interface, like two hosts over a network."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HOSTS = 2


def free_address() -> str:
    """An address of this machine with a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def run_on_two_hosts(
    command: Sequence[str], *, devices: int = 1, seconds: float = 400, survivor: int | None = None, **environment: str
) -> list[subprocess.CompletedProcess]:
    """Run `python COMMAND --coordinator ... --hosts 2 --host N` once per host; return each one's exit code and output.

    If there is a `survivor`, wait for that host only.
    """
    count = f"--xla_force_host_platform_device_count={devices}"  # the last flag wins
    flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {count}", "JAX_PLATFORMS": "cpu"}
    variables = os.environ | flags | environment
    joined = [sys.executable, *command, "--coordinator", free_address(), "--hosts", str(HOSTS), "--host"]
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, str(host)) for host in range(HOSTS)]
        running = []
        try:
            for host, log in enumerate(logs):
                with log.open("w") as file:
                    running.append(
                        subprocess.Popen([*joined, str(host)], env=variables, stdout=file, stderr=subprocess.STDOUT)
                    )
            for process in running if survivor is None else [running[survivor]]:
                process.wait(timeout=seconds)
        finally:
            for process in running:
                process.kill()
                process.wait()
        return [
            subprocess.CompletedProcess(process.args, process.returncode, log.read_text())
            for process, log in zip(running, logs, strict=True)
        ]
