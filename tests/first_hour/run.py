"""The first hour of five newcomers: each path from the clone to a result, in a fresh clone and a fresh environment.

    python tests/first_hour/run.py                      all five, about 20 minutes on two cores
    python tests/first_hour/run.py student researcher   some of them

Each script is what its reader would type after `pip install -e .`, with commands of the README and of the site. The times and the
last commit go into result.json. The quick ones run in the test suite, too.
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
PERSONS = tuple(sorted(path.stem for path in HERE.glob("*.sh")))


def play(person: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a script in a folder as its reader would; stop at the first command that fails."""
    subprocess.run(["bash", "-euo", "pipefail", str(HERE / f"{person}.sh")], cwd=folder, env=environment, check=True)


def installed(folder: Path) -> dict[str, str]:
    """Clone, make an environment, and install as the README says; return the variables in which its commands are found."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    subprocess.run(
        "python3 -m venv .venv && .venv/bin/pip install --quiet -e .", shell=True, cwd=folder, check=True
    )  # the README's line without its last command, which the script decides on
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTHON", "VIRTUAL"))}
    caches = {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_HOME": str(folder / "cache" / "hub"),
    }  # those of a newcomer are empty
    return own | caches | {"PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def main(persons: list[str]) -> None:
    """Play the scripts one after the other and write down how long each took."""
    unknown = set(persons) - set(PERSONS)
    if unknown:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {', '.join(PERSONS)}.")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    file = HERE / "result.json"
    rows = json.loads(file.read_text()) if file.exists() else {}
    for person in persons:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            environment = installed(Path(folder, "rljax"))
            ready = time.monotonic()
            play(person, Path(folder, "rljax"), environment)
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
    main(sys.argv[1:] or list(PERSONS))
