r"""Mathematical equivalence of two answers. Import it in worker processes only: nothing here has a time limit.

Comparisons run in processes of their own (see `rljax.rewards.pool`), because computer algebra may take forever.

The form of an answer counts before its value does, and here conventions decide:

- **Lists** without brackets and sets are compared as values in any order, each as often as in the reference, because
  training data list roots in no fixed order. A list whose values have names, `x=1, y=2`, also matches the values alone, in the
  same order: `1,2` or `(1,2)`; and the reference `(1,2)` accepts that list.
- **Tuples and intervals** are compared in order and with their brackets. `(1,2)` is a point or an open interval; the reference
  alone does not tell which. It is neither `[1,2]` nor `1,2` nor `\{1,2\}`. An interval is the same as its inequality.
- **Equations**: the reference `5` accepts `x=5`, and the references `x=5` and `a/b=5` accept `5`. Of a chain such as `3+4=7`,
  all sides that are numbers must be right. Two equations are the same if they differ by a constant factor or have the same
  solutions.
- **Residues**: `3\pmod{7}` is `10\pmod{7}` and `x\equiv 3\pmod{7}`. A modulus that only the reference states may be missing. For
  the reference `3`, the answer's least residue counts, so `10\pmod{7}` is `3`.
- **Units**: see `rljax.rewards.quantity.same_quantity`. **Bases**: a base that only the reference states may be missing.
- **Ratios** are compared by their values: `6:4` is `3:2`, and `3/2`. A reference such as `2:30` may be a time, so it is not `5:60`.
- **Choices**: `(C) 45` is `C` as well as `45`; if both have a letter, it must be the same.
- **Numbers in words**, from `zero` to `ninety-nine`, and ordinals such as `7th` are numbers; `seventh` is not, because it may be
  `1/7`. `no solution` is the empty set, and `all real numbers` is the set of them.
- **Degrees** are not radians: `30^\circ` is not `\frac{\pi}{6}`, as `100\text{ cm}` is not `1\text{ m}`.
- **Words** are compared without regard to case and punctuation.
"""

import re
from collections.abc import Callable

from rljax.rewards.algebra import approximates, same_expression, same_relation
from rljax.rewards.algebra_limits import is_judgeable
from rljax.rewards.answer_form import (
    Piece,
    Residue,
    assignment,
    brackets,
    elements,
    is_name,
    matrix,
    pieces,
    quantity,
    relation,
    residues,
)
from rljax.rewards.notation import plain
from rljax.rewards.quantity import is_decimal, read_number, same_quantity, split_base, split_unit
from rljax.rewards.units import same_unit

_EQUIVALENT = re.compile(r"\\equiv ?(?![a-zA-Z])|≡")
_COMMAND = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+")
_LETTER = re.compile(r"[a-zA-Z]")
_PROSE = re.compile(r"\\text\{|[^\W\d_]{4,}|^[^\W\d_]{2,3}$")
_IN_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_NO_WORD = re.compile(r"[\d\\^_=<>+*/{}|]|(?<!\w)-")
_LOG = re.compile(r"\\log(?![a-zA-Z_])")
_MEMBER = re.compile(r"^[a-zA-Z]\\in ?(?=\\\{)")
_FUNCTION = re.compile(r"[a-zA-Z]\([a-z]\)")
_CONDITION = re.compile(r"[a-zA-Z] ?(?:\\in ?(?:\\mathbb\{R\}|R) ?)?[|:]")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
# Columns of equations: a system of them is a list.
_ROWS = re.compile(r"^\\begin\{(cases|aligned|gathered)\}(.*)\\end\{\1\}$", re.DOTALL)
_SETS_IN_WORDS = {
    **dict.fromkeys(("no solution", "no solutions", "there is no solution", "there are no solutions"), r"\emptyset"),
    **dict.fromkeys(("empty set", "the empty set"), r"\emptyset"),
    **dict.fromkeys(("all real numbers", "all reals", "the set of all real numbers"), r"\mathbb{R}"),
    **dict.fromkeys(("all integers", "the set of all integers"), r"\mathbb{Z}"),
    **dict.fromkeys(("no real solutions", "no real solution"), r"\text{no real solution}"),
    **dict.fromkeys(("dne", "does not exist"), r"\text{does not exist}"),
}
"""Words without case and punctuation -> the set that they name, or one of several phrases for the same."""
# The letter of a choice before its text: `(C) 45`, `\text{(C)} 45`, `C) 45`, `C. 45`.
_CHOICE = re.compile(r"(?:\\text\{)?(?:\(([A-E])\)|([A-E])(?:\)|\.(?=[ \d])))\}? ?[.:]? ?([^\s}].*)", re.DOTALL)
_ANOTHER_CHOICE = re.compile(r"(?<!\w)(?:\([A-E]\)|[A-E][).])")
_LETTER_OF_CHOICE = re.compile(r"(?:\\text\{)?\(?([A-E])\)?\}?")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))? ?(?:\\text\{)?\s?([ap])\.?m\.?\s?\}?", re.IGNORECASE)
_HOURS_AND_MINUTES = re.compile(r"\d{1,2}:[0-5]\d")
_TO = re.compile(r"(?<=\d) ?(?:\\text\{ ?to ?\}|(?<= )to) ?(?=\d)")
_WORDS_AT_END = re.compile(r"(.*?) ?\\text\{([^{}]*)\}")
_SHORTEST_WORD = 4
# Letters that are a product in any order, such as `xy`; others are a word or an order of points, such as `no` and `ABC`.
_PRODUCT = re.compile(r"[abc]{2,3}|[b-df-hj-np-tv-z]{2,3}")
_BARE_LETTERS = re.compile(r"[^\W\d_]+")
_NUMERIC = re.compile(r"\\(?:frac|sqrt|cdot|pi|binom|div)(?![a-zA-Z])")
_MOST_ELEMENTS = 50


def equivalent(reference: str, answer: str) -> bool:
    r"""Decide whether an answer is mathematically equal to the reference.

    Text that cannot be read as mathematics equals only the same text.

    Args:
        reference: the correct answer, without a box.
        answer: the answer to judge, likewise.

    Returns:
        True for `\frac{1}{2}` and `0.5`, `x=5` and `5`, `1,2` and `2,1`. It is not symmetric: the reference sets the form.

    Example:
        >>> equivalent(r"\frac{1}{2}", "0.5"), equivalent("2", "12"), equivalent("1110_4", "1110_5")
        (True, False, False)
    """
    if not (is_judgeable(reference) and is_judgeable(answer)):
        return False
    expected, actual = plain(reference), plain(answer)
    if _same_choice(expected, actual):
        return True
    if r"\ln" in expected and not _LOG.search(expected):
        actual = _LOG.sub(r"\\ln", actual)  # the reference shows that its logarithms are natural ones
    return _equal(expected, actual)


def _same_choice(reference: str, answer: str) -> bool:
    r"""Compare choices, at least one of which has a letter and its text: `(C) 45` is `C`, `45` and `\textbf{(C)}\ 45`."""
    (letter, text), (own_letter, own_text) = map(_read_choice, (reference, answer))
    if letter is None and own_letter is None:
        return False
    named, own_named = letter or _bare_letter(reference), own_letter or _bare_letter(answer)
    if named and own_named:
        return named == own_named and (letter is None or own_letter is None or _equal(text, own_text))
    return _equal(text, own_text)


def _bare_letter(text: str) -> str | None:
    found = _LETTER_OF_CHOICE.fullmatch(text)
    return found and found[1]


def _read_choice(text: str) -> tuple[str | None, str]:
    """Return the letter before the text of a choice, and this text; None and the text itself if there is no such letter."""
    found = _CHOICE.fullmatch(text)
    if found is None or _ANOTHER_CHOICE.search(found[3]):
        return None, text
    return found[1] or found[2], found[3]


def _equal(reference: str, answer: str) -> bool:
    reference, answer = _unwrap(reference), _unwrap(answer)
    if not (reference and answer) or _as_prose(reference) == _as_prose(answer):
        return bool(reference and answer)
    classes = residues(reference), residues(answer)
    if classes != (None, None):
        expected, actual = (
            found or [Residue((one,), None) for one in elements(text)]
            for found, text in zip(classes, (reference, answer), strict=True)
        )
        return _match_all(expected, actual, _same_residue)
    reference, answer = (_EQUIVALENT.sub("=", text) for text in (reference, answer))
    value = None if relation(answer)[1] else quantity(reference)
    if value is not None:
        return _equal(value, answer)
    expected, actual = elements(_without_set(reference)), elements(_without_set(answer))
    if _is_region(reference) or _is_region(answer):
        regions = pieces(_without_set(reference)), pieces(_without_set(answer))
        if regions[0] is not None and regions[1] is not None:
            return _same_pieces(regions[0], regions[1])
    if len(expected) == len(actual) == 1:
        return _same_element(expected[0], actual[0])
    return _same_lists(expected, actual)


def _same_residue(reference: Residue, answer: Residue) -> bool:
    (*left, value), (*own_left, own_value) = reference.sides, answer.sides
    if reference.modulus is None or answer.modulus is None:
        stated = (own_value, _least_residue(own_value, answer.modulus))
        return any(_equal("=".join((*left, value)), "=".join((*own_left, text))) for text in stated)
    names, own_names = ([side for side in sides if read_number(side) is None] for sides in (left, own_left))
    claims = [own_value, *(side for side in own_left if read_number(side) is not None)]
    same_left = names == own_names or (not (names and own_names) and all(map(is_name, names + own_names)))
    same_values = (_equal(*(_least_residue(text, reference.modulus) for text in (value, claim))) for claim in claims)
    return same_left and _equal(reference.modulus, answer.modulus) and all(same_values)


def _least_residue(value: str, modulus: str | None) -> str:
    """Write an integer as its least non-negative residue; the text itself if it is no integer, or if there is no modulus."""
    number, divisor = read_number(value), read_number(modulus or "")
    if number is None or divisor is None or number.denominator != 1 or divisor.denominator != 1 or divisor < 1:
        return value
    return str(number % divisor)


def _same_element(reference: str, answer: str) -> bool:
    if relation(reference)[1] or relation(answer)[1]:
        return _same_relations(reference, answer)
    around = brackets(reference), brackets(answer)
    if any(found is not None and found[0] in ("(", "[") for found in around):
        return _same_brackets(*around)
    rows = matrix(reference), matrix(answer)
    if rows[0] is not None and rows[1] is not None:
        return _same_rows(rows[0], rows[1])
    return _same_values(reference, answer)


def _unwrap(text: str) -> str:
    """Remove what does not change an answer: brackets around a single value, and a text command around a list."""
    text = _MEMBER.sub("", text.removeprefix(r"\approx").strip())
    text = _ROWS.sub(lambda found: found[2].replace(r"\\", ",").replace("&", "").strip(", "), text)
    around = brackets(text)
    if around is not None and (
        around[0] + around[2] == "{}" or (around[0] + around[2] in ("()", "[]") and len(elements(around[1])) == 1)
    ):
        return _unwrap(around[1])
    whole = _IN_TEXT.fullmatch(text)
    if whole and ("," in whole[1] or _NO_WORD.search(whole[1])):
        return plain(whole[1])
    return _SETS_IN_WORDS.get(_words(text) or "", text)


def _without_set(text: str) -> str:
    around = brackets(text)
    if around is None or (around[0], around[2]) != (r"\{", r"\}") or around[1] == r"\emptyset":
        return text
    condition = _CONDITION.match(around[1])
    return around[1][condition.end() :] if condition else around[1] if around[1] else r"\emptyset"


def _is_region(text: str) -> bool:
    r"""Decide whether a text can only be a set of numbers that is described by intervals. `(1,2)` may be a point."""
    _, signs = relation(_without_set(text))
    around = brackets(text)
    mixed = around is not None and (around[0] == "[") != (around[2] == "]")
    return mixed or r"\cup" in text or r"\mathbb{R}" in text or any(sign not in ("=", r"\approx") for sign in signs)


def _same_pieces(reference: list[Piece], answer: list[Piece]) -> bool:
    def same(left: Piece, right: Piece) -> bool:
        closed = left.low_closed == right.low_closed and left.high_closed == right.high_closed
        return closed and _equal(left.low, right.low) and _equal(left.high, right.high)

    return _match_all(reference, answer, same)


def _match_all(reference: list, answer: list, same: Callable) -> bool:
    """Decide whether two lists contain the same values, each as often. Equality is transitive, so any partner will do."""
    if len(reference) != len(answer) or len(reference) > _MOST_ELEMENTS:
        return False
    left = list(answer)
    for expected in reference:
        partner = next((position for position, actual in enumerate(left) if same(expected, actual)), None)
        if partner is None:
            return False
        del left[partner]
    return True


def _same_lists(reference: list[str], answer: list[str]) -> bool:
    if len(reference) == 1 and len(answer) == len(_names_in(answer)) > 1:
        reference = _spread(reference[0])
    names = _names_in(reference)
    if len(names) == len(reference):
        answer = _in_tuple(answer)
    elif len(answer) == len(_names_in(answer)) == len(_in_tuple(reference)) > 1:
        values = [stated[1] for stated in map(assignment, answer) if stated is not None]
        return all(map(_equal, _in_tuple(reference), values)) and len(reference) == 1
    if len(names) > 1 and not any(relation(text)[1] for text in answer):
        return len(reference) == len(answer) and all(map(_equal, reference, answer))
    return _match_all(reference, answer, _equal)


def _spread(text: str) -> list[str]:
    """Write `(a,b)=(2,3)` as the two equations that it stands for; any other text is the only element."""
    stated = assignment(text)
    names, values = (_in_tuple([side]) for side in stated) if stated is not None else ((), ())
    return (
        [f"{name}={value}" for name, value in zip(names, values, strict=True)] if len(names) == len(values) > 1 else [text]
    )


def _names_in(texts: list[str]) -> set[str]:
    """Return the names whose values equations state."""
    return {stated[0] for stated in map(assignment, texts) if stated is not None}


def _in_tuple(texts: list[str]) -> list[str]:
    """Return the elements of a list that consists of one tuple; any other list is returned unchanged."""
    around = brackets(texts[0]) if len(texts) == 1 else None
    return elements(around[1]) if around is not None and around[0] + around[2] == "()" else texts


def _same_brackets(reference: tuple[str, str, str] | None, answer: tuple[str, str, str] | None) -> bool:
    if reference is None or answer is None or (reference[0], reference[2]) != (answer[0], answer[2]):
        return False
    return _same_rows([elements(reference[1])], [elements(answer[1])])


def _same_rows(reference: list[list[str]], answer: list[list[str]]) -> bool:
    if [len(row) for row in reference] != [len(row) for row in answer]:
        return False
    return all(_equal(*pair) for rows in zip(reference, answer, strict=True) for pair in zip(*rows, strict=True))


def _same_relations(reference: str, answer: str) -> bool:
    (expected, signs), (actual, own_signs) = relation(reference), relation(answer)
    if not signs:
        return set(own_signs) <= {"=", r"\approx"} and _states(reference, actual)
    value, own_value = assignment(reference), assignment(answer)
    if not own_signs:
        return value is not None and _equal(value[1], answer)
    same_name = value is not None and own_value is not None and _same_name(value, own_value)
    computed = set(own_signs) <= {"=", r"\approx"} and not _LETTER.search(_NUMERIC.sub("", "".join(actual)))
    if value is not None and (same_name or computed):  # the latter is `3+4=7` for `x=7`
        return _states(value[1], actual)
    if signs == own_signs == [r"\in"]:
        return expected[0] == actual[0] and _equal(expected[1], actual[1])
    if len(signs) != 1 or len(own_signs) != 1 or not {*signs, *own_signs} <= {"=", *_FLIPPED}:
        return False
    if own_signs[0] == _FLIPPED.get(signs[0]):
        actual, own_signs = actual[::-1], signs
    left, right = (expected[0], expected[1]), (actual[0], actual[1])
    return signs == own_signs and same_relation(left, right, ordered=signs != ["="])


def _same_name(reference: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Decide whether two equations state values of the same name. The graph of a function is `y=2x` as well as `f(x)=2x`."""
    names = reference[0], answer[0]
    graph = "y" in names and any(_FUNCTION.fullmatch(name) for name in names)
    return (names[0] == names[1] or graph) and not (_mentions(reference) or _mentions(answer))


def _mentions(stated: tuple[str, str]) -> bool:
    """Decide whether the name of an equation also occurs in its value, so that the equation does not state the value."""
    return stated[0] in stated[1]


def _states(reference: str, sides: list[str]) -> bool:
    """Decide whether a chain of equations states the value of the reference and claims nothing else."""
    if not sides[-1]:
        return False
    sides = [side for side in sides if side]
    while (
        len(sides) > 1
        and not is_name(sides[-2])
        and is_decimal(sides[-1])
        and not is_decimal(reference)
        and approximates(sides[-1], reference)
    ):
        sides.pop()  # `\\sqrt{2}\\approx 1.414` states the exact value
    if len(sides) == 2 and is_name(sides[1]) and not is_name(sides[0]) and sides[1] != reference:
        sides.reverse()
    *claims, last = sides
    rounded = is_decimal(reference)
    return _equal(reference, last) and all(
        _may_equal(claim, reference) or (rounded and approximates(reference, claim)) for claim in claims
    )


def _may_equal(claim: str, reference: str) -> bool:
    """Decide whether one side of an equation may have the value of the reference. For a name, this is unknown; `5x` is not `x`."""
    letters = set(_LETTER.findall(_COMMAND.sub("", claim)))
    if is_name(claim) or len(letters) > 1 or "\\" in _NUMERIC.sub("", claim):
        return True
    return _equal(reference, claim)


def _same_values(reference: str, answer: str) -> bool:
    if ":" in reference:
        answer = _TO.sub(":", answer)
    for compare in (_same_in_base, _same_clock, same_quantity, _same_core):
        same = compare(reference, answer)
        if same is not None:
            return same
    if _PROSE.search(reference) or r"\text" in answer:
        return _same_words(reference, answer)
    if ":" in reference or ":" in answer:
        return _same_ratio(reference.split(":"), answer.split(":"))
    return same_expression(reference, answer)


def _same_in_base(reference: str, answer: str) -> bool | None:
    """Compare the digits and bases of two numbers; None if neither states a base."""
    (digits, base), (own_digits, own_base) = split_base(reference), split_base(answer)
    if base is None and own_base is None:
        return None
    same_base = base == own_base or (base is not None and own_base is None) or (base is None and own_base == "10")
    return same_base and digits.lstrip("0") == own_digits.lstrip("0")


def _same_clock(reference: str, answer: str) -> bool | None:
    """Compare two times of day with a.m. or p.m.; None for anything else."""
    found = _CLOCK.fullmatch(reference), _CLOCK.fullmatch(answer)
    if found[0] is None or found[1] is None:
        return None
    hour, own_hour = ((int(each[1]), int(each[2] or 0), each[3].lower()) for each in found if each)
    return hour == own_hour


def _same_core(reference: str, answer: str) -> bool | None:
    """Compare two answers without their units; None if neither has one."""
    expected, actual = split_unit(reference), split_unit(answer)
    if (expected.core, actual.core) == (reference, answer):
        return None
    same = same_unit(expected.unit, actual.unit) and expected.scale == actual.scale
    return same and _equal(expected.core, actual.core)


def _same_words(reference: str, answer: str) -> bool:
    expected, actual = _words(reference), _words(answer)
    if r"\text" not in reference + answer and len(reference) < _SHORTEST_WORD:
        is_product = _PRODUCT.fullmatch(reference) is not None or _BARE_LETTERS.fullmatch(answer) is None
        return expected == actual or (is_product and same_expression(reference, answer))
    if expected is not None or actual is not None:
        return expected == actual
    ends = _WORDS_AT_END.fullmatch(reference), _WORDS_AT_END.fullmatch(answer)
    if ends[0] is not None and ends[1] is not None and _words(ends[0][2]) == _words(ends[1][2]):
        return _equal(ends[0][1], ends[1][1])
    return r"\text" not in reference and r"\text" not in answer and same_expression(reference, answer)


def _as_prose(text: str) -> str:
    r"""Write the words of text commands like bare words: `12\text{ dozen}` is `12 dozen`."""
    return " ".join(_IN_TEXT.sub(r" \1 ", text).split())


def _words(text: str) -> str | None:
    """Read an answer in words, without case and punctuation; None if there is mathematics in it."""
    bare = _IN_TEXT.sub(r" \1 ", text)
    return None if _NO_WORD.search(bare) else " ".join(re.sub(r"[^\w]+", " ", bare).casefold().split())


def _same_ratio(reference: list[str], answer: list[str]) -> bool:
    if _HOURS_AND_MINUTES.fullmatch(":".join(reference)) and len(answer) == 2:  # perhaps a time, which has no multiples
        return all(map(_equal, reference, answer))
    if len(reference) == len(answer):
        pairs = [(read_number(expected), read_number(actual)) for expected, actual in zip(reference, answer, strict=True)]
        factors = {actual / expected for expected, actual in pairs if expected and actual}
        is_multiple = len(factors) == 1 and all(expected and actual for expected, actual in pairs)
        return is_multiple or all(map(_equal, reference, answer))
    ratio, single = sorted((reference, answer), key=len, reverse=True)
    if len(ratio) == 2 and len(single) == 1:
        first, second, value = map(read_number, (*ratio, single[0]))
        return first is not None and second is not None and value is not None and first == value * second != 0
    return False
