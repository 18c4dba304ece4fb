"""Every notebook runs from top to bottom and draws its figures, and its committed outputs match its code."""

import ast
import re
import tempfile
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from notebook_runs import NOTEBOOKS, code_cells, drop_volatile, outputs_with_ids, read_notebook, run_notebook

LOOPS = ("own_loop_nnx", "own_loop_equinox")  # notebooks that use the equations in their own training loop
# notebook -> its minimum number of pictures; every new notebook must be added here
MIN_PICTURES = {
    "ppo_grpo_dapo_vapo": 11,
    "errata": 8,
    "own_loop_nnx": 2,
    "own_loop_equinox": 2,
    "own_model_in_the_trainer": 1,
}
EXTRA_PACKAGES = {"own_loop_equinox": "equinox"}  # notebook -> the package that it imports and that rljax does not install
LONGEST_CELL = 24
LONGEST_LOOP = 50


@pytest.fixture(scope="module", params=MIN_PICTURES)
def run_result(request):
    package = EXTRA_PACKAGES.get(request.param)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{request.param}.ipynb needs {package}, which is not installed")
    with tempfile.TemporaryDirectory(prefix="rljax") as home:  # pytest's own folders are too deep for a socket's path
        yield request.param, run_notebook(read_notebook(request.param), Path(home))


def test_every_notebook_is_listed():
    assert {file.stem for file in NOTEBOOKS.rglob("*.ipynb")} == set(MIN_PICTURES)


def test_notebook_runs_without_errors_or_warnings(run_result):
    _, notebook = run_result
    complaints = [
        (cell, output)
        for cell, output in outputs_with_ids(notebook)
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert complaints == []
    assert all(cell.execution_count for cell in code_cells(notebook))


def test_notebook_draws_its_figures(run_result):
    name, notebook = run_result
    pictures = [cell for cell, output in outputs_with_ids(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) >= MIN_PICTURES[name], pictures


def visible_outputs(notebook):
    """The visible text of every output except pictures, with `#` for each number, because the last digits may differ.

    Lines that depend on the machine are left out: a run's alarms, which may depend on the last digits, and progress lines, which
    are more frequent on a slow machine and contain the fraction of time spent on rewards.
    """
    for cell, output in outputs_with_ids(notebook):
        data = output.get("data", {})
        text = output.get("text", "") if output.output_type == "stream" else "".join(data.get("text/plain", ""))
        text = re.sub(r"^(?:warning|Alarms): .*\n|^RL +\d+/.*\n", "", text, flags=re.MULTILINE)
        words = "" if "image/png" in data else re.sub(r"/\S*tmp\w+|[-+]?\d[\d.,]*(?:e[-+]?\d+)?", "#", text)
        yield cell, output.output_type, output.get("name"), sorted(data), re.sub(r"[ #]+", " ", words)


def test_committed_outputs_match_the_code(run_result):
    name, notebook = run_result
    hint = f"run `python tests/notebook_runs.py {name}`"
    assert list(visible_outputs(read_notebook(name))) == list(visible_outputs(drop_volatile(notebook))), hint


@pytest.mark.parametrize("name", MIN_PICTURES)
def test_notebook_has_only_outputs_and_standard_metadata(name):
    notebook = read_notebook(name)
    nbformat.validate(notebook)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        assert cell.metadata in ({}, {"tags": ["loop"]}), cell.id
    assert [cell.execution_count for cell in code_cells(notebook)] == [*range(1, len(code_cells(notebook)) + 1)]


@pytest.mark.parametrize("name", MIN_PICTURES)
def test_cells_are_short(name):
    for cell in code_cells(read_notebook(name)):
        assert cell.source.count("\n") < LONGEST_CELL, cell.id


def loop_lines(name):
    """Lines of the cells tagged `loop`, without blank lines and comments."""
    loop = "\n".join(cell.source for cell in code_cells(read_notebook(name)) if "loop" in cell.metadata.get("tags", []))
    return [line for line in loop.splitlines() if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("name", LOOPS)
def test_loop_is_short_and_complete(name):
    assert len(loop_lines(name)) < LONGEST_LOOP
    untagged = [cell.id for cell in code_cells(read_notebook(name)) if not cell.metadata]
    assert untagged == [
        "imports",
        "batch",
        "run",
        "figure",
        "swap",
    ]  # all cells except the model, sampler, reward and update


def imported_names(name):
    """Full names of all imports in the code cells."""
    for cell in code_cells(read_notebook(name)):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", LOOPS)
def test_loop_imports_only_equations(name):
    ours = [module for module in imported_names(name) if module.split(".")[0] == "rljax"]
    assert ours
    assert all(module.startswith(("rljax.ops.", "rljax.algorithms.")) for module in ours), ours


@pytest.mark.parametrize("run_result", LOOPS, indirect=True)
def test_loop_learns_with_both_algorithms(run_result):
    _, notebook = run_result
    text = "".join(output.text for _, output in outputs_with_ids(notebook) if output.output_type == "stream")
    rewards = re.findall(r"mean reward ([\d.]+) at the first step, ([\d.]+) at the last", text)
    assert len(rewards) == 2, text
    for first, last in rewards:
        assert 0.3 <= float(first) <= 0.5
        assert float(last) >= 0.98


@pytest.mark.parametrize("run_result", ["own_model_in_the_trainer"], indirect=True)
def test_trainer_trains_the_users_model(run_result):
    """Held-out accuracy rises, and the saved run answers correctly after it is reopened."""
    _, notebook = run_result
    text = "".join(output.text for _, output in outputs_with_ids(notebook) if output.output_type == "stream")
    trained = re.findall(r"held-out accuracy ([\d.]+) before, ([\d.]+) after", text)
    assert len(trained) == 2, "one per model: a recurrent network, and a transformer with Hugging Face's names"
    for before, after in trained:
        assert float(before) <= 0.6
        assert float(after) >= 0.95
    assert "model.layers.0.self_attn.q_proj.weight" in text.splitlines()
    sampled = re.findall(r"^(\d\d) \[.*\] \[(.*)\]$", text, re.MULTILINE)
    assert [prompt for prompt, _ in sampled] == ["07", "42", "77"]
    rewards = [float(number) for _, numbers in sampled for number in numbers.split(", ")]
    assert sum(rewards) >= 8, rewards
