"""Run the notebooks and keep their outputs, which the site shows.

    python tests/notebook_runs.py [NAME ...]

`tests/notebooks` runs them again and compares.
"""

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"


def read(name: str) -> nbformat.NotebookNode:
    """Read the notebook `notebooks/NAME.ipynb`."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    """Every output, with the id of its cell."""
    return ((cell.id, output) for cell in code_cells(notebook) for output in cell.outputs)


def run(notebook: nbformat.NotebookNode, home: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a kernel of this interpreter, which does not read or write the user's home folder."""
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # no kernel installed elsewhere may replace it
        transport="ipc",
        connection_file=str(home / "kernel.json"),
    )
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # pictures inline
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(NOTEBOOKS), os.environ.get("PYTHONPATH")])
        ),  # as in the notebook's folder
    }
    client = NotebookClient(notebook, km=manager, timeout=300, resources={"metadata": {"path": str(ROOT)}})
    return client.execute(cleanup_kc=True, env=environment)


def drop_volatile(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop what changes from run to run and is never shown: cell times, the kernel's version, and breaks within a stream."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = list(join_streams(cell.outputs))
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def join_streams(found: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Yield a cell's outputs, with consecutive pieces of the same stream joined."""
    for name, group in itertools.groupby(found, key=lambda output: output.get("name")):
        pieces = list(group)
        if name is not None:
            pieces[0].text = "".join(piece.text for piece in pieces)
        yield from pieces[: 1 if name is not None else None]


def keep_outputs(name: str) -> None:
    """Run a notebook and save it with its outputs."""
    with tempfile.TemporaryDirectory(prefix="rljax") as home:  # a socket's path is short
        executed = drop_volatile(run(read(name), Path(home)))
    nbformat.write(executed, NOTEBOOKS / f"{name}.ipynb")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb")):
        keep_outputs(chosen)
