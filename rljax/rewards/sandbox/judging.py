"""Run a program's tests so that the program can neither do harm nor choose its own verdict.

One small launcher is forked for each program, from a process that contains nothing but Python. The launcher forks two confined
processes: the first runs the program under test and answers questions, and the second runs the tests and asks the questions. Only
plain data passes between them, and only the second can report results. Both have limits on time, memory, files and threads, and
neither may start a process or reach a network. How strongly they are confined depends on the platform; see `LEVELS`.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

from rljax.errors import InputError
from rljax.lazy import renamed_attributes
from rljax.rewards.sandbox import seccomp, wire
from rljax.rewards.sandbox.fork_server_client import LauncherError, shared_service
from rljax.rewards.sandbox.threats import LEVELS, describe_exposure, machine

_LONGEST_PROGRAM = 2**20
_log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """Limits on the resources of one program. Its tests run in a second process, which has the same limits."""

    seconds: float = 5.0
    """Time for all tests together, computing and sleeping. Time spent waiting for a processor is not counted. If the kernel does
    not measure this waiting (macOS), the limit is on wall-clock time and is multiplied by the number of programs per core."""
    memory_bytes: int = 512 * 2**20
    """Limit on the address space."""
    file_bytes: int = 16 * 2**20
    """Limit on the size of the temporary folder, and on the size of each file."""
    threads: int = 16
    """Limit on the number of threads; enforced only if they can be counted separately from the user's other threads."""


class Program(NamedTuple):
    """A program and its tests."""

    code: str
    """The source of the program."""
    tests: tuple[str, ...] = ()
    """Statements as in MBPP, each scored separately."""
    setup: str = ""
    """Statements that run before the tests."""
    check: str = ""
    """The source of a function `check(candidate)` as in HumanEval."""
    entry_point: str = ""
    """The name of the program's function that is passed to `check`."""
    prompt: str = ""
    """The task. If the prompt is Python, the tests use its definitions, not the program's definitions of the same names."""


@renamed_attributes(shares="pass_rates")
class Verdict(NamedTuple):
    """The result of one program's tests."""

    pass_rates: tuple[float, ...]
    """The passed fraction of each test: 0 or 1, or a fraction between them for a `check`; 0 if the test was not reached."""
    ended: str
    """`done`; `timeout`; `died` if something else ended the tests; `unjudged` if the tests cannot run here with any program."""
    reason: str
    """The explanation of `ended` in words; empty if it is `done`."""


class Output(NamedTuple):
    """The text that a program's function returned."""

    text: str
    """The text; empty if there is none."""
    ended: str
    """`done`; `raised` if the program or its function raised an exception or ended the process; `timeout`; `died` if something
    else ended the program."""
    reason: str
    """The explanation of `ended` in words; empty if it is `done`."""


def level() -> str:
    """Find the strongest confinement that works on this machine, by trying each level.

    The first call logs this level, why stronger levels do not work, and the threats that this level does not prevent.

    Returns:
        One of `LEVELS`.

    Raises:
        InputError: not even limits on resources can be set.

    Example:
        >>> level() in LEVELS
        True
    """
    problems = unavailable()
    found = next((name for name in LEVELS if name not in problems), None)
    if found is None:
        raise InputError(
            f"programs cannot run safely on this machine ({_join_problems(problems)}); use Linux or macOS with a Python that "
            f"unprivileged users can read, or remove the rewards that run code."
        )
    return found


@functools.cache
def unavailable() -> Mapping[str, str]:
    """Find out which levels do not work on this machine. Levels weaker than the strongest working one are not tried.

    Returns:
        Level that does not work -> the reason.

    Example:
        >>> level() in unavailable()
        False
    """
    problems: dict[str, str] = {}
    for name in LEVELS:
        problem = _find_problem(name)
        if problem is None:
            without = f" ({_join_problems(problems)})" if problems else ""
            exposed = describe_exposure(name, machine())
            _log.log(
                logging.WARNING if exposed else logging.INFO,
                "programs under test are confined by %s%s%s",
                name,
                without,
                f"; {exposed}" if exposed else "",
            )
            break
        problems[name] = problem
    return MappingProxyType(problems)


def _join_problems(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {problem}" for name, problem in problems.items())


def judge(program: Program, limits: Limits = Limits(), at: str | None = None) -> Verdict:  # noqa: B008 - immutable
    """Run one program's tests.

    Args:
        program: the program and its tests.
        limits: the resources that the program may use.
        at: one of `LEVELS`; None selects the strongest that works on this machine.

    Raises:
        InputError: a limit is not positive, the program has no tests, or this machine cannot confine it at this level.
        OSError: the launcher that confines the program died twice, which is no evidence about the program.

    Example:
        >>> judge(Program("def double(x): return 2 * x", ("assert double(2) == 4", "assert double('a') == 'b'")))
        Verdict(pass_rates=(1.0, 0.0), ended='done', reason='')
    """
    return _check_and_judge(program, limits, level() if at is None else at, 1.0)


def text_of(code: str, function: str, limits: Limits = Limits(), *, characters: int = 4000) -> Output:  # noqa: B008 - immutable
    """Run a program, call one of its functions without arguments, and return the function's text.

    Args:
        code: the source of the program.
        function: the name of the function.
        limits: the resources that the program may use.
        characters: the maximum length of the text; a longer text is cut.

    Raises:
        InputError: a limit is not positive, or this machine cannot confine a program.
        OSError: the launcher that confines the program died twice, which is no evidence about the program.

    Example:
        >>> text_of("def greet(): return 'hello'", "greet")
        Output(text='hello', ended='done', reason='')
    """
    _check_limits(limits)
    if len(wire.frame(code)) > wire.LONGEST_FRAME // 2:
        return Output("", "died", f"the program is too long ({len(code)} characters)")
    *texts, end = _run(code, {"function": function, "characters": characters}, limits, level(), 1.0)
    match texts:
        case [{"text": str() as text}]:
            return Output(text, end["ended"], end["reason"])
        case [{"error": str() as error}] if end["ended"] == "done":
            return Output("", "raised", error)
        case _:
            return Output(
                "", "died" if end["ended"] == "done" else end["ended"], end["reason"] or "the program reported nothing"
            )


def _check_limits(limits: Limits) -> None:
    for name, value in zip(limits._fields, limits, strict=True):
        if not value > 0:
            raise InputError(f"the sandbox's limit {name} is {value!r}; it must be a positive number.")


def _check_and_judge(program: Program, limits: Limits, at: str, patience: float) -> Verdict:
    _check_limits(limits)
    slots = len(program.tests) + bool(program.check)
    if not slots:
        raise InputError("a program without tests cannot be judged; provide `tests` or `check`.")
    if len(program.code) > _LONGEST_PROGRAM or len(wire.frame(program.code)) > wire.LONGEST_FRAME // 2:
        return Verdict((0.0,) * slots, "died", f"the program is too long ({len(program.code)} characters)")
    if len(wire.frame(program._replace(code=""))) > wire.LONGEST_FRAME // 2:
        return Verdict((0.0,) * slots, "unjudged", f"the tests are too long (more than {wire.LONGEST_FRAME // 2} bytes)")
    *results, end = _run(program.code, {**program._asdict(), "code": ""}, limits, at, patience)
    if any(isinstance(result, str) for result in results):
        return Verdict((0.0,) * slots, "unjudged", str(results[-1]))
    if len(results) > slots or not all(map(_is_count, results)):
        return Verdict((0.0,) * slots, "died", "the tests reported something that is not a result")
    pass_rates = [passed / counted for passed, counted in results]
    return Verdict((*pass_rates, *[0.0] * (slots - len(pass_rates))), end["ended"], end["reason"])


def _is_count(result: object) -> bool:
    """True for a valid pair (number passed, number counted)."""
    match result:
        case [int(passed), int(counted)]:
            return 0 <= passed <= counted and counted > 0
        case _:
            return False


def judge_all(
    programs: Sequence[Program],
    limits: Limits = Limits(),  # noqa: B008 - immutable
    workers: int | None = None,
    at: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Verdict]:
    """Run the tests of several programs in parallel.

    Args:
        programs: the programs and their tests.
        limits: the resources that each program may use.
        workers: how many programs run at a time; None runs one per core.
        at: one of `LEVELS`; None selects the strongest that works on this machine.
        progress: called with the number of programs judged so far and the total number; or None.

    Returns:
        A verdict for each program, in order.

    Raises:
        InputError: in the same cases as for `judge`, or `workers` is below 1.

    Example:
        >>> [verdict.pass_rates for verdict in judge_all([Program("a = 1", ("assert a == 1",)), Program("", ("assert a == 1",))])]
        [(1.0,), (0.0,)]
    """
    cores = os.cpu_count()
    workers = workers if workers is not None else 1 if cores is None else cores
    if workers < 1:
        raise InputError(f"the sandbox cannot run {workers} programs at a time; `workers` must be at least 1.")
    at = level() if at is None else at
    patience = max(1.0, min(workers, len(programs)) / (1 if cores is None else cores))
    verdicts = []
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            for verdict in pool.map(lambda program: _check_and_judge(program, limits, at, patience), programs):
                verdicts.append(verdict)
                if progress is not None:
                    progress(len(verdicts), len(programs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # the other verdicts are no longer needed
            raise
    return verdicts


def _run(code: str, job: Mapping, limits: Limits, at: str, patience: float) -> list:
    """Have a launcher run a program and do a job with it (run tests or call a function), and return the launcher's reports.

    Raises:
        InputError: this machine cannot confine the program at this level.
    """
    reports = _collect_reports(code, job, limits, at, patience)
    if reports[-1]["ended"] == "not confined":
        reason = reports[-1]["reason"]
        raise InputError(
            f"the sandbox cannot confine a program at the level {at!r}: {reason}; choose another level."
        ) from OSError(reason)
    return reports


def _collect_reports(code: str, job: Mapping, limits: Limits, at: str, patience: float) -> list:
    """Start a launcher and collect its reports. If the launcher dies, retry once, unless the program could have killed it."""
    first = {"code": code, "level": at, "bounds": limits._asdict(), "patience": patience}
    try:
        return shared_service().judge(first, job)
    except LauncherError as error:
        if at == "rlimits" and not machine().own_user:
            return [{"ended": "died", "reason": str(error)}]
    return shared_service().judge(first, job)


_PROBE = """
import heapq, random, decimal

def works(text):
    return heapq.nsmallest(1, [text, "z"])[0]

def forks():
    import os
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        return False
    return True
"""


def _find_problem(name: str) -> str | None:
    """Return why a level does not work on this machine, or None if it does."""
    if os.name != "posix" or not sys.executable:
        return "not a POSIX system, or `sys.executable` is empty"
    if name != "rlimits" and not seccomp.is_available():
        return "there is no system call filter for this platform"
    try:
        verdict = judge(
            Program(_PROBE, ("assert works('a') == 'a'", "assert forks() is False")), Limits(seconds=10.0), name
        )
    except (InputError, OSError) as error:
        return str(error if error.__cause__ is None else error.__cause__)
    if verdict.ended == "done" and verdict.pass_rates == (1.0, 0.0):
        return "a program could start other processes"
    passes = verdict.pass_rates == (1.0, 1.0)
    return None if passes else f"a program that should pass does not ({verdict.ended}: {verdict.reason or 'wrong result'})"
