"""Sphinx hooks: write the generated pages before Sphinx looks for sources, and make links point to them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests make the pages without Sphinx
    from sphinx.application import Sphinx

TABLES_WITH_PAGES = (
    "adaptation",
    "algorithm_by_phase",
    "arithmetic_algorithms",
    "arithmetic_distillation",
    "calculator",
    "constitution",
    "continual_anchor",
    "continual_memory",
    "federated",
    "hierarchical",
    "images_of_digits",
    "ablation_tables",
    "claims_on_transformer",
    "long_chain_algorithms",
    "prompt_consistency",
    "proposer_and_checker",
    "pruned_answers",
    "quantized_answers",
    "real/addition",
    "real/addition_algorithms",
    "real/addition_on_cpu",
    "real/gsm8k",
    "resources",
    "reward_exploit",
    "sampler_delay",
    "search_costs",
    "selector",
    "serving_filters",
    "stratified_sampling",
    "tasks_that_separate",
    "tool_throughput",
    "tuning",
    "turn_credit",
    "whole_episodes",
)
"""Tables in experiments/ that have a page of their own; `algorithms_slots` is left out because the algorithms page contains it."""


def write_generated_pages(app: "Sphinx") -> None:
    """Write the pages in a separate process: Sphinx forks, and a process in which JAX has started threads must not be forked."""
    source = Path(app.srcdir)
    folders = (str(source), str(source.parent / "experiments"), os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, folders))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-m", "book_site.generated", source / "generated"], env=environment, check=True)


def label_of(table: str) -> str:
    """Return the label of a table's page."""
    return f"page-{table.replace('/', '-').replace('_', '-')}"


def rewrite_links(app: "Sphinx", name: str, source: list[str]) -> None:
    """Make links to tables in experiments/, which work in the repository, point to the site's pages for these tables."""
    text = source[0].replace("../experiments/algorithms_slots.md", "#page-algorithms")
    for table in TABLES_WITH_PAGES:
        text = text.replace(f"../experiments/{table}.md", f"#{label_of(table)}")
    source[0] = text


def setup(app: "Sphinx") -> dict[str, bool]:
    """Connect both hooks."""
    app.connect("builder-inited", write_generated_pages)
    app.connect("source-read", rewrite_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
