"""Read the settings of a run from a file, without executing code that another person's run names."""

from collections.abc import Collection
from pathlib import Path

from rljax.importing import check_trusted
from rljax.training.config import TrainConfig
from rljax.training.config.start import Words, read_settings, start

CODE = ("reward", "step_reward", "environment", "algorithm")
"""Settings that can name code: file.py:function or module:function."""
READ_AS_TEXT = (".json", ".yaml", ".yml")
"""Suffixes of the files that are settings; a Python file is code, which the caller names."""


def load_config(source: str | Path, *, trust: bool = False) -> TrainConfig:
    """Read settings as `rljax train --config SOURCE` does.

    Args:
        source: a YAML or JSON settings file, the config.json of a run, a Python file that defines CONFIG, or the name of an
            experiment that comes with rljax.
        trust: execute the code that the config.json of a run names.

    Raises:
        InputError: there is no such file, or a setting cannot be used; the message names the file and the line. Or the
            config.json of a run names code, and `trust` is not set.

    Example:
        >>> load_config("arithmetic_dapo").warm_start.steps
        480
    """
    is_name = Path(source).suffix == "" and not Path(source).exists()
    if is_name:
        return start(Words(experiment=str(source))).config
    check_code(Path(source), trust=trust)
    return start(Words(file=Path(source))).config


def check_code(path: Path, *, trust: bool, replaced: Collection[str] = ()) -> None:
    """Refuse to execute code that only the config.json of a run names. Other files are the caller's own.

    Args:
        path: a file of settings.
        trust: whether the caller trusts the code.
        replaced: settings that the caller sets in place of the file's.

    Raises:
        InputError: the file cannot be read, or names code that is not trusted.
    """
    from rljax.training.parts.reward import code_of_training  # noqa: PLC0415  --help need not wait for JAX

    if path.suffix not in READ_AS_TEXT:
        return
    contents = read_settings(path)
    if contents.is_run or (path.parent / "starts.jsonl").exists():
        settings = {name: setting.value for name, setting in contents.settings.items() if name not in replaced}
        named = {name: value for name, value in settings.items() if name in CODE}
        experiments = [name for name in [str(settings.get("experiment", ""))] if name.endswith(".py")]
        check_trusted(path.parent, [*code_of_training(TrainConfig.flat(**named)), *experiments], trust=trust)
