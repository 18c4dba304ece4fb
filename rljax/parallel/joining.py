"""Connect the processes of a run, before anything is computed."""

import math
import signal
import socket
import threading
import time

import jax

from rljax.errors import InputError

AUTO_COORDINATOR = "auto"
"""Value of `coordinator` with which JAX finds the other processes by itself."""
MAX_PORT = 65535
MIN_HEARTBEAT_SECONDS = 100
"""Smallest limit that we set for JAX's own heartbeats, in seconds; see `limit` in `join`."""
PATIENCE_SECONDS = 300.0
"""Seconds that a process waits for the first process to listen at its port."""


def join(
    coordinator: str,
    *,
    hosts: int | None = None,
    host: int | None = None,
    patience: float = PATIENCE_SECONDS,
    limit: float = 0.0,
) -> None:
    """Join the other processes of a run.

    The first process waits for the others for five minutes, which is JAX's timeout. Then JAX ends the first process.

    Args:
        coordinator: `ADDRESS:PORT` of the first process, the same for all; or "auto" on a TPU pod, under Slurm or Open MPI, or on
            Kubernetes with `jax[k8s]`.
        hosts: number of processes in the run; required with an address.
        host: index of this process, from 0; required with an address.
        patience: seconds to wait for the first process.
        limit: seconds without a heartbeat after which the run considers a process lost; JAX waits twice as long, then aborts.

    Raises:
        InputError: `coordinator` is an address and `hosts` or `host` is missing, or it is "auto" and one of them is passed; `host`
            is not below `hosts`; the first process cannot be reached, or its port is taken; or JAX has already been used.
    """
    arguments = coordinator, hosts, host
    if coordinator == AUTO_COORDINATOR:
        if (hosts, host) != (None, None):
            raise InputError(
                f"With coordinator 'auto', hosts and host must be left out; got hosts={hosts} and host={host}."
            )
        arguments = None, None, None
    else:
        name, _, port = coordinator.rpartition(":")
        is_address = name != "" and port.isdecimal() and int(port) <= MAX_PORT
        if hosts is None or host is None or not 0 <= host < hosts or not is_address:
            raise InputError(
                f"coordinator={coordinator!r}, hosts={hosts}, host={host} cannot be joined: set the address as ADDRESS:PORT, the "
                "number of hosts, and the index of this host, counted from 0; or set only coordinator='auto'."
            )
        check_rendezvous(name, int(port), is_first=host == 0, patience=patience)
    before = signal.getsignal(signal.SIGTERM)
    try:
        jax.distributed.initialize(*arguments, heartbeat_timeout_seconds=max(MIN_HEARTBEAT_SECONDS, math.ceil(2 * limit)))
    except (RuntimeError, ValueError) as error:
        raise InputError(f"The hosts of coordinator={coordinator!r} could not be joined: {error}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # JAX replaces the handler, after which SIGTERM no longer ends the process


def check_rendezvous(name: str, port: int, *, is_first: bool, patience: float) -> None:
    """Check on host 0 that the port is free, and on the other hosts that host 0 listens at it; JAX would end the process instead.

    Raises:
        InputError: the port is in use, or the first process was not found.
    """
    if is_first:
        try:
            socket.create_server(("", port)).close()
        except OSError as error:
            raise InputError(f"Host 0 cannot listen on port {port} ({error}); choose another port.") from error
        return
    deadline = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((name.strip("[]"), port), timeout=5).close()  # an IPv6 address has brackets
        except OSError as error:
            if time.monotonic() >= deadline:
                raise InputError(
                    f"Host 0 was not found at {name}:{port} in {patience:g} s ({error}); start host 0, or correct the address."
                ) from error
            time.sleep(min(0.2, patience))
        else:
            return
