r"""Every `\boxed` answer whose braces balance is found."""

import time

from hypothesis import given
from hypothesis import strategies as st

from rljax.boxed import Box, boxes

PIECES = [r"\boxed", r"\fbox", "{", "}", "\\", r"\{", r"\}", " ", "\n", "a", "boxed"]


def slow_boxes(text: str, commands: list[str]) -> set[tuple[int, str]]:
    """Every balanced box, found by counting braces after each command."""
    found = set()
    escaped = False
    for start, character in enumerate(text):
        if escaped:
            escaped = False
            continue
        escaped = character == "\\"
        for command in commands:
            after = text[start:].removeprefix(f"\\{command}")
            if not escaped or after == text[start:] or not after.lstrip().startswith("{"):
                continue
            escaped = False
            opening = len(text) - len(after.lstrip())
            depth, position = 0, opening
            while position < len(text):
                depth += {"{": 1, "}": -1}.get(text[position], 0)
                if depth == 0:
                    found.add((start, text[opening + 1 : position]))
                    break
                position += 2 if text[position] == "\\" else 1
    return found


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_boxes_agree_with_counting_braces(text):
    assert set(boxes(text)) == slow_boxes(text, ["boxed"])
    assert set(boxes(text, commands=("boxed", "fbox"))) == slow_boxes(text, ["boxed", "fbox"])


def test_an_inner_box_comes_before_the_box_around_it():
    assert boxes(r"\boxed{1+\boxed{2}}") == [Box(9, "2"), Box(0, r"1+\boxed{2}")]
    assert boxes(r"\fbox{1}") == []


def test_many_unclosed_boxes_take_linear_time():
    begin = time.perf_counter()
    assert boxes(r"\boxed{" * 100_000) == []
    assert time.perf_counter() - begin < 5
