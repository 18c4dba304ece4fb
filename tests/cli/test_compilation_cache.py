"""Compiled programs are cached between commands, and the user's own JAX settings are unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljax.cli.compilation_cache import (
    FOLDER_VARIABLE,
    cache_folder,
    cache_text,
    keep_compiled_programs,
    remove_oldest,
)
from rljax.machine import processor_name


def test_cache_is_in_the_users_cache_folder(tmp_path):
    environment = {"HOME": str(tmp_path)}
    keep_compiled_programs(environment)
    assert environment[FOLDER_VARIABLE] == str(tmp_path / ".cache" / "rljax" / "compiled" / processor_name())
    assert Path(environment[FOLDER_VARIABLE]).is_dir()
    assert cache_text(environment) == f"compiled programs: {environment[FOLDER_VARIABLE]}"


def test_processor_name_depends_on_the_instructions(tmp_path):
    def name(text):
        (tmp_path / "cpuinfo").write_text(text)
        return processor_name(tmp_path / "cpuinfo")

    names = [name(f"processor : 0\nmodel : {model}\n{flags}\n") for model, flags in
             [(1, "flags : sse avx"), (2, "flags : sse avx"), (1, "flags : sse avx2"), (1, "Features : neon")]]  # fmt: skip
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert processor_name(tmp_path / "nowhere") == processor_name(tmp_path / "nowhere either")


@pytest.mark.parametrize("folder", ["/somewhere/else", ""], ids=["a folder", "none"])
def test_users_jax_setting_is_unchanged(tmp_path, folder):
    environment = {"HOME": str(tmp_path), FOLDER_VARIABLE: folder}
    keep_compiled_programs(environment)
    assert environment == {"HOME": str(tmp_path), FOLDER_VARIABLE: folder}


def test_unwritable_home_gets_no_cache(tmp_path):
    (tmp_path / "file").write_text("in the way")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    keep_compiled_programs(environment)
    assert FOLDER_VARIABLE not in environment
    assert "not writable" in cache_text(environment)
    assert "JAX_ENABLE_COMPILATION_CACHE" in cache_text(environment | {"JAX_ENABLE_COMPILATION_CACHE": "false"})


def test_remove_oldest_programs(tmp_path):
    for age, name in enumerate(("new", "old", "oldest")):
        (tmp_path / name).write_bytes(b"12")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    remove_oldest(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
    remove_oldest(tmp_path / "nowhere", 4)


def test_jax_fills_the_cache(tmp_path):
    script = (
        "import os; from rljax.cli.compilation_cache import keep_compiled_programs; keep_compiled_programs(os.environ)\n"
        "import jax; jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "print(jax.jit(lambda x: x + 1)(1.0))"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = variables | {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert list(cache_folder(environment).glob("*-cache"))


USE = """
import os, rljax
{before}
print(rljax.use_compilation_cache())
import jax; jax.config.update('jax_persistent_cache_min_compile_time_secs', 0); jax.jit(lambda x: x + 1)(1.0)
print(jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.parametrize(
    ("before", "variable", "folder"),
    [
        ("", None, "{home}/.cache/rljax/compiled/{processor}"),
        ("", "{home}/of the environment", "{home}/of the environment"),
        ("", "", None),
        (
            "import jax; jax.config.update('jax_compilation_cache_dir', '{home}/of the program')",
            None,
            "{home}/of the program",
        ),
    ],
    ids=["nothing is set", "variable", "empty variable", "configuration"],
)
def test_script_uses_the_commands_cache_unless_configured(tmp_path, before, variable, folder):
    placeholders = {"home": tmp_path, "processor": processor_name()}
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XDG_"))}
    variables |= {"HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    variables |= {} if variable is None else {FOLDER_VARIABLE: variable.format(**placeholders)}
    script = USE.format(before=before.format(**placeholders))
    out = subprocess.run([sys.executable, "-c", script], env=variables, check=True, capture_output=True, text=True).stdout
    used, configured = out.splitlines()
    files = {path.parent for path in tmp_path.rglob("*-cache")}
    if folder is None:
        assert (used, files) == ("None", set())
        return
    expected = folder.format(**placeholders)
    assert used == configured == expected
    assert files == {Path(expected)}
