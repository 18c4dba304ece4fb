"""A process that does one side's work of one case: it answers the seconds of a round for each line that it reads.

    python child.py SIDE CASE FOLDER

The parent lets the two sides of a case take turns, so that both meet the same state of the machine.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

BEGUN = time.perf_counter()


class Pace:
    """When to begin a round, and when it has ended."""

    def __init__(self):
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever a library prints is no answer
        self._since = 0.0

    def wait(self) -> None:
        """Wait until the parent asks for a round; at the end of the parent's questions the process ends."""
        if not sys.stdin.readline():
            os._exit(0)
        self._since = time.perf_counter()

    def done(self) -> None:
        """Answer the seconds since `wait` has returned, and those since the process has begun."""
        now = time.perf_counter()
        self._answers.write(json.dumps({"seconds": now - self._since, "since_start": now - BEGUN}) + "\n")

    def rounds(self, work: Callable[[], object]) -> None:
        """Do the work once for each question; it must have ended when it returns."""
        while True:
            self.wait()
            work()
            self.done()


def main() -> None:
    """Do the rounds of one case."""
    side, case, folder = sys.argv[1:]
    pace = Pace()
    cases = importlib.import_module(f"sides.{side}").CASES
    cases[case](Path(folder), pace)


if __name__ == "__main__":
    main()
