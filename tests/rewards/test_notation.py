r"""Normalized notation: rewritten forms, numbers and units. Normalizing a text twice changes nothing more."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.rewards.algebra_limits import is_judgeable
from rljax.rewards.notation import canonicalize, nesting_depth
from rljax.rewards.quantity import read_number, rounds_to, same_quantity, split_unit
from rljax.rewards.units import read_unit, same_unit


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac\pi 2", r"\frac{\pi}{2}"),
        (r"\dfrac{\sqrt2}2", r"\frac{\sqrt{2}}{2}"),
        (r"-\frac1{216}", r"-\frac{1}{216}"),
        ("2^10", "2^{10}"),
        ("2^-1", "2^{-1}"),
        ("x^(2y)", "x^{2y}"),
        (r"\sqrt[3]2", r"\sqrt[3]{2}"),
        ("2√13", r"2\sqrt{13}"),
        ("sqrt(x+1)", r"\sqrt{x+1}"),
        (r"\left\{ 1,\ 2 \right\}", r"\{1,2\}"),
        ("1 000 000", "1000000"),
        ("1 2", "1 2"),
        ("48 519/1225", "48 519/1225"),
        ("12,\\!345", "12345"),
        ("1,234", "1234"),
        ("1, 234", "1,234"),
        ("(1,234)", "(1,234)"),
        ("12,34", "12,34"),
        ("$18", r"\$18"),
        (r"$\$18$", r"\$18"),
        ("$x$ and $y$", r"x\text{and} y"),
        (r"\(5\)", "5"),
        ("40^\\circ", "40°"),
        (r"\mathrm{e}^{2}", "e^{2}"),
        (r"\operatorname{cis} 2", r"\text{cis} 2"),
        (r"\mathrm{ln} 2", r"\ln 2"),
        ("ln 2 + cos(x)", r"\ln 2+\cos(x)"),
        ("9 min", "9 min"),
        ("x <= 2", r"x\le 2"),
        ("5 .", "5"),
        ("{5", "{5"),
        ("(" * 60 + ")" * 60, "(" * 60 + ")" * 60),
    ],
)
def test_canonicalize(text, normalized):
    assert canonicalize(text) == normalized


@given(st.text(r"\{}()[]12 ,.$^_/°½xandfrcsqt-+=<", max_size=40))
def test_plain_is_idempotent(text):
    once = canonicalize(text)
    assert canonicalize(once) == once
    assert nesting_depth(text) < 0 or nesting_depth(once) >= 0


@given(st.fractions(max_denominator=10**6), st.sampled_from(["{0}/{1}", r"\frac{{{0}}}{{{1}}}", r"\dfrac{{{0}}} {{{1}}}"]))
def test_every_fraction_is_read(value, form):
    assert read_number(canonicalize(form.format(value.numerator, value.denominator))) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**8), max_value=10**8))
def test_every_decimal_is_read_in_every_form(value):
    assert read_number(canonicalize(f"{value}")) == read_number(canonicalize(f"{value:,}")) == Fraction(value)
    assert (
        read_number(canonicalize(f"{value:,}".replace(",", r"{,}")))
        == read_number(canonicalize(f"{value:.20e}"))
        == Fraction(value)
    )


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_repeating_decimals(period, digits):
    text = f"{period % 10**digits:0{digits}d}"
    assert read_number(rf"0.\overline{{{text}}}") == Fraction(int(text), 10**digits - 1)
    assert read_number(rf"2.5\overline{{{text}}}") == Fraction(5, 2) + Fraction(int(text), 10 * (10**digits - 1))


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", r"\frac{1}{0}", "1 2", "1e9999", "--1", "1..2", "٤٢", "9" * 401, ".", "1 -1/2"]
)
def test_text_that_is_not_a_number(text):
    assert read_number(text) is None


@given(st.fractions(), st.integers(1, 12))
def test_rounded_values_need_six_significant_digits(value, places):
    text = f"{float(value):.{places}f}" if abs(value) < 10**6 else "1"
    digits = len(text.replace(".", "").lstrip("-0"))
    assert rounds_to(value, text) <= (digits >= 6)
    assert not rounds_to(value + Fraction(2, 10**places), text)


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("square feet", ("foot^2",)),
        ("sq. ft.", ("foot^2",)),
        ("cm^{3}", ("cm^3",)),
        ("cubic centimetres", ("cm^3",)),
        ("miles per hour", ("mile", "/", "hour")),
        ("mph", ("mile", "/", "hour")),
        ("km/h", ("km", "/", "hour")),
        ("units", ()),
        ("square units", ()),
        ("cups of flour", ("cup", "flour")),
        ("is", None),
        ("not", None),
        ("or more", None),
        ("8", None),
        ("eggs 8", None),
        ("eggs!", None),
        ("a b c d e f", None),
        ("eggs million", None),
    ],
)
def test_units(words, unit):
    read = read_unit(words)
    assert (None if read is None else read[1]) == unit


def test_units_match_themselves_and_a_missing_unit():
    units = [("cm",), ("km",), ("dog",), ("brown", "dog"), ("mile", "/", "hour"), ("percent",)]
    for unit in units:
        assert same_unit(unit, unit)
        assert same_unit(unit, ())
        assert same_unit((), unit)
    assert [same_unit(("mile",), ("mile", "/", "hour")), same_unit(("dollar",), ("cent",))] == [False, False]


@given(st.integers(-1000, 1000), st.sampled_from(["apples", "cm", "square feet", "red balls", "percent", "°", "dollars"]))
def test_split_unit_recovers_the_number(value, unit):
    for form in (r"{}\text{{ {}}}", "{} {}", r"{}\;\mathrm{{{}}}"):
        quantity = split_unit(canonicalize(form.format(value, unit)))
        assert (quantity.core, quantity.scale) == (str(value), 1)
        assert same_quantity(str(value), canonicalize(form.format(value, unit)))
        assert not same_quantity(str(value), canonicalize(form.format(value + 1, unit)))


@pytest.mark.parametrize(
    ("text", "judgeable"),
    [
        ("2^{4181}", True),
        ("x^{2018}", True),
        ("2004!", True),
        (r"\binom{2016}{1008}", True),
        (r"e^{-x^{2}}", True),
        (r"2^{2^{10}}", True),
        (r"\frac{(n+1)!}{(n-1)!}", True),
        ("x" * 1000, True),
        ("x" * 1001, False),
        ("2^{2^{2^{5}}}", False),
        ("10^{10^{10}}", False),
        (r"2^{1000\cdot 1000}", False),
        ("x^{99999}", False),
        ("3001!", False),
        ("(9!)!", False),
        (r"\boxed{1}", False),
        ("}{", False),
        ("9" * 401, False),
    ],
)
def test_is_judgeable(text, judgeable):
    assert is_judgeable(text) is judgeable
