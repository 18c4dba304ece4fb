"""Yes-or-no and multiple-choice answers: a response counts only if it gives exactly one answer."""

import pytest

from rljax.errors import InputError
from rljax.rewards.choice import multiple_choice, read_letter, read_yes_no, yes_no


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[
            (text, True)
            for text in (
                "yes",
                "Yes.",
                " YES ",
                "**yes**",
                "**Yes.**",
                '"yes"',
                "true",
                "True",
                r"\text{Yes}",
                "yes, because",
                "Yes, I agree",
                "Yes, I'm sure.",
                "Yes, a dog can swim",
                "Yes, not only birds fly",
            )
        ],
        *[(text, False) for text in ("no", "No.", "No, not all birds fly", "false", r"\textbf{No}", "*no*")],
        *[
            (text, None)
            for text in ("", "yes or no", "yesterday", "not", "know", "yes no", "y", "1", "yes, but no", "yes? Actually no")
        ],
    ],
)
def test_read_yes_no(text, answer):
    assert read_yes_no(text) is answer


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        *[
            (text, "B")
            for text in ("B", "b", "(B)", "B)", "B.", "B: Rome", "(B) Rome", "B) Rome", "B. Rome", "**B**", "*(b)*")
        ],
        *[
            (text, "B")
            for text in ("B, a dog", "B, I think", "B: a dog or a cat", "B. I'd say", "B, because I or a friend know")
        ],
        *[(text, "B") for text in ("(B) Cannot be determined", "B: not enough data", "B) Yes", "B. True", "B: No change")],
        *[(text, "D") for text in (r"\text{(D)}", r"\textbf{D}", "$D$", r"\textbf{(D)}\ 57")],
        *[
            (text, None)
            for text in ("", "A or B", "AB", "A dog", "Rome", "(AB)", "1", "(B", "(B)ad", "B,C", "É", "B, A", "B, a")
        ],
    ],
)
def test_read_letter(text, letter):
    assert read_letter(text) == letter


def test_yes_no():
    completions = ["so the answer is yes.", "no", r"\boxed{\text{Yes}}", "#### no", "<answer>yes</answer>", "yes, I know"]
    assert yes_no(["?"] * 6, completions, [True] * 6) == [1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert yes_no(["?"] * 6, completions, [False] * 6) == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert yes_no(["?"] * 6, ["no"] * 6, ["No", "false", None, " ", False, True]) == [*(1.0, 1.0, None, None, 1.0, 0.0)]


def test_multiple_choice():
    completions = ["The answer is (B).", "B: Rome", r"\boxed{B}", "C", "A or B", "not A, so B"]
    assert multiple_choice(["?"] * 6, completions, ["(B)", "b", "B", "B", "B", "B"]) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert multiple_choice(["?"] * 2, ["B", "B"], [None, ""]) == [None, None]


def test_invalid_references_are_refused():
    with pytest.raises(InputError, match="the reference answer 1 is 'maybe'; it must be yes or no"):
        yes_no(["?"] * 2, ["yes"] * 2, ["yes", "maybe"])
    with pytest.raises(InputError, match="the reference answer 0 is '3'; it must be the letter of a choice"):
        multiple_choice(["?"], ["B"], [3])
    for reward in (yes_no, multiple_choice):
        with pytest.raises(ValueError, match="zip"):
            reward(["?"] * 2, ["no"] * 2, [None])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Option B",
            "option (B)",
            "The correct option is B",
            "The correct option is B.",
            "B\n\nBecause A is wrong.",
            "B, because x",
        ),
        *(
            "The answer is B because A is too small.",
            "So the answer is (B).",
            "I would choose B.",
            "Answer: B",
            "B) Paris or Rome",
        ),
        *("The best answer is B: Rome.", "**B**", r"\boxed{\text{(B)}}", r"\boxed{\mathbf{B}}"),
        *(
            "Option B is correct.",
            "B is the right answer",
            "(B) is the best choice!",
            "<think>A or C?</think>B",
            "<think>The answer is A.</think>B",
        ),
        *(
            "The correct option is **B**.",
            "The correct choice is **(B) Paris**.",
            "I choose **B**.",
            "Option **B** is correct.",
            "**B** is the right answer.",
            "Correct option: **B**",
            "**Option __B__**: Rome",
            "*B*) Rome",
        ),
        *(
            "The correct option is $B$.",
            r"The correct option is \(B\).",
            r"The correct option is $\textbf{(B)}$.",
            "The best option is `B`.",
            'The best option is "B".',
            "\u201cB\u201d",
        ),
    ],
)
def test_choice_with_a_reason_is_read(text):
    assert multiple_choice(["?"], [text], ["B"]) == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "(B) or (A)",
            "B. is wrong; the right one is C.",
            "B or A",
            "B, A",
            "B/C",
            "B is wrong",
            "(B) cannot be right",
            "B, A or C",
            "B. No, it is A",
            "B and C",
            "(B) Paris or (C) Rome",
        ),
        *("Option A is correct.", "A. Paris, but B is the correct answer", "B is correct or C", "<think>B</think>C"),
        *(
            "**B** or **A**",
            "B, **A**",
            "The correct option is **A**.",
            "The correct option is **not B**.",
            "**B**e careful",
        ),
        *("The answer is not B", "B. No, the correct answer: C", "B? Actually C", "Be careful"),
    ],
)
def test_other_and_unclear_choices_are_wrong(text):
    assert multiple_choice(["?"], [text], ["B"]) == [0.0]


@pytest.mark.parametrize(
    "text",
    [
        "<think>No, it can.</think>\n\nYes.",
        "<think>Perhaps the answer is no.</think>Yes.",
        "Yes, because no bird can swim.",
        "Yes\n\n",
        "So the answer is yes, since x.",
        "Answer: Yes",
    ],
)
def test_yes_with_a_reason_is_read(text):
    assert yes_no(["?"], [text], ["yes"]) == [1.0]


@pytest.mark.parametrize("text", ["yes and no", "Yes, but no", "Yes, or rather no", "It is not true", "no"])
def test_yes_with_a_no_is_wrong(text):
    assert yes_no(["?"], [text], ["yes"]) == [0.0]
