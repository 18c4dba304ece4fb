r"""Final answers are read after hash signs or in the last box, and nowhere else."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.rewards.extract import final_answer, normalize_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#72", "72"),
        ("so it is\n#### 72", "72"),
        ("#### 72\nand more", "72"),
        ("#1;#2 # 3 ", "3"),
        ("#1,234", "1234"),
        ("#### $1,080.", "1080"),
        ("#-5", "-5"),
        ("#\N{MINUS SIGN}5", "-5"),
        ("#\N{EN DASH}5", "-5"),
        ("#3\N{EN DASH}5", "3\N{EN DASH}5"),
        ("#72;7+5", "72;7+5"),
        (r"\boxed{72}", "72"),
        (r"\boxed {72}", "72"),
        (r"first \boxed{1}, then $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1\right.}", r"\left\{1\right."[:-1]),
        (r"\boxed{1} and cut off: \boxed{2", "1"),
        (r"{\boxed{1}} }} \boxed{2}", "2"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{1}" + "\n#### 2", "2"),
        ("### Step 2\n" + r"thus $\boxed{3}$", "3"),
        (r"#### \boxed{4}", "4"),
        ("21", None),
        ("", None),
        ("#", None),
        ("#3 #", None),
        ("####  $ \n5", None),
        (r"\boxed{}", None),
        (r"\boxed{5", None),
        (r"boxed{5}", None),
        (r"\fbox{5}", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (" 72 ", "72"),
        ("72.", "72"),
        ("7.50", "7.50"),
        ("$18", "18"),
        (r"\$18", "18"),
        ("$x$", "x"),
        ("$72$.", "72"),
        ("72 .", "72"),
        ("1,234,567.50", "1234567.50"),
        ("-1,234", "-1234"),
        ("12,34", "12,34"),
        ("1,2345", "1,2345"),
        ("(1,200)", "(1,200)"),
        ("1,200 apples", "1,200 apples"),
        ("a \n  b", "a b"),
        ("...", ".."),
    ],
)
def test_answers_are_normalized(text, plain):
    assert normalize_answer(text) == plain


@given(st.text("#\\boxed{} 1a\n$.,", max_size=40))
def test_any_text_gives_an_answer_or_none(text):
    answer = final_answer(text)
    assert answer is None or (answer and answer == answer.strip() and "#" not in answer)


@given(st.integers(), st.text("0123456789+-=;# ", max_size=20))
def test_the_last_hash_decides(number, before):
    assert final_answer(f"{before}#{number}") == str(number)


def test_open_boxes_are_read_in_linear_time():
    started = time.process_time()
    assert final_answer(r"\boxed{" * 20_000) is None
    assert time.process_time() - started < 1
