r"""The outer form of an answer: a list, a tuple, a set, a matrix, an equation, or none of these.

All functions take text in the canonical form of `rljax.rewards.notation.canonicalize`. They only split it, and compare nothing.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

_TOKEN = re.compile(
    r"\\begin\{[a-zA-Z]+\*?\}|\\end\{[a-zA-Z]+\*?\}|\\text\{[^{}]*\}|\\[a-zA-Z]+ ?|\\.| (?:and|or) |.", re.DOTALL
)
_OPENING = frozenset({"(", "[", "{", r"\{"})
_CLOSING = frozenset({")", "]", "}", r"\}"})
_CONJUNCTION = re.compile(r"(?:\\text\{)? ?,? ?(?:and|or),? ?\}?")
_RELATIONS = frozenset({"=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\approx", r"\equiv", r"\iff", r"\subset", r"\to"})
FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
"""Relation sign -> the sign after the two sides are exchanged."""
_MATRIX = re.compile(r"\\begin\{([pb]?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_NAME = re.compile(
    r"\\text\{[^{}]*\}|(?:[a-zA-Z]|\\(?:[a-z]*theta|alpha|beta|gamma|lambda|mu|[a-z]*phi|omega|sigma|varepsilon|delta|rho) ?)"
    r"'*(?:_\{[^{}]*\})?'*(?:\([^()]*\))?(?:\^\{-1\}\([^()]*\))?|[A-Z]{2,4}|m?\\(?:measured)?angle ?[A-Z]{1,3}"
    r"|\\frac\{d[a-z]?\}\{d[a-z]\}|d[a-z]/d[a-z]"
    r"|\\(?:overline|vec|mathbf) ?\{[a-zA-Z]+\}|[a-zA-Z]\^\{-1\}\([^()]*\)|\|(?:[A-Z]{2}|[a-z])\|"
)
_PART_OF_QUANTITY = re.compile(
    r"\\?\|[a-z]\\?\||_\{[^{}]*\}|\\(?:vec|overline|overrightarrow|mathbf|text|mathrm|operatorname) ?\{[^{}]*\}|[a-zA-Z]\([^()]*\)"
    r"|\\(?:max|min|det|deg) ?[a-z](?![a-zA-Z])|[a-z]_\{\d+\}|\\[a-zA-Z]+"
)
_VALUE_OF_QUANTITY = re.compile(r"(?:[^a-zA-Z\\]|\\(?:frac|sqrt|pi|cdot|circ|text\{[^{}]*\}|%)(?![a-zA-Z]))+")
_RATIO = re.compile(r"(\\frac\{)?([a-zA-Z](?:_\{\w+\})?)(?(1)\}\{|/)(?!\2(?!\w|_))([a-zA-Z](?:_\{\w+\})?)(?(1)\})")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_MODULUS = re.compile(
    r" ?\(? ?(?:\\[pb]?mod|\\text\{ ?\(?(?:mod|modulo) ?\}|(?<![a-zA-Z\\])(?:mod|modulo))(?![a-zA-Z])(?=.)"
)
_MODULUS_IN_TEXT = re.compile(r"\\text\{ ?(\(?)(mod|modulo) (\w+)(\)?) ?\}")


def split_outside_brackets(text: str, separates: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    r"""Split a text at the separators that are outside all brackets.

    Args:
        text: an answer.
        separates: decides whether a token (a command, a bracket or a character) is a separator.

    Returns:
        The parts, stripped, and the separators between them.

    Example:
        >>> split_outside_brackets("(1,2),3", lambda token: token == ",")
        (['(1,2)', '3'], [','])
    """
    parts, separators, depth, current = [], [], 0, []
    for token in _TOKEN.findall(text):
        if token in _OPENING or token.startswith(r"\begin"):
            depth += 1
        elif token in _CLOSING or token.startswith(r"\end"):
            depth -= 1
        if depth == 0 and token not in _CLOSING and separates(token):
            parts.append("".join(current).strip())
            separators.append(token.strip())
            current = []
        else:
            current.append(token)
    return [*parts, "".join(current).strip()], separators


def split_elements(text: str) -> list[str]:
    r"""Split a list at its commas and semicolons, and at the words "and" and "or"; `1\pm 2` becomes two elements.

    Example:
        >>> split_elements(r"1,(2,3)\text{ and }4"), split_elements("x=1 or x=2"), split_elements("5")
        (['1', '(2,3)', '4'], ['x=1', 'x=2'], ['5'])
    """
    parts, _ = split_outside_brackets(text, _separates_elements)
    return [signed for part in parts if part for signed in _expand_plus_minus(part)]


def split_alternatives(text: str) -> list[list[str]]:
    r"""Split a text into the alternatives that "or" separates, and each of these at its commas, semicolons and "and".

    In a list such as `a, b or c`, whose only word is "or", the commas mean "or" as well.

    Example:
        >>> split_alternatives(r"x<1\text{or} 2<x\text{and} x<3"), split_alternatives("1<x,x<2")
        ([['x<1'], ['2<x', 'x<3']], [['1<x', 'x<2']])
        >>> split_alternatives("x<1,x=2 or x>3")
        [['x<1'], ['x=2'], ['x>3']]
    """
    elements, separators = split_outside_brackets(text, _separates_elements)
    words = [separator for separator in separators if separator not in ",;"]
    commas_mean_or = bool(words) and all("or" in word for word in words)
    alternatives = [[elements[0]]]
    for separator, element in zip(separators, elements[1:], strict=True):
        if "or" in separator or commas_mean_or:
            alternatives.append([])
        alternatives[-1].append(element)
    return [kept for alternative in alternatives if (kept := [element for element in alternative if element])]


def _separates_elements(token: str) -> bool:
    return token in ",;" or _CONJUNCTION.fullmatch(token) is not None


def _expand_plus_minus(text: str) -> list[str]:
    r"""Expand `1\pm 2` to `1+2` and `1-2`; return any other text as the only element."""
    if len(_PLUS_MINUS.findall(text)) != 1 or r"\mp" in text:
        return [text]
    before, after = _PLUS_MINUS.split(text)
    return [f"{before}{sign}{after.lstrip()}".removeprefix("+") for sign in "+-"]


def split_brackets(text: str) -> tuple[str, str, str] | None:
    r"""Split a text in brackets into the brackets and their content.

    Returns:
        The opening bracket, the content and the closing bracket, which may differ in kind, as in `[0,1)`; `]0,1[` is read as
        `(0,1)`. None if the text does not start with a bracket that is closed at its end.

    Example:
        >>> split_brackets("(1,2]"), split_brackets(r"\{1\}"), split_brackets("(1)(2)")
        (('(', '1,2', ']'), ('\\{', '1', '\\}'), None)
    """
    if re.fullmatch(r"\][^][()]*\[", text):
        return "(", text[1:-1], ")"
    tokens = _TOKEN.findall(text)
    if len(tokens) < 2 or tokens[0] not in _OPENING or tokens[-1] not in _CLOSING:
        return None
    depth = 0
    for position, token in enumerate(tokens):
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0:
            return (tokens[0], "".join(tokens[1:-1]).strip(), tokens[-1]) if position == len(tokens) - 1 else None
    return None


class Residue(NamedTuple):
    """One element of an answer with a modulus, such as `x\\equiv 3\\pmod{7}`."""

    sides: tuple[str, ...]
    """The sides of the congruence; the last one is the value."""
    modulus: str | None
    """The modulus; None if the element states none."""


def read_residues(text: str) -> list[Residue] | None:
    r"""Read an answer with a modulus. A modulus that only the last element of a list states applies to all elements.

    Returns:
        The elements of the answer; None if no element has a modulus.

    Example:
        >>> read_residues(r"x\equiv 1,3\pmod{4}")
        [Residue(sides=('x', '1'), modulus='4'), Residue(sides=('3',), modulus='4')]
        >>> read_residues("5(mod 7)"), read_residues("x=5")
        ([Residue(sides=('5',), modulus='7')], None)
    """
    text = _MODULUS_IN_TEXT.sub(r"\1\\text{\2} \3\4", text)
    found = [_read_residue(element) for element in split_elements(text)] if _MODULUS.search(text) else []
    if all(one.modulus is None for one in found):
        return None
    shared = found[-1].modulus if all(one.modulus is None for one in found[:-1]) else None
    return found if shared is None else [one if one.modulus else Residue(_sides_of(one.sides[0]), shared) for one in found]


def _read_residue(text: str) -> Residue:
    value, *rest = _MODULUS.split(text, maxsplit=1)
    if not rest or "=" in rest[0]:  # an equation about a remainder, such as `17\bmod 5=2`
        return Residue((text,), None)
    modulus = rest[0].strip()
    while modulus.endswith(")") and modulus.count(")") > modulus.count("("):
        modulus = modulus[:-1].strip()
    bracketed = split_brackets(modulus)
    return Residue(_sides_of(value), bracketed[1] if bracketed is not None and bracketed[0] in "{(" else modulus)


def _sides_of(text: str) -> tuple[str, ...]:
    """Return the sides of a congruence."""
    return tuple(split_outside_brackets(text.strip(), lambda token: token.strip() in (r"\equiv", "=", "≡"))[0])


def split_relation(text: str) -> tuple[list[str], list[str]]:
    r"""Split a text at its relation signs, into its sides and the signs between them.

    Example:
        >>> split_relation(r"1<x\le 2"), split_relation("x+1")
        ((['1', 'x', '2'], ['<', '\\le']), (['x+1'], []))
    """
    return split_outside_brackets(text, lambda token: token.strip() in _RELATIONS)


def is_name(text: str) -> bool:
    r"""Decide whether a text is the name of a quantity, so that `name = value` states the value.

    Example:
        >>> is_name("x"), is_name("f(x)"), is_name("AB"), is_name(r"\text{Area}"), is_name("2x"), is_name("x+y")
        (True, True, True, True, False, False)
        >>> is_name("(p,q)"), is_name("V_{1}:V_{2}"), is_name("|AB|"), is_name("(p,2)")
        (True, True, True, False)
    """
    bracketed = split_brackets(text)
    names = [text] if bracketed is None else split_outside_brackets(bracketed[1], lambda token: token == ",")[0]
    parts = (
        split_outside_brackets(names[0], lambda token: token == ":")[0] if len(names) == 1 and bracketed is None else names
    )
    return all(_NAME.fullmatch(part) for part in parts)


def read_assignment(text: str) -> tuple[str, str] | None:
    r"""Read an equation that states the value of a name.

    Returns:
        The name and the last side of the equation; None for anything else.

    Example:
        >>> read_assignment("x=3+4=7"), read_assignment("5=x"), read_assignment("x+y=5")
        (('x', '7'), ('x', '5'), None)
    """
    sides, signs = split_relation(text)
    if not signs or any(sign not in ("=", r"\approx") for sign in signs):
        return None
    if is_name(sides[0]):
        return sides[0], sides[-1]
    return (sides[1], sides[0]) if len(sides) == 2 and is_name(sides[1]) and sides[0] else None


def read_quantity(text: str) -> str | None:
    r"""Return the value that an equation states for a quantity built from points, vectors, sets, roots, functions or unknowns.

    An equation in x or y, such as `x+y=6`, or in a single unknown may itself be the answer. It states no value, unless its left
    side is a ratio of two names.

    Returns:
        The right side of the equation, if it is a number or a set in braces; None for anything else.

    Example:
        >>> [read_quantity(text) for text in (r"|\vec{a}|=6", r"\frac{AB}{CD}=2", "x+y=6", r"A\cup B=\{1,2\}")]
        ['6', '2', None, '\\{1,2\\}']
        >>> [read_quantity(text) for text in ("a/b=3/4", r"\frac{x}{y}=2", "a/2=3", "a/b=c")]
        ['3/4', '2', None, None]
        >>> [read_quantity(text) for text in ("a+b=7", "|z|^{2}=13", "a^{2}+ab=5")]
        ['7', '13', '5']
    """
    sides, signs = split_relation(text)
    if signs != ["="] or not all(sides):
        return None
    unknowns = set(re.findall("[a-z]", _PART_OF_QUANTITY.sub("", sides[0])))
    if not _RATIO.fullmatch(sides[0]) and (len(unknowns) == 1 or unknowns & {"x", "y"}):
        return None
    bracketed = split_brackets(sides[1])
    is_set = bracketed is not None and bracketed[0] == r"\{"
    has_letter = re.search(r"[a-zA-Z\\]", sides[0]) is not None
    return sides[1] if has_letter and (is_set or _VALUE_OF_QUANTITY.fullmatch(sides[1])) else None


def read_matrix(text: str) -> list[list[str]] | None:
    r"""Read the rows of a matrix; return None if the text is not a matrix. A determinant (`vmatrix`) is not a matrix.

    Example:
        >>> read_matrix(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}")
        [['1', '2'], ['3', '4']]
    """
    bracketed = split_brackets(text)
    found = _MATRIX.fullmatch(bracketed[1] if bracketed is not None and bracketed[0] in ("(", "[") else text)
    if found is None:
        return None
    rows, _ = split_outside_brackets(found[2], lambda token: token == "\\\\")
    return [split_outside_brackets(row, lambda token: token == "&")[0] for row in rows if row]
