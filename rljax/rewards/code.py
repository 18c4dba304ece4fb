"""Programs that must pass tests: MBPP's lists of assertions, and HumanEval's `check(candidate)`."""

import logging
import re
from collections.abc import Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.sandbox import Limits, Program, Verdict, judge_all

_FENCE = re.compile(r"^[ \t]*```[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)
_PYTHON = frozenset({"python", "python3", "py"})
_log = logging.getLogger(__name__)


def code(
    prompts: Sequence[str],
    completions: Sequence[str],
    tests: Sequence[Sequence[str] | None] | None = None,
    setup: Sequence[str | None] | None = None,
    test: Sequence[str | None] | None = None,
    entry_point: Sequence[str | None] | None = None,
    *,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **columns: Sequence,
) -> list[float | None]:
    """Give 1 for a program that passes all its tests, else 0.

    The program is what `extracted_code` finds. It runs in the sandbox of `rljax.rewards.sandbox`; whatever it does there, to
    itself or to the tests, it passes only by returning what the tests ask for. A program that does not end fails.

    Args:
        prompts: the tasks; HumanEval's are the beginning of the program.
        completions: the responses, one a prompt.
        tests: for each prompt a list of assertions, as MBPP's `test_list`.
        setup: for each prompt statements that come before the assertions, as MBPP's `test_setup_code`.
        test: for each prompt the source of a function `check(candidate)`, as HumanEval has it.
        entry_point: for each prompt the name of the function that is checked; needed with `test`.
        limits: what each program may use; set it by `functools.partial`.
        workers: how many programs run at a time; one a core if None.
        progress: called with the programs judged and all that have tests, or None.

    Returns:
        1.0 or 0.0 for each completion; None where there are no tests, or tests that cannot be run here (the log says why).

    Raises:
        InputError: a `test` without an `entry_point`, tests that are not text, or a platform that cannot confine programs.

    Example:
        >>> right = "Here it is: ```python\\ndef double(x):\\n    return x + x\\n```".replace(" ```", chr(10) + "```")
        >>> code(["Double it."] * 3, [right, "import sys; sys.exit(0)", right], tests=[["assert double(4) == 8"]] * 2 + [None])
        [1.0, 0.0, None]
    """
    del columns
    verdicts = _verdicts(prompts, completions, (tests, setup, test, entry_point), limits, workers, progress)
    return [None if verdict is None else float(all(share == 1.0 for share in verdict.shares)) for verdict in verdicts]


def code_fraction(
    prompts: Sequence[str],
    completions: Sequence[str],
    tests: Sequence[Sequence[str] | None] | None = None,
    setup: Sequence[str | None] | None = None,
    test: Sequence[str | None] | None = None,
    entry_point: Sequence[str | None] | None = None,
    *,
    limits: Limits = Limits(),  # noqa: B008 - immutable
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **columns: Sequence,
) -> list[float | None]:
    """Give the share of the tests that a program passes.

    Each entry of `tests` counts alone; of a `check`, each assertion that was come to, and a `check` that raises outside of its
    assertions counts as failed.

    Args:
        prompts: as for `code`.
        completions: as for `code`.
        tests: as for `code`.
        setup: as for `code`.
        test: as for `code`.
        entry_point: as for `code`.
        limits: as for `code`.
        workers: as for `code`.
        progress: as for `code`.

    Returns:
        A number between 0 and 1 for each completion; None where `code` gives None.

    Raises:
        InputError: as `code`.

    Example:
        >>> code_fraction(["?"], ["def f(x): return x"], tests=[["assert f(1) == 1", "assert f(2) == 4"]])
        [0.5]
    """
    del columns
    verdicts = _verdicts(prompts, completions, (tests, setup, test, entry_point), limits, workers, progress)
    return [None if verdict is None else sum(verdict.shares) / len(verdict.shares) for verdict in verdicts]


def extracted_code(completion: str) -> str:
    """Find the program in a response.

    Args:
        completion: a response.

    Returns:
        The inside of its last block that is fenced and marked as Python, to the response's end where the fence is not closed;
        the whole response if there is none.

    Example:
        >>> extracted_code(chr(10).join(["First:", "```python", "x = 1", "```", "better:", "```python", "x = 2", "```", "Done."]))
        'x = 2'
        >>> extracted_code("x = 3")
        'x = 3'
    """
    found, begun = None, None
    for fence in _FENCE.finditer(completion):
        marked = fence[1].lower() in _PYTHON
        if begun is None or marked:
            begun = (fence.end() + 1, marked)
        elif not fence[1]:
            found = completion[begun[0] : fence.start() - 1] if begun[1] else found
            begun = None
    if begun is not None and begun[1]:
        found = completion[begun[0] :]
    return completion if found is None else found


def _verdicts(
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: tuple[Sequence | None, ...],
    limits: Limits,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[Verdict | None]:
    filled = [[None] * len(prompts) if column is None else column for column in columns]
    rows = zip(prompts, completions, *filled, strict=True)
    programs = [_program(position, *row) for position, row in enumerate(rows)]
    asked = [program for program in programs if program is not None]
    judged = iter(judge_all(asked, limits, workers, progress=progress) if asked else [])
    verdicts = [None if program is None else next(judged) for program in programs]
    unjudged = [verdict.reason for verdict in verdicts if verdict is not None and verdict.ended == "unjudged"]
    if unjudged:
        _log.warning(
            "%d of %d programs have tests that cannot be run, the first: %s", len(unjudged), len(asked), unjudged[0]
        )
    return [None if verdict is None or verdict.ended == "unjudged" else verdict for verdict in verdicts]


def _program(
    position: int,
    prompt: str,
    completion: str,
    tests: Sequence[str] | None,
    setup: str | None,
    test: str | None,
    entry_point: str | None,
) -> Program | None:
    """Put a row's program and tests together; None if it has no tests."""
    listed = () if tests is None else (tests,) if isinstance(tests, str) else tuple(tests)
    texts = {
        "setup": setup,
        "test": test,
        "entry_point": entry_point,
        **{f"tests[{i}]": text for i, text in enumerate(listed)},
    }
    for name, text in texts.items():
        if not isinstance(text, str | None) or (text is None and name.startswith("tests")):
            raise InputError(
                f"row {position}: the column {name} holds {type(text).__name__} where text is expected; mend the data."
            )
    check, entry = "" if test is None else test, "" if entry_point is None else entry_point
    if not (listed or check):
        return None
    if check and not entry:
        raise InputError(f"row {position} has a test but no entry_point; add the name of the function to check.")
    found = extracted_code(completion)
    begun = isinstance(prompt, str) and bool(entry) and _begins(prompt, entry)
    if begun and _defines(found, entry):
        found = f"{prompt}\n{found}"  # its imports and helpers; the function is defined anew
    elif begun:
        found = prompt + found
    return Program(found, listed, "" if setup is None else setup, check, entry, prompt if begun else "")


def _begins(prompt: str, entry_point: str) -> bool:
    """Say whether a prompt is the beginning of a program, and not words about it."""
    if not _defines(prompt, entry_point):
        return False
    try:
        compile(prompt, "<prompt>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _defines(text: str, name: str) -> bool:
    """Look for a definition by its text: to parse what a model wrote is not safe in this process."""
    return (
        re.search(rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(name)}\b|^{re.escape(name)}[ \t]*=", text, re.MULTILINE)
        is not None
    )
