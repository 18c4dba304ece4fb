r"""Decide which words after a number are a unit, and which units are the same."""

import re
from types import MappingProxyType

# The names of each unit; the first is the one that `read_unit` returns.
_UNIT_NAMES = """
mm millimeter millimetre, cm centimeter centimetre, dm decimeter decimetre, m meter metre, km kilometer kilometre,
inch inche in, foot feet ft, yard yd, mile mi, mg milligram, g gram gm gramme, kg kilogram kilo, ounce oz, pound lb £,
ml milliliter millilitre, l liter litre, gallon gal, second sec s, minute min, hour hr h, day, week wk, month, year
yr, degree deg °, radian rad, celsius c, fahrenheit f, kelvin k, percent % percentage pct, dollar $ usd buck, cent ¢
penny pennie, euro € eur, rupee r ₹ inr, yen ¥, newton n, joule j, watt w, volt v, amp ampere a, ohm, hertz hz, mole
mol, am, pm, acre, hectare ha, person people, child children, man men, woman women
"""
_STANDARD_NAME = MappingProxyType({word: words.split()[0] for words in _UNIT_NAMES.split(",") for word in words.split()})
_COMPOUND = MappingProxyType(
    {
        "mph": "mile / hour",
        "kmh": "km / hour",
        "kph": "km / hour",
        "kmph": "km / hour",
        "fps": "foot / second",
        "cc": "cm^3",
    }
)
_SCALE = MappingProxyType({"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12})
_NO_UNIT = frozenset(
    """is are was were be been isn aren wasn ain not no non nor never neither none nope wrong incorrect false untrue error mistake
    mistaken invalid but if unless except instead rather than about around roughly approximately more less fewer least most over
    under above below or and either maybe perhaps possibly probably plus minus times divided half halves double twice triple
    negative positive opposite inverse reciprocal factorial mod modulo base root power point to through until should would could
    can cannot must may might will do does did doesn don didn only almost nearly exactly it that this these those which what who
    where when why how he she they we you i think guess true right correct yes undefined infinite infinity other others another
    else instead since because as at most dozen with without from zero one two three four five six seven eight nine ten eleven
    twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth
    hundredths thousandth thousandths hundreds thousands millions billions dozens pair pairs couple tens score scores gross
    grand thou mil mill bil mn bn lakh lakhs crore crores fold""".split()  # noqa: SIM905 - a list would take 130 lines
)
_FILLERS = frozenset({"of", "the", "unit", "units", "total", "in", "all", "altogether", "each"})
# Words and letters after a number that change its value: `5 twelfths`, `5 quintillion`, `5 squared`, `5k`, `5 M`.
_CHANGES_VALUE = re.compile(
    r"^\s*(?:(?:squared|cubed)\b|[kMB]\s*$)"
    r"|\b(?:\w+teen|\w+tie|eleven|twelf|\w+illion)ths?\b|\b(?:qu|se|oc|no|de)\w+illions?\b"
)
_WORD = re.compile(r"(?:[^\W\d_]|[%$€£¥₹¢°])+(?:\^\{?-?\d\}?)?|/")
_MAX_WORDS = 5

Unit = tuple[str, ...]
"""The words of a unit, each under its standard name; empty for no unit."""


def read_unit(text: str) -> tuple[int, Unit] | None:
    r"""Read the words after a number as a unit.

    Up to five words are a unit, unless one of them denies, changes or doubts the number, as `not`, `wrong`, `half` and `or` do.

    Args:
        text: the words, without the number.

    Returns:
        The factor from words such as `million`, and the unit; None if the words are not a unit.

    Example:
        >>> read_unit("square feet"), read_unit("ft^{2}"), read_unit("eggs"), read_unit("million dollars"), read_unit("is wrong")
        ((1, ('foot^2',)), (1, ('foot^2',)), (1, ('egg',)), (1000000, ('dollar',)), None)
    """
    bare = text.replace(".", "").replace("'s", "").replace("-", " ").replace("\\", "")
    if _CHANGES_VALUE.search(bare) or re.search(r"[^\w\s%$€£¥₹¢°/^{}]|\d(?!\}?(?:$|[\s/]))|(?<![\^{-])\d", bare):
        return None
    words = [word.lower() for word in _WORD.findall(re.sub(r"(?<!\w)per(?!\w)", "/", bare, flags=re.IGNORECASE))]
    if len(words) > _MAX_WORDS or _NO_UNIT.intersection(words):
        return None
    scale = 1
    while words and words[0] in _SCALE:
        scale *= _SCALE[words.pop(0)]
    if any(word in _SCALE for word in words):
        return None
    return scale, _standardize(words)


def _standardize(words: list[str]) -> Unit:
    usual: list[str] = []
    power = ""
    for word in words:
        name, caret, exponent = word.partition("^")
        if name in ("square", "sq", "cubic", "cu"):
            power = "^2" if name.startswith("sq") else "^3"
        elif name in ("squared", "cubed") and usual:
            usual[-1] += "^2" if name == "squared" else "^3"
        elif name in _COMPOUND:
            usual += _COMPOUND[name].split()
        elif name not in _FILLERS:
            usual.append(
                _STANDARD_NAME.get(name, _STANDARD_NAME.get(_singular(name), _singular(name)))
                + (caret + exponent.strip("{}") or power)
            )
            power = ""
        else:
            power = ""
    return tuple(usual)


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 1 else word


def is_measure(word: str) -> bool:
    """Decide whether a word is a unit of measurement or money, rather than an ordinary noun.

    Example:
        >>> is_measure("cm"), is_measure("kg"), is_measure("egg")
        (True, True, False)
    """
    return word == "/" or word.partition("^")[0] in _STANDARD_NAME or word in _COMPOUND


def same_unit(reference: Unit, answer: Unit) -> bool:
    """Decide whether two units agree.

    A missing unit is accepted, and so are additional or missing nouns (`dogs` and `brown dogs`). If reference and answer both state
    a unit of measurement or money, the units must be the same: `5 km` is not `5 cm`. `500 cm` is not `5 m` either, because the
    reference determines the unit as well as the number.

    Example:
        >>> same_unit(("cm",), ()), same_unit(("cm",), ("km",)), same_unit(("dog",), ("brown", "dog"))
        (True, False, True)
    """
    if not reference or not answer or sorted(reference) == sorted(answer):
        return True
    ours, theirs = set(reference), set(answer)
    return (ours < theirs or theirs < ours) and not any(is_measure(word) for word in ours ^ theirs)
