"""Run the notebooks and save them with their outputs, which the site shows.

    python tests/notebook_runs.py [NAME ...]

The tests in `tests/notebooks` run each notebook again and compare the outputs.
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


def read_notebook(name: str) -> nbformat.NotebookNode:
    """Read the notebook `notebooks/NAME.ipynb`."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_with_ids(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    """Every output of a notebook, with its cell's id."""
    return ((cell.id, output) for cell in code_cells(notebook) for output in cell.outputs)


def run_notebook(notebook: nbformat.NotebookNode, home: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a kernel of this interpreter, without reading or writing the user's home folder."""
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # so that no kernel installed elsewhere is used
        transport="ipc",
        connection_file=str(home / "kernel.json"),
    )
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # show pictures inline
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(NOTEBOOKS), os.environ.get("PYTHONPATH")])
        ),  # imports work as in the notebook's folder
    }
    client = NotebookClient(notebook, km=manager, timeout=300, resources={"metadata": {"path": str(ROOT)}})
    return client.execute(cleanup_kc=True, env=environment)


def drop_volatile(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop what changes between runs and is never shown: cell times, the kernel's version, and breaks within a stream."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = list(join_streams(cell.outputs))
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def join_streams(outputs: list[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Yield a cell's outputs, with consecutive pieces of the same stream joined."""
    for name, group in itertools.groupby(outputs, key=lambda output: output.get("name")):
        pieces = list(group)
        if name is not None:
            pieces[0].text = "".join(piece.text for piece in pieces)
        yield from pieces[: 1 if name is not None else None]


def run_and_save(name: str) -> None:
    """Run a notebook and save it with its outputs."""
    with tempfile.TemporaryDirectory(prefix="rljax") as home:  # a socket's path must be short
        executed = drop_volatile(run_notebook(read_notebook(name), Path(home)))
    nbformat.write(executed, NOTEBOOKS / f"{name}.ipynb")


if __name__ == "__main__":
    for notebook_name in sys.argv[1:] or sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb")):
        run_and_save(notebook_name)
