"""Encode and decode the results of a sandboxed process: each is one line of JSON with a number, null or a failure.

The process may have run code that a model wrote, so its line is treated as data only. The line is never unpickled, because a pickle
can call any function in the process that reads it.
"""

import json
import math
import numbers

from rljax.rewards.correctness import Failed
from rljax.text import printable

LONGEST_LINE = 2**16
"""The longest line that is accepted, in bytes."""
_LONGEST_REASON = 1000  # characters; JSON encodes a character in at most 12 bytes


def encode_result(value: object) -> bytes:
    r"""Encode a result as one line.

    Args:
        value: a finite number, None, or a `Failed`, whose reason is cut to 1000 characters.

    Returns:
        The line, including its newline.

    Raises:
        TypeError: the value has another type.
        ValueError: the number is infinite or NaN.

    Example:
        >>> encode_result(1), encode_result(Failed("raised", "KeyError: 'x'"))
        (b'1.0\n', b'{"kind": "raised", "reason": "KeyError: \'x\'"}\n')
    """
    if isinstance(value, Failed):
        content: object = {"kind": value.kind, "reason": value.reason[:_LONGEST_REASON]}
    elif value is None or isinstance(value, numbers.Real):
        content = None if value is None else float(value)
    else:
        raise TypeError(f"the result is of type {type(value).__name__}; it must be a number or None")
    return f"{json.dumps(content, allow_nan=False)}\n".encode()


def decode_result(line: bytes) -> float | Failed | None:
    r"""Decode and check a result.

    Args:
        line: the bytes that a process sent, which are not trusted.

    Returns:
        The result. Unprintable characters in a reason are escaped.

    Raises:
        ValueError: the line is not a valid result.

    Example:
        >>> decode_result(b"0.5\n"), decode_result(b"null\n"), decode_result(b'{"kind": "raised", "reason": "a\\u001bb"}\n')
        (0.5, None, Failed(kind='raised', reason='a\\x1bb'))
    """
    try:
        content = json.loads(line)
        number = float(content) if type(content) in (int, float) else math.nan
    except (RecursionError, OverflowError) as error:
        raise ValueError("the line is nested too deeply, or its number is too large") from error
    if content is None:
        return None
    if math.isfinite(number):
        return number
    if isinstance(content, dict) and content.keys() == {"kind", "reason"} and isinstance(content["reason"], str):
        reason = printable(" ".join(content["reason"].split()))
        for kind in ("raised", "timed_out"):
            if content["kind"] == kind:
                return Failed(kind, reason)
    raise ValueError("the line is neither a finite number, nor null, nor a failure")
