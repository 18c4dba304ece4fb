"""A watchdog that ends a command's process if leftover threads keep it alive."""

import os
import sys
import threading
import time

GRACE_SECONDS = 10.0
"""Grace period, in seconds, for the user's threads to finish after the command ends."""
FAILED_SECONDS = 30.0
"""Longest time that a process may keep running after its command failed on one of several hosts. JAX makes the process wait for the
other hosts, which may in turn wait for this process."""


def start_exit_watchdog(code: int, *, is_multi_host: bool = False) -> None:
    """Start a watchdog that ends the process with `code` if a non-daemon thread keeps the process alive.

    Args:
        code: exit code of the command.
        is_multi_host: whether the command ran on several hosts; if it failed, the process ends after at most `FAILED_SECONDS`.
    """
    threading.Thread(target=_end, args=(code, is_multi_host and code != 0), daemon=True).start()


def _end(code: int, failed_on_hosts: bool) -> None:
    time.sleep(GRACE_SECONDS)
    # By now Python has ended its own thread pools: any thread still running was left behind.
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    if left:
        noun = "the thread" if len(left) == 1 else "the threads"
        print(
            f"note: the process ends without waiting for {noun} {', '.join(map(repr, left))}, which a reward or other code left "
            "running.",
            file=sys.stderr,
        )
        sys.stdout.flush()
        os._exit(code)
    if failed_on_hosts:
        time.sleep(FAILED_SECONDS - GRACE_SECONDS)
        sys.stdout.flush()
        os._exit(code)
