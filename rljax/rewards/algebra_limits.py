r"""Limits on algebra: reject answers whose text shows that they would take too long to compute, before a worker starts."""

import re

from rljax.rewards.notation import canonicalize, nesting_depth

LONGEST_ALGEBRA = 1_000
"""If an answer or a reference has more characters than this, the two are compared only as text."""

_DEEPEST = 15
_LONGEST_NUMBER = 400
_MOST_BITS = 100_000
_HIGHEST_POWER = 10_000
_LARGEST_FACTORIAL = 3_000
_LONG_NUMBER = re.compile(rf"\d{{{_LONGEST_NUMBER + 1}}}")
_POWER = re.compile(r"(?:(?<!\d)(\d+)|.)\^\{([^{}]*)\}")
_LARGE_IN_POWER = re.compile(r"\^\{[^^]*\d{7}")
_BINOMIAL = re.compile(r"\\binom\{[^{}]*\}\{ ?(\d+)")
_MOST_CHOSEN = 20_000
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_FACTORIAL = re.compile(r"(\d+) ?!")
_INTEGER = re.compile(r"\d+")
_MOST_EXPONENT_DIGITS = 4
_LARGE = "9" * 8  # stands for any number that is too large to be an exponent
_TOO_LARGE = "\0"
_FACTORIAL_OF_FACTORIAL = re.compile(r"! ?[)}]* ?!")


def is_judgeable(text: str) -> bool:
    r"""Decide whether an answer is cheap enough to parse and simplify.

    Args:
        text: an answer or a reference in its original notation.

    Returns:
        False if it is longer than 1,000 characters, its braces do not balance, its brackets are nested deeper than 15, it contains
        `\boxed`, or it would take too long to compute: it has a number of more than 400 digits, a power of more than 100,000 bits,
        a tower of powers, a factorial of a number above 3,000 or of another factorial, or a binomial coefficient that chooses
        more than 20,000 elements.

    Example:
        >>> [is_judgeable(text) for text in ("2^{4181}", "10^{10^{10}}", "9999999!", "(" * 20 + ")" * 20, "{5")]
        [True, False, False, False, False]
    """
    if len(text) > LONGEST_ALGEBRA or r"\boxed" in text or not 0 <= nesting_depth(text) <= _DEEPEST:
        return False
    written = canonicalize(text)
    factorials = [int(number) for number in _FACTORIAL.findall(written)]
    chosen = [int(number) for number in _BINOMIAL.findall(written)]
    return not (
        _LONG_NUMBER.search(written)
        or _FACTORIAL_OF_FACTORIAL.search(written)
        or max(factorials, default=0) > _LARGEST_FACTORIAL
        or max(chosen, default=0) > _MOST_CHOSEN
        or _has_large_power(written)
    )


def _has_large_power(text: str) -> bool:
    """True if a power is too large. Powers are estimated from the innermost outward, and each is replaced with a short text."""
    while _POWER.search(text):
        replaced = _POWER.sub(lambda found: _estimate(found[1], found[2].strip().lstrip("+-").strip()), text)
        if _TOO_LARGE in replaced:
            return True
        text = replaced
    return _LARGE_IN_POWER.search(text) is not None


def _estimate(base: str | None, exponent: str) -> str:
    """Return the text that replaces a power: its value if small, else `_LARGE`, `x` if unknown, `_TOO_LARGE` if too expensive."""
    if exponent.isdecimal():
        power = int(exponent)
        bits = power * int(base).bit_length() if base else power
        if bits > (_MOST_BITS if base else _HIGHEST_POWER):
            return _TOO_LARGE
        return "x" if base is None else str(int(base) ** power) if bits <= 24 else _LARGE
    # An exponent without letters but with many digits is itself a large computation, such as 2^{3!\cdot 1000}.
    is_large = not _LETTER.search(exponent) and sum(map(len, _INTEGER.findall(exponent))) > _MOST_EXPONENT_DIGITS
    return _TOO_LARGE if is_large else "x"
