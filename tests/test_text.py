"""Pure functions on strings."""

from rljax.text import list_names, one_line, printable, shorten


def test_one_line_joins_the_lines_of_a_message():
    assert one_line(ValueError("first\n  second\tthird")) == "ValueError: first second third"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt:"


def test_control_characters_are_escaped_and_line_ends_kept():
    assert printable("a\x1b[31m\nb\r\u202e") == "a\\x1b[31m\nb\\r\\u202e"
    assert printable("ü→1") == "ü→1"
    assert printable(3) == "3"


def test_a_long_text_keeps_both_ends():
    assert shorten("\nabcdef\n", 6) == "abcdef"
    assert shorten("abcdefg", 4) == "ab … fg"
    assert shorten(12345678, 2) == "1 … 8"


def test_a_list_of_names_is_complete_up_to_forty():
    names = [f"name_{number}" for number in range(41)]
    assert list_names(names[:40], "rljax x") == ", ".join(names[:40])
    assert list_names(names, "rljax x") == f"{', '.join(names[:40])} and 1 more (`rljax x` prints them all)"
