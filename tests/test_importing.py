"""Importing a user's function: its file can import modules in its own folder, whatever the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljax.errors import InputError
from rljax.importing import import_function
from rljax.rewards.reward_call import qualified_name

EVERY_EXPERIMENT = """
from rljax.programs.base_settings import experiment_files, read_experiment
print(len([read_experiment(file.stem).config for file in experiment_files()]))
"""


def test_a_file_imports_the_modules_next_to_it(tmp_path):
    (tmp_path / "own_scale_7301.py").write_text("SCALE = 2.0\n")
    (tmp_path / "mine.py").write_text(
        "from own_scale_7301 import SCALE\n\n\ndef reward(completions, **columns):\n    return [SCALE] * len(completions)\n"
    )
    before = list(sys.path)
    assert import_function(f"{tmp_path / 'mine.py'}:reward", "reward")(["a"]) == [2.0]
    assert sys.path == before


def test_two_modules_with_the_same_name_are_refused(tmp_path):
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "own_scale_7302.py").write_text(f"SCALE = {number}.0\n")
        (folder / "mine.py").write_text("from own_scale_7302 import SCALE\n\n\ndef reward(**columns):\n    return SCALE\n")
    assert import_function(f"{tmp_path / '1/mine.py'}:reward", "reward")() == 1.0
    with pytest.raises(
        InputError, match=r"imports 'own_scale_7302', .* imported under that name before; rename one of them"
    ):
        import_function(f"{tmp_path / '2/mine.py'}:reward", "reward")


def test_every_experiment_can_be_read_in_any_folder(tmp_path):
    # as in an installation, PYTHONPATH does not contain experiments/
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", EVERY_EXPERIMENT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_messages_name_the_file_that_a_function_was_imported_from(tmp_path):
    (tmp_path / "mine.py").write_text("class Judge:\n    def score(self): ...\n")
    judge = import_function(f"{tmp_path / 'mine.py'}:Judge", "reward")
    assert (qualified_name(judge()), qualified_name(judge.score)) == ("mine.py:Judge", "mine.py:Judge.score")
