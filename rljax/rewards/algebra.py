r"""Equality of mathematical expressions. Import it in worker processes only: nothing here has a time limit.

The parser is math-verify's. Two expressions are equal if they have equal values, to 30 digits and more, wherever both are
defined: at several points if they have variables. Rational numbers are compared exactly. math-verify's own comparison of
expressions rounds to six decimals, which makes all small numbers equal, and its `simplify` is slow; it compares what has no
value: sets, and matrices within expressions. SymPy is not typed, so its objects are `Any` here.
"""

import functools
import logging
import re
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy
from math_verify import verify
from sympy.core.function import AppliedUndef

from rljax.rewards.quantity import is_decimal, rounds_to

# math-verify warns in every process that its own time limit is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_READING = NormalizationConfig(basic_latex=True, units=False, malformed_operators=False, nits=False, boxed="none")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)°")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
# The parser adds adjacent numbers, as in the mixed number 2\frac{1}{2}: it reads 2(3) as 5.
_PRODUCT = re.compile(r"(?<=[\d)])(?=\()|(?<=\))(?=\\frac)|(?<=[\d)}])(?=\\binom)|(?<=\\pi)(?=\()")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_NO_ALGEBRA = re.compile(r"\d \d|\\text|\\ldots|\\pm|\\mp|\\pmod|[\"'#&?@]|\\mathbb")
_DIGITS = 50
_SAME = sympy.Float("1e-30", 15)
_ZERO = 1e-110  # irrational values below this count as 0, which SymPy often cannot prove
# Values of variables, by position in the alphabet of the expression: first two points with positive values only, because roots and
# logarithms may have none elsewhere.
_POINTS = (
    ((7, 5), (13, 11), (23, 9), (17, 12), (29, 13), (31, 17)),
    ((3, 7), (19, 8), (5, 11), (41, 16), (8, 13), (12, 5)),
    ((-7, 3), (9, 7), (-11, 4), (6, 5), (-2, 9), (13, 3)),
    ((15, 7), (-9, 5), (4, 3), (-21, 8), (7, 2), (-3, 11)),
    ((-37, 7), (-41, 9), (-53, 11), (-61, 13), (-19, 4), (-71, 15)),
)


@functools.lru_cache(maxsize=1024)
def parse_expression(text: str) -> Any:
    r"""Parse an expression.

    Args:
        text: LaTeX, as `rljax.rewards.notation.plain` writes it.

    Returns:
        A SymPy object; None if the text is not mathematics.

    Example:
        >>> str(parse_expression(r"\frac{x}{2}")), parse_expression("x is wrong"), parse_expression("(1+")
        ('x/2', None, None)
    """
    if _NO_ALGEBRA.search(text) or _WORD.search(text):
        return None
    latex = _PRODUCT.sub(r"\\cdot ", text)
    latex = _PERCENT.sub(r"\1\\cdot\\frac{1}{100}", _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", latex))
    try:
        result = latex2sympy(latex, is_real=True, convert_degrees=False, normalization_config=_READING)
    except Exception:  # the parser may raise anything
        return None
    return _exact(result) if isinstance(result, sympy.Expr) else result


def _exact(expression: Any) -> Any:
    """Make decimals exact, `i` the imaginary unit, and every unknown function a variable."""
    replaced = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    replaced |= {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
    replaced |= {function: sympy.Symbol(str(function), real=True) for function in expression.atoms(AppliedUndef)}
    return expression.xreplace(replaced) if replaced else expression


def same_expression(reference: str, answer: str) -> bool:
    r"""Decide whether two expressions are equal.

    Args:
        reference: the correct expression.
        answer: the expression to judge.

    Returns:
        True if their values are equal. A decimal number also equals an irrational reference that rounds to it, if it has at
        least six significant digits.

    Example:
        >>> same_expression("(x+1)^{2}", "x^{2}+2x+1"), same_expression("x", r"\sqrt{x^{2}}"), same_expression(r"\pi", "3.14159")
        (True, False, True)
    """
    left, right = parse_expression(reference), parse_expression(answer)
    if left is None or right is None:
        return False
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return type(left) is type(right) and not _is_relation(left) and verify([left], [right], timeout_seconds=None)
    if left.free_symbols or right.free_symbols:
        values = _values((left, right))
        return len(values) > 1 and all(_close(*pair) for pair in values)
    return _same_number(reference, left, answer, right)


def approximates(text: str, exact: str) -> bool:
    r"""Decide whether a decimal number is the value of an expression, rounded or cut off after its last digit.

    Args:
        text: a decimal number.
        exact: an expression.

    Example:
        >>> approximates("1.414", r"\sqrt{2}"), approximates("1.42", r"\sqrt{2}"), approximates("1.5", "x")
        (True, False, False)
    """
    expression = parse_expression(exact)
    value = _value(expression, {}) if isinstance(expression, sympy.Expr) and not expression.free_symbols else None
    number, places = sympy.Rational(text.strip()), len(text.strip().partition(".")[2])
    if value is None or not value.is_real or value * number < 0:
        return False
    return bool(-sympy.Rational(1, 2) <= (abs(value) - abs(number)) * 10**places < 1)


def _is_relation(expression: object) -> bool:
    return isinstance(expression, sympy.logic.boolalg.Boolean)


def _same_number(reference: str, left: Any, answer: str, right: Any) -> bool:
    exact = (left.doit(), right.doit())
    if all(number.is_Rational for number in exact):
        return exact[0] == exact[1]
    values = [_value(number, {}) for number in exact]
    if values[0] is None or values[1] is None:
        return exact[0] == exact[1] and exact[0] not in (sympy.nan, sympy.zoo)
    if _close(values[0], values[1]):
        return True
    for text, value in ((answer, values[0]), (reference, values[1])):
        if is_decimal(text) and value.is_real and not exact[0 if text is answer else 1].is_Rational:
            return rounds_to(Fraction(str(value)), text)
    return False


def _values(expressions: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Evaluate expressions at the points where all have a value; from the third point on, all values must be real as well."""
    names = sorted({symbol.name for expression in expressions for symbol in expression.free_symbols})
    found = []
    for number, point in enumerate(_POINTS):
        at = {name: sympy.Rational(*point[index % len(point)]) + index // len(point) for index, name in enumerate(names)}
        values = [_value(expression, at) for expression in expressions]
        complete = [value for value in values if value is not None]
        if len(complete) == len(values) and (number < 2 or all(value.is_real for value in complete)):
            found.append(tuple(complete))
    return found


def _value(expression: Any, point: dict[str, Any]) -> Any:
    """Evaluate an expression: exactly if it is rational, else to 50 digits; None where it has no finite value."""
    try:
        exact = expression.xreplace({symbol: point[symbol.name] for symbol in expression.free_symbols}).doit()
        value = exact if exact.is_Rational else exact.evalf(_DIGITS, chop=_ZERO)
        parts = value.as_real_imag()
    except Exception:  # SymPy raises whatever it likes
        return None
    return value if all(part.is_Float or part.is_Rational for part in parts) else None


def _close(left: Any, right: Any) -> bool:
    if left.is_Rational and right.is_Rational:
        return left == right
    return bool(abs(left - right) <= _SAME * max(abs(left), abs(right)))


def same_relation(reference: tuple[str, str], answer: tuple[str, str], *, ordered: bool) -> bool:
    r"""Decide whether two equations, or two inequalities of the same direction, are equivalent.

    They are if the differences of their sides have a constant ratio: not zero for equations, positive for inequalities. Equations
    are also equivalent if the numerators of these differences have a constant ratio, or are polynomials of one variable with the
    same roots. An equation without variables, such as `1=2`, or with equal sides is not equivalent to any other.

    Args:
        reference: the two sides of the reference.
        answer: the two sides of the answer.
        ordered: whether both are inequalities.

    Returns:
        True if they have the same solutions.

    Example:
        >>> same_relation(("y", "2x"), ("2x-y", "0"), ordered=False), same_relation(("x", "1"), ("1", "2"), ordered=False)
        (True, False)
        >>> same_relation(("2x", "4"), ("x", "2"), ordered=True), same_relation(("x", "2"), ("-x", "-2"), ordered=True)
        (True, False)
    """
    sides = [parse_expression(text) for text in (*reference, *answer)]
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return False
    left, right = sides[0] - sides[1], sides[2] - sides[3]
    names = [{symbol.name for symbol in expression.free_symbols} for expression in (left, right)]
    if not names[0] or names[0] != names[1]:
        return False
    if _constant_ratio(left, right, positive=ordered):
        return True
    if ordered:
        return False
    try:
        left, right = (sympy.together(expression).as_numer_denom()[0] for expression in (left, right))
        return _constant_ratio(left, right, positive=False) or (len(names[0]) == 1 and _same_roots(left, right))
    except Exception:  # SymPy raises whatever it likes
        return False


def _constant_ratio(left: Any, right: Any, *, positive: bool) -> bool:
    values = _values((left, right))
    if len(values) < 2 or any(_close(value, sympy.S.Zero) for pair in values for value in pair):
        return False
    ratios = [pair[1] / pair[0] for pair in values]
    return all(_close(ratio, ratios[0]) for ratio in ratios) and (not positive or ratios[0].is_positive is True)


def _same_roots(left: Any, right: Any) -> bool:
    polynomials = [sympy.Poly(expression).sqf_part().monic() for expression in (left, right)]
    return polynomials[0].degree() > 0 and polynomials[0].as_expr() == polynomials[1].as_expr()
