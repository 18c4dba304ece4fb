r"""Everything that reads a response in the trainer's own process takes linear time."""

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.rewards import majority_vote
from rljax.rewards.algebra_limits import LONGEST_ALGEBRA, is_judgeable
from rljax.rewards.choice import multiple_choice, yes_no
from rljax.rewards.code_blocks import extract_code
from rljax.rewards.confidence import stated_confidence, without_confidence
from rljax.rewards.exact import exact
from rljax.rewards.extract import LONGEST_READ, final_answer, last_number, stated_text, stated_text_or_last_number
from rljax.rewards.format import has_final_answer, think_answer
from rljax.rewards.math import aime, decide_without_algebra, gsm8k
from rljax.rewards.notation import plain
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
    "vote": majority_vote.vote,
    "vote_yes_no": majority_vote.vote_yes_no,
    "vote_letter": majority_vote.vote_letter,
    "stated_confidence": stated_confidence,
    "without_confidence": lambda text: len(without_confidence(text[-LONGEST_READ:])),
}
TOKENS = [
    *r"""# #### $ \$ . , 1 1, 1,111 - + = ( ) [ { } \ ` ``` * \boxed{ \boxed \text{ \frac ^ _ <answer> </answer> <think> answer
    confidence: <confidence> </confidence> therefore % A (A) yes 1+1=2; ½ １ ° \{ \, \! ~ ' " / e3 √ ²""".split(),  # noqa: SIM905
    *(" ", "\n", "\t", "answer is", "is ", "and ", "def f", "```python\n"),
]
SHORT = 8_000


def seconds(read, text):
    """The shorter time of two readings."""
    times = []
    for _ in range(2):
        started = time.process_time()
        read(text)
        times.append(time.process_time() - started)
    return min(times)


def fill(begin, unit, end, length):
    return begin + unit * (length // len(unit)) + end


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=40)
@given(
    begin=st.lists(st.sampled_from(TOKENS), max_size=2).map("".join),
    unit=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=3).map("".join),
    end=st.lists(st.sampled_from(TOKENS), max_size=2).map("".join),
)
def test_four_times_the_text_takes_about_four_times_as_long(name, begin, unit, end):
    short, long = (seconds(READERS[name], fill(begin, unit, end, length)) for length in (SHORT, 4 * SHORT))
    assert long <= 8 * short + 0.05


# Each was once slow or large: a cubic pattern (6.5 s), a quadratic pattern (16 s), copies of nested boxes (2.4 GB).
ONCE_SLOW = {
    "spaces after the number": "#### 1" + " " * 1_200 + "x",
    "spaces in a fence": "```" + " " * 32_000 + "`",
    "nested boxes": r"\boxed{" * 25_000 + "1" + "}" * 25_000,
}


@pytest.mark.parametrize("text", ONCE_SLOW.values(), ids=ONCE_SLOW)
def test_texts_that_once_were_slow_are_read_quickly(text):
    for read in READERS.values():
        assert seconds(read, text) < 0.5


@pytest.mark.parametrize("name", READERS)
def test_the_longest_response_takes_little_memory(name):
    tracemalloc.start()
    READERS[name](ONCE_SLOW["nested boxes"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"think_answer", "equations"}))
def test_only_the_end_of_a_response_is_read(name):
    """A million characters give the same reward as their last 200,000. The two other readers need the complete response, for its
    form and all of its steps."""
    text = r"\boxed{1} #### 1 the answer is 1 "
    assert READERS[name](text + "x" * 1_000_000) == READERS[name]("x" * LONGEST_READ)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(TOKENS), max_size=400).map("".join), st.sampled_from([1, 2, 40]))
def test_any_answer_is_normalized_and_decided_quickly(text, times):
    answer = (text * times)[:LONGEST_ALGEBRA]
    started = time.process_time()
    plain.__wrapped__(answer)
    is_judgeable(answer)
    decide_without_algebra(answer, r"\frac{1}{2}")
    assert time.process_time() - started < 0.25
