r"""Rewritings of a reference that keep its value, so that the result is a right answer."""

import random
import re

from grading.reference_kinds import (
    BASE,
    DEGREES,
    FRACTION,
    INTEGER,
    INTERVAL,
    MATRIX,
    MONEY,
    PERCENT,
    QUANTITY,
    THOUSANDS_SEPARATORS,
    UNITS,
    WORD,
    exact_decimal,
    is_scalar,
    parse_number,
    split_list,
    split_tuple,
)


def spaced(text: str, rng: random.Random) -> str | None:
    space = rng.choice((" ", r"\,", r"\;", "~", "  ", r"\ "))
    if r"\text" in text or re.fullmatch(r"-?[\d.,]+", text):
        return f" {text} "
    return re.sub(r"(?<=[^\\])([+=,])(?!\\)", rf"{space}\1{space}".replace("\\", "\\\\").replace(r"\\1", r"\1"), text)


def other_fractions(text: str, rng: random.Random) -> str | None:
    return None if r"\frac" not in text else text.replace(r"\frac", rng.choice((r"\dfrac", r"\tfrac", r"\cfrac")))


def slashed(text: str, rng: random.Random) -> str | None:
    found = FRACTION.fullmatch(text)
    return (
        f"{found[1]}{found[2]}{rng.choice(('/', ' / '))}{found[3]}"
        if found and not (found[1] and found[2][0] == "-")
        else None
    )


def as_decimal(text: str, rng: random.Random) -> str | None:
    value = parse_number(text)
    written = None if value is None else exact_decimal(value)
    return None if written is None else written + "0" * rng.randrange(2)


def as_fraction(text: str, rng: random.Random) -> str | None:
    value, factor = parse_number(text), rng.randrange(2, 7)
    if value is None:
        return None
    top, bottom = abs(value.numerator) * factor, value.denominator * factor
    return f"{'-' if value < 0 else ''}\\frac{{{top}}}{{{bottom}}}"


def mixed(text: str, rng: random.Random) -> str | None:
    """Write a fraction as a mixed number."""
    value = parse_number(text)
    if value is None or value.denominator == 1 or abs(value) < 1:
        return None
    integer, numerator = divmod(abs(value.numerator), value.denominator)
    form = rng.choice((r"{}\frac{{{}}}{{{}}}", r"{} \dfrac{{{}}}{{{}}}", "{} {}/{}"))
    return ("-" if value < 0 else "") + form.format(integer, numerator, value.denominator)


def scientific(text: str, rng: random.Random) -> str | None:
    if not INTEGER.fullmatch(text) or len(text) < 2 or text.startswith("-") or int(text) == 0:
        return None
    mantissa = f"{text[0]}.{text[1:]}".rstrip("0").rstrip(".")
    form = rng.choice((r"{} \times 10^{{{}}}", "{}e{}", r"{}\cdot 10^{{{}}}", "{}E+{}", "{} × 10^{}"))
    return form.format(mantissa, len(text) - 1)


def thousands(text: str, rng: random.Random) -> str | None:
    bare = re.sub(r",\\!|\{,\}|\\,|,(?=\d{3}(?!\d))", "", text)
    if not INTEGER.fullmatch(bare) or len(bare.lstrip("-")) < 4:
        return None
    return f"{int(bare):,}".replace(",", rng.choice(THOUSANDS_SEPARATORS))


def full_width(text: str, rng: random.Random) -> str | None:
    del rng
    return (
        text.translate({ord(digit): 0xFF10 + int(digit) for digit in "0123456789"})
        if re.fullmatch(r"-?[\d.]+", text)
        else None
    )


def unicode_signs(text: str, rng: random.Random) -> str | None:
    del rng
    changed = re.sub(r"\\pi(?![a-z]) ?", "π", text).replace(r"\infty", "∞").replace(r"\cup", "∪").replace(r"\cdot", "·")
    changed = re.sub(r"\\sqrt\{(\d+)\}", r"√\1 ", changed).replace("^2", "²").replace("^3", "³").replace(r"^\circ", "°")
    changed = changed.replace("-", "−")
    return changed if changed != text and r"\text" not in text and "^{" not in text else None


def sign_moved(text: str, rng: random.Random) -> str | None:
    found = FRACTION.fullmatch(text)
    if found and found[1]:
        return rf"\frac{{-{found[2]}}}{{{found[3]}}}" if not found[2].startswith("-") else None
    return f"+{text}" if INTEGER.fullmatch(text) and not text.startswith("-") and rng.random() < 0.3 else None


def unit_added(text: str, rng: random.Random) -> str | None:
    if parse_number(text) is None:
        return None
    unit = rng.choice(UNITS)
    return rng.choice(
        (rf"{text}\text{{ {unit}}}", rf"{text} \text{{{unit}}}", rf"{text}\,\mathrm{{{unit}}}", f"{text} {unit}")
    )


def unit_rewritten(text: str, rng: random.Random) -> str | None:
    for pattern, forms in (
        (DEGREES, (r"{}", r"{}°", r"{}^{{\circ}}", r"{}\text{{ degrees}}", "{} degrees", r"{}\degree")),
        (MONEY, ("{}", "{} dollars", r"{}\text{{ dollars}}", "${}", r"\${}", "{} USD")),
        (PERCENT, ("{}", r"{}\%", "{}%", "{} percent", r"{}\text{{ percent}}")),
    ):
        if found := pattern.fullmatch(text):
            return rng.choice(forms).format(found[1])
    if found := QUANTITY.fullmatch(text):
        return rng.choice(("{0}", "{0} {1}", r"{0}\;\text{{{1}}}", r"{0}\mathrm{{ {1}}}")).format(
            found[1], found[2].strip()
        )
    return None


def named(text: str, rng: random.Random) -> str | None:
    """Write the value as an equation, such as `x = 5`."""
    names = ("x = {}", "n={}", r"\text{{Area}} = {}", "S = {}", "f(x) = {}")
    return rng.choice(names).format(text) if is_scalar(text) else None


def unnamed(text: str, rng: random.Random) -> str | None:
    """Write only the right side of an equation."""
    del rng
    found = re.fullmatch(r"([a-zA-Z])\s*=\s*([^=]*)", text)
    return found[2] if found and is_scalar(found[2]) and found[1] not in found[2] else None


def shuffled(text: str, rng: random.Random) -> str | None:
    found = split_list(text)
    if found is None or not all(is_scalar(item) for item in found):
        return None
    rng.shuffle(found)
    return rng.choice(("{}", r"\{{{}\}}", r"\left\{{ {} \right\}}", "$ {} $")).format(", ".join(found))


def with_and(text: str, rng: random.Random) -> str | None:
    found = split_list(text)
    if found is None or not all(is_scalar(item) for item in found):
        return None
    return ", ".join(found[:-1]) + rng.choice((r" \text{ and } ", " and ", r"\text{, and }")) + found[-1]


def algebra(text: str, rng: random.Random) -> str | None:
    if not is_scalar(text) or "!" in text:
        return None
    forms = (r"\frac{{2({})}}{{2}}", "({})+1-1", "3({})-2({})", r"\left({}\right)", "0+({})", r"-\left(-({})\right)")
    return (
        rng.choice(forms).replace("{}", text).replace("{{", "{").replace("}}", "}")
        if "}}" not in text
        else rf"\left({text}\right)"
    )


def root_as_power(text: str, rng: random.Random) -> str | None:
    changed = re.sub(r"\\sqrt\{(\d+)\}", rng.choice((r"\1^{1/2}", r"\1^{\\frac{1}{2}}")), text)
    before = re.search(r"[\d}]\s*\\sqrt", text)
    return changed if changed != text and not before and is_scalar(text) else None


def larger_brackets(text: str, rng: random.Random) -> str | None:
    if split_tuple(text) is None:
        return None
    left, right = rng.choice(((r"\left", r"\right"), (r"\bigl", r"\bigr"), (r"\Big", r"\Big")))
    opening, inner, closing = split_tuple(text)
    return f"{left}{opening} {', '.join(inner)} {right}{closing}"


def as_inequality(text: str, rng: random.Random) -> str | None:
    found = INTERVAL.fullmatch(re.sub(r"\\(?:left|right)(?![a-z])", "", text))
    if not found or ("infty" not in text and (found[1], found[4]) == ("(", ")")):
        return None
    low, high = found[2].strip(), found[3].strip()
    less, more = (r"\le" if found[1] == "[" else "<"), (r"\leq" if found[4] == "]" else "<")
    if "infty" in low:
        return None if "infty" in high else f"x {more} {high}"
    if "infty" in high:
        greater = r"\ge" if found[1] == "[" else ">"
        return rng.choice((f"x {greater} {low}", f"{low} {less} x"))
    return f"{low} {less} x {more} {high}"


def member(text: str, rng: random.Random) -> str | None:
    """Write an unbounded interval as `x ∈ interval`."""
    inside = "infty" in text and (INTERVAL.fullmatch(text) or r"\cup" in text)
    return rng.choice((rf"x \in {text}", rf"x\in{text}")) if inside else None


def matrix_again(text: str, rng: random.Random) -> str | None:
    if not MATRIX.fullmatch(text):
        return None
    return rng.choice((text.replace("pmatrix", "bmatrix"), text.replace("&", " & ").replace(r"\frac", r"\dfrac")))


def word_again(text: str, rng: random.Random) -> str | None:
    found = WORD.fullmatch(text)
    return (
        rng.choice(("{}", r"\textbf{{{}}}", r"\text{{{}.}}", r"\mathrm{{{}}}", r"\mbox{{ {} }}")).format(found[1])
        if found
        else None
    )


def base_again(text: str, rng: random.Random) -> str | None:
    found = BASE.fullmatch(text)
    return (
        rng.choice(("{}_{}", "{}_{{{}}}", r"{}_{{\text{{{}}}}}", r"{}\,_{{{}}}")).format(found[1], found[2])
        if found
        else None
    )


RIGHT = {
    rewrite.__name__: rewrite
    for rewrite in (
        spaced, other_fractions, slashed, as_decimal, as_fraction, mixed, scientific, thousands, full_width,
        unicode_signs, sign_moved, unit_added, unit_rewritten, named, unnamed, shuffled, with_and, algebra,
        root_as_power, larger_brackets, as_inequality, member, matrix_again, word_again, base_again,
    )
}  # fmt: skip
