"""A spinner on the terminal while the libraries are imported, which takes seconds."""

import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def loading(*, quiet: bool) -> Generator[None]:
    """Show a spinner while the body imports JAX; show nothing if the output is not a terminal or `quiet` is set."""
    if quiet or not sys.stdout.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415  --help need not wait for rich

    with Console(highlight=False).status("starting JAX", spinner_style="cyan"):
        yield
