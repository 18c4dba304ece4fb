"""Whether two answers mean the same. Imported in workers only: nothing here bounds its own time.

A comparison runs in a process of its own (see `rljax.rewards.pool`), for an answer such as `10^{10^{10}}` keeps any
computer algebra busy for as long as it is let.
"""

import functools
import logging
import re

from math_verify import LatexExtractionConfig, parse, verify

# It warns in every process that its own time limit is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_READING = (LatexExtractionConfig(boxed_match_priority=0),)
_RELATION = re.compile(r"[=<>]|\\(?:[lg]eq?|neq?|in)(?![a-zA-Z])")
_EQUATION = re.compile(r"(?<![<>!:])=(?!=)")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_LETTER = re.compile(r"[a-zA-Z]")
# The algebra takes words after a number for its unit; `7\text{ or 8}` is no 7.
_HEDGE = re.compile(r"\\(?:text[a-z]*|mbox|mathrm)\s*\{[^{}]*(?:[0-9]|\b(?:or|and|not)\s+\w)[^{}]*\}")
_BASE = re.compile(r"_\{?([0-9]+)\}?\s*$")


def equivalent(reference: str, answer: str) -> bool:
    r"""Say whether an answer is mathematically the reference.

    What cannot be read as mathematics is equal to nothing. Numbers written in two different bases differ, which the algebra
    behind this does not see. Of an equation every side that is a number must be the reference, and what is written in words
    after a number must be neither a number nor an alternative.

    Args:
        reference: the truth, without dollar signs or a box.
        answer: what is judged, likewise.

    Returns:
        True for `\frac{1}{2}` and `0.5`, `x=5` and `5`, `1,2` and `2,1`; not symmetric: the form of the reference is kept to.

    Example:
        >>> equivalent(r"\frac{1}{2}", "0.5"), equivalent("2", "12"), equivalent("1110_4", "1110_5")
        (True, False, False)
    """
    if not (_well_formed(reference) and _well_formed(answer)):
        return False
    if _HEDGE.search(answer) and not _HEDGE.search(reference):
        return False
    bases = _BASE.search(reference), _BASE.search(answer)
    if all(bases) and bases[0][1] != bases[1][1]:
        return False
    sides = [answer] if _RELATION.search(reference) or not _EQUATION.search(answer) else answer.split("=")
    # Of an equation the last side counts. Without this, `5=6=7` would be any of three numbers, and right if one is.
    claimed = [side for side in sides[:-1] if not _LETTER.search(_COMMAND.sub("", side))]
    return all(verify(_parsed(reference), _parsed(text), timeout_seconds=None) for text in [answer, *claimed])


@functools.lru_cache(maxsize=1024)  # a group's responses share their reference
def _parsed(text: str) -> list:
    return parse(rf"\boxed{{{text}}}", extraction_config=_READING, parsing_timeout=None)


def _well_formed(text: str) -> bool:
    """Refuse braces that do not balance, and a second box: either could end the box that the text is put into."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0 and r"\boxed" not in text
