"""Reports when JAX compiles, and which function."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import jax

BEGIN, END = "/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration"
"""JAX events: a function was traced and lowered, just before XLA compiles it; XLA has compiled it."""


@contextmanager
def watch_compilation(tell: Callable[[str | None], None]) -> Generator[None]:
    """Report when the compilation of a function begins, and when it has ended.

    Args:
        tell: receives the name of the function at the beginning, and None at the end.

    Example:
        >>> names = []
        >>> with watch_compilation(names.append):
        ...     def doubled(x):
        ...         return 2 * x
        ...     _ = jax.jit(doubled)(3.0)
        >>> names[0], names[-1]
        ('jit(doubled)', None)
    """

    def listener(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == BEGIN:
            tell(str(kwargs.get("fun_name", "a function")))
        elif event == END:
            tell(None)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
