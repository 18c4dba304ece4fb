r"""Equality of mathematical expressions. Import this module only in worker processes: nothing here has a time limit.

math-verify's parser reads the expressions. Two expressions are equal if their values agree to at least 30 digits. If they have
variables, their values must agree at every test point where both have one. Rational numbers are compared exactly. An odd root of a
negative number is real, as in school: `\sqrt[3]{-8}` is -2.

math-verify's own comparison rounds to six decimals, which makes all small numbers equal, and its `simplify` is slow. It is used
only for objects without a numeric value, such as sets and matrices. SymPy has no type annotations, so its objects are `Any` here.
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

_NORMALIZATION = NormalizationConfig(basic_latex=True, units=False, malformed_operators=False, nits=False, boxed="none")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)°")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
# Matches the places that need a \cdot: the parser adds adjacent numbers, as in the mixed number 2\frac{1}{2}, so 2(3) would be 5.
_IMPLICIT_PRODUCT = re.compile(r"(?<=[\d)])(?=\()|(?<=\))(?=\\frac)|(?<=[\d)}])(?=\\binom)|(?<=\\pi)(?=\()")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_NOT_ALGEBRA = re.compile(r"\d \d|\\text|\\ldots|\\pm|\\mp|\\pmod|[\"'#&?@]|\\mathbb")
_DIGITS = 50
_TOLERANCE = sympy.Float("1e-30", 15)
_ZERO = 1e-110  # smaller irrational values count as 0, because SymPy often cannot prove that they are 0
# Each row is a test point: the values of the variables, in alphabetical order, as (numerator, denominator). The first two points
# have only positive values, because roots and logarithms may be undefined elsewhere.
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
        text: LaTeX in the canonical form of `rljax.rewards.notation.canonicalize`.

    Returns:
        A SymPy object; None if the text is not mathematics.

    Example:
        >>> str(parse_expression(r"\frac{x}{2}")), parse_expression("x is wrong"), parse_expression("(1+")
        ('x/2', None, None)
    """
    if _NOT_ALGEBRA.search(text) or _WORD.search(text):
        return None
    latex = _IMPLICIT_PRODUCT.sub(r"\\cdot ", text)
    latex = _PERCENT.sub(r"\1\\cdot\\frac{1}{100}", _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", latex))
    try:
        result = latex2sympy(latex, is_real=True, convert_degrees=False, normalization_config=_NORMALIZATION)
    except Exception:  # the parser may raise anything
        return None
    return _make_exact(result) if isinstance(result, sympy.Expr) else result


def _make_exact(expression: Any) -> Any:
    """Replace odd roots with real ones, decimals with fractions, `i` with the imaginary unit, and functions with variables."""
    expression = expression.replace(_is_odd_root, lambda power: sympy.real_root(power.base, power.exp.q) ** power.exp.p)
    replacements = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    replacements |= {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
    replacements |= {function: sympy.Symbol(str(function), real=True) for function in expression.atoms(AppliedUndef)}
    return expression.xreplace(replacements) if replacements else expression


def _is_odd_root(expression: Any) -> bool:
    """Decide whether an expression may be an odd root of a negative number, which SymPy reads as a complex number."""
    odd = expression.is_Pow and expression.exp.is_Rational and expression.exp.q > 1 and expression.exp.q % 2 == 1
    return bool(odd and expression.base.is_real and not expression.base.is_nonnegative)


def same_expression(reference: str, answer: str) -> bool:
    r"""Decide whether two expressions are equal.

    Args:
        reference: the correct expression.
        answer: the expression to judge.

    Returns:
        True if their values are equal. A decimal number with at least six significant digits also equals an irrational number
        that rounds to it.

    Example:
        >>> same_expression("(x+1)^{2}", "x^{2}+2x+1"), same_expression("x", r"\sqrt{x^{2}}"), same_expression(r"\pi", "3.14159")
        (True, False, True)
        >>> same_expression("-2", r"\sqrt[3]{-8}")
        True
    """
    left, right = parse_expression(reference), parse_expression(answer)
    if left is None or right is None:
        return False
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return type(left) is type(right) and not _is_relation(left) and verify([left], [right], timeout_seconds=None)
    if left.free_symbols or right.free_symbols:
        values = _evaluate_at_points((left, right))
        return len(values) > 1 and all(_are_close(*pair) for pair in values)
    return _same_number(reference, left, answer, right)


def approximates(text: str, exact: str) -> bool:
    r"""Decide whether a decimal number is the value of an expression, rounded or truncated to the number's decimal places.

    Args:
        text: a decimal number.
        exact: an expression.

    Example:
        >>> approximates("1.414", r"\sqrt{2}"), approximates("1.42", r"\sqrt{2}"), approximates("1.5", "x")
        (True, False, False)
    """
    expression = parse_expression(exact)
    value = _evaluate(expression, {}) if isinstance(expression, sympy.Expr) and not expression.free_symbols else None
    number, places = sympy.Rational(text.strip()), len(text.strip().partition(".")[2])
    if value is None or not value.is_real or value * number < 0:
        return False
    return bool(-sympy.Rational(1, 2) <= (abs(value) - abs(number)) * 10**places < 1)


def compare_reals(left: str, right: str) -> int | None:
    r"""Compare the values of two expressions.

    Returns:
        -1, 0 or 1 if the left value is smaller, equal or larger; None if a value is not a real number.

    Example:
        >>> compare_reals("1", r"\sqrt{2}"), compare_reals("0.5", r"\frac{1}{2}"), compare_reals("x", "1")
        (-1, 0, None)
    """
    expressions = [parse_expression(text) for text in (left, right)]
    values = [_evaluate(one, {}) if isinstance(one, sympy.Expr) and not one.free_symbols else None for one in expressions]
    real = [value for value in values if value is not None and value.is_real]
    if len(real) < 2:
        return None
    return 0 if _are_close(*real) else 1 if real[0] > real[1] else -1


def _is_relation(expression: object) -> bool:
    return isinstance(expression, sympy.logic.boolalg.Boolean)


def _same_number(reference: str, left: Any, answer: str, right: Any) -> bool:
    """Compare two expressions without variables. A side whose text is a decimal number may be rounded."""
    exact = (left.doit(), right.doit())
    if all(number.is_Rational for number in exact):
        return exact[0] == exact[1]
    values = [_evaluate(number, {}) for number in exact]
    if values[0] is None or values[1] is None:
        return exact[0] == exact[1] and exact[0] not in (sympy.nan, sympy.zoo)
    if _are_close(values[0], values[1]):
        return True
    for text, value in ((answer, values[0]), (reference, values[1])):
        if is_decimal(text) and value.is_real and not exact[0 if text is answer else 1].is_Rational:
            return rounds_to(Fraction(str(value)), text)
    return False


def _evaluate_at_points(expressions: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Evaluate expressions at the test points where all have a value; at the third point and later, complex values do not count."""
    names = sorted({symbol.name for expression in expressions for symbol in expression.free_symbols})
    found = []
    for position, point in enumerate(_POINTS):
        assigned = {
            name: sympy.Rational(*point[index % len(point)]) + index // len(point) for index, name in enumerate(names)
        }
        values = [_evaluate(expression, assigned) for expression in expressions]
        complete = [value for value in values if value is not None]
        if len(complete) == len(values) and (position < 2 or all(value.is_real for value in complete)):
            found.append(tuple(complete))
    return found


def _evaluate(expression: Any, point: dict[str, Any]) -> Any:
    """Evaluate an expression at a point: exactly if the value is rational, else to 50 digits; None if there is no finite value."""
    try:
        exact = expression.xreplace({symbol: point[symbol.name] for symbol in expression.free_symbols}).doit()
        value = exact if exact.is_Rational else exact.evalf(_DIGITS, chop=_ZERO)
        parts = value.as_real_imag()
    except Exception:  # SymPy may raise anything
        return None
    return value if all(part.is_Float or part.is_Rational for part in parts) else None


def _are_close(left: Any, right: Any) -> bool:
    if left.is_Rational and right.is_Rational:
        return left == right
    return bool(abs(left - right) <= _TOLERANCE * max(abs(left), abs(right)))


def same_relation(reference: tuple[str, str], answer: tuple[str, str], *, ordered: bool) -> bool:
    r"""Decide whether two equations, or two inequalities of the same direction, are equivalent.

    Each relation is reduced to its left side minus its right side. Two relations are equivalent if the ratio of these differences
    is constant: nonzero for equations, positive for inequalities. Equations are also equivalent if the numerators of the
    differences have a constant ratio, or are polynomials in one variable with the same roots. An equation without variables,
    such as `1=2`, or with equal sides is never equivalent to another equation.

    Args:
        reference: the two sides of the reference.
        answer: the two sides of the answer.
        ordered: whether the relations are inequalities, whose sides must not be exchanged.

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
    if _have_constant_ratio(left, right, positive=ordered):
        return True
    if ordered:
        return False
    try:
        left, right = (sympy.together(expression).as_numer_denom()[0] for expression in (left, right))
        return _have_constant_ratio(left, right, positive=False) or (len(names[0]) == 1 and _have_same_roots(left, right))
    except Exception:  # SymPy may raise anything
        return False


def _have_constant_ratio(left: Any, right: Any, *, positive: bool) -> bool:
    values = _evaluate_at_points((left, right))
    if len(values) < 2 or any(_are_close(value, sympy.S.Zero) for pair in values for value in pair):
        return False
    ratios = [pair[1] / pair[0] for pair in values]
    return all(_are_close(ratio, ratios[0]) for ratio in ratios) and (not positive or ratios[0].is_positive is True)


def _have_same_roots(left: Any, right: Any) -> bool:
    polynomials = [sympy.Poly(expression).sqf_part().monic() for expression in (left, right)]
    return polynomials[0].degree() > 0 and polynomials[0].as_expr() == polynomials[1].as_expr()
