"""A sample of the differential test of the code rewards. `check_code_reward.py` runs the test on all tasks."""

import check_code_reward
import pytest

from rljax.rewards.code import build_program, code
from rljax.rewards.sandbox import Limits, judge_all

TASKS = [
    check_code_reward.Task(
        "square",
        "Write a function that squares a number.",
        "def square(x):\r\n    return x * x",
        {
            "tests": ["assert square(2) == 4", "assert square(-3) == 9", "assert abs(square(0.5) - 0.25) < 1e-9"],
            "setup": "",
        },
        "square",
    ),
    check_code_reward.Task(
        "words",
        'from typing import List\n\n\ndef words(text: str) -> List[str]:\n    """Split a text.\n    >>> words("a b")\n    """\n',
        "    return text.split()\n",
        {
            "test": "def check(candidate):\n    assert candidate('a b') == ['a', 'b']\n    assert not candidate(' x')[1:]\n"
            "    assert all(len(word) == 1 for word in candidate('c d'))\n    assert candidate('e') == ['e']\n",
            "entry_point": "words",
        },
        "words",
    ),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_right_variants_pass_and_wrong_variants_fail(task):
    variants = list(check_code_reward.variants(task))
    columns = {name: [value] * len(variants) for name, value in task.columns.items()}
    rewards = code([task.prompt] * len(variants), [response for _, _, response in variants], **columns)
    assert {name: reward for (name, _, _), reward in zip(variants, rewards, strict=True)} == {
        name: float(right) for name, right, _ in variants
    }


def test_sampled_tasks_are_judged_correctly(shared_data):
    tasks = check_code_reward.tasks(shared_data / "mbpp.jsonl", None)[::33]
    chosen = [
        (task, *variant)
        for position, task in enumerate(tasks)
        for variant in list(check_code_reward.variants(task))[position % 11 :: 11]
    ]
    programs = [build_program(task.prompt, response, **task.columns) for task, _, _, response in chosen]
    verdicts = judge_all(programs, Limits(seconds=20.0))
    results = [
        (task.key, name, right, all(verdict.pass_rates))
        for (task, name, right, _), verdict in zip(chosen, verdicts, strict=True)
    ]
    assert len(results) == 60
    assert not [result for result in results if result[2] is not result[3]]
