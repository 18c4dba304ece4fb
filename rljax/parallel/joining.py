"""How the processes of a run find each other, before anything is computed."""

import signal
import socket
import threading
import time

import jax

from rljax.errors import InputError

AUTO = "auto"
"""The coordinator's address where JAX finds the other processes by itself."""
PATIENCE = 300.0
"""Seconds that a process waits for the first one to listen."""


def join(coordinator: str, *, hosts: int | None = None, host: int | None = None, patience: float = PATIENCE) -> None:
    """Join the other processes of a run.

    The first process waits for the others as long as JAX does (five minutes), and is then ended by it.

    Args:
        coordinator: `ADDRESS:PORT` of the first process, the same for all; or "auto" on a TPU pod, under Slurm or Open MPI, or on
            Kubernetes with `jax[k8s]`.
        hosts: processes of the run, with an address.
        host: which of them this is, from 0 on, with an address.
        patience: seconds to wait for the first process.

    Raises:
        InputError: an address without `hosts` and `host`, "auto" with them, a `host` that is none of them; the first process cannot
            be reached, or its port is taken; or JAX was used before.
    """
    given = coordinator, hosts, host
    if coordinator == AUTO:
        if (hosts, host) != (None, None):
            raise InputError(f"With coordinator 'auto' hosts and host are found too, got hosts={hosts} and host={host}.")
        given = None, None, None
    else:
        name, _, port = coordinator.rpartition(":")
        if hosts is None or host is None or not 0 <= host < hosts or not name or not port.isdecimal():
            raise InputError(
                f"coordinator={coordinator!r}, hosts={hosts}, host={host} cannot be joined: give the address as ADDRESS:PORT, how "
                "many hosts there are, and which of them this is, counted from 0; or the coordinator 'auto' alone."
            )
        listen_or_find(name, int(port), is_first=host == 0, patience=patience)
    before = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(*given)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"The hosts of coordinator={coordinator!r} could not be joined: {error}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # JAX takes it over, and then nothing ends the process


def listen_or_find(name: str, port: int, *, is_first: bool, patience: float) -> None:
    """Refuse here what JAX would answer by ending the process: a port that is taken, a first process that does not listen.

    Raises:
        InputError: either of these.
    """
    if is_first:
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            raise InputError(f"Host 0 cannot listen on port {port} ({error}); choose another port.") from error
        return
    until = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((name, port), timeout=5).close()
        except OSError as error:
            if time.monotonic() >= until:
                raise InputError(
                    f"Host 0 was not found at {name}:{port} in {patience:g} s ({error}); start it too."
                ) from error
            time.sleep(min(0.2, patience))
        else:
            return
