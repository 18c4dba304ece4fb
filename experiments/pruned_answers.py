"""Measure what pruned weights or an int8 cache change: greedy accuracy, answers, zeros and bytes.

A run answers its held-out problems. A model folder answers sums of two two-digit numbers in chat form; an answer is right if its
last number is the sum. The weights are pruned by `rljax export --prune`, and the cache is that of `--cache-dtype int8`. Rows that
are already in OUT.json are not measured again.

    python experiments/pruned_answers.py runs/first HuggingFaceTB/SmolLM2-135M-Instruct

It writes OUT.json and OUT.md.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from quantized_answers import last_number, make_sums

from lab.rows import add_missing_rows, write_page
from rljax.data.problem import Problem
from rljax.evaluation.statistics import wilson_interval
from rljax.models import Params
from rljax.parallel import make_mesh
from rljax.programs.export import export
from rljax.programs.trained_policy import OpenPolicy, is_run, load
from rljax.records import required
from rljax.rollout.decode_sizes import row_bytes
from rljax.rollout.groups import correctness_masks

VARIANTS = ("exact", "int8 cache", "0.2", "0.3", "0.5", "2:4")
"""Names of the variants; a fraction or a pattern is the value of `--prune`."""
OUT = Path(__file__).with_suffix("")


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    targets: tyro.conf.Positional[tuple[str, ...]]
    """Runs or model folders."""
    problems: int = 64
    """Number of sums for a model folder; a run answers all its held-out problems."""
    out: Path = OUT
    """Path of the output files, without the endings `.json` and `.md`."""


def open_target(target: str, problems: int, **options: Any) -> OpenPolicy:
    """Open a run with its own problems, or a model folder with sums."""
    own = {"problems": make_sums(problems), "reward": last_number, "chat": True, "max_response_tokens": 24}
    return load(target, **({} if is_run(target) else own), **options)


def pruned_params(target: str, prune: str) -> Params:
    """Export a pruned copy of a target, and return its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        pruned = Path(folder) / "pruned"
        export(target, pruned, prune=prune)
        return load(pruned, problems=[Problem("", "")]).params


def answer_greedily(opened: OpenPolicy, params: Params) -> tuple[np.ndarray, list[bytes]]:
    """Answer all problems greedily; return whether each answer is right, and the tokens of each answer as bytes."""
    count = len(opened.worker.prompts.problems)
    groups = opened.worker.generate(params, range(count), 1, jax.random.key(0))
    right, known = correctness_masks(groups.rollout)
    tokens = [row[mask].tobytes() for row, mask in zip(groups.tokens[:, 0], groups.attention[:, 0], strict=True)]
    return (right & known)[:, 0], tokens


@cache
def exact_answers(target: str, problems: int) -> tuple[OpenPolicy, tuple[np.ndarray, list[bytes]]]:
    """Open a target, and answer with its exact weights and cache."""
    opened = open_target(target, problems)
    return opened, answer_greedily(opened, opened.params)


def row_of(arguments: Arguments, target: str, variant: str) -> dict[str, Any]:
    """Measure one variant of one target."""
    opened, exact = exact_answers(target, arguments.problems)
    params = opened.params
    if variant == "int8 cache":
        opened = open_target(target, arguments.problems, cache_dtype="int8")
    elif variant != "exact":
        params = pruned_params(target, variant)
    right, answers = exact if variant == "exact" else answer_greedily(opened, params)
    decoder = required(opened.policy.decoder, "policy.decoder")
    per_token = row_bytes(decoder, params, make_mesh(1, 1), 64, 0) / 64
    return {
        "right": int(right.sum()),
        "answers": len(right),
        "equal": sum(one == other for one, other in zip(answers, exact[1], strict=True)),
        "weights": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "zeros": int(sum((leaf == 0).sum() for leaf in jax.tree.leaves(params) if jnp.ndim(leaf) > 1)),
        "cache_bytes": round(per_token),
    }


def report_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as a table in Markdown."""
    lines = [
        "| model | variant | accuracy | answers equal to the exact ones | zeros among all weights | cache, bytes per token |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = wilson_interval(row["right"], row["answers"])
        cells = (
            row["target"],
            row["variant"],
            f"{row['right'] / row['answers']:.1%} ({100 * low:.0f} to {100 * high:.0f})",
            f"{row['equal'] / row['answers']:.0%}",
            f"{row['zeros'] / row['weights']:.0%}",
            f"{row['cache_bytes']:,}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Measure the missing rows, and write the rows and the page."""
    file = arguments.out.with_suffix(".json")
    wanted = [{"target": target, "variant": variant} for target in arguments.targets for variant in VARIANTS]
    settings = f"{arguments.problems} problems, 24 tokens"
    rows = add_missing_rows(file, wanted, partial(row_of, arguments), settings=lambda _: settings)
    caption = (
        "greedy accuracy with its 95 % interval, and answers whose tokens equal those of the exact model. A pruned folder has the "
        "size of an exact one. The weights of SmolLM2 were dequantized from 4 bits."
    )
    write_page(file, f"python experiments/pruned_answers.py {' '.join(arguments.targets)}", caption, report_of(rows))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
