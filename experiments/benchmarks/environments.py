"""Environments of the peers: each has a virtual environment of its own, made once, with pinned versions.

rljax imports nothing of them, and they import nothing of rljax.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
PACKAGES = {
    "trl": [TORCH, "trl==1.16.0", "transformers==5.23.0"],
    "tunix": [TORCH, "google-tunix==0.1.7"],
    "rlax": ["rlax==0.1.9"],
    "transformers": [TORCH, "transformers==5.23.0"],
}
"""What is installed for each peer; torch comes first, so that no other build of it is pulled in."""
SHOWN = ("torch", "trl", "transformers", "google-tunix", "rlax", "jax", "jaxlib")
"""Packages whose versions a result names."""


def python_of(peer: str, work: Path) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there, or has other packages."""
    folder, wanted = work / peer, PACKAGES[peer]
    python, note = folder / "bin" / "python", folder / "packages.json"
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")) == wanted:
        return python
    print(f"making {folder}: {', '.join(wanted)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    for package in wanted:
        subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    note.write_text(json.dumps(wanted), encoding="utf-8")
    return python


def environment(side: str) -> dict[str, str]:
    """Variables of a side's process: the CPU, and for a peer no path to rljax."""
    variables = os.environ | {"JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if side != "rljax":
        variables.pop("PYTHONPATH", None)
    return variables


def versions(python: Path | str) -> dict[str, str]:
    """Versions of the packages that an interpreter finds."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    found = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)
    return {"Python": sys.version.split()[0]} | {name: found[name] for name in SHOWN if name in found}
