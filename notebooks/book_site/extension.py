"""Sphinx's part of the generated pages: have them written before the sources are looked for, and lead links to them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests make the pages without Sphinx
    from sphinx.application import Sphinx

RESULTS = (
    "adaptation",
    "arithmetic_algorithms",
    "arithmetic_distillation",
    "calculator",
    "constitution",
    "continual_anchor",
    "images_of_digits",
    "long_chain_algorithms",
    "quantized_answers",
    "reward_exploit",
    "sampler_delay",
    "search_costs",
    "selector",
    "serving_filters",
    "tasks_that_separate",
    "tuning",
)
"""Tables in experiments/ that have a page; the table of slots is part of the page of algorithms."""


def write(app: "Sphinx") -> None:
    """Write the pages in a process of their own: JAX's threads and Sphinx's forks do not go together."""
    source = Path(app.srcdir)
    folders = (str(source), str(source.parent / "experiments"), os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, folders))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-m", "book_site.generated", source / "generated"], env=environment, check=True)


def at_home(app: "Sphinx", name: str, source: list[str]) -> None:
    """Lead links to the tables of experiments/, which are right in the repository, to the pages that they have here."""
    text = source[0].replace("../experiments/algorithms_slots.md", "#page-algorithms")
    for table in RESULTS:
        text = text.replace(f"../experiments/{table}.md", f"#page-{table.replace('_', '-')}")
    source[0] = text


def setup(app: "Sphinx") -> dict[str, bool]:
    """Connect both."""
    app.connect("builder-inited", write)
    app.connect("source-read", at_home)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
