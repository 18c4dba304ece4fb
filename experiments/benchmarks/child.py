"""Run one side of a benchmark case: for each line read from stdin, run one round and write how long it took.

    python child.py SIDE CASE FOLDER

The parent alternates between the two sides of a case, so that both run under the same machine load.
"""

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

START = time.perf_counter()


class ParentChannel:
    """Connection to the parent process, which requests rounds and receives their times."""

    def __init__(self):
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # output of libraries must not look like an answer
        self._since = 0.0

    def wait(self) -> None:
        """Wait until the parent requests a round; end the process if the parent has closed the pipe."""
        if not sys.stdin.readline():
            os._exit(0)
        self._since = time.perf_counter()

    def done(self, **parts: float) -> None:
        """Write the seconds since `wait` returned and since the process began, its peak memory, and parts of the round."""
        now = time.perf_counter()
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures = {"seconds": now - self._since, "since_start": now - START, "peak_bytes": peak}
        self._answers.write(json.dumps(figures | parts) + "\n")

    def run_rounds(self, work: Callable[[], object]) -> None:
        """Call `work` once per request; it must block until its computation is finished."""
        while True:
            self.wait()
            work()
            self.done()


def main() -> None:
    """Run the rounds of one case."""
    side, case, folder = sys.argv[1:]
    parent = ParentChannel()
    cases = importlib.import_module(f"sides.{side}").CASES
    cases[case](Path(folder), parent)


if __name__ == "__main__":
    main()
