"""Pure functions of strings."""

import time

from hypothesis import given
from hypothesis import strategies as st

from rljax.text import Box, boxes, listed, one_line, printable, shortened

PIECES = [r"\boxed", r"\fbox", "{", "}", "\\", r"\{", r"\}", " ", "\n", "a", "boxed"]


def slow_boxes(text: str, commands: list[str]) -> set[tuple[int, str]]:
    """Every balanced box, found by counting braces from each command on."""
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
def test_boxes_are_those_that_counting_braces_finds(text):
    assert set(boxes(text)) == slow_boxes(text, ["boxed"])
    assert set(boxes(text, commands=("boxed", "fbox"))) == slow_boxes(text, ["boxed", "fbox"])


def test_an_inner_box_stands_before_the_box_around_it():
    assert boxes(r"\boxed{1+\boxed{2}}") == [Box(9, "2"), Box(0, r"1+\boxed{2}")]
    assert boxes(r"\fbox{1}") == []


def test_a_text_of_open_boxes_is_read_in_one_pass():
    begin = time.perf_counter()
    assert boxes(r"\boxed{" * 100_000) == []
    assert time.perf_counter() - begin < 5


def test_one_line_joins_the_lines_of_a_message():
    assert one_line(ValueError("first\n  second\tthird")) == "ValueError: first second third"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt:"


def test_control_characters_are_escaped_and_line_ends_kept():
    assert printable("a\x1b[31m\nb\r\u202e") == "a\\x1b[31m\nb\\r\\u202e"
    assert printable("ü→1") == "ü→1"
    assert printable(3) == "3"


def test_a_long_text_keeps_both_ends():
    assert shortened("\nabcdef\n", 6) == "abcdef"
    assert shortened("abcdefg", 4) == "ab … fg"
    assert shortened(12345678, 2) == "1 … 8"


def test_a_list_of_names_is_whole_up_to_forty():
    names = [f"name_{number}" for number in range(41)]
    assert listed(names[:40], "rljax x") == ", ".join(names[:40])
    assert listed(names, "rljax x") == f"{', '.join(names[:40])} and 1 more (`rljax x` prints them all)"
