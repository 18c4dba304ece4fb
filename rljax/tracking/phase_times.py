"""The time that a run spends in each phase of an RL step, measured on the host, and notification of JAX compilation.

The host fetches responses, scores and metrics from the devices anyway, so a phase's time includes the devices' work, and measuring
adds no synchronization.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import jax

from rljax.parallel import return_freed_memory
from rljax.tracking.rows import Row

Phase = Literal["sample", "judge", "score", "update", "wait", "save"]
"""Phases of an RL step. A held-out evaluation is not a phase; its time is the `seconds` of its own row."""
NOUNS = {
    "sample": "sampling",
    "judge": "judging",
    "score": "scoring",
    "update": "updates",
    "evaluate": "evaluation",
    "save": "saving",
    "wait": "waiting for the disk",
    "rest": "the rest",
}
"""Phase -> its name on the screen, in the order of a step."""


class PhaseSeconds(NamedTuple):
    """Seconds of each phase since the previous row; None for a phase that did not occur."""

    sample_seconds: float | None = None
    """Sampling responses and arranging them in groups, without judging."""
    judge_seconds: float | None = None
    """Calling the reward or the environment."""
    score_seconds: float | None = None
    """Computing log-probabilities, values and other inputs of the updates, once per rollout."""
    update_seconds: float | None = None
    """Preparing the batch, and updating policy and critic."""
    wait_seconds: float | None = None
    """Waiting until a checkpoint has been written to disk."""
    save_seconds: float | None = None
    """Copying the state for a checkpoint, which is then written in the background."""


class Stopwatch:
    """A stopwatch that sums the seconds of each phase. A nested phase interrupts the outer phase, so no time is counted twice.

    The stopwatch measures only the thread that created it (the training loop's thread); phases in other threads are ignored.

    Args:
        clock: a function that returns the time in seconds.

    Example:
        >>> times = iter([0.0, 1.0, 3.0, 4.0])
        >>> stopwatch = Stopwatch(lambda: next(times))
        >>> with stopwatch.phase("sample"):
        ...     with stopwatch.phase("judge"):
        ...         pass
        >>> stopwatch.lap()[:3]
        (2.0, 2.0, None)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._running: list[Phase] = []
        self._since = 0.0
        self._seconds: dict[Phase, float] = {}
        self._thread = threading.get_ident()

    @contextmanager
    def phase(self, name: Phase) -> Generator[None]:
        """Add the time inside the context to this phase."""
        if threading.get_ident() != self._thread:
            yield
            return
        self._charge()
        self._running.append(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def lap(self) -> PhaseSeconds:
        """Return the seconds of the phases since the last call, and start again at 0."""
        seconds, self._seconds = self._seconds, {}
        return PhaseSeconds(**{f"{name}_seconds": value for name, value in seconds.items()})

    def _charge(self) -> None:
        """Add the time since the last change to the phase that was running."""
        now = self._clock()
        if self._running:
            name = self._running[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now


def sum_phase_times(rows: Sequence[Row]) -> Mapping[str, float]:
    """Sum the seconds of RL by phase, including held-out evaluations and the rest of each step.

    Args:
        rows: rows of `metrics.jsonl`.

    Returns:
        Phase -> seconds, in the order of a step; empty if no row has these times.

    Example:
        >>> sum_phase_times([{"phase": "rl", "step": 1, "seconds": 2.0, "sample_seconds": 1.5}])
        {'sample': 1.5, 'rest': 0.5}
    """
    steps = [row for row in rows if row["phase"] == "rl" and "sample_seconds" in row]
    if not steps:
        return {}
    spent = {name: sum(row.get(f"{name}_seconds") or 0.0 for row in steps) for name in NOUNS}
    spent["evaluate"] = sum(row.get("seconds") or 0.0 for row in rows if row["phase"] == "eval")
    inside = sum(spent[name] for name in ("sample", "judge", "score", "update"))
    spent["rest"] = max(0.0, sum(row.get("seconds") or 0.0 for row in steps) - inside)
    return {name: seconds for name, seconds in spent.items() if seconds}


def time_text(spent: Mapping[str, float]) -> str:
    """Format each phase's percentage of the time, largest first.

    Example:
        >>> time_text({"sample": 6.0, "update": 4.0})
        'sampling 60 %, updates 40 %'
    """
    total = sum(spent.values())
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    percentages = [
        f"{NOUNS[name]} {seconds / total:.0%}".replace("%", " %") for name, seconds in ordered if seconds / total >= 0.005
    ]
    return ", ".join(percentages)


BEGIN, END = "/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration"
"""JAX events. BEGIN: a function has been traced and lowered, and XLA starts to compile it. END: XLA has compiled it."""


@contextmanager
def watch_compilation(tell: Callable[[str | None], None]) -> Generator[None]:
    """Report when the compilation of a function begins and when it has ended; then return the compiler's memory to the system.

    Args:
        tell: called with the name of the function when its compilation begins, and with None when it has ended.

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
            return_freed_memory()

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
