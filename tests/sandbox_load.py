"""Measure whether an overloaded sandbox misjudges programs, and how long one program takes on an idle machine.

Overload: many more programs than cores run at once. Three quarters of the programs are right: some need much of their time
limit, others almost none; some compute, some sleep, some use threads. The rest are wrong: they return a wrong value,
never end, or sleep past the limit. Every verdict must be the same as when the program runs alone.

Latency: small programs run one after another, at each isolation level that the machine offers. With `--real-time`, this is
measured at a priority above everything else on the machine (Linux, as root), so that a busy machine acts like an idle one.
Overload is always measured at ordinary priority.

Command:

    python tests/sandbox_load.py --real-time --out tests/sandbox_load

The command writes sandbox_load.json.
"""

import json
import os
import platform
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from rljax.rewards.sandbox import LEVELS, Limits, Program, judge, judge_all, level
from rljax.rewards.sandbox.fork_server_client import shared_service

RIGHT = {
    "small": "def f(x): return x + 1",
    "computes 0.3 s": """
import time
def f(x):
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
    return x + 1
""",
    "computes 2 s of 5": """
import time
def f(x):
    end = time.process_time() + 2.0
    while time.process_time() < end: pass
    return x + 1
""",
    "sleeps 1 s": "import time\ndef f(x):\n    time.sleep(1.0)\n    return x + 1",
    "imports": "import decimal, random, datetime, statistics, itertools\ndef f(x): return int(decimal.Decimal(x) + 1)",
    "threads": """
import threading
def f(x):
    found = []
    threads = [threading.Thread(target=lambda: found.append(sum(range(10**5)))) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return x + len(found) - 7
""",
}
WRONG = {
    "wrong value": "def f(x): return x - 1",
    "endless": "def f(x):\n    while True: pass",
    "sleeps on": "import time\ndef f(x): time.sleep(60)",
}


@dataclass(frozen=True)
class Settings:
    """Measure the sandbox with and without load."""

    out: Path = field(default=Path("tests/sandbox_load"))
    """Where to write the result, without the file extension."""
    programs: int = 200
    """Number of programs that run at once."""
    repetitions: int = 60
    """Number of measurements of each latency."""
    real_time: bool = False
    """Measure the latency at real-time priority."""


def latency(at: str, repetitions: int) -> dict[str, float]:
    """Measure the milliseconds from the call to the verdict for one small program, after a warm-up call."""
    program = Program(RIGHT["small"], ("assert f(1) == 2",))
    judge(program, at=at)
    milliseconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        if judge(program, at=at).pass_rates != (1.0,):
            raise RuntimeError("a right program has failed")
        milliseconds.append((time.perf_counter() - start) * 1e3)
    deciles = statistics.quantiles(milliseconds, n=10)
    return {
        "median": statistics.median(milliseconds),
        "tenth": deciles[0],
        "ninetieth": deciles[-1],
        "smallest": min(milliseconds),
    }


def overload(count: int) -> dict[str, object]:
    """Judge many programs at once, and count the verdicts that differ from those for the same programs run alone."""
    kinds = [list(WRONG)[i // 4 % len(WRONG)] if i % 4 == 3 else list(RIGHT)[i % len(RIGHT)] for i in range(count)]
    programs = [Program((RIGHT | WRONG)[kind], ("assert f(1) == 2",)) for kind in kinds]
    start = time.perf_counter()
    verdicts = judge_all(programs, Limits(), workers=count)
    seconds = time.perf_counter() - start
    misjudged = Counter(
        f"{kind}: {verdict.pass_rates[0]:g}, {verdict.ended}"
        for kind, verdict in zip(kinds, verdicts, strict=True)
        if verdict.pass_rates != ((1.0,) if kind in RIGHT else (0.0,))
    )
    return {
        "programs": count,
        "at once": count,
        "right": sum(kind in RIGHT for kind in kinds),
        "misjudged": sum(misjudged.values()),
        "which": dict(misjudged),
        "seconds": round(seconds, 1),
    }


def main(settings: Settings) -> None:
    """Run both measurements and save them."""
    strongest = level()
    before = os.getloadavg()[0]
    shared_service().close()  # The next service inherits this process's priority.
    if settings.real_time:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    latencies = {
        at: {name: round(value, 1) for name, value in latency(at, settings.repetitions).items()}
        for at in LEVELS[LEVELS.index(strongest) :]
    }
    if settings.real_time:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    shared_service().close()
    result: dict[str, object] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}, {platform.machine()}",
        "python": platform.python_version(),
        "level": strongest,
        "load before": round(before, 2),
        "priority of the latency": "real-time" if settings.real_time else "ordinary",
        "latency in ms": latencies,
        "overload": overload(settings.programs),
    }
    text = json.dumps(result, indent=2)
    print(text)
    settings.out.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Settings))
