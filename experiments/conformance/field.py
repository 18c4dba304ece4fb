"""Which algorithms do TRL, verl, Tunix and OpenRLHF compute? Test their own functions with `rljax.testing`.

    python experiments/conformance/field.py --work /tmp/field        (takes minutes; pip makes an environment for each library)

Every library has its own environment with pinned versions, in which rljax is not installed. `library_losses.py` runs there and
calls the library's functions on the small rollouts of `rljax.testing`, in float64 if the library allows it. Writes field.json and
field.md next to this file, and exits with code 1 if a row differs from the committed result.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from rljax.testing.loss_conventions import LIKE, Convention, difference

HERE = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
PACKAGES: dict[str, list[list[str]]] = {
    "trl": [[TORCH], ["trl==1.16.0", "transformers==5.23.0", "jaxtyping==0.3.11"]],
    "verl": [[TORCH], ["verl==0.9.1", "jaxtyping==0.3.11"]],
    "tunix": [["google-tunix==0.1.7"]],
    "openrlhf": [[TORCH], ["--no-deps", "openrlhf==0.11.2"], ["numpy", "jaxtyping==0.3.11"]],
}
"""Packages that pip installs for each library, one call after another; only the losses of OpenRLHF are needed, not a cluster."""
LIBRARIES = {"trl": "TRL 1.16.0", "verl": "verl 0.9.1", "tunix": "Tunix 0.1.7", "openrlhf": "OpenRLHF 0.11.2"}
UNSTATED = {"eps", "ddof", "kept"}
"""Choices that papers do not state (the deviation's eps and ddof) or that libraries make before the loss (which groups to keep)."""
TOKENS = "PPO's clipped loss over all tokens: a token of a long response has the same weight as a token of a short one."
CLAMPED = "Each token's KL is clamped to [-10, 10], beyond which it has no gradient (erratum 11 of `rljax errata` on verl)."
WHITENED = "The normalization is inside the function that is called GAE; the returns are those of plain GAE."
NOTES: dict[tuple[str, str], str] = {
    ("trl", "GRPO, default loss"): (
        "Documented: `loss_type` is `dapo` unless it is set, because the mean over a sequence favors short right answers."
    ),
    ("trl", "BNPO"): "Documented; the mean is over the tokens of the local batch.",
    ("trl", "CISPO"): "`epsilon_high` is the bound of the ratio itself, so the paper's 1 + 0.28 is written 1.28.",
    (
        "trl",
        "RLOO",
    ): "A clipped ratio of the response in place of its log-probability; at ratio 1 the gradient is the paper's.",
    ("verl", "GRPO, documented defaults"): (
        "Documented: `token-mean` is verl's default, and its page on GRPO names the paper's mean. `clip_ratio_c = 3` adds the dual "
        "clip to the clipped loss. Each token's KL is clamped to [-10, 10] (erratum 11 of `rljax errata`)."
    ),
    (
        "verl",
        "GRPO, loss of the paper",
    ): "The dual clip cannot be switched off; a high `clip_ratio_c` keeps it out of reach. The KL is clamped, as above.",
    (
        "verl",
        "Dr.GRPO",
    ): "The dual clip, as above. Without `loss_scale_factor` the sum is divided by the width of the padded batch.",
    ("verl", "DAPO"): "The recipe's `clip_ratio_c = 10` is above every ratio here. Groups are filtered before the loss.",
    ("verl", "RLOO"): TOKENS,
    ("verl", "GAE"): WHITENED,
    ("tunix", "GRPO, default settings"): (
        "Documented: `kl_loss_mode` is `kl`, the plain difference. As a term of the loss its expected gradient on policy is 0 "
        "(erratum 13 of `rljax errata`); `low_var_kl` is the paper's."
    ),
    ("tunix", "Dr.GRPO"): (
        "The sum is divided by the width of the padded batch. Its learner pads every response to one length, so that this is "
        "the paper's constant there."
    ),
    ("tunix", "DAPO"): "Groups would be filtered before the loss.",
    ("tunix", "GAE"): WHITENED,
    ("openrlhf", "GRPO"): "The default is a mean over the tokens of the batch. Each token's KL is clamped to [-10, 10].",
    ("openrlhf", "GRPO, loss of the paper"): CLAMPED,
    ("openrlhf", "Dr.GRPO"): (
        "`dr_grpo` is the advantage without the deviation; the loss stays a mean over tokens, not a sum over a constant."
    ),
    ("openrlhf", "RLOO"): TOKENS,
    ("openrlhf", "GAE, before its normalization"): (
        "Rewards and values are 0 outside `action_mask`, and the recursion runs over every slot: a token before an observation "
        "has the next value 0. The trainer then normalizes over the tokens of the batch with ddof 0, unless `no_std_norm` is set."
    ),
}
"""Notes on rows, from the library's code; "Documented" if its documentation was read as well."""


def make_environment(library: str, work: Path) -> Path:
    """Return the interpreter of a library's environment; make the environment if it is missing.

    Raises:
        SystemExit: pip cannot install the packages, for example without a network.
    """
    folder = work / library
    python, note = folder / "bin" / "python", folder / "packages.json"
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")) == PACKAGES[library]:
        return python
    venv.create(folder, with_pip=True)
    for packages in PACKAGES[library]:
        if subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=False).returncode:
            raise SystemExit(
                f"pip cannot install what {library} needs: {' '.join(packages)}; leave {library} out with --libraries."
            )
    note.write_text(json.dumps(PACKAGES[library]), encoding="utf-8")
    return python


def run_library(library: str, work: Path) -> list[dict[str, Any]]:
    """Run `library_losses.py` for a library, and add verdicts to its rows."""
    variables = os.environ | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(HERE.parents[1])}
    command = [make_environment(library, work), HERE / "library_losses.py", library]
    done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return [
        with_verdict({"library": library} | {k: v for k, v in row.items() if k not in ("function", "rtol")})
        for row in found
    ]


def with_verdict(row: dict[str, Any]) -> dict[str, Any]:
    """Add the verdict to a row: a key of `WORDS`."""
    like = row["like"]
    if row["convention"] is None:
        slot = re.match(r"differs from \w+ in: ([\w ]+)", row["says"])
        return row | {"verdict": CONDITIONS.get(slot[1] if slot else "", "differs")}
    if like == "gae":
        changed = {} if row["says"] == "equals GAE" else {"normalization": 1}
    else:
        changed = difference(Convention(**row["convention"]), LIKE[like])
    return row | {"verdict": "convention" if set(changed) - UNSTATED else "paper"}


CONDITIONS = {"padding": "width", "gaps between tokens": "gaps"}
"""Property of the input that should not matter, but changes a function's result -> verdict."""
WORDS = {
    "paper": "the paper",
    "convention": "a named convention",
    "width": "the paper, at one width of all batches",
    "gaps": "the paper, for rows without gaps",
    "differs": "no known convention",
}
"""Verdict -> text of its table cell."""


def cell_text(row: dict[str, Any]) -> str:
    """Format the convention of a row for a cell of the table."""
    first = row["says"].splitlines()[0]
    if row["verdict"] == "gaps":
        return (
            row["says"].splitlines()[-1].strip(" .").removeprefix("Without gaps it equals ")
            + ", without gaps between tokens"
        )
    return first.split("It equals ")[-1].removeprefix("equals ").removeprefix(f"differs from {row['like']} in: ")


def format_example(row: dict[str, Any]) -> list[str]:
    """Format the smallest example in which a row differs from its paper."""
    numbers = [line for line in row["says"].splitlines()[1:] if line.startswith("  ")]
    if not numbers:
        return []
    title = f"**{LIBRARIES[row['library']]}, {row['algorithm']}**: {row['says'].splitlines()[0]}"
    return [title, "", "```text", *(line.removeprefix("  ") for line in numbers), "```", ""]


def format_page(rows: list[dict[str, Any]]) -> str:
    """Format the page of all libraries."""
    count = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in WORDS}
    lines = [
        f"{len(rows)} algorithms of {len({row['library'] for row in rows})} libraries: {count['paper']} equal the paper,",
        f"{count['convention']} equal a named convention, {count['width']} equals the paper if all batches have one width, and",
        f"{count['gaps']} if no slot between two tokens is outside the mask.",
        "The papers state neither the eps nor the ddof of their standard deviation, and these libraries choose the groups",
        "(`kept`) before the loss: none of these counts as a difference. DAPO's mean is that of its authors' recipe, over the",
        "batch; Eq. 8 has it within a prompt (erratum 4 of `rljax errata`).",
        "",
        "| library | algorithm | settings | equals | in the words of `rljax conform` |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (LIBRARIES[row["library"]], row["algorithm"], f"`{row['settings']}`", WORDS[row["verdict"]], cell_text(row))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Notes on the rows:", ""]
    for (library, algorithm), note in NOTES.items():
        lines.append(f"- {LIBRARIES[library]}, {algorithm}: {note}")
    lines += ["", "The smallest example of each row that differs from its paper:", ""]
    for row in rows:
        if row["verdict"] != "paper":
            lines += format_example(row)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Run all libraries and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the environments")
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    arguments = parser.parse_args()
    file = HERE / "field.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    rows = [row for row in before if row["library"] not in arguments.libraries]
    for library in arguments.libraries:
        rows += run_library(library, arguments.work)
    rows.sort(key=lambda row: list(LIBRARIES).index(row["library"]))
    file.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (HERE / "field.md").write_text(format_page(rows), encoding="utf-8")
    changed = [f"{row['library']} {row['algorithm']}" for row in rows if before and row not in before]
    print(f"{len(rows)} rows; changed: {', '.join(changed) or 'none'}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
