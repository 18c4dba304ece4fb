"""Rewards for programs that must pass tests: MBPP's lists of assertions, and HumanEval's `check(candidate)`."""

import logging
import re
from collections.abc import Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.code_blocks import extracted_code
from rljax.rewards.sandbox import Limits, Program, Verdict, judge_all

_log = logging.getLogger(__name__)


def code(
    prompts: Sequence[object],
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

    The program is what `rljax.rewards.code_blocks.extracted_code` finds. It runs in the sandbox of `rljax.rewards.sandbox`.
    Whatever it tries there, it passes only by returning the values that the tests expect. A program that does not finish fails.

    Args:
        prompts: the tasks, as text or chats; those of HumanEval are the beginning of the program.
        completions: the responses, one per prompt.
        tests: for each prompt a list of assertions, like MBPP's `test_list`.
        setup: for each prompt the statements that run before the assertions, like MBPP's `test_setup_code`.
        test: for each prompt the source of a function `check(candidate)`, as in HumanEval.
        entry_point: for each prompt the name of the function under test; required with `test`.
        limits: the resources that each program may use; set them with `functools.partial`.
        workers: how many programs run at a time; None runs one per core.
        progress: called with the number of programs judged and the number of all programs with tests; or None.

    Returns:
        1.0 or 0.0 for each completion; None without tests, or where the tests cannot run on this machine (the log says why).

    Raises:
        InputError: a `test` has no `entry_point`, tests are not text, or the platform cannot confine programs.

    Example:
        >>> right = "Here it is: ```python\\ndef double(x):\\n    return x + x\\n```".replace(" ```", chr(10) + "```")
        >>> code(["Double it."] * 3, [right, "import sys; sys.exit(0)", right], tests=[["assert double(4) == 8"]] * 2 + [None])
        [1.0, 0.0, None]
    """
    del columns
    verdicts = _verdicts(prompts, completions, (tests, setup, test, entry_point), limits, workers, progress)
    return [None if verdict is None else float(all(share == 1.0 for share in verdict.shares)) for verdict in verdicts]


def code_fraction(
    prompts: Sequence[object],
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

    Each entry of `tests` counts separately. In a `check`, each assertion that was reached counts; a `check` that raises outside
    its assertions fails as a whole.

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
        A number between 0 and 1 for each completion; None where `code` returns None.

    Raises:
        InputError: for the reasons `code` gives.

    Example:
        >>> code_fraction(["?"], ["def f(x): return x"], tests=[["assert f(1) == 1", "assert f(2) == 4"]])
        [0.5]
    """
    del columns
    verdicts = _verdicts(prompts, completions, (tests, setup, test, entry_point), limits, workers, progress)
    return [None if verdict is None else sum(verdict.shares) / len(verdict.shares) for verdict in verdicts]


def _verdicts(
    prompts: Sequence[object],
    completions: Sequence[str],
    columns: tuple[Sequence | None, ...],
    limits: Limits,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[Verdict | None]:
    filled = [[None] * len(prompts) if column is None else column for column in columns]
    rows = zip(prompts, completions, *filled, strict=True)
    programs = [_program(position, *row) for position, row in enumerate(rows)]
    with_tests = [program for program in programs if program is not None]
    judged = iter(judge_all(with_tests, limits, workers, progress=progress) if with_tests else [])
    verdicts = [None if program is None else next(judged) for program in programs]
    unjudged = [verdict.reason for verdict in verdicts if verdict is not None and verdict.ended == "unjudged"]
    if unjudged:
        _log.warning(
            "%d of %d programs have tests that cannot run; the first reason: %s",
            len(unjudged),
            len(with_tests),
            unjudged[0],
        )
    return [None if verdict is None or verdict.ended == "unjudged" else verdict for verdict in verdicts]


def _program(
    position: int,
    prompt: object,
    completion: str,
    tests: Sequence[str] | None,
    setup: str | None,
    test: str | None,
    entry_point: str | None,
) -> Program | None:
    """Combine a row's program and tests; None if it has no tests."""
    assertions = () if tests is None else (tests,) if isinstance(tests, str) else tuple(tests)
    texts = {
        "setup": setup,
        "test": test,
        "entry_point": entry_point,
        **{f"tests[{i}]": text for i, text in enumerate(assertions)},
    }
    for name, text in texts.items():
        if not isinstance(text, str | None) or (text is None and name.startswith("tests")):
            raise InputError(
                f"row {position}: the column {name} holds {type(text).__name__}, but must hold text; fix the data."
            )
    check, entry = "" if test is None else test, "" if entry_point is None else entry_point
    if not (assertions or check):
        return None
    if check and not entry:
        raise InputError(f"row {position} has a test but no entry_point; add the name of the function under test.")
    program = Program(extracted_code(completion), assertions, "" if setup is None else setup, check, entry)
    if not (isinstance(prompt, str) and entry and _begins(prompt, entry)):
        return program
    # Where the completion defines the function again, the prompt still brings its imports and helpers.
    separator = "\n" if _defines(program.code, entry) else ""
    return program._replace(code=f"{prompt}{separator}{program.code}", prompt=prompt)


def _begins(prompt: str, entry_point: str) -> bool:
    """Decide whether a prompt is the beginning of a program, and not a description of one."""
    if not _defines(prompt, entry_point):
        return False
    try:
        compile(prompt, "<prompt>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _defines(text: str, name: str) -> bool:
    """Search the text for a definition: parsing what a model wrote is not safe in this process."""
    return (
        re.search(rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(name)}\b|^{re.escape(name)}[ \t]*=", text, re.MULTILINE)
        is not None
    )
