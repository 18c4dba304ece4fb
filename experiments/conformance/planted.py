"""The conformance kit on one hundred planted faults and on correct implementations in several styles.

    pip install -e . 'torch==2.13.0'
    python experiments/conformance/planted.py        (minutes)

Each fault of `faults.py` is planted separately into its source of `correct.py`, and `conform` names the slot in which the function
differs. Neither the sources nor the faults are taken from the kit's own tests. Requirements: each fault is found within a minute,
with a counterexample of at most 2 prompts x 2 responses x 3 tokens; the correct implementations pass.

Writes planted.json and planted.md next to this file, and exits with code 1 if a requirement is not met.
"""

import importlib
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.append(str(Path(__file__).resolve().parent))

import correct
import faults

from rljax.testing import conform, conform_gae

HERE = Path(__file__).resolve().parent
PLACES = {"grpo": (correct.GRPO, faults.GRPO), "dapo": (correct.DAPO, faults.DAPO), "gae": (correct.GAE, faults.GAE)}
"""Name -> the source, and the faults that are planted in it."""
SIZE = (2, 2, 3)
"""Largest number of prompts, responses and tokens of a counterexample; for GAE, of rows and tokens."""
SECONDS = 60


def compiled(source: str, name: str) -> Callable[..., Any]:
    """Compile the function of a source."""
    import math  # noqa: PLC0415  sources use it

    import numpy as np  # noqa: PLC0415

    names: dict[str, Any] = {"jnp": jnp, "jax": jax, "np": np, "math": math, "sg": jax.lax.stop_gradient}
    if "torch" in source:
        names["torch"] = importlib.import_module("torch")
    exec(source, names)
    return names[name]


def planted(name: str, old: str, new: str) -> Callable[..., Any]:
    """Compile a source's function with one fault.

    Raises:
        ValueError: the source does not have the text.
    """
    source = PLACES[name][0]
    if old not in source:
        raise ValueError(f"{old!r} is not in the source of {name}")
    return compiled(source.replace(old, new), name)


def judged(function: Callable[..., Any], name: str, arrays: str = "jax") -> dict[str, Any]:
    """Run the kit on a function."""
    start = time.perf_counter()
    if name == "gae":
        convention, text = conform_gae(function, arrays=arrays)  # pyright: ignore[reportArgumentType]
        found = convention is None or convention.ddof is not None
    else:
        report = conform(function, like=name, arrays=arrays)  # pyright: ignore[reportArgumentType]
        text, found = report.text, report.slot is not None
    return {"found": found, "seconds": round(time.perf_counter() - start, 1), "says": text}


def is_small(says: str) -> bool:
    """True if a report's counterexample is small enough; for GAE it shows one row of 3 tokens."""
    if says.startswith("differs from GAE"):
        return len(json.loads(re.search(r"rewards (\[.*?\])", says)[1])) <= SIZE[2]  # pyright: ignore[reportOptionalSubscript]
    shape = re.search(r"(\d+) prompts x (\d+) responses, lengths (\[\[.*?\]\])", says)
    if shape is None:
        return False
    longest = max(max(row) for row in json.loads(shape[3]))
    return all(size <= most for size, most in zip((int(shape[1]), int(shape[2]), longest), SIZE, strict=True))


def slot_of(says: str) -> str:
    """Return the slot that a report names."""
    found = re.match(r"differs from \w+ in: (.*?)(?:\.|\n)", says)
    return found[1] if found else "none"


def run_faults() -> list[dict[str, Any]]:
    """Make a row for each fault."""
    rows = []
    for name, (_, listed) in PLACES.items():
        for fault, old, new in listed:
            row = {"in": name, "fault": fault, **judged(planted(name, old, new), name)}
            rows.append(row | {"slot": slot_of(row["says"]), "small": is_small(row["says"])})
            print(f"{len(rows):3} {name} {fault}: {rows[-1]['slot']}", flush=True)
    return rows


def run_correct() -> list[dict[str, Any]]:
    """Make a row for each correct implementation; without PyTorch, print that its rows are left out."""
    rows = []
    for style, (name, arrays, source) in correct.CORRECT.items():
        if arrays == "torch" and importlib.util.find_spec("torch") is None:
            print(f"{style}: left out, PyTorch is not installed")
            continue
        rows.append({"style": style, "is": name, **judged(compiled(source, name), name, arrays)})
    return rows


def page(found: dict[str, Any]) -> str:
    """Format the page of results."""
    caught = [row for row in found["faults"] if row["found"] and row["small"]]
    passed = [row for row in found["correct"] if not row["found"]]
    lines = [
        "# The conformance kit against planted faults",
        "",
        f"**{len(caught)} of {len(found['faults'])}** planted faults are found, each with a counterexample of at most 2 prompts x",
        f"2 responses x 3 tokens; **{len(passed)} of {len(found['correct'])}** correct implementations pass. Made by",
        "`python experiments/conformance/planted.py`; the faults are in `faults.py`, and every report is in `planted.json`.",
        "Sources and faults are not those of the kit's own tests, but whoever wrote them had read these tests.",
        "",
        "| in | fault | slot that the report names | a known convention |",
        "|---|---|---|---|",
    ]
    for row in found["faults"]:
        named = re.search(r"It equals (.*?)\.?(?:\n|$)", row["says"])
        lines.append(f"| {row['in']} | {row['fault']} | {row['slot']} | {named[1] if named else ''} |")
    lines += ["", "| correct implementation | report |", "|---|---|"]
    lines += [f"| {row['style']} | {row['says'].splitlines()[0]} |" for row in found["correct"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run everything and write the result."""
    found = {"faults": run_faults(), "correct": run_correct()}
    slowest = max(row["seconds"] for rows in found.values() for row in rows)
    (HERE / "planted.md").write_text(page(found), encoding="utf-8")
    kept = {name: [{k: v for k, v in row.items() if k != "seconds"} for row in rows] for name, rows in found.items()}
    (HERE / "planted.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    missed = [row["fault"] for row in found["faults"] if not (row["found"] and row["small"])]
    refused = [row["style"] for row in found["correct"] if row["found"]]
    print(f"missed: {missed}; refused: {refused}; slowest: {slowest} s")
    return 1 if missed or refused or slowest > SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
