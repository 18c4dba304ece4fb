"""Connect the hosts of a command that runs on several of them."""

from rljax.errors import InputError


def join_hosts(coordinator: str | None, hosts: int | None, host: int | None, *, limit: float = 0.0) -> None:
    """Connect this host to the others that run the command; do nothing on a single host.

    Args:
        coordinator: address of host 0, "auto", or None for a command on one host.
        hosts: number of hosts.
        host: index of this host.
        limit: seconds without a heartbeat after which a host counts as lost; 0 leaves this limit to JAX.

    Raises:
        InputError: `hosts` or `host` is set without a coordinator, or the hosts cannot be connected.
    """
    if coordinator is None:
        if (hosts, host) != (None, None):
            raise InputError("--hosts and --host need --coordinator, the address of host 0.")
        return
    from rljax.parallel.joining import join  # noqa: PLC0415 - imported here so that --help does not load JAX

    join(coordinator, hosts=hosts, host=host, limit=limit)
