"""Ending the process of a command."""

import os
import sys
import threading
import time

GRACE_SECONDS = 10.0
"""How long user threads may take to end after the command."""
FAILED_SECONDS = 30.0
"""Longest time from the end of a command that failed on one of several hosts to the end of its process: JAX makes it wait for the
others, which may in turn wait for it."""


def end_without_threads(code: int, *, has_hosts: bool = False) -> None:
    """End the process with `code` even if a non-daemon thread never ends; other threads end it as usual.

    Args:
        code: exit code of the command.
        has_hosts: whether the command ran on several hosts; if it failed, the process ends even if they do not.
    """
    threading.Thread(target=_end, args=(code, has_hosts and code != 0), daemon=True).start()


def _end(code: int, is_alone: bool) -> None:
    time.sleep(GRACE_SECONDS)
    # By now Python has ended its own thread pools: any thread still running was left behind.
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    if left:
        print(
            f"note: the process ends without waiting for the thread {', '.join(map(repr, left))}, which a reward or other code "
            "left running.",
            file=sys.stderr,
        )
        sys.stdout.flush()
        os._exit(code)
    if is_alone:
        time.sleep(FAILED_SECONDS - GRACE_SECONDS)
        sys.stdout.flush()
        os._exit(code)
