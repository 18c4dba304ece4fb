"""Stop a run whose updates were all skipped for several steps; see `rljax.parallel.guarded_update`."""

from jaxtyping import Array, Float

MAX_CONSECUTIVE_SKIPS = 5
"""A run stops after this many consecutive training steps whose updates were all skipped."""


def count_consecutive_skips(count: int, share: Float[Array, ""] | float | None) -> int:
    """Count consecutive training steps whose updates were all skipped; a step that attempted no update leaves the count unchanged.

    Args:
        count: the number of such steps before this step.
        share: fraction of this step's updates that were skipped; None if it attempted none.

    Example:
        >>> count_consecutive_skips(2, 1.0), count_consecutive_skips(2, 0.75), count_consecutive_skips(2, None)
        (3, 0, 2)
    """
    if share is None:
        return count
    return count + 1 if float(share) == 1 else 0


def explain_skips(count: int, learning_rate: str, run: str) -> str:
    """Explain why a run stops after too many skipped updates, and what the user can do.

    Args:
        count: number of consecutive training steps whose updates were all skipped.
        learning_rate: the flag that sets the learning rate of these steps.
        run: folder of the run, quoted for a shell.
    """
    return (
        f"The loss or gradient was not finite, or the update was far too large, in {count} training steps in a row, so nothing was "
        f"learned in these steps. The parameters before them are saved: `rljax export {run} model --checkpoint last` writes a "
        f"model folder, and `rljax train --model model` with a lower {learning_rate} continues from it. Infinite values from your "
        "own reward or algorithm are another possible cause."
    )
