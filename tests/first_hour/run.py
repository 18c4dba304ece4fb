"""Run the first-hour scripts of five kinds of newcomers, each in a fresh clone and a fresh virtual environment.

    python tests/first_hour/run.py                      all five, about 20 minutes on two cores
    python tests/first_hour/run.py student researcher   only these two

Each script is what a newcomer types after `pip install -e .`: commands from the README and the site. The times and the
current commit are written to result.json. `test_first_hour.py` also runs the quick scripts (`QUICK`).
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEWCOMERS = tuple(sorted(path.stem for path in HERE.glob("*.sh")))


def run_script(person: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a newcomer's script in a folder; stop at the first command that fails."""
    subprocess.run(["bash", "-euo", "pipefail", str(HERE / f"{person}.sh")], cwd=folder, env=environment, check=True)


def install(folder: Path) -> dict[str, str]:
    """Clone the repository, install it as the README says, and return the environment variables for its commands."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    subprocess.run(
        "python3 -m venv .venv && .venv/bin/pip install --quiet -e .", shell=True, cwd=folder, check=True
    )  # the README's first line without `rljax train`, which is left to the scripts
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTHON", "VIRTUAL"))}
    caches = {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_HOME": str(folder / "cache" / "hub"),
    }  # a newcomer's caches are empty
    return own | caches | {"PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def main(persons: list[str]) -> None:
    """Run the scripts one after the other, and write the time of each to result.json."""
    unknown = set(persons) - set(NEWCOMERS)
    if unknown:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {', '.join(NEWCOMERS)}.")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    file = HERE / "result.json"
    rows = json.loads(file.read_text()) if file.exists() else {}
    for person in persons:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            environment = install(Path(folder, "rljax"))
            ready = time.monotonic()
            run_script(person, Path(folder, "rljax"), environment)
            rows[person] = {
                "commit": commit.stdout.strip(),
                "date": date.today().isoformat(),
                "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
                "install_seconds": round(ready - begin),
                "script_seconds": round(time.monotonic() - ready),
            }
            file.write_text(f"{json.dumps(rows, indent=1, sort_keys=True)}\n")
            print(f"{person}: {rows[person]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(NEWCOMERS))
