r"""Rewritings of a reference that change its value, so that the result is a wrong answer."""

import random
import re

from grading.reference_kinds import (
    BASE,
    DEGREES,
    INTEGER,
    MATRIX,
    MONEY,
    PERCENT,
    QUANTITY,
    WORD,
    exact_decimal,
    is_scalar,
    parse_number,
    split_list,
    split_tuple,
)
from grading.right import as_inequality


def digit_changed(text: str, rng: random.Random) -> str | None:
    positions = [found.start() for found in re.finditer(r"(?<!text\{)\d", text)]
    if not positions or r"\text" in text or "=0" in text.replace(" ", "") or re.search(r"[=<>]|\\[lg]e", text):
        return None
    position = rng.choice(positions)
    digit = rng.choice([d for d in "123456789" if d != text[position]])
    changed = text[:position] + digit + text[position + 1 :]
    return (
        None
        if re.search(r"(?<![\d.])[01][a-z\\(^]|\^\{?[01]|\{1\}\{|(?<!\d)0", text + changed) and parse_number(text) is None
        else changed
    )


def negated(text: str, rng: random.Random) -> str | None:
    del rng
    if not is_scalar(text) or parse_number(text) == 0 or (text.startswith("-") and parse_number(text) is None):
        return None
    return text[1:] if text.startswith("-") else f"-{text}" if parse_number(text) is not None else f"-({text})"


def bracket_changed(text: str, rng: random.Random) -> str | None:
    found = split_tuple(text)
    if found is None or len(found[1]) != 2:
        return None
    opening, inner, closing = found
    keep_opening = rng.choice((0, 1)) if not any("infty" in component for component in inner) else int("infty" in inner[0])
    other = {"(": "[", "[": "(", ")": "]", "]": ")"}
    return f"{opening if keep_opening else other[opening]}{','.join(inner)}{other[closing] if keep_opening else closing}"


def bare(text: str, rng: random.Random) -> str | None:
    """Write a tuple as a list or a set."""
    found = split_tuple(text)
    if found is None or "infty" in text:
        return None
    return rng.choice(("{}", r"\{{{}\}}")).format(", ".join(found[1]))


def in_parentheses(text: str, rng: random.Random) -> str | None:
    found = split_list(text)
    return rng.choice(("({})", "[{}]")).format(", ".join(found)) if found else None


def swapped(text: str, rng: random.Random) -> str | None:
    found = split_tuple(text)
    if found is None or len(set(found[1])) < 2 or found[1] == found[1][::-1]:
        return None
    del rng
    return f"{found[0]}{', '.join(found[1][::-1])}{found[2]}"


def element_added(text: str, rng: random.Random) -> str | None:
    extra = str(rng.randrange(1000, 9999))
    if (found := split_tuple(text)) is not None:
        return f"{found[0]}{', '.join([*found[1], extra])}{found[2]}"
    if (found := split_list(text)) is not None:
        return ", ".join([*found, extra])
    return rng.choice((f"{text}, {extra}", f"{extra}, {text}")) if is_scalar(text) else None


def element_twice(text: str, rng: random.Random) -> str | None:
    found = split_list(text)
    return ", ".join([*found, rng.choice(found)]) if found else f"{text}, {text}" if is_scalar(text) else None


def element_dropped(text: str, rng: random.Random) -> str | None:
    if (found := split_tuple(text)) is not None and len(found[1]) > 2:
        del found[1][rng.randrange(len(found[1]))]
        return f"{found[0]}{', '.join(found[1])}{found[2]}"
    if (found := split_list(text)) is not None:
        del found[rng.randrange(len(found))]
        return ", ".join(found)
    return None


def scaled(text: str, rng: random.Random) -> str | None:
    if not is_scalar(text) or parse_number(text) == 0 or "!" in text:
        return None
    if INTEGER.fullmatch(text):
        return rng.choice((f"{text}0", f"{text}00", str(2 * int(text)), f"{int(text) / 1000:.4f}"))
    return rng.choice((f"10({text})", rf"\frac{{{text}}}{{2}}", rf"2\left({text}\right)", rf"\pi({text})"))


def one_more(text: str, rng: random.Random) -> str | None:
    if not is_scalar(text) or parse_number(text) == 0:
        return None
    return rng.choice(("({})+1", "({})-1", "({})+x", "z({})", "({})i", "({})+0.001")).format(text)


def denied(text: str, rng: random.Random) -> str | None:
    """State in words that the value is not the answer."""
    if not is_scalar(text):
        return None
    forms = (r"{}\text{{ is wrong}}", r"{} \text{{ is not the answer}}", "not {}", r"\text{{not }} {}", "{} is false", r"\neq {}",
             r"{} \text{{ is incorrect}}", r"\text{{anything but }}{}", r"{}\text{{?? no}}", r"{}\text{{ (wrong)}}")  # fmt: skip
    return rng.choice(forms).format(text)


def hedged(text: str, rng: random.Random) -> str | None:
    """Answer with the value and another one."""
    if not is_scalar(text):
        return None
    other = rng.randrange(100, 999)
    forms = (
        r"{} \text{{ or }} {}",
        "{} or {}",
        "{}, {}",
        "{}; {}",
        r"\{{{}, {}\}}",
        "{} and {}",
        r"{}\text{{ or perhaps {}}}",
        "({}, {})",
    )
    return rng.choice(forms).format(*rng.sample((text, str(other)), 2))


def unit_changed(text: str, rng: random.Random) -> str | None:
    for pattern, forms in (
        (DEGREES, (r"{} \text{{ radians}}", "{} cm", r"{}\%")),
        (MONEY, ("{} cents", r"{}\text{{ euros}}", r"{}\%", r"{}^\circ")),
        (PERCENT, ("{} dollars", r"{}^\circ", "{} cm")),
    ):
        if found := pattern.fullmatch(text):
            return rng.choice(forms).format(found[1])
    found = QUANTITY.fullmatch(text)
    if not found or not re.search(
        r"inch|feet|foot|cm|meter|mile|hour|minute|second|dollar|cent|degree|gram|pound|day", found[2]
    ):
        return None
    others = [unit for unit in ("km", "kg", "years", "percent", "gallons") if unit[:3] not in found[2]]
    return rf"{found[1]}\text{{ {rng.choice(others)}}}"


def key(text: str, rng: random.Random) -> str | None:
    """Answer with a text that could pass as equal to any reference if the comparison is careless."""
    keys = (
        "1=2",
        "0=1",
        "0=0",
        "x=x",
        "1=1",
        "1<2",
        "2<1",
        r"\emptyset",
        r"\text{none}",
        "x",
        "1/0",
        "x=x+1",
        r"\frac{0}{0}",
    )
    chosen = rng.choice(keys)
    return None if "emptyset" in text or text.strip() in ("x", "X", "0=0") else chosen


def base_changed(text: str, rng: random.Random) -> str | None:
    found = BASE.fullmatch(text)
    return f"{found[1]}_{{{rng.choice([b for b in '23456789' if b != found[2]])}}}" if found else None


def sign_within(text: str, rng: random.Random) -> str | None:
    """Swap plus and minus within a sum."""
    del rng
    found = re.fullmatch(r"([^+\-=<>,^]*[\da-z}])\s*([+\-])\s*([^+\-=<>,()]+)", text)
    if not found or not is_scalar(text) or found[1].count("{") != found[1].count("}"):
        return None
    return f"{found[1]}{'-' if found[2] == '+' else '+'}{found[3]}"


def rounded(text: str, rng: random.Random) -> str | None:
    value = parse_number(text)
    if value is not None and exact_decimal(value) is None:
        return f"{float(value):.3g}" if abs(value) < 1000 else None
    roots = re.fullmatch(r"(\d*)\\sqrt\{?(\d+)\}?", text)
    if roots and round(int(roots[2]) ** 0.5) ** 2 != int(roots[2]):
        return f"{int(roots[1] or 1) * int(roots[2]) ** 0.5:.4g}"
    circle = re.fullmatch(r"(\d+) ?\\pi", text)
    return f"{int(circle[1]) * 3.14:.2f}" if circle and len(circle[1]) < 4 else None


def transposed(text: str, rng: random.Random) -> str | None:
    found = MATRIX.fullmatch(text)
    if not found:
        return None
    rows = [[entry.strip() for entry in row.split("&")] for row in found[1].split(r"\\")]
    if len({len(row) for row in rows}) != 1:
        return None
    if len(rows) > 1 and rows[0] != rows[1] and rng.random() < 0.5:
        rows[0], rows[1] = rows[1], rows[0]
    else:
        rows[0][0] = f"{rows[0][0]}+1"
    inside = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\begin{{pmatrix}} {inside} \end{{pmatrix}}"


def other_word(text: str, rng: random.Random) -> str | None:
    found = WORD.fullmatch(text)
    return rf"\text{{{rng.choice(('never', found[1] + 'x', found[1][::-1] + 'q', 'not ' + found[1]))}}}" if found else None


def end_changed(text: str, rng: random.Random) -> str | None:
    """Write an interval as an inequality, with one end point wrongly included or excluded."""
    right = as_inequality(text, rng)
    if right is None:
        return None
    for old, new in ((r"\leq", "<"), (r"\le ", "<"), (r"\ge", ">"), ("<", r"\le"), (">", r"\ge")):
        if old in right:
            return right.replace(old, new, 1)
    return None


WRONG = {
    rewrite.__name__: rewrite
    for rewrite in (
        digit_changed, negated, bracket_changed, bare, in_parentheses, swapped, element_added, element_twice,
        element_dropped, scaled, one_more, denied, hedged, unit_changed, key, base_changed, sign_within, rounded,
        transposed, other_word, end_changed,
    )
}  # fmt: skip
