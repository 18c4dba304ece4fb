"""Trainer experiments: experiments with training runs, whose comparisons get a verdict by the rule in experiments/lab/claims.py.

Each takes minutes to hours, and its result is a table.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from rljax.files import experiments_folder


class TrainerExperiment(NamedTuple):
    """A file in experiments/ whose comparisons get a verdict from `verdict_of` of experiments/lab/claims.py."""

    name: str
    """Name of the file, without its suffix."""
    text: str
    """The file's docstring: question, setting, command, deviations."""
    command: str
    """The command that runs the experiment, and how long it takes."""
    table: str
    """The committed results, as Markdown."""

    @property
    def question(self) -> str:
        """First line of the docstring."""
        return self.text.split("\n")[0]


def trainer_experiments() -> dict[str, Path]:
    """Find the files in experiments/ that import `verdict_of` or `verdict_table` by name, in alphabetical order."""
    files = sorted(experiments_folder().glob("*.py"))
    return {file.stem: file for file in files if _imports_verdict(ast.parse(file.read_text(encoding="utf-8")))}


def _imports_verdict(tree: ast.Module) -> bool:
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lab.")]
    return any(name.name in ("verdict_of", "verdict_table") for node in imports for name in node.names)


def read_trainer_experiment(file: Path) -> TrainerExperiment:
    """Read an experiment of `trainer_experiments` with its committed results; nothing is run.

    Raises:
        ValueError: the docstring has no command.
    """
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    command = re.search(r"^Command:\n\n    (python .+?) +(\(.+\))$", text, re.MULTILINE)
    if command is None:
        raise ValueError(f"{file} must have a command, and its duration in parentheses, after `Command:`")
    table = file.with_suffix(".md").read_text(encoding="utf-8").strip()
    return TrainerExperiment(file.stem, text, f"`{command[1]}` {command[2]}", table)
