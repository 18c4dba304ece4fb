r"""Answers that are right or wrong by construction: references rewritten so that their value stays, or so that it does not.

Nothing here uses the code under test. What a reference is (a number, a tuple, a list, ...) is decided by narrow patterns of text,
and every rewriting refuses what it is not sure about by returning None.
"""

import random
import re
from collections.abc import Callable
from fractions import Fraction

Rewriting = Callable[[str, random.Random], str | None]

INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d+\.\d+")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
BRACKETED = re.compile(r"(\(|\[)([^()\[\]]*)(\)|\])")
INTERVAL = re.compile(r"([(\[])([^()\[\],]*),([^()\[\],]*)([)\]])")
QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?)(?:\\ |~)?\\text\{ ?([a-z ]+)\}")
DEGREES = re.compile(r"(-?\d+(?:\.\d+)?)\^(?:\{\\circ\}|\\circ)")
MONEY = re.compile(r"\\\$(\d+(?:\.\d+)?)")
PERCENT = re.compile(r"(-?\d+(?:\.\d+)?)\\?%")
BASE = re.compile(r"(\d+)_\{?(\d)\}?")
WORD = re.compile(r"\\text\{([A-Za-z]+)\}")
MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}")
RATIO_OR_WORDS = re.compile(r"\\text|:|\\begin|_|\\%|\\\$|\\circ|%|[=<>]|\\[lg]e|\\in|\\cup|\\pm|\\ldots|\\emptyset|\d!\d|\\mathbb|\\infty")
SEPARATORS = (",", "{,}", r"\,", " ", r",\!")
UNITS = ("apples", "marbles", "cm", "kg", "miles", "hours", "square feet", "points", "ways")


def is_scalar(text: str) -> bool:
    """Whether a reference is one number or expression: no list, tuple, set, unit, relation or word."""
    bare = re.sub(r"\\(?:left|right)(?![a-z])", "", text)
    grouped = re.fullmatch(r"[(\[].*[)\]]", bare) and "," in bare
    plain = "," not in re.sub(r"\\[,!]|\{,\}", "", bare)
    return bool(bare) and plain and not grouped and not RATIO_OR_WORDS.search(bare) and not re.search(r"[a-zA-Z]{4,}(?![a-z]*\{)", re.sub(
        r"\\[a-zA-Z]+", "", bare)) and "[" not in re.sub(r"\\sqrt\[", "", bare)  # fmt: skip


def number(text: str) -> Fraction | None:
    """The value of a reference that is an integer, a decimal or a fraction."""
    if INTEGER.fullmatch(text) or DECIMAL.fullmatch(text):
        return Fraction(text)
    found = FRACTION.fullmatch(text)
    if found and int(found[3]):
        return Fraction(int(found[2]), int(found[3])) * (-1 if found[1] else 1)
    return None


def parts(text: str) -> tuple[str, list[str], str] | None:
    """The brackets and the components of a tuple or an interval without nested brackets."""
    found = BRACKETED.fullmatch(re.sub(r"\\(?:left|right)(?![a-z])", "", text).replace(r"\!", "").strip())
    if not found or "," not in found[2] or ";" in found[2]:
        return None
    return found[1], [component.strip() for component in found[2].split(",")], found[3]


def items(text: str) -> list[str] | None:
    """The elements of a list without brackets."""
    if re.search(r"[()\[\]:]|\\text|\\begin|\\\{|\{,\}|\\!|\d,\d{3}|[=<>]|\\[lg]e|\\in|\\cup|\\pm|\\ldots|;", text) or "," not in text:
        return None
    found = [re.sub(r"\\[, ;]", "", element).strip() for element in re.sub(r"\\,|\\ ", "", text).split(",")]
    return found if all(found) and len(found) > 1 else None


def decimal(value: Fraction) -> str | None:
    """The finite decimal form of a fraction; None if it has none of at most 6 digits."""
    for places in range(7):
        if (value * 10**places).denominator == 1:
            return f"{float(value):.{max(places, 1)}f}" if abs(value) < 10**9 else None
    return None


def _within(text: str, old: str, new: str) -> str | None:
    return text.replace(old, new) if old in text else None


# What keeps the value.


def spaced(text: str, draw: random.Random) -> str | None:
    space = draw.choice((" ", r"\,", r"\;", "~", "  ", r"\ "))
    if r"\text" in text or re.fullmatch(r"-?[\d.]+", text):
        return f" {text} "
    return re.sub(r"(?<=[^\\])([+=,])(?!\\)", rf"{space}\1{space}".replace("\\", "\\\\").replace(r"\\1", r"\1"), text)


def other_fractions(text: str, draw: random.Random) -> str | None:
    return None if r"\frac" not in text else text.replace(r"\frac", draw.choice((r"\dfrac", r"\tfrac", r"\cfrac")))


def slashed(text: str, draw: random.Random) -> str | None:
    found = FRACTION.fullmatch(text)
    return f"{found[1]}{found[2]}{draw.choice(('/', ' / '))}{found[3]}" if found and not (found[1] and found[2][0] == "-") else None


def as_decimal(text: str, draw: random.Random) -> str | None:
    value = number(text)
    written = None if value is None else decimal(value)
    return None if written is None else written + "0" * draw.randrange(2)


def as_fraction(text: str, draw: random.Random) -> str | None:
    value, factor = number(text), draw.randrange(2, 7)
    if value is None:
        return None
    top, bottom = abs(value.numerator) * factor, value.denominator * factor
    return f"{'-' if value < 0 else ''}\\frac{{{top}}}{{{bottom}}}"


def mixed(text: str, draw: random.Random) -> str | None:
    value = number(text)
    if value is None or value.denominator == 1 or abs(value) < 1:
        return None
    whole, rest = divmod(abs(value.numerator), value.denominator)
    form = draw.choice((r"{}\frac{{{}}}{{{}}}", r"{} \dfrac{{{}}}{{{}}}", "{} {}/{}"))
    return ("-" if value < 0 else "") + form.format(whole, rest, value.denominator)


def scientific(text: str, draw: random.Random) -> str | None:
    if not INTEGER.fullmatch(text) or len(text) < 2 or text.startswith("-") or int(text) == 0:
        return None
    mantissa = f"{text[0]}.{text[1:]}".rstrip("0").rstrip(".")
    form = draw.choice((r"{} \times 10^{{{}}}", "{}e{}", r"{}\cdot 10^{{{}}}", "{}E+{}", "{} × 10^{}"))
    return form.format(mantissa, len(text) - 1)


def thousands(text: str, draw: random.Random) -> str | None:
    bare = re.sub(r",\\!|\{,\}|\\,|,(?=\d{3}(?!\d))", "", text)
    if not INTEGER.fullmatch(bare) or len(bare.lstrip("-")) < 4:
        return None
    return f"{int(bare):,}".replace(",", draw.choice(SEPARATORS))


def full_width(text: str, draw: random.Random) -> str | None:
    del draw
    return text.translate({ord(digit): 0xFF10 + int(digit) for digit in "0123456789"}) if re.fullmatch(r"-?[\d.]+", text) else None


def unicode_signs(text: str, draw: random.Random) -> str | None:
    del draw
    changed = re.sub(r"\\pi(?![a-z]) ?", "π", text).replace(r"\infty", "∞").replace(r"\cup", "∪").replace(r"\cdot", "·")
    changed = re.sub(r"\\sqrt\{(\d+)\}", r"√\1 ", changed).replace("^2", "²").replace("^3", "³").replace(r"^\circ", "°")
    changed = changed.replace("-", "−")
    return changed if changed != text and r"\text" not in text and "^{" not in text else None


def sign_moved(text: str, draw: random.Random) -> str | None:
    found = FRACTION.fullmatch(text)
    if found and found[1]:
        return rf"\frac{{-{found[2]}}}{{{found[3]}}}" if not found[2].startswith("-") else None
    return f"+{text}" if INTEGER.fullmatch(text) and not text.startswith("-") and draw.random() < 0.3 else None


def unit_added(text: str, draw: random.Random) -> str | None:
    if number(text) is None:
        return None
    unit = draw.choice(UNITS)
    return draw.choice((rf"{text}\text{{ {unit}}}", rf"{text} \text{{{unit}}}", rf"{text}\,\mathrm{{{unit}}}", f"{text} {unit}"))


def unit_rewritten(text: str, draw: random.Random) -> str | None:
    for pattern, forms in (
        (DEGREES, (r"{}", r"{}°", r"{}^{{\circ}}", r"{}\text{{ degrees}}", "{} degrees", r"{}\degree")),
        (MONEY, ("{}", "{} dollars", r"{}\text{{ dollars}}", "${}", r"\${}", "{} USD")),
        (PERCENT, ("{}", r"{}\%", "{}%", "{} percent", r"{}\text{{ percent}}")),
    ):
        if found := pattern.fullmatch(text):
            return draw.choice(forms).format(found[1])
    if found := QUANTITY.fullmatch(text):
        return draw.choice(("{0}", "{0} {1}", r"{0}\;\text{{{1}}}", r"{0}\mathrm{{ {1}}}")).format(found[1], found[2].strip())
    return None


def named(text: str, draw: random.Random) -> str | None:
    names = ("x = {}", "n={}", r"\text{{Area}} = {}", "S = {}", "f(x) = {}")
    return draw.choice(names).format(text) if is_scalar(text) else None


def unnamed(text: str, draw: random.Random) -> str | None:
    del draw
    found = re.fullmatch(r"([a-zA-Z])\s*=\s*([^=]*)", text)
    return found[2] if found and is_scalar(found[2]) and found[1] not in found[2] else None


def shuffled(text: str, draw: random.Random) -> str | None:
    found = items(text)
    if found is None or not all(is_scalar(item) for item in found):
        return None
    draw.shuffle(found)
    return draw.choice(("{}", r"\{{{}\}}", r"\left\{{ {} \right\}}", "$ {} $")).format(", ".join(found))


def with_and(text: str, draw: random.Random) -> str | None:
    found = items(text)
    if found is None or not all(is_scalar(item) for item in found):
        return None
    return ", ".join(found[:-1]) + draw.choice((r" \text{ and } ", " and ", r"\text{, and }")) + found[-1]


def algebra(text: str, draw: random.Random) -> str | None:
    if not is_scalar(text) or "!" in text:
        return None
    forms = (r"\frac{{2({})}}{{2}}", "({})+1-1", "3({})-2({})", r"\left({}\right)", "0+({})", r"-\left(-({})\right)")
    return draw.choice(forms).replace("{}", text).replace("{{", "{").replace("}}", "}") if "}}" not in text else rf"\left({text}\right)"


def root_as_power(text: str, draw: random.Random) -> str | None:
    changed = re.sub(r"\\sqrt\{(\d+)\}", draw.choice((r"\1^{1/2}", r"\1^{\\frac{1}{2}}")), text)
    before = re.search(r"[\d}]\s*\\sqrt", text)
    return changed if changed != text and not before and is_scalar(text) else None


def larger_brackets(text: str, draw: random.Random) -> str | None:
    if parts(text) is None:
        return None
    left, right = draw.choice(((r"\left", r"\right"), (r"\bigl", r"\bigr"), (r"\Big", r"\Big")))
    opening, inner, closing = parts(text)
    return f"{left}{opening} {', '.join(inner)} {right}{closing}"


def as_inequality(text: str, draw: random.Random) -> str | None:
    found = INTERVAL.fullmatch(re.sub(r"\\(?:left|right)(?![a-z])", "", text))
    if not found or "infty" not in text and (found[1], found[4]) == ("(", ")"):
        return None
    low, high = found[2].strip(), found[3].strip()
    less, more = (r"\le" if found[1] == "[" else "<"), (r"\leq" if found[4] == "]" else "<")
    if "infty" in low:
        return None if "infty" in high else f"x {more} {high}"
    if "infty" in high:
        greater = r"\ge" if found[1] == "[" else ">"
        return draw.choice((f"x {greater} {low}", f"{low} {less} x"))
    return f"{low} {less} x {more} {high}"


def member(text: str, draw: random.Random) -> str | None:
    inside = "infty" in text and (INTERVAL.fullmatch(text) or r"\cup" in text)
    return draw.choice((rf"x \in {text}", rf"x\in{text}")) if inside else None


def matrix_again(text: str, draw: random.Random) -> str | None:
    if not MATRIX.fullmatch(text):
        return None
    return draw.choice((text.replace("pmatrix", "bmatrix"), text.replace("&", " & ").replace(r"\frac", r"\dfrac")))


def word_again(text: str, draw: random.Random) -> str | None:
    found = WORD.fullmatch(text)
    return draw.choice(("{}", r"\textbf{{{}}}", r"\text{{{}.}}", r"\mathrm{{{}}}", r"\mbox{{ {} }}")).format(found[1]) if found else None


def base_again(text: str, draw: random.Random) -> str | None:
    found = BASE.fullmatch(text)
    return draw.choice(("{}_{}", "{}_{{{}}}", r"{}_{{\text{{{}}}}}", r"{}\,_{{{}}}")).format(found[1], found[2]) if found else None


RIGHT: dict[str, Rewriting] = {
    function.__name__: function
    for function in (
        *(spaced, other_fractions, slashed, as_decimal, as_fraction, mixed, scientific, thousands, full_width, unicode_signs),
        *(sign_moved, unit_added, unit_rewritten, named, unnamed, shuffled, with_and, algebra, root_as_power, larger_brackets),
        *(as_inequality, member, matrix_again, word_again, base_again),
    )
}

# What changes the value.


def digit_changed(text: str, draw: random.Random) -> str | None:
    places = [found.start() for found in re.finditer(r"(?<!text\{)\d", text)]
    if not places or r"\text" in text or "=0" in text.replace(" ", "") or re.search(r"[=<>]|\\[lg]e", text):
        return None
    place = draw.choice(places)
    digit = draw.choice([d for d in "123456789" if d != text[place]])
    changed = text[:place] + digit + text[place + 1 :]
    return None if re.search(r"(?<![\d.])[01][a-z\\(^]|\^\{?[01]|\{1\}\{|(?<!\d)0", text + changed) and number(text) is None else changed


def negated(text: str, draw: random.Random) -> str | None:
    del draw
    if not is_scalar(text) or number(text) == 0 or (text.startswith("-") and number(text) is None):
        return None
    return text[1:] if text.startswith("-") else f"-{text}" if number(text) is not None else f"-({text})"


def bracket_changed(text: str, draw: random.Random) -> str | None:
    found = parts(text)
    if found is None or len(found[1]) != 2:
        return None
    opening, inner, closing = found
    swapped = draw.choice((0, 1)) if not any("infty" in component for component in inner) else int("infty" in inner[0])
    other = {"(": "[", "[": "(", ")": "]", "]": ")"}
    return f"{opening if swapped else other[opening]}{','.join(inner)}{other[closing] if swapped else closing}"


def bare(text: str, draw: random.Random) -> str | None:
    found = parts(text)
    if found is None or "infty" in text:
        return None
    return draw.choice(("{}", r"\{{{}\}}")).format(", ".join(found[1]))


def in_parentheses(text: str, draw: random.Random) -> str | None:
    found = items(text)
    return draw.choice(("({})", "[{}]")).format(", ".join(found)) if found else None


def swapped(text: str, draw: random.Random) -> str | None:
    found = parts(text)
    if found is None or len(set(found[1])) < 2 or found[1] == found[1][::-1]:
        return None
    del draw
    return f"{found[0]}{', '.join(found[1][::-1])}{found[2]}"


def element_added(text: str, draw: random.Random) -> str | None:
    extra = str(draw.randrange(1000, 9999))
    if (found := parts(text)) is not None:
        return f"{found[0]}{', '.join([*found[1], extra])}{found[2]}"
    if (found := items(text)) is not None:
        return ", ".join([*found, extra])
    return draw.choice((f"{text}, {extra}", f"{extra}, {text}")) if is_scalar(text) else None


def element_twice(text: str, draw: random.Random) -> str | None:
    found = items(text)
    return ", ".join([*found, draw.choice(found)]) if found else f"{text}, {text}" if is_scalar(text) else None


def element_dropped(text: str, draw: random.Random) -> str | None:
    if (found := parts(text)) is not None and len(found[1]) > 2:
        del found[1][draw.randrange(len(found[1]))]
        return f"{found[0]}{', '.join(found[1])}{found[2]}"
    if (found := items(text)) is not None:
        del found[draw.randrange(len(found))]
        return ", ".join(found)
    return None


def scaled(text: str, draw: random.Random) -> str | None:
    if not is_scalar(text) or number(text) == 0 or "!" in text:
        return None
    if INTEGER.fullmatch(text):
        return draw.choice((f"{text}0", f"{text}00", str(2 * int(text)), f"{int(text) / 1000:.4f}"))
    return draw.choice((f"10({text})", rf"\frac{{{text}}}{{2}}", rf"2\left({text}\right)", rf"\pi({text})"))


def one_more(text: str, draw: random.Random) -> str | None:
    return draw.choice(("({})+1", "({})-1", "({})+x", "z({})", "({})i", "({})+0.001")).format(text) if is_scalar(text) else None


def denied(text: str, draw: random.Random) -> str | None:
    if not is_scalar(text):
        return None
    forms = (r"{}\text{{ is wrong}}", r"{} \text{{ is not the answer}}", "not {}", r"\text{{not }} {}", "{} is false", r"\neq {}",
             r"{} \text{{ is incorrect}}", r"\text{{anything but }}{}", r"{}\text{{?? no}}", r"{}\text{{ (wrong)}}")  # fmt: skip
    return draw.choice(forms).format(text)


def hedged(text: str, draw: random.Random) -> str | None:
    if not is_scalar(text):
        return None
    other = draw.randrange(100, 999)
    forms = (r"{} \text{{ or }} {}", "{} or {}", "{}, {}", "{}; {}", r"\{{{}, {}\}}", "{} and {}", r"{}\text{{ or perhaps {}}}", "({}, {})")
    return draw.choice(forms).format(*draw.sample((text, str(other)), 2))


def unit_changed(text: str, draw: random.Random) -> str | None:
    for pattern, forms in (
        (DEGREES, (r"{} \text{{ radians}}", "{} cm", r"{}\%")),
        (MONEY, ("{} cents", r"{}\text{{ euros}}", r"{}\%", r"{}^\circ")),
        (PERCENT, ("{} dollars", r"{}^\circ", "{} cm")),
    ):
        if found := pattern.fullmatch(text):
            return draw.choice(forms).format(found[1])
    found = QUANTITY.fullmatch(text)
    if not found or not re.search(r"inch|feet|foot|cm|meter|mile|hour|minute|second|dollar|cent|degree|gram|pound|day", found[2]):
        return None
    others = [unit for unit in ("km", "kg", "years", "percent", "gallons") if unit[:3] not in found[2]]
    return rf"{found[1]}\text{{ {draw.choice(others)}}}"


def key(text: str, draw: random.Random) -> str | None:
    keys = ("1=2", "0=1", "0=0", "x=x", "1=1", "1<2", "2<1", r"\emptyset", r"\text{none}", "x", "1/0", "x=x+1", r"\frac{0}{0}")
    chosen = draw.choice(keys)
    return None if "emptyset" in text or text.strip() in ("x", "X", "0=0") else chosen


def base_changed(text: str, draw: random.Random) -> str | None:
    found = BASE.fullmatch(text)
    return f"{found[1]}_{{{draw.choice([b for b in '23456789' if b != found[2]])}}}" if found else None


def sign_within(text: str, draw: random.Random) -> str | None:
    del draw
    found = re.fullmatch(r"([^+\-=<>,^]*[\da-z}])\s*([+\-])\s*([^+\-=<>,()]+)", text)
    if not found or not is_scalar(text) or found[1].count("{") != found[1].count("}"):
        return None
    return f"{found[1]}{'-' if found[2] == '+' else '+'}{found[3]}"


def rounded(text: str, draw: random.Random) -> str | None:
    value = number(text)
    if value is not None and decimal(value) is None:
        return f"{float(value):.3g}" if abs(value) < 1000 else None
    roots = re.fullmatch(r"(\d*)\\sqrt\{?(\d+)\}?", text)
    if roots and round(int(roots[2]) ** 0.5) ** 2 != int(roots[2]):
        return f"{int(roots[1] or 1) * int(roots[2]) ** 0.5:.4g}"
    circle = re.fullmatch(r"(\d+) ?\\pi", text)
    return f"{int(circle[1]) * 3.14:.2f}" if circle and len(circle[1]) < 4 else None


def transposed(text: str, draw: random.Random) -> str | None:
    found = MATRIX.fullmatch(text)
    if not found:
        return None
    rows = [[entry.strip() for entry in row.split("&")] for row in found[1].split(r"\\")]
    if len({len(row) for row in rows}) != 1:
        return None
    if len(rows) > 1 and rows[0] != rows[1] and draw.random() < 0.5:
        rows[0], rows[1] = rows[1], rows[0]
    else:
        rows[0][0] = f"{rows[0][0]}+1"
    inside = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\begin{{pmatrix}} {inside} \end{{pmatrix}}"


def other_word(text: str, draw: random.Random) -> str | None:
    found = WORD.fullmatch(text)
    return rf"\text{{{draw.choice(('never', found[1] + 'x', found[1][::-1] + 'q', 'not ' + found[1]))}}}" if found else None


def end_changed(text: str, draw: random.Random) -> str | None:
    right = as_inequality(text, draw)
    if right is None:
        return None
    for old, new in ((r"\leq", "<"), (r"\le ", "<"), (r"\ge", ">"), ("<", r"\le"), (">", r"\ge")):
        if old in right:
            return right.replace(old, new, 1)
    return None


WRONG: dict[str, Rewriting] = {
    function.__name__: function
    for function in (
        *(digit_changed, negated, bracket_changed, bare, in_parentheses, swapped, element_added, element_twice, element_dropped),
        *(scaled, one_more, denied, hedged, unit_changed, key, base_changed, sign_within, rounded, transposed, other_word, end_changed),
    )
}

STATED = (
    r"So it is $\boxed{{{}}}$.", r"\[ \boxed{{{}}} \]", "<answer>{}</answer>", "so\n#### {}", "The answer is {}.", "**Answer:** {}",
    r"The final answer is: $\boxed{{{}}}$", r"\boxed{{ {} }}", r"First $\boxed{{17}}$ was my guess. No: $\boxed{{{}}}$", "Answer: ${}$",
)  # fmt: skip


def cases(references: list[str], rewritings: dict[str, Rewriting], count: int, seed: int) -> list[tuple[str, str, str]]:
    """Draw different triples (name of the rewriting, reference, answer), about as many of every kind."""
    draw = random.Random(seed)
    pool: dict[str, list[tuple[str, str, str]]] = {name: [] for name in rewritings}
    for reference in dict.fromkeys(references):
        for name, rewrite in rewritings.items():
            answer = rewrite(reference, draw)
            if answer is not None and answer != reference:
                pool[name].append((name, reference, answer))
    for found in pool.values():
        draw.shuffle(found)
    drawn: list[tuple[str, str, str]] = []
    while len(drawn) < count and any(pool.values()):
        drawn += [found.pop() for found in pool.values() if found]
    return drawn[:count]


def completion(answer: str, draw: random.Random) -> str:
    """Put an answer into a response; sentences and lines only take answers that end where they do."""
    form = draw.choice(STATED)
    fragile = ". " in answer or "\n" in answer or "#" in answer or answer.startswith("-") or "$" in answer
    return (STATED[0] if fragile else form).format(answer)
