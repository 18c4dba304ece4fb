"""Write the pages that code makes into `notebooks/generated`, before Sphinx reads them."""

from pathlib import Path

import jax
from sphinx.application import Sphinx

from book_site import book, trainer

FOLDER = "generated"


def pages() -> dict[str, str]:
    """Every generated page by its name below `generated`, without suffix."""
    return {
        **book.ops_pages(),
        **book.algorithm_pages(),
        **book.results_pages(),
        "papers": book.papers_page(),
        "errata": book.errata_page(),
        "settings": trainer.settings_page(),
        "rewards": trainer.rewards_page(),
        "interface": trainer.interface_page(),
        "commands": trainer.commands_page(),
    }


def write(app: Sphinx) -> None:
    """Write what has changed, so that Sphinx reads no page twice; delete what no longer exists."""
    folder = Path(app.srcdir) / FOLDER
    jax.config.update(
        "jax_disable_most_optimizations", True
    )  # the counterexamples of the errata are small; compiling is most of it
    wanted = {folder / f"{name}.md": f"{text}\n" for name, text in pages().items()}
    for file in set(folder.rglob("*.md")) - set(wanted):
        file.unlink()
    for file, text in wanted.items():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def at_home(app: Sphinx, name: str, source: list[str]) -> None:
    """Lead links to the files of experiments/, which are right in the repository, to the pages that they have here."""
    text = source[0].replace("../experiments/algorithms_slots.md", "#page-algorithms")
    for table in book.RESULTS:
        text = text.replace(f"../experiments/{table}.md", f"#page-{table.replace('_', '-')}")
    source[0] = text


def setup(app: Sphinx) -> dict[str, bool]:
    """Write before the sources are looked for."""
    app.connect("builder-inited", write)
    app.connect("source-read", at_home)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
