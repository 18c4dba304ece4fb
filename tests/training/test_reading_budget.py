"""Upper limits on the code a reader faces: files used by one DAPO step, and the training core's size and imports."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rljax.training import update

PACKAGE = Path(update.__file__).resolve().parents[1]
CORE = sorted((PACKAGE / "training").rglob("*.py"))
IN_A_STEP, BEFORE_THE_GRADIENT = 45, 103
FILES, LINES = 42, 8_328
PROGRAM = """
import json, os, sys, tempfile
from pathlib import Path

import rljax
import rljax.parallel
import rljax.training.update as update
from rljax.training import rl_phase

package = str(Path(rljax.__file__).parent) + "/"
seen, inside = set(), set()


def record(frame, event, argument):
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if event != "call" or not file.startswith(package) or name == "<module>":
        return
    if frame.f_code is rl_phase.one_step.__code__ or inside:
        inside.add(file)
    seen.add(file)


def accumulate(*arguments, **options):
    gradient = original(*arguments, **options)
    if inside:
        sys.setprofile(None)
        files = [sorted(file.removeprefix(package) for file in files) for files in (inside, seen)]
        print("FILES", json.dumps(files), flush=True)
        os._exit(0)  # nothing after the first gradient is counted
    return gradient


def reward(completions):
    return [float(len(completion) % 2) for completion in completions]


original, update.accumulate = update.accumulate, accumulate
sizes = {"steps": 1, "warm_start_steps": 0, "heldout_problems": 8, "prompts": 4, "max_tries": 1, "quiet": True}
config = rljax.load_config("arithmetic_dapo").replace(run=tempfile.mkdtemp() + "/run", **sizes)
sys.setprofile(record)
rljax.train(config, reward=reward)
"""


def imports_of(file):
    """Modules of rljax that a file imports, anywhere in the file."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom) and node.module]
    return {f"{node.module}.{name.name}" for node in nodes for name in node.names if node.module.startswith("rljax")}


@pytest.mark.parametrize("file", CORE, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_the_core_imports_no_option_and_no_program(file):
    imported = imports_of(file)
    assert not [name for name in imported if name.startswith(("rljax.options", "rljax.programs", "rljax.cli"))]


def test_the_core_does_not_grow():
    assert len(CORE) <= FILES
    assert sum(file.read_text().count("\n") for file in CORE) <= LINES


def test_the_policy_update_has_few_parameters():
    assert len(inspect.signature(update.make_policy_update).parameters) <= 2
    assert len(inspect.signature(update.make_gradient).parameters) <= 6


def test_one_dapo_step_uses_few_files():
    """Counts the files whose functions run before the first gradient: within the first step, and since the run began."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    (line,) = (line for line in found.stdout.splitlines() if line.startswith("FILES ")) if not found.returncode else ("",)
    assert line, found.stderr
    step, before = json.loads(line.removeprefix("FILES "))
    assert {"training/update.py", "algorithms/losses.py", "rollout/groups.py"} <= set(step)
    assert not [file for file in step if file.startswith("options/")], "a DAPO step must not run code of an option"
    assert len(step) <= IN_A_STEP, step
    assert len(before) <= BEFORE_THE_GRADIENT, before
