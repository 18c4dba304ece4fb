r"""Read numbers with their units exactly, as fractions. No code is run, so this is safe in the trainer's own process.

All functions take text in the notation that `rljax.rewards.notation.canonicalize` produces.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from rljax.rewards.units import Unit, is_measure, read_unit, same_unit

_MAX_LENGTH = 400
_MIN_SIGNIFICANT_DIGITS = 6
_DIGITS = r"(?:\d+(?:\.\d*)?|\.\d+)"
_POWER = r"\{ ?([+-]?\d{1,3}) ?\}"
_DECIMAL = re.compile(_DIGITS)
_SCIENTIFIC = re.compile(rf"({_DIGITS}) ?(?:[eE]([+-]?\d{{1,3}})|(?:\\cdot|x|X) ?10 ?\^{_POWER})")
_POWER_OF_TEN = re.compile(rf"10\^{_POWER}")
_FRACTION = re.compile(
    rf"(\d+ ?)?\\frac\{{ ?([+-]?{_DIGITS}) ?\}}\{{ ?([+-]?{_DIGITS}) ?\}}|(\d+ )?({_DIGITS}) ?/ ?({_DIGITS})"
)
_REPEATING = re.compile(r"(\d*)\.(\d*?)(?:\\(?:overline|bar|dot) ?\{? ?(\d+) ?\}?|\((\d+)\)|(\d)\5\5+\\ldots)")
_BASE = re.compile(r"([0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)_\{(?:\\text\{)?(\w+)\}?\}")
_BASE_IN_WORDS = re.compile(r"\(?(?:\\text\{)?(?:in )?base[- ]?\}? ?(\w+)\}?\)?$")
_WORDS_TO_NINETEEN = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
    ),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_BASE_NAMES = {name: str(number) for number, name in enumerate(_WORDS_TO_NINETEEN[2:11], 2)}
_TENS_WORDS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORD_VALUES = {
    **{word: value for value, word in enumerate(_WORDS_TO_NINETEEN)},
    **{word: 10 * tens for tens, word in enumerate(_TENS_WORDS, 2)},
    **{
        f"{word}-{unit}": 10 * tens + value
        for tens, word in enumerate(_TENS_WORDS, 2)
        for value, unit in enumerate(_WORDS_TO_NINETEEN[1:10], 1)
    },
}
"""Number in words -> value."""
_ORDINAL = re.compile(r"(\d+)(?:\^\{ ?)?(?:\\text\{ ?)?(st|nd|rd|th) ?\}{0,2}")
_ORDINAL_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
_MONEY_BEFORE = re.compile(
    r"([+-]?) ?(\\\$|[€£¥₹]|\\text\{(?:USD|US\\\$|Rs\.?|EUR)\}|(?:Rs\.?|USD|EUR|INR)(?![a-zA-Z])) ?([+-]?)"
)
_TRAILING_UNIT = re.compile(
    r" ?(?:(?P<sign>%|°|\\\$|[€£¢])(?P<scale> ?(?:\\text\{ ?[CFK] ?\}|[CFK]))?|/? ?\\text\{(?P<words>[^{}]*)\}(?P<power>\^\{\d\})?"
    r"|/? ?\\text\{[^{}]*\}\^\{-\d\})$"
)
_WORDS_AFTER_NUMBER = re.compile(r"(.*[0-9}).])( ?)([^\W\d_](?:[^\W\d_]|[ /.'-]|\^\{\d\})*)")
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_ONE_LETTER = re.compile(r"[a-zA-Z](?:\^\{\d\})?")
_UNIT_LETTER = re.compile(rf"([+-]? ?{_DIGITS})( ?)([a-zA-Z](?:\^\{{[23]\}})?)")


class Quantity(NamedTuple):
    """An answer, split into its number and its unit."""

    core: str
    """The answer without its unit."""
    scale: int
    """The factor from words such as `million`."""
    unit: Unit
    """The unit; empty if there is none."""


def read_number(text: str) -> Fraction | None:
    r"""Read a number exactly.

    Args:
        text: an integer, a decimal (which may repeat), a fraction, a mixed number, a number in scientific notation, a word from
            `zero` to `ninety-nine`, or an ordinal such as `7th`.

    Returns:
        The number's value; None for any other text, a division by zero, or a number of more than 400 characters.

    Example:
        >>> [str(read_number(text)) for text in ("-0.50", r"1\frac{1}{2}", "1 1/2", "6.02e3", r"0.1\overline{6}", "x", "1/0")]
        ['-1/2', '3/2', '3/2', '6020', '1/6', 'None', 'None']
        >>> [str(read_number(text)) for text in ("three", r"\text{Twenty-one}", "7th", "2th", "seventh", "three hundred")]
        ['3', '21', '7', 'None', 'None', 'None']
    """
    bare = text.strip()
    if not bare or len(bare) > _MAX_LENGTH or not bare.isascii():
        return None
    if bare[-1].isalpha() or bare[-1] == "}":
        value = _read_words(bare)
        if value is not None:
            return value
    negative = bare[0] == "-"
    value = _read_unsigned(bare[1:].lstrip() if bare[0] in "-+" else bare)
    return -value if negative and value is not None else value


def _read_words(text: str) -> Fraction | None:
    """Read a number in words, or a numeral with the right ordinal ending. `seventh` is not read, because it may mean 1/7."""
    if found := _ORDINAL.fullmatch(text):
        last = int(found[1][-2:])
        ending = "th" if last in (11, 12, 13) else _ORDINAL_ENDINGS.get(last % 10, "th")
        return Fraction(int(found[1])) if found[2] == ending else None
    word = text.removeprefix(r"\text{").removesuffix("}") if text.startswith(r"\text{") else text
    value = _WORD_VALUES.get("-".join(word.casefold().split()))
    return None if value is None else Fraction(value)


def _read_unsigned(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if found := _SCIENTIFIC.fullmatch(text):
        return Fraction(found[1]) * Fraction(10) ** int(found[2] if found[2] is not None else found[3])
    if found := _POWER_OF_TEN.fullmatch(text):
        return Fraction(10) ** int(found[1])
    return _read_fraction(text) if "." not in text or "/" in text or r"\frac" in text else _read_repeating(text)


def _read_fraction(text: str) -> Fraction | None:
    """Read a fraction or a mixed number."""
    found = _FRACTION.fullmatch(text)
    if found is None:
        return None
    whole, top, bottom = (found[1], found[2], found[3]) if found[2] is not None else (found[4], found[5], found[6])
    if Fraction(bottom) == 0 or (whole is not None and top[0] in "+-"):
        return None
    return (Fraction(0) if whole is None else Fraction(whole)) + Fraction(top) / Fraction(bottom)


def _read_repeating(text: str) -> Fraction | None:
    r"""Read a repeating decimal: `0.1\overline{6}`, `0.1\dot{6}`, `0.1(6)`, `0.1666\ldots`."""
    found = _REPEATING.fullmatch(text)
    if found is None:
        return None
    period = next(digits for digits in found.groups()[2:] if digits is not None)
    shift, cycle = 10 ** len(found[2]), 10 ** len(period) - 1
    return Fraction(f"0{found[1]}.{found[2]}0") + Fraction(int(period), cycle * shift)


def is_decimal(text: str) -> bool:
    """Decide whether a number has a decimal point, which means that it may have been rounded.

    Example:
        >>> is_decimal("0.333333"), is_decimal("-2"), is_decimal("1/3")
        (True, False, False)
    """
    bare = text.strip().lstrip("+-")
    return "." in bare and _DECIMAL.fullmatch(bare) is not None


def significant_digits(text: str) -> int:
    """Count the significant digits of a decimal number.

    Example:
        >>> significant_digits("0.00333"), significant_digits("-12.50")
        (3, 4)
    """
    return len(text.strip().lstrip("+-").replace(".", "").lstrip("0"))


def rounds_to(exact: Fraction, text: str) -> bool:
    """Decide whether an exact value rounds to a decimal number, which must have at least six significant digits.

    Args:
        exact: the exact value.
        text: the decimal number.

    Returns:
        True for 1/3 and `0.333333`; False for 1/3 and `0.333`, which has too few digits.

    Example:
        >>> rounds_to(Fraction(1, 3), "0.333333"), rounds_to(Fraction(1, 3), "0.333"), rounds_to(Fraction(2, 3), "0.666666")
        (True, False, False)
    """
    if significant_digits(text) < _MIN_SIGNIFICANT_DIGITS:
        return False
    places = len(text.strip().partition(".")[2])
    return abs(exact - Fraction(text.strip())) * 2 * 10**places <= 1


def same_number(reference: str, answer: str) -> bool | None:
    r"""Compare two answers that are numbers.

    Two numbers are the same if their values are equal, or if one is a decimal number and the other is a fraction
    without a finite decimal form that rounds to it (see `rounds_to`).

    Args:
        reference: the correct answer, without a unit.
        answer: the answer to judge, without a unit.

    Returns:
        True or False; None if either answer is not a number.

    Example:
        >>> same_number(r"\frac{1}{2}", "0.50"), same_number("2", "12"), same_number("x", "1"), same_number("1/3", "0.333333")
        (True, False, None, True)
    """
    expected, actual = read_number(reference), read_number(answer)
    if expected is None or actual is None:
        return None
    if expected == actual:
        return True
    if is_decimal(answer) and not is_decimal(reference):
        return not _has_finite_decimal(expected) and rounds_to(expected, answer)
    if is_decimal(reference) and not is_decimal(answer):
        return not _has_finite_decimal(actual) and rounds_to(actual, reference)
    return False


def _has_finite_decimal(value: Fraction) -> bool:
    """Decide whether a fraction has a finite decimal form: its denominator divides a power of 10."""
    return pow(10, value.denominator.bit_length(), value.denominator) == 0


def split_unit(text: str) -> Quantity:
    r"""Separate an answer from its unit, which may be words in a text command, a sign, or words after a number.

    Args:
        text: an answer.

    Returns:
        The answer and its unit. Words that are not a unit stay in the answer.

    Example:
        >>> split_unit(r"\$18"), split_unit("18 eggs"), split_unit(r"5x\text{ is wrong}").unit, split_unit("40°").unit
        (Quantity(core='18', scale=1, unit=('dollar',)), Quantity(core='18', scale=1, unit=('egg',)), (), ('degree',))
    """
    core, scale, unit = text.strip(), 1, ()
    if (before := _MONEY_BEFORE.match(core)) and before.end() < len(core):
        read = read_unit(before[2].replace(r"\$", "$").removeprefix(r"\text{").removesuffix("}"))
        core, unit = before[1] + before[3] + core[before.end() :], () if read is None else read[1]
    texts = 0  # text commands with words so far; a second one is not a unit, unless a slash comes before it
    while found := _TRAILING_UNIT.search(core):
        words = core[found.start() :] if found["words"] is None else f"{found['words']}{found['power'] or ''}"
        if found["sign"] == "°" and _ANGLE.search(core):
            break  # the degree sign belongs to an angle inside the answer
        over = found["words"] is not None and found[0].strip().startswith("/")
        texts += found["words"] is not None and bool(found["words"].strip()) and not over
        read = read_unit(words.replace(r"\text{", "").replace("}", "") if found["words"] is None else words)
        if texts > 1:
            return Quantity(text.strip(), 1, ())
        if read is None or not core[: found.start()].strip() or scale * read[0] > 10**15:
            break
        core, scale, unit = core[: found.start()].strip(), scale * read[0], (("/",) if over else ()) + read[1] + unit
    if (found := _WORDS_AFTER_NUMBER.fullmatch(core)) and read_number(found[1]) is not None:
        read = read_unit(found[3])
        if read is not None and _are_words(found[3], spaced=bool(found[2])):
            core, scale, unit = found[1], scale * read[0], read[1] + unit
    return Quantity(core.strip(), scale, unit)


def _are_words(text: str, *, spaced: bool) -> bool:
    """Decide whether letters after a number are words, not variables: `18 eggs` and `5cm`, but not `5x` or `5xy`."""
    letters = re.match(r"[^\W\d_]+", text)
    if letters is None or _ONE_LETTER.fullmatch(text):
        return False
    read = read_unit(text)
    return read is not None and (all(is_measure(word) for word in read[1]) or (spaced and len(letters[0]) > 2))


def same_quantity(reference: str, answer: str) -> bool | None:
    r"""Compare two numbers with their units.

    If only one number has a unit, the unit is ignored; two different units do not match (see `rljax.rewards.units.same_unit`). A
    percent sign may be ignored, as other units may (`5%` matches `5`), or mean a division by 100 (`50%` matches `0.5`). But `0.5%`
    does not match the reference `0.5`, because a reference below 1 without a percent sign is never read as a percentage.

    Args:
        reference: the correct answer.
        answer: the answer to judge.

    Returns:
        True or False; None if either answer is not a number (with or without a unit).

    Example:
        >>> same_quantity("5 cm", "5"), same_quantity("5 cm", "5 km"), same_quantity("50%", "0.5"), same_quantity("x", "5")
        (True, False, True, None)
    """
    expected, actual = split_unit(reference), split_unit(answer)
    left, right = read_number(expected.core), read_number(actual.core)
    if right is None and left is not None:
        actual = _read_unit_letter(actual, expected.unit, spaced=True)
    elif left is None and right is not None:
        expected = _read_unit_letter(expected, actual.unit, spaced=False)
    left, right = read_number(expected.core), read_number(actual.core)
    if left is None or right is None:
        return None
    percents = ("percent" in expected.unit, "percent" in actual.unit)
    if percents in ((True, False), (False, True)):
        exact = left * expected.scale / (100 if percents[0] else 1) == right * actual.scale / (100 if percents[1] else 1)
        if exact and not (actual.unit if percents[0] else expected.unit):
            return True
        if percents[1] and abs(left) < 1 and left != 0:
            return False
    if not same_unit(expected.unit, actual.unit):
        return False
    if expected.scale == actual.scale:
        return same_number(expected.core, actual.core)
    return left * expected.scale == right * actual.scale


def _read_unit_letter(quantity: Quantity, unit: Unit, *, spaced: bool) -> Quantity:
    """Read a letter after a number as a unit if the other side has that unit or, with `spaced`, if a space precedes the letter."""
    found = _UNIT_LETTER.fullmatch(quantity.core)
    read = read_unit(found[3]) if found else None
    if found is None or read is None or quantity.unit or not all(is_measure(word) for word in read[1]):
        return quantity
    return Quantity(found[1], 1, read[1]) if read[1] == unit or (spaced and found[2]) else quantity


def split_base(text: str) -> tuple[str, str | None]:
    r"""Separate a number from the base in which it is written.

    Args:
        text: an answer.

    Returns:
        The digits and the base; the base is None if none is stated. Any other answer is returned unchanged, with None.

    Example:
        >>> split_base("1110_{4}"), split_base(r"11 \text{base} 2"), split_base("x_{1}")
        (('1110', '4'), ('11', '2'), ('x_{1}', None))
    """
    found = _BASE.fullmatch(text)
    if found and (found[1][0].isdigit() or found[1].isupper()):
        return found[1], _BASE_NAMES.get(str(found[2]).lower(), found[2])
    if (found := _BASE_IN_WORDS.search(text)) and text[: found.start()].strip().isalnum():
        return text[: found.start()].strip(), _BASE_NAMES.get(str(found[1]).lower(), found[1])
    return text, None
