"""Every notebook runs from top to bottom and draws what it promises; it is committed without its outputs."""

import os
import tempfile
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {"ppo_grpo_dapo_vapo": 11, "errata": 8}  # at least as many pictures; a new notebook adds its line
LONGEST_CELL = 24


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run(notebook, home: Path):
    """Execute in a kernel of this very interpreter, which reads and leaves nothing in the user's home."""
    manager = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # of the kernels installed anywhere, none may stand in
        transport="ipc",
        connection_file=str(home / "kernel.json"),
    )
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # pictures inline
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "IPYTHONDIR": str(home / "ipython"),
    }
    client = NotebookClient(notebook, km=manager, timeout=300, resources={"metadata": {"path": str(ROOT)}})
    return client.execute(cleanup_kc=True, env=environment)


@pytest.fixture(scope="module", params=FIGURES)
def executed(request):
    with tempfile.TemporaryDirectory(prefix="rljax") as home:  # pytest's own folders are too deep for a socket's path
        yield request.param, run(read(request.param), Path(home))


def outputs(notebook):
    return [(cell.id, output) for cell in code_cells(notebook) for output in cell.outputs]


def test_every_notebook_is_executed():
    assert {file.stem for file in (ROOT / "notebooks").rglob("*.ipynb")} == set(FIGURES)


def test_it_runs_without_an_error_or_a_warning(executed):
    _, notebook = executed
    complaints = [
        (cell, output)
        for cell, output in outputs(notebook)
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert complaints == []
    assert all(cell.execution_count for cell in code_cells(notebook))


def test_it_draws_its_figures(executed):
    name, notebook = executed
    pictures = [cell for cell, output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) >= FIGURES[name], pictures


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_committed_without_outputs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        assert cell.metadata == {}, cell.id
    for cell in code_cells(notebook):
        assert cell.outputs == [], cell.id
        assert cell.execution_count is None, cell.id


@pytest.mark.parametrize("name", FIGURES)
def test_its_cells_are_short(name):
    for cell in code_cells(read(name)):
        assert cell.source.count("\n") < LONGEST_CELL, cell.id
