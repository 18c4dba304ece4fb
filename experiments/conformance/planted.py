"""Run the conformance kit (`rljax.testing`) on planted faults and on correct implementations in several styles.

    pip install -e . 'torch==2.13.0'
    python experiments/conformance/planted.py        (takes minutes)
    python experiments/conformance/planted.py second_faults

Each fault of `faults.py` is planted separately into its source of `correct.py`, and `conform` or `conform_gae` names the
slot (part) of the algorithm in which the function differs. Neither the sources nor the faults are taken from the kit's own
tests. With `second_faults`, the command does the same for the sources and faults of `second_faults.py`, which were written
without reading these tests. Requirements: each fault is found within a minute, with a counterexample of at most 2 prompts x
2 responses x 3 tokens, or with 3 responses if the fault has no effect on groups of 2; and all correct implementations pass.

Writes planted.json and planted.md, or second_faults.json and second_faults.md, next to this file. The exit code is 1 if a
requirement is not met.
"""

import argparse
import importlib
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).resolve().parent))

import correct
import faults
import second_faults

from rljax.testing import conform, conform_gae

HERE = Path(__file__).resolve().parent
SIZE = (2, 2, 3)
"""Largest numbers of prompts, responses and tokens in a counterexample; the rows of GAE count as responses."""
SECONDS = 60
"""Largest number of seconds that the kit may take for one function."""


class PlantedSource(NamedTuple):
    """A correct source, and the faults to plant in it."""

    like: str
    """Name of the algorithm that the source computes, which is also the name of its function."""
    source: str
    """The correct code."""
    faults: list[tuple[str, ...]]
    """For each fault, its name and pairs of texts: the text to replace, and its replacement."""
    arrays: str = "jax"
    """The array library of the code."""
    options: dict[str, Any] = {}  # noqa: RUF012  never mutated
    """Options of `conform`."""


SOURCES = {
    "grpo": PlantedSource("grpo", correct.GRPO, faults.GRPO),
    "dapo": PlantedSource("dapo", correct.DAPO, faults.DAPO),
    "gae": PlantedSource("gae", correct.GAE, faults.GAE),
}
"""Name -> source with faults of `faults.py`."""
SECOND_SOURCES = {
    "grpo": PlantedSource("grpo", second_faults.GRPO, second_faults.GRPO_FAULTS),
    "dapo": PlantedSource("dapo", second_faults.DAPO, second_faults.DAPO_FAULTS),
    "dapo with its overlong punishment": PlantedSource(
        "dapo", second_faults.OVERLONG, second_faults.OVERLONG_FAULTS, options={"cache": 2, "max_length": 4}
    ),
    "gae": PlantedSource("gae", second_faults.GAE, second_faults.GAE_FAULTS),
    "gae with returns, NumPy": PlantedSource("gae", second_faults.LOOP, second_faults.LOOP_FAULTS, arrays="numpy"),
}
"""Name -> source with faults of `second_faults.py`."""


def compile_source(source: str, name: str) -> Callable[..., Any]:
    """Compile the function of a source."""
    import math  # noqa: PLC0415  the sources use it

    names: dict[str, Any] = {"jnp": jnp, "jax": jax, "np": np, "math": math, "sg": jax.lax.stop_gradient}
    if "torch" in source:
        names["torch"] = importlib.import_module("torch")
    exec(source, names)
    return names[name]


def plant(planted: PlantedSource, *texts: str) -> Callable[..., Any]:
    """Compile a source's function with one fault: texts to replace, each followed by its replacement.

    Raises:
        ValueError: the source does not contain a text that is to be replaced.
    """
    source = planted.source
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        if old not in source:
            raise ValueError(f"{old!r} is not in the source of {planted.like}")
        source = source.replace(old, new)
    return compile_source(source, planted.like)


def run_kit(function: Callable[..., Any], name: str, arrays: str = "jax", **options: Any) -> dict[str, Any]:
    """Run the kit on a function; return whether the kit finds a difference, the seconds that it takes, and its report."""
    start = time.perf_counter()
    if name == "gae":
        convention, text = conform_gae(function, arrays=arrays)  # pyright: ignore[reportArgumentType]
        found = convention is None or convention.ddof is not None
    else:
        report = conform(function, like=name, arrays=arrays, **options)  # pyright: ignore[reportArgumentType]
        text, found = report.text, report.slot is not None
    return {"found": found, "seconds": round(time.perf_counter() - start, 1), "says": text}


def shape_of(says: str) -> tuple[int, int, int] | None:
    """Return the numbers of prompts (1 for GAE), responses and tokens in a counterexample; None if the report contains none."""
    if says.startswith("differs from GAE"):
        rows = re.search(r"rewards (\[.*?\]), values", says)
        shape = np.atleast_2d(json.loads(rows[1])).shape if rows else None
        return None if shape is None else (1, *shape)
    shape = re.search(r"(\d+) prompts x (\d+) responses, (lengths|mask) (\[\[.*?\]\]+)", says)
    if shape is None:
        return None
    numbers = np.array(json.loads(shape[4]))
    return int(shape[1]), int(shape[2]), int(numbers.max()) if shape[3] == "lengths" else numbers.shape[-1]


def is_small(says: str, most: tuple[int, int, int] = SIZE) -> bool:
    """True if a report's counterexample is small enough."""
    shape = shape_of(says)
    return shape is not None and all(size <= largest for size, largest in zip(shape, most, strict=True))


def slot_of(says: str) -> str:
    """Return the slot that a report names; "none" if it names no slot."""
    found = re.match(r"differs from \w+ in: (.*?)(?:\.|\n)", says)
    return found[1] if found else "none"


def size_limit_of(fault: str) -> tuple[int, int, int]:
    """Return the largest size that the counterexample of a fault may have."""
    return (SIZE[0], 3, SIZE[2]) if fault in second_faults.NEED_THREE_RESPONSES else SIZE


def run_faults(sources: dict[str, PlantedSource]) -> list[dict[str, Any]]:
    """Run the kit on each fault, one row per fault."""
    rows = []
    for name, planted in sources.items():
        for fault, *texts in planted.faults:
            row = {"in": name, "fault": fault}
            row |= run_kit(plant(planted, *texts), planted.like, planted.arrays, **planted.options)
            rows.append(row | {"slot": slot_of(row["says"]), "small": is_small(row["says"], size_limit_of(fault))})
            print(f"{len(rows):3} {name} {fault}: {rows[-1]['slot']}", flush=True)
    return rows


def run_second_sources() -> list[dict[str, Any]]:
    """Run the kit on each correct source of `second_faults.py`, one row per source."""
    rows = []
    for name, planted in SECOND_SOURCES.items():
        function = compile_source(planted.source, planted.like)
        rows.append(
            {"style": name, "is": planted.like, **run_kit(function, planted.like, planted.arrays, **planted.options)}
        )
    return rows


def run_correct() -> list[dict[str, Any]]:
    """Run the kit on each correct implementation, one row per style; if PyTorch is not installed, print which rows are left out."""
    rows = []
    for style, (name, arrays, source) in correct.CORRECT.items():
        if arrays == "torch" and importlib.util.find_spec("torch") is None:
            print(f"{style}: left out, PyTorch is not installed")
            continue
        rows.append({"style": style, "is": name, **run_kit(compile_source(source, name), name, arrays)})
    return rows


TITLES = {"planted": "# The conformance kit against planted faults", "second_faults": "# A second set of planted faults"}
PLANTED_PROVENANCE = [
    "`python experiments/conformance/planted.py`; the faults are in `faults.py`, and every report is in `planted.json`.",
    "Sources and faults are not those of the kit's own tests, but their author had read these tests.",
]
SECOND_PROVENANCE = [
    "`python experiments/conformance/planted.py second_faults`; the faults are in `second_faults.py`, and every report is in",
    "`second_faults.json`.",
    "Sources and faults were written without reading the conformance kit's tests. At that time, the kit found 136 of the",
    "144, only 115 of them with a counterexample of this size. It missed GAE that counts positions outside the mask, KL",
    "estimates that are clamped, and advantages that compare only two responses of a group; it now has cases of each kind.",
]


def format_page(found: dict[str, Any], which: str = "planted") -> str:
    """Format the results of one set of faults as a page in Markdown."""
    caught = [row for row in found["faults"] if row["found"] and row["small"]]
    with_three = [row for row in caught if row["fault"] in second_faults.NEED_THREE_RESPONSES]
    passed = [row for row in found["correct"] if not row["found"]]
    exception = f"; {len(with_three)} of them have no effect on groups of 2 responses, and need 3" if with_three else ""
    lines = [
        TITLES[which],
        "",
        f"**{len(caught)} of {len(found['faults'])}** planted faults are found, each with a counterexample of at most 2 prompts x",
        f"2 responses x 3 tokens{exception}.",
        f"**{len(passed)} of {len(found['correct'])}** correct implementations pass. The command for these results is",
        *(SECOND_PROVENANCE if which == "second_faults" else PLANTED_PROVENANCE),
        "",
        "| in | fault | slot that the report names | a known convention |",
        "|---|---|---|---|",
    ]
    for row in found["faults"]:
        named = re.search(r"It equals (?!no known)(.*?)\.?(?:\n|$)", row["says"])
        lines.append(f"| {row['in']} | {row['fault']} | {row['slot']} | {named[1] if named else ''} |")
    lines += ["", "| correct implementation | report |", "|---|---|"]
    lines += [f"| {row['style']} | {row['says'].splitlines()[0]} |" for row in found["correct"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the chosen set and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=["planted", "second_faults"], default="planted")
    which = parser.parse_args().which
    if which == "second_faults":
        found = {"faults": run_faults(SECOND_SOURCES), "correct": run_second_sources()}
    else:
        found = {"faults": run_faults(SOURCES), "correct": run_correct()}
    slowest = max(row["seconds"] for rows in found.values() for row in rows)
    (HERE / f"{which}.md").write_text(format_page(found, which), encoding="utf-8")
    kept = {name: [{k: v for k, v in row.items() if k != "seconds"} for row in rows] for name, rows in found.items()}
    (HERE / f"{which}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    missed = [row["fault"] for row in found["faults"] if not (row["found"] and row["small"])]
    refused = [row["style"] for row in found["correct"] if row["found"]]
    print(f"missed: {missed}; refused: {refused}; slowest: {slowest} s")
    return 1 if missed or refused or slowest > SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
