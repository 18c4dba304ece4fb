"""Mathematical equivalence of two answers. Import it in worker processes only: nothing here has a time limit.

Comparisons run in processes of their own (see `rljax.rewards.pool`), because an answer such as `10^{10^{10}}` keeps computer
algebra busy until it is killed.
"""

import functools
import logging
import re

from math_verify import LatexExtractionConfig, parse, verify

# In every process it warns that its own time limit is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_READING = (LatexExtractionConfig(boxed_match_priority=0),)
_RELATION = re.compile(r"[=<>]|\\(?:[lg]eq?|neq?|in)(?![a-zA-Z])")
_EQUATION = re.compile(r"(?<![<>!:])=(?!=)")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_LETTER = re.compile(r"[a-zA-Z]")
# math-verify takes words after a number for its unit, but `7\text{ or 8}` is not 7.
_HEDGE = re.compile(r"\\(?:text[a-z]*|mbox|mathrm)\s*\{[^{}]*(?:[0-9]|\b(?:or|and|not)\s+\w)[^{}]*\}")
_BASE = re.compile(r"_\{?([0-9]+)\}?\s*$")


def equivalent(reference: str, answer: str) -> bool:
    r"""Decide whether an answer is mathematically equal to the reference.

    Text that cannot be parsed as mathematics equals nothing. Three rules go beyond math-verify: numbers in two different bases
    differ; every side of an equation that is a number must equal the reference; words after a number must contain neither
    another number nor an alternative.

    Args:
        reference: the correct answer, without dollar signs or a box.
        answer: the answer to judge, likewise.

    Returns:
        True for `\frac{1}{2}` and `0.5`, `x=5` and `5`, `1,2` and `2,1`. It is not symmetric: the reference sets the form.

    Example:
        >>> equivalent(r"\frac{1}{2}", "0.5"), equivalent("2", "12"), equivalent("1110_4", "1110_5")
        (True, False, False)
    """
    if not (_well_formed(reference) and _well_formed(answer)):
        return False
    if _HEDGE.search(answer) and not _HEDGE.search(reference):
        return False
    reference_base, answer_base = _BASE.search(reference), _BASE.search(answer)
    if reference_base and answer_base and reference_base[1] != answer_base[1]:
        return False
    sides = [answer] if _RELATION.search(reference) or not _EQUATION.search(answer) else answer.split("=")
    # math-verify reads the last side of an equation. Without this check, `5=6=7` would pass for any of three references.
    claimed = [side for side in sides[:-1] if not _LETTER.search(_COMMAND.sub("", side))]
    return all(verify(_parsed(reference), _parsed(text), timeout_seconds=None) for text in [answer, *claimed])


@functools.lru_cache(maxsize=1024)  # a group's responses share their reference
def _parsed(text: str) -> list:
    return parse(rf"\boxed{{{text}}}", extraction_config=_READING, parsing_timeout=None)  # pyright: ignore[reportArgumentType] - None is allowed


def _well_formed(text: str) -> bool:
    """Refuse unbalanced braces and a second box: either could close the box that the text is wrapped in."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0 and r"\boxed" not in text
