r"""Mathematical equivalence of two answers.

Import this module only in worker processes (see `rljax.rewards.pool`): computer algebra may never finish, and nothing here has a
time limit.

The form of an answer is compared before its value, by these conventions:

- **Lists** without brackets, and sets, match in any order, because training data list roots in no fixed order. Each value must
  occur as often as in the reference. A reference with named values, such as `x=1, y=2`, also accepts the values alone in the same
  order, `1,2` or `(1,2)`, and the reference `(1,2)` accepts the named values.
- **Tuples and intervals** are compared in order and with their brackets. `(1,2)` may be a point or an open interval; the reference
  alone does not tell which. `(1,2)` does not equal `[1,2]`, `1,2` or `\{1,2\}`. An interval equals the inequality for it.
- **Inequalities** in the same name that "and" or a comma joins must all be true: `x>3, x<5` equals `(3,5)`.
- **Equations**: the reference `5` accepts `x=5`, and the references `x=5` and `a/b=5` accept `5`. In a chain such as `3+4=7`,
  all sides that are numbers must be right. Two equations are equal if they differ by a constant factor or have the same
  solutions.
- **Residues**: `3\pmod{7}` equals `10\pmod{7}` and `x\equiv 3\pmod{7}`. The answer may omit the modulus of the reference. A
  reference without a modulus, such as `3`, is compared with the answer's least residue, so it accepts `10\pmod{7}`.
- **Units**: see `rljax.rewards.quantity.same_quantity`. **Bases**: the answer may omit the base of the reference.
- **Ratios** are compared by value: `6:4` equals `3:2` and `3/2`. The reference `2:30` may be a time, so it does not equal `5:60`.
- **Choices**: `(C) 45` equals both `C` and `45`. If reference and answer both have a letter, the letters must be equal.
- **Numbers in words**, from `zero` to `ninety-nine`, and ordinals such as `7th` are numbers; `seventh` is not, because it may mean
  `1/7`. `no solution` is the empty set, and `all real numbers` is the set of real numbers.
- **Degrees** are not radians: `30^\circ` does not equal `\frac{\pi}{6}`, just as `100\text{ cm}` does not equal `1\text{ m}`.
- **Words** are compared without regard to case and punctuation.
"""

import re
from collections.abc import Callable

from rljax.rewards.algebra import approximates, same_expression, same_relation
from rljax.rewards.algebra_limits import is_judgeable
from rljax.rewards.answer_form import (
    FLIPPED,
    Residue,
    is_name,
    read_assignment,
    read_matrix,
    read_quantity,
    read_residues,
    split_brackets,
    split_elements,
    split_relation,
)
from rljax.rewards.intervals import Interval, read_intervals, read_united_intervals
from rljax.rewards.notation import canonicalize
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
# A system of equations is read as a list of equations.
_SYSTEM = re.compile(r"^\\begin\{(cases|aligned|gathered)\}(.*)\\end\{\1\}$", re.DOTALL)
_SETS_IN_WORDS = {
    **dict.fromkeys(("no solution", "no solutions", "there is no solution", "there are no solutions"), r"\emptyset"),
    **dict.fromkeys(("empty set", "the empty set"), r"\emptyset"),
    **dict.fromkeys(("all real numbers", "all reals", "the set of all real numbers"), r"\mathbb{R}"),
    **dict.fromkeys(("all integers", "the set of all integers"), r"\mathbb{Z}"),
    **dict.fromkeys(("no real solutions", "no real solution"), r"\text{no real solution}"),
    **dict.fromkeys(("dne", "does not exist"), r"\text{does not exist}"),
}
"""Phrase in lower case without punctuation -> the set that it names, or a standard phrase for the same answer."""
# The letter of a choice before its text: `(C) 45`, `\text{(C)} 45`, `C) 45`, `C. 45`.
_CHOICE = re.compile(r"(?:\\text\{)?(?:\(([A-E])\)|([A-E])(?:\)|\.(?=[ \d])))\}? ?[.:]? ?([^\s}].*)", re.DOTALL)
_ANOTHER_CHOICE = re.compile(r"(?<!\w)(?:\([A-E]\)|[A-E][).])")
_LETTER_OF_CHOICE = re.compile(r"(?:\\text\{)?\(?([A-E])\)?\}?")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))? ?(?:\\text\{)?\s?([ap])\.?m\.?\s?\}?", re.IGNORECASE)
_HOURS_AND_MINUTES = re.compile(r"\d{1,2}:[0-5]\d")
_TO = re.compile(r"(?<=\d) ?(?:\\text\{ ?to ?\}|(?<= )to) ?(?=\d)")
_WORDS_AT_END = re.compile(r"(.*?) ?\\text\{([^{}]*)\}")
_SHORTEST_WORD = 4
# Letters that are read as a product, such as `xy`; others are a word, such as `no`, or points in a fixed order, such as `ABC`.
_PRODUCT = re.compile(r"[abc]{2,3}|[b-df-hj-np-tv-z]{2,3}")
_BARE_LETTERS = re.compile(r"[^\W\d_]+")
_NUMERIC = re.compile(r"\\(?:frac|sqrt|cdot|pi|binom|div)(?![a-zA-Z])")
_MOST_ELEMENTS = 50


def equivalent(reference: str, answer: str) -> bool:
    r"""Decide whether an answer is mathematically equal to the reference.

    Text that cannot be read as mathematics equals only the same text.

    Args:
        reference: the correct answer, without a box.
        answer: the answer to judge, without a box.

    Returns:
        True for `\frac{1}{2}` and `0.5`, `x=5` and `5`, `1,2` and `2,1`. Equivalence is not symmetric: the reference sets the form.

    Example:
        >>> equivalent(r"\frac{1}{2}", "0.5"), equivalent("2", "12"), equivalent("1110_4", "1110_5")
        (True, False, False)
    """
    if not (is_judgeable(reference) and is_judgeable(answer)):
        return False
    expected, actual = canonicalize(reference), canonicalize(answer)
    if _same_choice(expected, actual):
        return True
    if r"\ln" in expected and not _LOG.search(expected):
        actual = _LOG.sub(r"\\ln", actual)  # the reference uses natural logarithms, so the answer's `\log` is one
    return _are_equal(expected, actual)


def _same_choice(reference: str, answer: str) -> bool:
    r"""Compare choices if one has a letter and a text: `(C) 45` equals `C`, `45` and `\textbf{(C)}\ 45`. Otherwise return False."""
    (letter, text), (answer_letter, answer_text) = map(_read_choice, (reference, answer))
    if letter is None and answer_letter is None:
        return False
    reference_choice, answer_choice = letter or _bare_letter(reference), answer_letter or _bare_letter(answer)
    if reference_choice and answer_choice:
        return reference_choice == answer_choice and (
            letter is None or answer_letter is None or _are_equal(text, answer_text)
        )
    return _are_equal(text, answer_text)


def _bare_letter(text: str) -> str | None:
    found = _LETTER_OF_CHOICE.fullmatch(text)
    return found and found[1]


def _read_choice(text: str) -> tuple[str | None, str]:
    """Return the letter of a choice and the text after the letter; None and the full text if there is no letter before a text."""
    found = _CHOICE.fullmatch(text)
    if found is None or _ANOTHER_CHOICE.search(found[3]):
        return None, text
    return found[1] or found[2], found[3]


def _are_equal(reference: str, answer: str) -> bool:
    """Compare two answers in canonical notation, first by their form, then by their value."""
    reference, answer = _unwrap(reference), _unwrap(answer)
    if not (reference and answer) or _as_prose(reference) == _as_prose(answer):
        return bool(reference and answer)
    residue_lists = read_residues(reference), read_residues(answer)
    if residue_lists != (None, None):
        expected, actual = (
            found or [Residue((one,), None) for one in split_elements(text)]
            for found, text in zip(residue_lists, (reference, answer), strict=True)
        )
        return _match_all(expected, actual, _same_residue)
    reference, answer = (_EQUIVALENT.sub("=", text) for text in (reference, answer))
    value = None if split_relation(answer)[1] else read_quantity(reference)
    if value is not None:
        return _are_equal(value, answer)
    expected, actual = split_elements(_strip_set_brackets(reference)), split_elements(_strip_set_brackets(answer))
    if _is_region(reference) or _is_region(answer):
        same = _same_regions(_strip_set_brackets(reference), _strip_set_brackets(answer))
        if same is not None:
            return same
    if len(expected) == len(actual) == 1:
        return _same_element(expected[0], actual[0])
    return _same_lists(expected, actual)


def _same_residue(reference: Residue, answer: Residue) -> bool:
    (*left, value), (*answer_left, answer_value) = reference.sides, answer.sides
    if reference.modulus is None or answer.modulus is None:
        stated = (answer_value, _least_residue(answer_value, answer.modulus))
        return any(_are_equal("=".join((*left, value)), "=".join((*answer_left, text))) for text in stated)
    names, answer_names = ([side for side in sides if read_number(side) is None] for sides in (left, answer_left))
    claims = [answer_value, *(side for side in answer_left if read_number(side) is not None)]
    same_left = names == answer_names or (not (names and answer_names) and all(map(is_name, names + answer_names)))
    same_values = (_are_equal(*(_least_residue(text, reference.modulus) for text in (value, claim))) for claim in claims)
    return same_left and _are_equal(reference.modulus, answer.modulus) and all(same_values)


def _least_residue(value: str, modulus: str | None) -> str:
    """Return the least non-negative residue of an integer; return other values, and values without a modulus, unchanged."""
    number, divisor = read_number(value), read_number(modulus or "")
    if number is None or divisor is None or number.denominator != 1 or divisor.denominator != 1 or divisor < 1:
        return value
    return str(number % divisor)


def _same_element(reference: str, answer: str) -> bool:
    if split_relation(reference)[1] or split_relation(answer)[1]:
        return _same_relations(reference, answer)
    bracketed = split_brackets(reference), split_brackets(answer)
    if any(found is not None and found[0] in ("(", "[") for found in bracketed):
        return _same_brackets(*bracketed)
    rows = read_matrix(reference), read_matrix(answer)
    if rows[0] is not None and rows[1] is not None:
        return _same_rows(rows[0], rows[1])
    return _same_values(reference, answer)


def _unwrap(text: str) -> str:
    """Remove what does not change an answer, such as brackets around a single value or a text command around a list."""
    text = _MEMBER.sub("", text.removeprefix(r"\approx").strip())
    text = _SYSTEM.sub(lambda found: found[2].replace(r"\\", ",").replace("&", "").strip(", "), text)
    bracketed = split_brackets(text)
    if bracketed is not None and (
        bracketed[0] + bracketed[2] == "{}"
        or (bracketed[0] + bracketed[2] in ("()", "[]") and len(split_elements(bracketed[1])) == 1)
    ):
        return _unwrap(bracketed[1])
    in_text = _IN_TEXT.fullmatch(text)
    if in_text and ("," in in_text[1] or _NO_WORD.search(in_text[1])):
        return canonicalize(in_text[1])
    return _SETS_IN_WORDS.get(_read_plain_words(text) or "", text)


def _strip_set_brackets(text: str) -> str:
    bracketed = split_brackets(text)
    if bracketed is None or (bracketed[0], bracketed[2]) != (r"\{", r"\}") or bracketed[1] == r"\emptyset":
        return text
    condition = _CONDITION.match(bracketed[1])
    return bracketed[1][condition.end() :] if condition else bracketed[1] if bracketed[1] else r"\emptyset"


def _is_region(text: str) -> bool:
    r"""Decide whether a text can only be a set of numbers described by intervals. `(1,2)` may also be a point."""
    _, signs = split_relation(_strip_set_brackets(text))
    bracketed = split_brackets(text)
    mixed = bracketed is not None and (bracketed[0] == "[") != (bracketed[2] == "]")
    return mixed or r"\cup" in text or r"\mathbb{R}" in text or any(sign not in ("=", r"\approx") for sign in signs)


def _same_regions(reference: str, answer: str) -> bool | None:
    """Compare two sets of real numbers; return None if either text is something else.

    A reference does not contradict itself on purpose. If it is `x<1 and x>2`, "and" means "or" in the reference and in the answer.
    """
    for read in (read_intervals, read_united_intervals):
        expected, actual = read(reference), read(answer)
        if expected is None or actual is None:
            return None
        if expected:
            return _same_intervals(expected, actual)
    return False


def _same_intervals(reference: list[Interval], answer: list[Interval]) -> bool:
    def same(left: Interval, right: Interval) -> bool:
        closed = left.low_closed == right.low_closed and left.high_closed == right.high_closed
        return closed and _are_equal(left.low, right.low) and _are_equal(left.high, right.high)

    return _match_all(reference, answer, same)


def _match_all(reference: list, answer: list, same: Callable) -> bool:
    """Decide whether two lists contain the same values equally often. Any equal value is a match, as equality is transitive."""
    if len(reference) != len(answer) or len(reference) > _MOST_ELEMENTS:
        return False
    unmatched = list(answer)
    for expected in reference:
        partner = next((position for position, actual in enumerate(unmatched) if same(expected, actual)), None)
        if partner is None:
            return False
        del unmatched[partner]
    return True


def _same_lists(reference: list[str], answer: list[str]) -> bool:
    """Compare two lists, one of which may be a tuple if the other has named values, as in `(1,2)` and `x=1,y=2`."""
    if len(reference) == 1 and len(answer) == len(_list_names(answer)) > 1:
        reference = _split_tuple_equation(reference[0])
    names = _list_names(reference)
    if len(names) == len(reference):
        answer = _split_tuple(answer)
    elif len(answer) == len(_list_names(answer)) == len(_split_tuple(reference)) > 1:
        values = [stated[1] for stated in map(read_assignment, answer) if stated is not None]
        return all(map(_are_equal, _split_tuple(reference), values)) and len(reference) == 1
    if len(names) > 1 and not any(split_relation(text)[1] for text in answer):
        return len(reference) == len(answer) and all(map(_are_equal, reference, answer))
    return _match_all(reference, answer, _are_equal)


def _split_tuple_equation(text: str) -> list[str]:
    """Split `(a,b)=(2,3)` into `a=2` and `b=3`; return any other text as the only element."""
    stated = read_assignment(text)
    names, values = (_split_tuple([side]) for side in stated) if stated is not None else ((), ())
    return (
        [f"{name}={value}" for name, value in zip(names, values, strict=True)] if len(names) == len(values) > 1 else [text]
    )


def _list_names(texts: list[str]) -> set[str]:
    """Return the names for which the equations in a list state a value."""
    return {stated[0] for stated in map(read_assignment, texts) if stated is not None}


def _split_tuple(texts: list[str]) -> list[str]:
    """Return the elements of a list that consists of one tuple; any other list is returned unchanged."""
    bracketed = split_brackets(texts[0]) if len(texts) == 1 else None
    return split_elements(bracketed[1]) if bracketed is not None and bracketed[0] + bracketed[2] == "()" else texts


def _same_brackets(reference: tuple[str, str, str] | None, answer: tuple[str, str, str] | None) -> bool:
    if reference is None or answer is None or (reference[0], reference[2]) != (answer[0], answer[2]):
        return False
    return _same_rows([split_elements(reference[1])], [split_elements(answer[1])])


def _same_rows(reference: list[list[str]], answer: list[list[str]]) -> bool:
    if [len(row) for row in reference] != [len(row) for row in answer]:
        return False
    return all(_are_equal(*pair) for rows in zip(reference, answer, strict=True) for pair in zip(*rows, strict=True))


def _same_relations(reference: str, answer: str) -> bool:
    """Compare two answers, at least one of which is an equation or another relation."""
    (expected, signs), (actual, answer_signs) = split_relation(reference), split_relation(answer)
    if not signs:
        return set(answer_signs) <= {"=", r"\approx"} and _chain_states(reference, actual)
    value, answer_value = read_assignment(reference), read_assignment(answer)
    if not answer_signs:
        return value is not None and _are_equal(value[1], answer)
    same_name = value is not None and answer_value is not None and _same_name(value, answer_value)
    computed = set(answer_signs) <= {"=", r"\approx"} and not _LETTER.search(_NUMERIC.sub("", "".join(actual)))
    if value is not None and (same_name or computed):  # `computed`: the answer `3+4=7` to the reference `x=7`
        return _chain_states(value[1], actual)
    if signs == answer_signs == [r"\in"]:
        return expected[0] == actual[0] and _are_equal(expected[1], actual[1])
    if len(signs) != 1 or len(answer_signs) != 1 or not {*signs, *answer_signs} <= {"=", *FLIPPED}:
        return False
    if answer_signs[0] == FLIPPED.get(signs[0]):
        actual, answer_signs = actual[::-1], signs
    left, right = (expected[0], expected[1]), (actual[0], actual[1])
    return signs == answer_signs and same_relation(left, right, ordered=signs != ["="])


def _same_name(reference: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Decide whether two equations state values of the same name. `y` and `f(x)` may both name the graph of a function."""
    names = reference[0], answer[0]
    graph = "y" in names and any(_FUNCTION.fullmatch(name) for name in names)
    return (names[0] == names[1] or graph) and not (_mentions_itself(reference) or _mentions_itself(answer))


def _mentions_itself(stated: tuple[str, str]) -> bool:
    """Decide whether the name in an equation also occurs in its value. Such an equation does not state the name's value."""
    return stated[0] in stated[1]


def _chain_states(reference: str, sides: list[str]) -> bool:
    """Decide whether a chain of equations states the reference's value and no side contradicts it."""
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
        sides.pop()  # `\sqrt{2}\approx 1.414` states the exact value
    if len(sides) == 2 and is_name(sides[1]) and not is_name(sides[0]) and sides[1] != reference:
        sides.reverse()
    *claims, last = sides
    rounded = is_decimal(reference)
    return _are_equal(reference, last) and all(
        _may_equal(claim, reference) or (rounded and approximates(reference, claim)) for claim in claims
    )


def _may_equal(claim: str, reference: str) -> bool:
    """Decide whether one side of an equation may equal the reference. A name may have any value; `5x` does not equal `x`."""
    letters = set(_LETTER.findall(_COMMAND.sub("", claim)))
    if is_name(claim) or len(letters) > 1 or "\\" in _NUMERIC.sub("", claim):
        return True
    return _are_equal(reference, claim)


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
    """Compare the digits and bases of two numbers; return None if neither states a base."""
    (digits, base), (answer_digits, answer_base) = split_base(reference), split_base(answer)
    if base is None and answer_base is None:
        return None
    same_base = base == answer_base or (base is not None and answer_base is None) or (base is None and answer_base == "10")
    return same_base and digits.lstrip("0") == answer_digits.lstrip("0")


def _same_clock(reference: str, answer: str) -> bool | None:
    """Compare two times of day with a.m. or p.m.; return None for anything else."""
    found = _CLOCK.fullmatch(reference), _CLOCK.fullmatch(answer)
    if found[0] is None or found[1] is None:
        return None
    time, answer_time = ((int(match[1]), int(match[2] or 0), match[3].lower()) for match in found if match)
    return time == answer_time


def _same_core(reference: str, answer: str) -> bool | None:
    """Compare two answers by their units and by what is left without the units; return None if neither has a unit."""
    expected, actual = split_unit(reference), split_unit(answer)
    if (expected.core, actual.core) == (reference, answer):
        return None
    same = same_unit(expected.unit, actual.unit) and expected.scale == actual.scale
    return same and _are_equal(expected.core, actual.core)


def _same_words(reference: str, answer: str) -> bool:
    expected, actual = _read_plain_words(reference), _read_plain_words(answer)
    if r"\text" not in reference + answer and len(reference) < _SHORTEST_WORD:
        is_product = _PRODUCT.fullmatch(reference) is not None or _BARE_LETTERS.fullmatch(answer) is None
        return expected == actual or (is_product and same_expression(reference, answer))
    if expected is not None or actual is not None:
        return expected == actual
    ends = _WORDS_AT_END.fullmatch(reference), _WORDS_AT_END.fullmatch(answer)
    if ends[0] is not None and ends[1] is not None and _read_plain_words(ends[0][2]) == _read_plain_words(ends[1][2]):
        return _are_equal(ends[0][1], ends[1][1])
    return r"\text" not in reference and r"\text" not in answer and same_expression(reference, answer)


def _as_prose(text: str) -> str:
    r"""Replace text commands with their words: `12\text{ dozen}` becomes `12 dozen`."""
    return " ".join(_IN_TEXT.sub(r" \1 ", text).split())


def _read_plain_words(text: str) -> str | None:
    """Return the words of an answer, in lower case and without punctuation; None if the answer contains mathematics."""
    bare = _IN_TEXT.sub(r" \1 ", text)
    return None if _NO_WORD.search(bare) else " ".join(re.sub(r"[^\w]+", " ", bare).casefold().split())


def _same_ratio(reference: list[str], answer: list[str]) -> bool:
    # The reference may be a time, so its multiples are not equal to it.
    if _HOURS_AND_MINUTES.fullmatch(":".join(reference)) and len(answer) == 2:
        return all(map(_are_equal, reference, answer))
    if len(reference) == len(answer):
        pairs = [(read_number(expected), read_number(actual)) for expected, actual in zip(reference, answer, strict=True)]
        factors = {actual / expected for expected, actual in pairs if expected and actual}
        is_multiple = len(factors) == 1 and all(expected and actual for expected, actual in pairs)
        return is_multiple or all(map(_are_equal, reference, answer))
    ratio, single = sorted((reference, answer), key=len, reverse=True)
    if len(ratio) == 2 and len(single) == 1:
        first, second, value = map(read_number, (*ratio, single[0]))
        return first is not None and second is not None and value is not None and first == value * second != 0
    return False
