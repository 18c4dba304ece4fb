"""Convert the plain-text formulas of docstrings to TeX."""

import re
import unicodedata
from collections.abc import Iterator

GREEK = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta"},
    **{"κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau"},
    **{"φ": "varphi", "ω": "omega", "Φ": "Phi", "Ω": "Omega", "Δ": "Delta"},
}
SIGNS = {
    **{
        "≤": r"\le",
        "≥": r"\ge",
        "≠": r"\ne",
        "≈": r"\approx",
        "∈": r"\in",
        "∉": r"\notin",
        "⊆": r"\subseteq",
        "←": r"\leftarrow",
        "≻": r"\succ",
    },
    **{"→": r"\to", "⟺": r"\iff", "·": r"\cdot", "±": r"\pm", "∇": r"\nabla", "∂": r"\partial", "∖": r"\backslash"},
    **{"×": r"\times", "∞": r"\infty", "∪": r"\cup", "∩": r"\cap", "∝": r"\propto", "⌈": r"\lceil", "⌉": r"\rceil"},
    **{
        "‖": r"\Vert",
        "|": r"\mid",
        "⌊": r"\lfloor",
        "⌋": r"\rfloor",
        "…": r"\dots",
        "½": r"\frac{1}{2}",
        "~": r"\sim",
        "#": r"\#",
    },
    **{"{": r"\{", "}": r"\}", "%": r"\%", "&": r"\&", "ℓ": r"\ell", "<": r"\lt", ">": r"\gt", "*": "^{*}"},
    **{"²": "^{2}", "₁": "_{1}", "₂": "_{2}", "Σ": r"\sum", "Π": r"\prod"},
}
ACCENTS = {"\u0302": "hat", "\u0304": "bar", "\u0303": "tilde"}
OPERATORS = frozenset({"log", "exp", "min", "max"})
INDICES = frozenset({"pit"})
"""Subscripts of three letters that are three indices, not a word."""
GAP = " {3,}"
"""Spaces between two formulas on a line."""
LONGEST_LINE = 70
"""A line with more characters than this is split into its formulas."""
BRACES = "⎧⎨⎩"

TOKEN = re.compile(
    r"(?P<space>\s+)|`(?P<code>[^`]+)`|(?P<name>[A-Za-z]{3,}_[A-Za-z]{3,}(?:_[a-z]+)*)"
    r"|(?P<estimator>k[123])|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<word>i\.e\.|(?<=[a-z] )a(?= [a-z]{2})|(?<=\))-th|[A-Za-z]{2,}(?:-[a-z]{2,})*(?:'s)?\.?)"
    r"|(?P<letter>\w[\u0302-\u0304]|[A-Za-z])|(?P<script>[_^])|(?P<other>.)"
)
SUBSCRIPT = re.compile(r"<?[^\W²]+(?:,<\w+)?")
SIZE = re.compile(r"\|(?! )((?:[^()|]|\([^()|]*\))+)(?<! )\|")
"""A size or an absolute value; the bar of a conditional, as in π(y | x), has a space on both sides."""
SIGNS_BEFORE, SIGNS_AFTER = frozenset("=+-·<>≤≥≈∈←→/|([{"), frozenset("=+-·<>≤≥≈∈←→/|)]},;:")
"""Signs next to which a space is dropped: TeX sets their spacing itself, or they need none."""


def tex_lines(formula: str) -> list[str]:
    """Return the TeX of each line of a formula, or of each formula on a long line.

    Args:
        formula: the block of a docstring, as `rljax.book.equations.formula` returns it.

    Example:
        >>> tex_lines("A_i = r_i - (1/G) Σ_j r_j")
        ['A_{i} = r_{i} - \\\\frac{1}{G} \\\\sum _{j} r_{j}']
    """
    if any(brace in formula for brace in BRACES):
        return [_cases(formula)]
    found = []
    for line in filter(str.strip, formula.splitlines()):
        parts = [tex(part) for part in re.split(GAP, line.strip())]
        found += [r" \qquad ".join(parts)] if len(line) <= LONGEST_LINE else parts
    return found


def _cases(formula: str) -> str:
    """A definition by cases, whose large brace spans several lines."""
    lines = formula.splitlines()
    middle = next(line for line in lines if "⎨" in line)
    name = middle[: middle.index("⎨")]
    rows = [re.split(GAP, re.split(f"[{BRACES}]", line)[-1].strip()) for line in lines]
    rows = [row for row in rows if row != [""]]
    cases = r" \\ ".join(" & ".join(tex(part) for part in row) for row in rows)
    return rf"{tex(name.strip())} \begin{{cases}} {cases} \end{{cases}}"


def tex(formula: str) -> str:
    """TeX of one formula."""
    accents_apart = "".join(unicodedata.normalize("NFD", sign) if sign.isalpha() else sign for sign in formula)
    return " ".join("".join(_pieces(accents_apart)).split())


def _pieces(text: str) -> Iterator[str]:
    """Translate from left to right."""
    at, after = 0, ""
    while at < len(text):
        fraction = _fraction(text, at)
        if fraction is not None:
            above, below, at = fraction
            yield rf"\frac{{{tex(above)}}}{{{tex(below)}}}"
            after = ")"
            continue
        size = SIZE.match(text, at)
        if size is not None:
            yield rf"\left| {tex(size[1])} \right| "
            at, after = size.end(), ")"
            continue
        if text[at] == "√":
            under, at = _operand(text, at + 1)
            yield rf"\sqrt{{{tex(under)}}}"
            continue
        found = TOKEN.match(text, at)
        assert found is not None, text[at:]
        if found["script"]:
            under, at = _operand(text, at + 1)
            yield f"{found['script']}{{{_script(under)}}}"
            after = after or under
            continue
        if found["space"]:
            apart = after == ";" or (after not in SIGNS_BEFORE and _needs_visible_space(text, found.end(), after))
            yield r"\ " if apart else " "
        else:
            yield _symbol(found, text[found.end() : found.end() + 1] or ")")
            after = "text" if _is_word(found) else found[0]
        at = found.end()


def _is_word(found: re.Match[str]) -> bool:
    """Whether a token is typeset as a word, so that a space next to it is visible."""
    return bool(found["word"] or found["name"] or found["code"]) and found["word"] not in OPERATORS


def _needs_visible_space(text: str, at: int, before: str) -> bool:
    """Whether a space that ends at an index must be visible: next to a word, and not before a sign with its own spacing."""
    ahead = TOKEN.match(text, at)
    return ahead is not None and ahead[0] not in SIGNS_AFTER and (before == "text" or _is_word(ahead))


def _symbol(found: re.Match[str], ahead: str) -> str:
    """TeX of a token that is neither space nor script; `ahead` is the character after it."""
    if found["word"] in OPERATORS:
        return rf"\{found['word']} " + ("" if ahead in "([{_)" else r"\, ")
    name = found["code"] or found["name"]
    if name:
        return rf"\texttt{{{name}}}"
    if found["word"] == "i.e.":
        return r"\text{i.e.}"
    if found["word"] or found["estimator"]:
        return rf"\mathrm{{{found['word'] or found['estimator']}}}"
    if found["letter"] and len(found["letter"]) > 1:
        return rf"\{ACCENTS[found['letter'][1]]}{{{_sign(found['letter'][0])}}}"
    return _sign(found[0])


def _sign(sign: str) -> str:
    if sign in GREEK:
        return rf"\{GREEK[sign]} "
    if sign in SIGNS:
        return f"{SIGNS[sign]} " if SIGNS[sign].startswith("\\") else SIGNS[sign]
    if sign.isascii():
        return sign
    raise ValueError(f"no TeX is known for {sign!r}; add it to SIGNS")


def _script(text: str) -> str:
    """A subscript or superscript: words upright, indices in italics."""
    parts = re.split(r"(_)", text) if re.fullmatch(r"[A-Za-z]\w*_\w+", text) else [text]
    if len(parts) > 1:  # V_old_t: two subscripts
        return ", ".join(_script(part) for part in parts[::2])
    if re.fullmatch(r"[A-Za-z]{3,}", text) and text not in INDICES:
        return rf"\mathrm{{{text}}}"
    if re.fullmatch(r"[^\W\d_]+", text):
        return " ".join(_sign(letter) for letter in text)
    return tex(text)


def _operand(text: str, at: int) -> tuple[str, int]:
    """What a root, a subscript or a superscript applies to, without its brackets, and where it ends."""
    if text[at] in "{(":
        end = _closing(text, at)
        return text[at + 1 : end], end + 1
    if text[at] == "|":
        end = text.index("|", at + 1) + 1
        return text[at:end], end
    found = SUBSCRIPT.match(text, at)
    if found is None:
        return text[at], at + 1
    return found[0], found.end()


def _closing(text: str, at: int) -> int:
    """Return the index of the bracket that closes `text[at]`."""
    pairs = {"(": ")", "{": "}"}
    depth = 0
    for index in range(at, len(text)):
        depth += {text[at]: 1, pairs[text[at]]: -1}.get(text[index], 0)
        if not depth:
            return index
    raise ValueError(f"a bracket is not closed: {text[at:]}")


def _fraction(text: str, at: int) -> tuple[str, str, int] | None:
    """Numerator, denominator and end of `(a/b)` at an index; None if there is no such fraction."""
    if text[at] != "(" or (at and text[at - 1].isalnum()):
        return None
    end = _closing(text, at)
    above, slash, below = text[at + 1 : end].partition("/")
    in_brackets = bool(below) and below[0] == "(" and _closing(below, 0) == len(below) - 1
    bare = below[1:-1] if in_brackets else below
    outer = re.sub(r"\([^()]*\)|\{[^{}]*\}", "", below)
    if not slash or not re.fullmatch(r"\w+", above) or not (in_brackets or not re.search(r"[ +\-/]", outer)):
        return None
    return above, bare, end + 1
