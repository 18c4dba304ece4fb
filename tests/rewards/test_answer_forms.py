"""Answers in the forms that small models write, and which of them strict and lenient parsing accept."""

import pytest
from book_site.which_reward_reads_what import BEGIN, END, PAGE, RIGHT, WRONG, table

from rljax.rewards.correctness import Unstated
from rljax.rewards.equivalence import equivalent
from rljax.rewards.exact import exact
from rljax.rewards.math import decide_without_algebra, math, math_or_last_number

SAME = [
    ("\\sqrt2", "\\sqrt2 \\approx 1.414"),
    ("\\sqrt{2}", "x=\\sqrt2\\approx 1.41"),
    ("xy", "yx"),
    ("ab", "ba"),
    ("ABC", "ABC"),
    ("no", "No"),
    ("(p,q)=(3,2)", "(3,2)"),
    ("V_1:V_2=11:21", "11:21"),
    ("|AB|=1", "1"),
    ("AB+BC=6", "6"),
    ("a+b=7", "7"),
    ("|z|^2=13", "13"),
    ("m^2+2mn=\\frac{7}{2}", "3.5"),
    (r"|\vec{a}+\vec{b}|=\sqrt{3}", r"\sqrt{3}"),
    (r"\|v\|=6", "6"),
    (r"\frac{AB}{CD}=2", "2"),
    (r"\sin A=\frac{1}{2}", r"\frac{1}{2}"),
    (r"\log_2 16=4", "4"),
    (r"x_1+x_2=3", "3"),
    (r"f(x)_{\max}=10", "10"),
    (r"A\cup B=\{1,2\}", r"\{2,1\}"),
    (r"M\cap N=\{x|x>1\}", r"(1,\infty)"),
    ("(p,q)=(3,2)", "(p,q)=(3,2)"),
    ("5 cm", "5\\text{ cm}"),
    ("5", "5 km/h"),
    ("5\\text{ km}/\\text{h}", "5"),
    ("2/3", "2/3"),
    ("\\pi", "\\pi\\approx 3.14"),
    ("x=5", "5"),
    ("5 million", "5000000"),
    ("1.414", "\\sqrt2\\approx1.414"),
    ("(1,2)", "(x,y)=(1,2)"),
    ("xy", "x \\cdot y"),
    ("3", "|x|=3"),
    ("V_1:V_2=11:21", "V_1:V_2=11:21"),
    ("AB", "AB"),
    ("25\\text{ cm}^2", "25\\ \\mathrm{cm^2}"),
    ("25", "25\\text{ cm^2}"),
    ("x=7", "3+4=7"),
    ("x=7", "7=7"),
    ("5\\text{ K}", "5"),
]
DIFFERENT = [
    ("no", "on"),
    ("ABC", "CBA"),
    ("AB", "BA"),
    ("was", "saw"),
    ("cat", "act"),
    ("5", "5\\text{ apples}\\text{ and six}"),
    ("5", "5 six"),
    ("2", "2 thirds"),
    ("5", "5\\text{ a}\\text{ b}"),
    ("5", "5 hundredths"),
    ("\\sqrt2", "\\sqrt2 \\approx 1.5"),
    ("\\sqrt2", "\\sqrt3\\approx 1.732"),
    ("(p,q)=(3,2)", "(2,3)"),
    ("V_1:V_2=11:21", "21:11"),
    ("|AB|=1", "2"),
    ("x+y=6", "6"),
    ("a+b=7", "8"),
    ("a+b=7", "a=7"),
    ("2a=6", "6"),
    ("|x-1|=5", "5"),
    ("AB^2=4", "2"),
    (r"A\cup B=\{1,2\}", r"\{1,3\}"),
    ("on", "no"),
    ("\\sqrt2", "1.414"),
    ("20", "20\\text{}\\text{five}"),
    ("5", "5 thousand"),
    ("x", "x\\approx 1.4"),
    ("3", "3\\text{ }\\text{hundred}\\text{ six}"),
    *(("5", f"5\\text{{ {word}}}") for word in ("score", "k", "grand", "squared", "cubed", "bil", "lakh", "M", "gross")),
    *(
        ("5", f"5 {word}")
        for word in ("k", "M", "twelfths", "twentieths", "quadrillion", "quintillion", "crore", "mil", "bn")
    ),
    ("667\\text{ m/s}", "667 m"),
    ("18\\text{ eggs}", "18 m"),
    ("x=7", "3+5=7"),
    ("x=7", "x+y=7"),
    ("x=7", "a+b=7"),
    ("x=7", "\\alpha+1=7"),
    ("25\\text{ cm}^2", "25\\ \\mathrm{cm^3}"),
]


def accepted_by(reward, completions, answer="25"):
    return [
        text
        for text, value in zip(
            completions, reward(["?"] * len(completions), completions, [answer] * len(completions)), strict=True
        )
        if value == 1.0
    ]


def test_lenient_parsing_accepts_what_small_models_write():
    assert len(RIGHT) == 57
    assert len(WRONG) == 8
    assert len(accepted_by(math_or_last_number, RIGHT)) >= 55
    assert len(accepted_by(math_or_last_number, WRONG)) <= 1


def test_strict_parsing_accepts_only_stated_answers():
    assert accepted_by(math, WRONG) == []
    stated = [text for text in RIGHT if "nswer" in text or "boxed" in text or "####" in text]
    assert accepted_by(math, stated) == stated
    assert [type(reward) for reward in math(["?"], ["12 + 13 = 25"], ["25"])] == [Unstated]


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 25, as required.",
        "**Final Answer**\n25",
        "## Answer\n\n25 apples",
        "<answer>The answer is 25</answer>",
        "<answer>#### 25</answer>",
        "The answer is 24. <answer>25</answer>",
    ],
)
def test_strict_parsing_accepts_other_ways_to_state_an_answer(text):
    assert math(["?"], [text], ["25"]) == [1.0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"x = \frac{3}{4}", r"\frac{3}{4}"),
        ("She needs 3/4 cup.", "0.75"),
        (r"So the result is $\frac{3}{4}$.", "3/4"),
        ("y = 2x + 1", "1 + 2x"),
        ("The cost is $1,200.50 in total.", "1200.5"),
        ("The answer is the sum, 25", "25"),
        ("3.5 liters", "3.5"),
    ],
)
def test_lenient_parsing_accepts_answers_in_text_and_formulas(text, answer):
    assert math_or_last_number(["?"], [text], [answer]) == [1.0]


@pytest.mark.parametrize(
    "text", ["The answer is 5, not 6.", "The answer is 5 or 6.", "12 of 5 or 7", "5 + 0", "It is 5? No: 6"]
)
def test_lenient_parsing_rejects_ambiguous_answers(text):
    assert math_or_last_number(["?"], [text], ["5"]) == [0.0]


@pytest.mark.parametrize("pair", SAME, ids=repr)
def test_equal_answers_are_accepted(pair):
    decided = decide_without_algebra(pair[1], pair[0])
    assert equivalent(*pair) if decided is None else decided


@pytest.mark.parametrize("pair", DIFFERENT, ids=repr)
def test_different_answers_are_rejected(pair):
    assert not decide_without_algebra(pair[1], pair[0])
    assert not equivalent(*pair)


def test_exact_accepts_references_of_every_type():
    completions = ["#12", "#12", "#0.5", "#12", "#12", "12"]
    assert exact(["?"] * 6, completions, ["12", 12, 0.5, None, " ", 12]) == [1.0, 1.0, 1.0, None, None, 0.0]
    assert isinstance(exact(["?"], ["12"], [12])[0], Unstated)


def test_page_lists_the_accepted_forms():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table()
