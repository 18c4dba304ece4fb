"""Finding the final answer in a text."""

import re

_BRACES = re.compile(r"(?P<boxed>\\boxed\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_GROUPED_NUMBER = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")


def normalized(text: str) -> str:
    r"""Bring an answer into the form in which answers are compared.

    Dollar signs and a closing period go, runs of white space become one space, and the commas of a number that stands alone
    are taken out. A comma anywhere else stays: (1,200) is an interval or a point.

    Args:
        text: an answer.

    Returns:
        The answer as it is compared.

    Example:
        >>> normalized(" $1,234. "), normalized(r"(1,200)")
        ('1234', '(1,200)')
    """
    bare = " ".join(text.replace(r"\$", "").replace("$", "").split())
    bare = bare.removesuffix(".").rstrip()
    return bare.replace(",", "") if _GROUPED_NUMBER.fullmatch(bare) else bare


def final_answer(text: str) -> str | None:
    r"""Read the answer that a text commits itself to.

    It stands after the last run of `#`, to the end of its line, or in the last `\boxed{...}` whose braces balance. Where a
    text has both, the later one counts: a heading such as `### Step 2` is not the answer when a box follows.

    Args:
        text: a response, or a reference solution.

    Returns:
        The answer in its normalised form; None if there is none, or an empty one.

    Example:
        >>> final_answer("7+5=12;12+9=21;#21"), final_answer("so it is\n#### 1,080")
        ('21', '1080')
        >>> final_answer(r"### Step 2: thus $\boxed{\frac{1}{2}}$"), final_answer("21")
        ('\\frac{1}{2}', None)
    """
    candidates = [*_last_boxed(text), *_last_hashed(text)]
    if not candidates:
        return None
    _, answer = max(candidates)
    return normalized(answer) or None


def _last_hashed(text: str) -> list[tuple[int, str]]:
    before, hashes, after = text.rpartition("#")
    return [(len(before), after.partition("\n")[0])] if hashes else []


def _last_boxed(text: str) -> list[tuple[int, str]]:
    """Find the last balanced box in one pass, so that a response of nothing but open boxes costs no more than another."""
    opened: list[tuple[int, int] | None] = []
    found: list[tuple[int, str]] = []
    for match in _BRACES.finditer(text):
        if match["boxed"]:
            opened.append(match.span())
        elif match["open"]:
            opened.append(None)
        elif match["close"] and opened:
            box = opened.pop()
            if box is not None:
                found.append((box[0], text[box[1] : match.start()]))
    return [max(found)] if found else []
