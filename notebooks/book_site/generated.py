"""Write the generated pages: `python -m book_site.generated FOLDER`."""

import sys
from pathlib import Path

import jax

from book_site import book, changes, claims, drawings, families, ideas, trainer
from rljax.algorithms import BY_NAME


def pages() -> dict[str, str]:
    """Every generated page by its name below the folder, without suffix."""
    return {
        **book.ops_pages(),
        **book.algorithm_pages(),
        **book.results_pages(),
        **claims.claims_pages(),
        "papers": book.papers_page(),
        "errata": book.errata_page(),
        "document_errata": book.document_errata_page(),
        "ideas": ideas.ideas_page(),
        "numbers": trainer.metrics_page(),
        "settings": trainer.settings_page(),
        "rewards": trainer.rewards_page(),
        **trainer.reward_pages(),
        **families.family_pages(),
        "changes": changes.changes_page(),
        "interface": trainer.interface_page(),
        "commands": trainer.commands_page(),
    }


def pictures() -> dict[str, str]:
    """Every drawing by its file name."""
    return {
        "data_path.svg": drawings.data_path(),
        "algorithm_map.svg": drawings.algorithm_map({name: f"{name}.html" for name in BY_NAME}),
    }


def write(folder: Path) -> None:
    """Write the pages that changed, so that Sphinx does not read the others again, and the pictures; delete pages that no longer
    exist."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{name}.md": f"{text}\n" for name, text in pages().items()}
    for file in set(folder.rglob("*.md")) - set(wanted):
        file.unlink()
    for file, text in wanted.items():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for name, drawing in pictures().items():
        (folder / name).write_text(drawing, encoding="utf-8")
    claims.claims_picture(folder / "claims.png")


if __name__ == "__main__":
    jax.config.update(
        "jax_disable_most_optimizations", True
    )  # the counterexamples are small; compiling is most of the work
    write(Path(sys.argv[1]))
