r"""Rewards for mathematical answers: equivalent answers, partly matching answers, and answers too costly to compare."""

import json
import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.errors import InputError
from rljax.rewards.correctness import Unfinished
from rljax.rewards.extract import last_number, normalize_answer, stated_answer, stated_answer_or_last_number
from rljax.rewards.math import (
    aime,
    decide_without_algebra,
    gsm8k,
    math,
    math_or_last_number,
    math_reward,
    simplify_answer,
)
from rljax.rewards.pool import shared_pool
from rljax.rewards.reward_scores import judge


def reward_of(answer: str, reference: str) -> float | None:
    return math(["?"], [rf"So it is $\boxed{{{answer}}}$."], [reference])[0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{1}. So the answer is clear.", "1"),
        (r"\boxed{1}" + "\n#### 2", "1"),
        ("it is\n#### 1,080", "1080"),
        ("#### Step 2: add\nThe answer is 7.", "7"),
        ("The answer is clear.\n#### 7", "7"),
        ("### 7", None),
        ("The answer is 42.", "42"),
        ("the final answer is: 42", "42"),
        ("**Answer:** 42", "42"),
        ("Answer = 42\nmore", "42"),
        ("The answer is **42**.", "42"),
        ("The answer is $3.50. Good.", "3.50"),
        ("The answer is 1. No: the answer is 2.", "2"),
        ("The answer is 12 apples", "12 apples"),
        ("The answer is not 12, as", "not 12, as"),
        ("answers are 12", None),
        ("The answer is: 18 eggs", "18 eggs"),
        ("therefore 18.", "18"),
        ("It is 9. Thus, she makes $18.50 a day", "18.50 a day"),
        (r"Hence we get $\frac{1}{2}$.", r"\frac{1}{2}"),
        ("Therefore it is 18, or 19", None),
        ("Thus more than 18.", None),
        ("Hence it is not 18.", None),
        ("Therefore 18.\nBut wait", None),
        ("Therefore 18. The answer is 17.", "17"),
        ("<think>1</think><answer>2</answer>", "2"),
        ("<answer>1</answer><answer>2</answer> the answer is 3", "2"),
        (r"<answer>so \boxed{4}</answer>", "4"),
        ("<answer>1", None),
        ("</answer>1<answer>", None),
        ("<answer> </answer>", None),
        (r"<think>\boxed{4}? No.</think>The answer is 5.", "5"),
        ("<think>the answer is 5</think>\n#### 4", "4"),
        (r"maybe \boxed{4}</think>\n\boxed{5}", "5"),
        (r"<think>\boxed{4}</think>", "4"),
        (r"<think>\boxed{4}</think> That is all.", "4"),
        ("Thus it is the second one", None),
        ("12", None),
        ("", None),
    ],
)
def test_stated_answer(text, answer):
    assert stated_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 or 13", "13"),
        ("it is 1,080.", "1080"),
        ("costs $7.50.", "7.50"),
        ("costs -$7.50", "-7.50"),
        ("3-4", "4"),
        ("down to -4", "-4"),
        ("x2 and y3", None),
        ("3rd", None),
        ("1.2.3", None),
        ("none", None),
        ("down to \N{MINUS SIGN}4", "-4"),
        ("down to \N{NON-BREAKING HYPHEN}4", "-4"),
        ("pages 3\N{EN DASH}4", "4"),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_only_the_end_of_a_long_text_is_read():
    for read, text in ((stated_answer, r"\boxed{5}"), (last_number, "so 5 ")):
        assert read(text + "x" * 199_000) == "5"
        assert read(text + "x" * 200_000) is None


def test_the_last_number_counts_only_if_requested():
    assert stated_answer("so 12") is None
    assert stated_answer_or_last_number("so 12") == "12"
    assert stated_answer_or_last_number("The answer is 3, not 12") == "3, not 12"
    assert (math(["?"], ["so 12"], ["12"]), math_or_last_number(["?"], ["so 12"], ["12"])) == ([0.0], [1.0])


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ("12", "12", True),
        ("12", "12.0", True),
        ("1,080", "1080", True),
        (r"48,\!048", "48048", True),
        ("2{,}016{,}532", "2016532", True),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", True),
        (r"\left( 1, 2 \right)", "(1,2)", True),
        (r"\text{Evelyn}", "Evelyn", True),
        (r"\text{the end}", "the end", True),
        ("12", "2", False),
        ("2", "12", False),
        ("-2", "2", False),
        ("1 2", "12", None),
        ("1 1/2", "11/2", False),
        ("1 1/2", "1.5", True),
        ("0.5", r"\frac{1}{2}", True),
        ("18 eggs", "18", True),
        (r"5\text{ km}", r"5\text{ cm}", False),
        (r"50\%", "0.5", True),
        ("x+1", "1+x", None),
        ("10^{10^{10}}", r"\frac{1}{2}", False),
        ("10^{10^{10}}", r"10^{ 10^{10} }", True),
        ("{1", "1", False),
        ("x" * 1001, "12", False),
        ("12", "x" * 1001, False),
        ("12", "x" * 1000, None),
        ("x" * 1001, "x" * 1001, True),
        (r"\leftarrow", r"\arrow", None),
    ],
)
def test_answers_decided_without_algebra(answer, reference, verdict):
    assert decide_without_algebra(normalize_answer(answer), normalize_answer(reference)) is verdict


def test_simplify_answer_keeps_meaningful_spaces():
    for text in ("1 2", "x y", r"\sin x"):
        assert " " in simplify_answer(text)
    assert simplify_answer(r"x\;y") == "x y"


@given(st.text(r"\{}()12 ,.$#boxedtext_^/", max_size=30))
def test_any_text_equals_itself(text):
    assert decide_without_algebra(normalize_answer(text), normalize_answer(text)) is True
    assert decide_without_algebra(text, f"{text}7") is not True


@pytest.mark.parametrize(
    ("answer", "reference", "reward"),
    [
        ("0.5", r"\frac{1}{2}", 1.0),
        (r"\frac12", "0.5", 1.0),
        ("x=5", "5", 1.0),
        ("5", "x=5", 1.0),
        ("2,1", "1,2", 1.0),
        ("(2,1)", "(1,2)", 0.0),
        (r"x^2+2x+1", "(x+1)^2", 1.0),
        (r"5\text{ cm}", "5", 1.0),
        (r"50\%", "50", 1.0),
        (r"40^\circ", "40", 1.0),
        (r"\text{(A)}", "A", 1.0),
        (r"\text{east}", r"\text{west}", 0.0),
        (r"\begin{pmatrix} -2/3 \\ 1/3 \end{pmatrix}", r"\begin{pmatrix} -\frac{2}{3} \\ \frac{1}{3} \end{pmatrix}", 1.0),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", 0.0),
        ("1110_4", "1110_5", 0.0),
        ("1110_{4}", "1110_4", 1.0),
        ("6,7", "7", 0.0),
        (r"\pm 7", "7", 0.0),
        ("[6,8]", "7", 0.0),
        (r"x \ge 7", "7", 0.0),
        ("5=6=7", "7", 0.0),
        ("7=6=5", "7", 0.0),
        ("3+4=7", "7", 1.0),
        ("x=3+4=7", "7", 1.0),
        (r"\frac{14}{2}=7", "7", 1.0),
        ("1=7", "x=7", 0.0),
        ("3/4", "a/b=3/4", 1.0),
        ("0.75", r"\frac{a}{b}=\frac{3}{4}", 1.0),
        ("a/b=3/4", "a/b=3/4", 1.0),
        ("-2", "x_1/x_2=-2", 1.0),
        ("4/3", "a/b=3/4", 0.0),
        ("3,4", "a/b=3/4", 0.0),
        ("3/4", "b/a=4/3", 0.0),
        ("b/a=3/4", "a/b=3/4", 0.0),
        ("3", "a/2=3", 0.0),
        ("1", "a/a=1", 0.0),
        ("5", "1/x=5", 0.0),
        ("5", "x+y=5", 0.0),
        ("3,2", "p=3,q=2", 1.0),
        ("(3,2)", "p=3,q=2", 1.0),
        ("(3, 2)", r"p=3\text{ and }q=2", 1.0),
        ("2,3", "p=3,q=2", 0.0),
        ("(2,3)", "p=3,q=2", 0.0),
        ("[3,2]", "p=3,q=2", 0.0),
        ("3", "p=3,q=2", 0.0),
        ("(3,2,1)", "p=3,q=2", 0.0),
        ("(3)", "p=3,q=2", 0.0),
        ("(2,3)", "x=2,x=3", 0.0),
        ("(3,2)", "3,2", 0.0),
        (r"7\text{ or 8}", "7", 0.0),
        (r"7\text{ or more}", "7", 0.0),
        (r"7\text{ 8}", "7", 0.0),
        (r"7 \text{ and } 8", "7,8", 1.0),
        (r"7\text{ miles and feet}", "7", 0.0),
        (r"\text{5 or 6}", r"\text{5 or  6}", 1.0),
        ("1 \\; 2", "12", 0.0),
        ("f(x)=x^2", "x^2", 1.0),
        ("x=2", "x<2", 0.0),
        ("4=x^2+y^2", "x^2+y^2=4", 1.0),
        (r"7\text{ or more}", r"7.0\text{ or more}", 1.0),
        ("7 or 8", "7", 0.0),
        ("1,2,3,4,5,6,7", "7", 0.0),
        ("1 2", "12", 0.0),
        (r"1.5 \text{ or } 2", "2", 0.0),
        ("0.333", r"\frac{1}{3}", 0.0),
        (r"\frac{1}{", r"\frac{1}{2}", 0.0),
        (r"5\}", "5", 0.0),
        ("", "5", 0.0),
    ],
)
def test_equivalence(answer, reference, reward):
    assert reward_of(answer, reference) == reward


def test_unbalanced_braces_are_wrong():
    assert math(["?"] * 3, [r"#### 5} \boxed{7", "#### 7}", "The answer is {7"], ["7"] * 3) == [0.0] * 3


def test_only_the_last_answer_counts():
    completion = r"\boxed{1} and \boxed{2}"
    assert math(["?"] * 3, [completion] * 3, ["1", "2", "1,2"]) == [0.0, 1.0, 0.0]


def test_answers_in_sentences():
    completions = [
        "The answer is: 18 eggs",
        "therefore 18.",
        "The answer is $18.",
        r"#### \$18",
        "**Answer:** １８",
        "Thus 19 eggs.",
    ]
    assert math(["?"] * 6, completions, ["18"] * 6) == [1.0] * 5 + [0.0]


def test_unstated_right_number_earns_nothing():
    completions = ["the 12 of 24", r"12, so \boxed{24}", r"\boxed{120}", r"\boxed{1}2", "12"]
    assert math(["?"] * 5, completions, ["12"] * 5) == [0.0] * 5


def test_references_of_many_kinds():
    references = ["so\n#### 27", r"thus $\boxed{27}$", 27, 27.0, " 27. ", None, "", "  ", "$"]
    assert math(["?"] * 9, [r"\boxed{27}"] * 9, references) == [1.0] * 5 + [None] * 4
    for entry, kind in ((True, "bool"), ([27], "list")):
        with pytest.raises(
            InputError, match=rf"the reference answer 1 is .*{re.escape(str(entry))}, a {kind}; it must be text or a number"
        ):
            math(["?"] * 2, ["#### 1"] * 2, ["1", entry])


def test_references_and_completions_must_have_equal_length():
    for reward in (math, gsm8k, aime):
        with pytest.raises(ValueError, match="zip"):
            reward(["?"] * 2, ["#### 1"] * 2, ["1"])


def test_equal_pairs_are_compared_once():
    progress = []
    completions = [r"\boxed{x/2}"] * 30 + [r"\boxed{x/4}", r"\boxed{\frac{x}{2}}", "none"]
    rewards = math(
        ["?"] * 33, completions, [r"\frac{x}{2}"] * 33, progress=lambda done, count: progress.append((done, count))
    )
    assert rewards == [1.0] * 30 + [0.0, 1.0, 0.0]
    assert progress == [(1, 2), (2, 2)]


def test_judge_passes_on_the_progress_of_math():
    progress = []
    scores = judge(
        math,
        ["?"],
        [r"\boxed{x/2}"],
        {"answer": [r"\frac{x}{2}"]},
        progress=lambda done, count: progress.append((done, count)),
    )
    assert (scores.parts["math"].tolist(), progress) == ([1.0], [(1, 1)])


# Answers that computer algebra does not finish, answers that are rejected because it would not, and very long completions.
ENDLESS = [rf"\int_0^1 \frac{{\ln(1+x^3)}}{{1+x^{{{power}}}}} dx" for power in (5, 7, 11)]
TOO_COSTLY = [
    *(
        "10^{10^{10}}",
        "9^{9^{9^9}}",
        "(x+1)^{100000}",
        "99999999!",
        r"2^{2^{2^{2^{2^2}}}}",
        r"\binom{99999999}{4999999}",
        "((9!)!)!",
    ),
    *(r"x^{10^{9}}", "9" * 500, "(" * 30 + "1" + ")" * 30, r"10^{\frac{10^{10}}{1}}"),
]
HUGE = {
    "braces": "{" * 50_000 + "5" + "}" * 50_000,
    "unbalanced": "{" * 50_000,
    "ten megabytes": "1" * 10_000_000,
    "boxes": r"\boxed{" * 20_000,
    "phrases": "the answer is " * 100_000,
    "hashes": "#" * 1_000_000,
    "spaces": " " * 1_000_000 + "5",
    "stars": "answer" + "*" * 1_000_000,
    "tags": "<answer>" * 100_000,
    "dollars": "$" * 1_000_000,
    "numbers": "1," * 500_000,
    "text": r"\text{" * 20_000,
}


def test_endless_answers_take_their_time_limit_and_keep_the_pool():
    reward = math_reward(seconds=0.7, workers=2)
    completions = [rf"\boxed{{{answer}}}" for answer in ENDLESS] + [r"\boxed{0.5}", r"\boxed{\frac{2}{4}}"]
    started = time.monotonic()
    rewards = reward(["?"] * 5, completions, [r"\frac{1}{2}"] * 5)
    assert [type(outcome) for outcome in rewards[:3]] == [Unfinished] * 3
    assert rewards[3:] == [1.0, 1.0]
    assert time.monotonic() - started < 20
    scores = judge(reward, ["?"] * 5, completions, {"answer": ["0.25"] * 5}, max_failure_share=0.0)
    assert scores.valid.all()
    assert scores.total.tolist() == [0.0] * 5
    (failures,) = scores.failures.values()
    assert (failures.unfinished, failures.total) == (3, 0)


def test_answers_that_would_take_too_long_are_wrong_at_once():
    pool = shared_pool("rljax.rewards.equivalence:equivalent", seconds=5.0, memory=2 * 2**30)
    started = time.process_time()
    count = len(TOO_COSTLY)
    assert (
        math(["?"] * count, [rf"\boxed{{{answer}}}" for answer in TOO_COSTLY], [r"\frac{1}{2}x"] * count) == [0.0] * count
    )
    assert time.process_time() - started < 1
    assert pool.map([{"reference": "x", "answer": answer} for answer in TOO_COSTLY]) == [False] * count


@pytest.mark.parametrize("name", HUGE)
def test_huge_answers_are_wrong_at_once(name):
    started = time.process_time()
    completions = [HUGE[name], rf"\boxed{{{HUGE[name]}}}", f"#### {HUGE[name]}", f"The answer is {HUGE[name]}"]
    for reward in (math, math_or_last_number, gsm8k, aime):
        assert reward(["?"] * 4, completions, ["12"] * 4) == [0.0] * 4
    assert time.process_time() - started < 8


@pytest.mark.parametrize(
    ("completion", "reference", "reward"),
    [
        ("7+5\n#### 12", "so 12\n#### 12", 1.0),
        ("#### 12.00", "12", 1.0),
        ("####12", "12", 1.0),
        ("#### 1,080", "1080", 1.0),
        ("#### $18", "18", 1.0),
        ("#### -$18.", "-18", 1.0),
        ("#### 25%", "25", 1.0),
        ("#### .5", "0.5", 1.0),
        ("#### 12\nmore", "12", 1.0),
        *((f"#### {dash}12", "-12", 1.0) for dash in "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"),
        ("#### 3\N{EN DASH}12", "-9", 0.0),
        ("#### 1\n#### 12", "12", 1.0),
        ("#### 12\n#### 1", "12", 0.0),
        ("#### 12 apples", "12", 0.0),
        ("#### 12 13", "12", 0.0),
        ("#### 1,08", "108", 0.0),
        ("#### 112", "12", 0.0),
        ("#### 12", "112", 0.0),
        ("### 12", "12", 0.0),
        (r"\boxed{12}", "12", 0.0),
        ("12", "12", 0.0),
        ("####", "12", 0.0),
        ("#### 12", 12, 1.0),
        ("#### 12", None, None),
        ("#### 12", " ", None),
    ],
)
def test_gsm8k(completion, reference, reward):
    assert gsm8k(["?"], [completion], [reference]) == [reward]


def test_gsm8k_refuses_a_reference_without_a_number():
    with pytest.raises(InputError, match="the reference answer 1 is 'twelve'; GSM8K needs a number"):
        gsm8k(["?"] * 2, ["#### 1"] * 2, ["1", "twelve"])


@pytest.mark.parametrize(
    ("completion", "reference", "reward"),
    [
        (r"\boxed{42}", "42", 1.0),
        (r"\boxed{042}", 42, 1.0),
        (r"\boxed{42}", "042", 1.0),
        ("The answer is $\\boxed{0}$", "000", 1.0),
        (r"\boxed{999}", 999.0, 1.0),
        (r"The answer is \(42\).", "42", 1.0),
        (r"\boxed{\text{42}}", "42", 1.0),
        (r"\boxed{1042}", "42", 0.0),
        (r"\boxed{0042}", "42", 0.0),
        (r"\boxed{42.0}", "42", 0.0),
        (r"\boxed{-42}", "42", 0.0),
        (r"\boxed{6 \cdot 7}", "42", 0.0),
        (r"\boxed{٤٢}", "42", 0.0),
        ("42", "42", 0.0),
        (r"\boxed{42}", None, None),
    ],
)
def test_aime(completion, reference, reward):
    assert aime(["?"], [completion], [reference]) == [reward]


@pytest.mark.parametrize("reference", ["1000", "-1", "4.5", 1000, 4.5, r"\frac{1}{2}"])
def test_aime_refuses_other_references(reference):
    with pytest.raises(InputError, match=r"the reference answer 0 is .*; an AIME answer is an integer from 0 to 999"):
        aime(["?"], [r"\boxed{1}"], [reference])


@given(st.integers(0, 999), st.integers(0, 999), st.integers(1, 3))
def test_aime_is_equality_of_integers(answer, reference, width):
    assert aime(["?"], [rf"\boxed{{{answer:0{width}d}}}"], [reference]) == [float(answer == reference)]


@pytest.fixture(scope="module")
def math_answers(shared_data):
    return [row["answer"] for row in json.loads((shared_data / "math_train.json").read_text(encoding="utf-8"))]


def test_each_reference_equals_itself_in_a_sentence(math_answers):
    completions = [rf"Adding both, we find that it is $\boxed{{{answer}}}$, as was asked." for answer in math_answers]
    rewards = math(["?"] * len(completions), completions, math_answers)
    judged = [reward for reward in rewards if reward is not None]
    assert rewards.count(None) == 4  # two references are null, and two are blank
    assert sum(reward == 1.0 for reward in judged) >= 0.995 * len(judged)


def test_each_reference_equals_itself_by_algebra(math_answers):
    chosen = random.Random(1).sample([normalize_answer(answer) for answer in math_answers if answer], 200)
    pool = shared_pool("rljax.rewards.equivalence:equivalent", seconds=2.0, memory=2 * 2**30)
    outcomes = pool.map([{"reference": answer, "answer": answer} for answer in chosen])
    assert sum(outcome is True for outcome in outcomes) >= 0.995 * len(chosen)


def test_unequal_answers_are_judged_different(math_answers):
    """Of 5,000 pairs, 99.94% were judged correctly, and the other three are equivalent. This test samples 250 pairs."""
    rng = random.Random(0)
    pairs = [rng.sample([answer for answer in math_answers if answer], 2) for _ in range(250)]
    pairs = [(left, right) for left, right in pairs if left != right]
    rewards = math(["?"] * len(pairs), [rf"Thus $\boxed{{{left}}}$." for left, _ in pairs], [right for _, right in pairs])
    assert sum(reward == 0.0 for reward in rewards) >= 0.995 * len(pairs)


def test_gsm8k_solutions(shared_data):
    lines = (shared_data / "gsm8k_train.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [json.loads(line)["answer"] for line in lines]
    prompts = ["?"] * len(answers)
    assert gsm8k(prompts, answers, answers) == math(prompts, answers, answers) == [1.0] * len(answers)
    shifted = [*answers[1:], answers[0]]
    same = [float(a.split("#### ")[1].replace(",", "") == b.split("#### ")[1].replace(",", "")) for a, b in zip(
        shifted, answers, strict=True)]  # fmt: skip
    assert gsm8k(prompts, shifted, answers) == same


def test_amc_answers_are_numbers(shared_data):
    answers = [
        json.loads(line)["answer"] for line in (shared_data / "amc23.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    completions = [rf"\boxed{{{answer:g}}}" for answer in answers]
    assert math(["?"] * len(answers), completions, answers) == [1.0] * len(answers)


def test_answers_with_unbalanced_braces_match_nothing():
    pool = shared_pool("rljax.rewards.equivalence:equivalent", seconds=2.0, memory=2 * 2**30)
    answers = [r"8 \boxed{7}", r"\boxed{7} 8", "7}", "7} 8 {", "7}{8", "7}+{0", "{7", "7{", "{7}", r"\{7\}"]
    outcomes = pool.map([{"reference": "7", "answer": answer} for answer in answers])
    assert outcomes == [False] * 8 + [True, True]
