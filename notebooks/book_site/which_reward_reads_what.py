"""What each reward reads: the answers of small models to "What is 12 + 13?", and which of them each reward accepts.

    python notebooks/book_site/which_reward_reads_what.py            # prints the table of notebooks/which_reward_reads_what.md
    python notebooks/book_site/which_reward_reads_what.py --write    # writes it there

Math-Verify is called as in its README: `verify(parse(reference), parse(response))`.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from math_verify import parse, verify

from rljax.rewards import BY_NAME

PAGE = Path(__file__).parents[1] / "which_reward_reads_what.md"
BEGIN, END = "<!-- table: python notebooks/book_site/which_reward_reads_what.py --write -->", "<!-- end of the table -->"
REFERENCE = "25"
NAMES = ("exact", "gsm8k", "math", "math_or_last_number")

# Answers to "What is 12 + 13?" that are right, and some that are wrong.
RIGHT = [
    "12 + 13 = 25",
    "25",
    "25.",
    "= 25",
    "12+13=25",
    "12 + 13 = 25.",
    "The answer is 25.",
    "The answer is 25",
    "The answer is 25!",
    "The answer is equal to 25.",
    "The answer is 25, which is the sum of 12 and 13.",
    "The answer is: 25",
    "Answer: 25",
    "answer: 25",
    "**25**",
    "**Answer:** 25",
    "The sum is 25.",
    "The sum of 12 and 13 is 25.",
    "12 plus 13 equals 25.",
    "12 plus 13 is 25",
    "So, 12 + 13 = 25.",
    "Therefore, 12 + 13 = 25.",
    "Thus, the answer is 25.",
    "$25$",
    "$12 + 13 = 25$",
    "\\(12 + 13 = 25\\)",
    "\\[12 + 13 = 25\\]",
    "\\boxed{25}",
    "$\\boxed{25}$",
    "The final answer is $\\boxed{25}$.",
    "#### 25",
    "<answer>25</answer>",
    "Sure! 12 + 13 = 25",
    "Let's add: 12 + 13 = 25.",
    "10 + 10 = 20, 2 + 3 = 5, 20 + 5 = 25",
    "Step 1: 12 + 13\nStep 2: 25",
    "12\n+13\n---\n25",
    "The result is 25.",
    "It is 25.",
    "You get 25.",
    "The total is 25.",
    "It equals 25.",
    "Result: 25",
    "Solution: 25",
    "x = 25",
    "The answer is **25**.",
    "The answer is $25$.",
    "the answer would be 25",
    "The correct answer is 25.",
    "Final answer: 25",
    "25.0",
    "The answer to 12 + 13 is 25.",
    "The answer is 12 + 13 = 25.",
    "We have 12 + 13 = 25",
    "12 + 13 = **25**",
    "Sum = 25",
    "Adding 12 and 13 gives us 25.",
]
WRONG = [
    "12 + 13 = 26",
    "The answer is 24.",
    "25 + 13 = 38",
    "It is not 25, it is 24.",
    "The answer is 25 or 26.",
    "12 + 13",
    "25 is wrong",
    "2 + 5",
]


def readings() -> Mapping[str, Callable[[list[str]], list[bool]]]:
    """Name of each reward -> function that returns which responses it accepts."""

    def accepted_by(name: str) -> Callable[[list[str]], list[bool]]:
        reward = BY_NAME[name]
        return lambda texts: [
            value == 1.0 for value in reward(prompts=["?"] * len(texts), completions=texts, answer=[REFERENCE] * len(texts))
        ]

    gold = parse(REFERENCE)
    return {name: accepted_by(name) for name in NAMES} | {
        "Math-Verify": lambda texts: [bool(verify(gold, parse(text))) for text in texts]
    }


def table() -> str:
    """The table in Markdown: a row for each response, a column for each reward, and the totals."""
    judges = readings()
    lines = [f"| response | {' | '.join(judges)} |", f"| :--- |{' :---: |' * len(judges)}"]
    for title, texts in (("right", RIGHT), ("wrong", WRONG)):
        columns = [judge(texts) for judge in judges.values()]
        totals = (f"**{sum(column)}**" for column in columns)
        lines.append(f"| **{len(texts)} {title} responses** | {' | '.join(totals)} |")
        for text, *paid in zip(texts, *columns, strict=True):
            shown = text.replace("\n", " ⏎ ").replace("|", "\\|")
            lines.append(f"| `{shown}` | {' | '.join('1' if one else '·' for one in paid)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into the page."""
    if sys.argv[1:] != ["--write"]:
        print(table())
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
