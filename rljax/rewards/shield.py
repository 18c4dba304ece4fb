"""Effects of the user's code on the process while it is called: some are undone, others are refused."""

import os
from collections.abc import Generator
from contextlib import chdir, contextmanager
from typing import NoReturn

from rljax.errors import InputError


@contextmanager
def shielded(function: str) -> Generator[None]:
    """Call code of the user in the body: it cannot end the process or leave it elsewhere, and is refused if it closes its files.

    - A change of the working folder ends with the body.
    - `os._exit` raises SystemExit in this process, so that a run never ends as if it were done; forked children end as they do.
    - The body may close no file descriptor that it did not open.

    Args:
        function: its name, for messages.

    Raises:
        InputError: a file of the process was closed.
    """
    ours, leave = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != ours:
            leave(status)
        raise SystemExit(f"os._exit({status})")

    opened = os.open(os.devnull, os.O_RDONLY)
    os._exit = refuse
    try:
        with chdir("."):
            yield
    finally:
        os._exit = leave
        try:
            os.close(opened)
        except OSError as error:
            raise InputError(
                f"the reward {function} closed file descriptors that it had not opened, and with them the files of the run; let it "
                "close its own files only. The run goes on from its last checkpoint when it is resumed."
            ) from error
