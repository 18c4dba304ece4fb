"""Sizes of a decode: rows per batch, prompts read at once, and room for tokens. Each size needs a compiled program of its own."""

from collections.abc import Sequence

from rljax.rollout.request import Request

PROMPT_TOKENS_AT_ONCE = 8_192
"""Number of prompt tokens that a device reads at once, unless a single prompt is longer."""
FEWEST_ROWS = 8
"""Rows of the smallest batch that the last responses of a decode are moved to."""
LONG_BUDGET = 128
"""Response length, in tokens, from which programs for fewer rows and for less room are worth compiling."""


def block_parts(slots: int, requests: int, prompts: int, length: int, devices: int) -> tuple[int, int]:
    """Return how many prompts of a block are read at once, and how often; the device keeps the block until all have their rows.

    Example:
        >>> block_parts(64, 64, 64, 100, 1), block_parts(64, 256, 16, 100, 1), block_parts(256, 1_024, 1_024, 1_024, 1)
        ((64, 1), (4, 1), (8, 4))
    """
    count = min(prompts, max(1, slots * prompts // requests))
    rows = compiled_rows(min(count, devices * max(1, PROMPT_TOKENS_AT_ONCE // max(1, length))), devices)
    return rows, max(1, min(count, slots // 8) // rows)


def padded_length(requests: Sequence[Request], usual: int) -> int:
    """Return the length that prompts are padded to: the usual one, or a power of two if a prompt is longer."""
    longest = max(len(request.prompt_tokens) for request in requests)
    return usual if longest <= usual else 1 << (longest - 1).bit_length()


def compiled_rows(rows: int, devices: int) -> int:
    """Round a number of rows up to a batch size that the devices can share; there are eight sizes per doubling.

    Example:
        >>> [compiled_rows(rows, 1) for rows in (7, 64, 100, 384)], compiled_rows(6, 4)
        ([7, 64, 104, 384], 8)
    """
    unit = max(1, (1 << (rows.bit_length() - 1)) // 8)
    rows = -(-rows // unit) * unit
    return -(-rows // devices) * devices


def rooms(budget: int, length: int) -> tuple[int, ...]:
    """Return the successive sizes, in tokens of room after the prompt, of a decoder state that can grow, up to the budget.

    If prompts are longer than the budget, growing saves little and copies the prompts too, so there is only one size.

    Args:
        budget: most tokens per response.
        length: slots per prompt, in tokens.

    Example:
        >>> rooms(8_192, 1_024), rooms(130, 20), rooms(512, 8_192), rooms(64, 8)
        ((2048, 4096, 8192), (33, 66, 130), (512,), (64,))
    """
    if budget < max(LONG_BUDGET, length):
        return (budget,)
    quarter = -(-budget // 4)
    return quarter, 2 * quarter, budget


def fewer_rows(rows: int, budget: int, devices: int) -> tuple[int, ...]:
    """Return the sizes of the smaller batches in which the last responses of a decode continue, descending; empty if they stay.

    The sizes are powers of two and three quarters of them: only two per doubling, because each size needs its own program.

    Args:
        rows: rows of the decode.
        budget: most tokens per response.
        devices: number of devices that share the rows.

    Example:
        >>> fewer_rows(64, 1_024, 1), fewer_rows(64, 192, 8), fewer_rows(64, 32, 1), fewer_rows(12, 1_024, 1)
        ((48, 32, 24, 16, 12, 8), (48, 32, 24, 16, 8), (), ())
    """
    if budget < LONG_BUDGET or rows < 2 * FEWEST_ROWS:
        return ()
    sizes = {compiled_rows(size << power, devices) for power in range(rows.bit_length()) for size in (2, 3)}
    return tuple(sorted((size for size in sizes if FEWEST_ROWS <= size <= 7 * rows // 8), reverse=True))
