"""Virtual environments of the peers, the libraries that rljax is compared with.

Each peer has its own environment with pinned versions, created once. rljax and the peers do not import each other.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import rljax

HERE = Path(__file__).resolve().parent
TORCH, JAX = "torch==2.13.0", ("jax==0.10.2", "jaxlib==0.10.2")
PACKAGES = {
    "trl": [TORCH, "trl==1.16.0", "transformers==5.23.0", "peft==0.21.2"],
    "tunix": [TORCH, *JAX, "flax==0.12.8", "optax==0.2.8", "transformers==5.12.1", "google-tunix==0.1.7"],
    "rlax": [*JAX, "rlax==0.1.9"],
    "transformers": [TORCH, "transformers==5.23.0"],
}
"""Packages of each peer, installed in a single pip call, so that pip refuses incompatible versions."""
RECORDED = ("torch", "trl", "peft", "transformers", "google-tunix", "rlax", "jax", "jaxlib", "flax", "optax", "numpy")
"""Packages whose versions are recorded in the results."""


def python_of(peer: str, work: Path) -> Path:
    """Return the interpreter of a peer's environment; make the environment if it is missing or has other packages.

    Raises:
        SystemExit: pip cannot install the packages, for example without a network.
    """
    folder, wanted = work / peer, PACKAGES[peer]
    python, note = folder / "bin" / "python", folder / "packages.json"
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")) == wanted:
        return python
    print(f"making {folder}: {', '.join(wanted)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    if subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=False).returncode:
        raise SystemExit(
            f"pip cannot install what {peer} needs ({', '.join(wanted)}); see the output above, or run without {peer}."
        )
    note.write_text(json.dumps(wanted), encoding="utf-8")
    return python


def environment_variables(side: str, platform: str = "cpu", *, cache: Path | None = None) -> dict[str, str]:
    """Build the environment variables for a process of rljax or of a peer.

    A peer gets no PYTHONPATH, so that it cannot import rljax.

    Args:
        side: rljax or a peer.
        platform: JAX's platform.
        cache: folder in which JAX keeps compiled programs; None keeps none.
    """
    variables = os.environ | {"JAX_PLATFORMS": platform, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    if cache is not None:
        variables |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    if side != "rljax":
        variables.pop("PYTHONPATH", None)
    return variables


def package_versions(python: Path | str) -> dict[str, str]:
    """Return the versions of Python and of the `RECORDED` packages that an interpreter finds."""
    code = (
        "import importlib.metadata as m, json, platform; found = {d.metadata['Name']: d.version for d in m.distributions()}; "
        "print(json.dumps(found | {'Python': platform.python_version()}))"
    )
    found = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)
    return {name: found[name] for name in ("Python", *RECORDED) if name in found}


def describe_commit() -> str:
    """Describe the commit of these files, or give a hash of the sources if git finds no commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = " with changes" if git("status", "--porcelain", "--", "../../rljax", ".") else ""
        return f"commit {git('rev-parse', '--short=12', 'HEAD')}{changed}"
    except (FileNotFoundError, subprocess.CalledProcessError):
        sources = b"".join(file.read_bytes() for file in sorted(Path(rljax.__file__).parent.rglob("*.py")))
        return f"no git commit; hash of the sources {hashlib.sha256(sources).hexdigest()[:12]}"


def own_versions() -> dict[str, str]:
    """Return the version and commit of the rljax being benchmarked, and the versions of its packages."""
    return {"rljax": f"{rljax.__version__} ({describe_commit()})"} | package_versions(sys.executable)
