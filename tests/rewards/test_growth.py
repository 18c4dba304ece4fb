r"""Every function that reads a response in the trainer's process takes linear time and little memory."""

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.rewards import votes
from rljax.rewards.algebra_limits import LONGEST_ALGEBRA, is_judgeable
from rljax.rewards.choice import multiple_choice, yes_no
from rljax.rewards.code_blocks import extract_code
from rljax.rewards.confidence import read_confidence, remove_confidence
from rljax.rewards.exact import exact
from rljax.rewards.extract import LONGEST_READ, final_answer, last_number, stated_text, stated_text_or_last_number
from rljax.rewards.format import has_final_answer, think_answer
from rljax.rewards.math import aime, decide_without_algebra, gsm8k
from rljax.rewards.notation import canonicalize
from rljax.rewards.steps import equations

READERS = {
    "final_answer": final_answer,
    "stated_text": stated_text,
    "stated_text_or_last_number": stated_text_or_last_number,
    "last_number": last_number,
    "extract_code": extract_code,
    "decide_without_algebra": lambda text: decide_without_algebra(text, "12"),
    "exact": lambda text: exact(["?"], [text], ["12"]),
    "gsm8k": lambda text: gsm8k(["?"], [text], ["12"]),
    "aime": lambda text: aime(["?"], [text], ["12"]),
    "yes_no": lambda text: yes_no(["?"], [text], ["yes"]),
    "multiple_choice": lambda text: multiple_choice(["?"], [text], ["A"]),
    "has_final_answer": lambda text: has_final_answer([text]),
    "think_answer": lambda text: think_answer([text]),
    "equations": lambda text: equations(["?"], [text], ["12"]),
    "vote": votes.vote,
    "vote_yes_no": votes.vote_yes_no,
    "vote_letter": votes.vote_letter,
    "read_confidence": read_confidence,
    "remove_confidence": lambda text: len(remove_confidence(text[-LONGEST_READ:])),
}
PIECES = [
    *r"""# #### $ \$ . , 1 1, 1,111 - + = ( ) [ { } \ ` ``` * \boxed{ \boxed \text{ \frac ^ _ <answer> </answer> <think> answer
    confidence: <confidence> </confidence> therefore % A (A) yes 1+1=2; ½ １ ° \{ \, \! ~ ' " / e3 √ ²""".split(),  # noqa: SIM905
    *(" ", "\n", "\t", "answer is", "is ", "and ", "def f", "```python\n"),
]
SHORT = 8_000


def measure_seconds(read, text):
    """Return the shorter processor time of two calls."""
    times = []
    for _ in range(2):
        started = time.process_time()
        read(text)
        times.append(time.process_time() - started)
    return min(times)


def make_text(begin, unit, end, length):
    return begin + unit * (length // len(unit)) + end


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=40)
@given(
    begin=st.lists(st.sampled_from(PIECES), max_size=2).map("".join),
    unit=st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join),
    end=st.lists(st.sampled_from(PIECES), max_size=2).map("".join),
)
def test_time_is_linear_in_the_length(name, begin, unit, end):
    short, long = (measure_seconds(READERS[name], make_text(begin, unit, end, length)) for length in (SHORT, 4 * SHORT))
    assert long <= 8 * short + 0.05


# Each text was once slow or used much memory: a cubic pattern (6.5 s), a quadratic pattern (16 s), copies of boxes (2.4 GB).
ONCE_COSTLY = {
    "spaces after the number": "#### 1" + " " * 1_200 + "x",
    "spaces in a fence": "```" + " " * 32_000 + "`",
    "nested boxes": r"\boxed{" * 25_000 + "1" + "}" * 25_000,
}


@pytest.mark.parametrize("text", ONCE_COSTLY.values(), ids=ONCE_COSTLY)
def test_texts_that_once_were_costly_are_read_quickly(text):
    for read in READERS.values():
        assert measure_seconds(read, text) < 0.5


@pytest.mark.parametrize("name", READERS)
def test_nested_boxes_take_little_memory(name):
    tracemalloc.start()
    READERS[name](ONCE_COSTLY["nested boxes"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"think_answer", "equations"}))
def test_only_the_end_of_a_response_is_read(name):
    """A million characters give the same result as their last 200,000. `think_answer` and `equations` need the complete response,
    to check its form or all of its steps."""
    text = r"\boxed{1} #### 1 the answer is 1 "
    assert READERS[name](text + "x" * 1_000_000) == READERS[name]("x" * LONGEST_READ)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES), max_size=400).map("".join), st.sampled_from([1, 2, 40]))
def test_answers_are_normalized_and_decided_quickly(text, times):
    answer = (text * times)[:LONGEST_ALGEBRA]
    started = time.process_time()
    canonicalize.__wrapped__(answer)
    is_judgeable(answer)
    decide_without_algebra(answer, r"\frac{1}{2}")
    assert time.process_time() - started < 0.25
