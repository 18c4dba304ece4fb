"""Read settings from a file: YAML, JSON, the config.json of a run, or a Python experiment. Each setting keeps its line."""

import ast
import importlib.util
import json
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.flat import flat_names
from rljax.tasks import TASKS
from rljax.text import did_you_mean, one_line
from rljax.training.config.train import GROUPS, TrainConfig
from rljax.training.config.typed import fit_value, hints_of

SUFFIXES = (".yaml", ".yml", ".json", ".py")
MOST_CHARACTERS = 65_536
"""Largest file of settings; a parser of YAML takes minutes for some that are larger."""
BESIDE = ("task", "experiment")
"""Keys of a file that are flags of `rljax train` and no settings of a group."""
OF_A_RUN: Mapping[str, Any] = MappingProxyType({"seams": tuple[str, ...], "base_fingerprint": str})
"""Entries of a run's config.json besides its settings, with their types."""


@documented
class Setting(NamedTuple):
    """One setting of a file."""

    value: Any
    """Value of the type that the setting has."""
    origin: str
    """FILE:LINE."""


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-5 is a number, as in YAML 1.2; PyYAML follows 1.1, where it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@documented
class Contents(NamedTuple):
    """The settings of a YAML or JSON file."""

    settings: dict[str, Setting]
    """By flat name, and `task` and `experiment` by these names."""
    is_run: bool
    """Whether the file is the config.json of a run, which holds every setting."""


def known_settings() -> dict[str, Any]:
    """Type of every setting by its flat name, the settings of all generated tasks included."""
    groups = [*TASKS.values(), *GROUPS.values()]
    return {name: hint for group in groups for name, hint in hints_of(group).items()}


def read_settings(path: Path) -> Contents:
    """Read a YAML or JSON file of settings.

    A key is the name of a flag (`learning_rate`, or `learning-rate`), or the name of a group with a mapping of that group's
    fields, as in the config.json of a run. The folder of a run is left out, because a new run needs its own.

    Args:
        path: a `.yaml`, `.yml` or `.json` file.

    Raises:
        InputError: the file cannot be read, or a key or a value cannot be used; the message has the file and the line.
    """
    root = _root(path)
    if root is None:
        return Contents({}, is_run=False)
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}:{_line(root)} must hold settings as `name: value`; see `rljax config`.")
    top = dict(_pairs(path, root))
    is_run = "seams" in top
    settings: dict[str, Setting] = {}
    for name, (key, node) in top.items():
        for flat, (place, leaf) in _flattened(path, name, key, node).items():
            if flat in settings:
                raise InputError(f"{path}:{_line(place)} sets {flat} again; {settings[flat].origin} sets it already.")
            settings[flat] = Setting(_value(path, flat, leaf), f"{path}:{_line(place)}")
    if is_run:
        for beside in ("run", "base_fingerprint"):  # a new run has its own
            settings.pop(beside, None)
        _refuse_parts(path, settings.pop("seams"))
        settings = {name: entry for name, entry in settings.items() if (name, entry.value) != ("task", None)}
    return Contents(settings, is_run)


def _refuse_parts(path: Path, parts: Setting) -> None:
    if parts.value:
        raise InputError(
            f"{parts.origin}: this run was started with {', '.join(parts.value)} passed to rljax.train(), which a file cannot "
            f"hold; pass the same to rljax.train() again, or copy {path.name} without the line `seams`."
        )


def _root(path: Path) -> yaml.Node | None:
    """The document's tree; None for an empty file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"the configuration file {str(path)!r} has {len(text):,} characters; settings need far less.")
        if path.suffix == ".json":
            json.loads(text)  # says more about wrong JSON than a YAML parser, and refuses YAML
            text = text.replace("\t", " ")  # JSON may be indented with tabs, YAML may not; no string of JSON has one
        return _Loader(text).get_single_node()
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno} is not JSON: {error.msg}.") from error
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise InputError(f"{path}:{line} is not YAML: {error.problem}.") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"the configuration file {str(path)!r} cannot be read ({one_line(error)}).") from error


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _pairs(path: Path, node: yaml.MappingNode) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
    """Keys of a mapping, with underscores, each with its own node and its value's; a key may not occur twice."""
    seen: dict[str, int] = {}
    for key, value in node.value:
        name = str(key.value).replace("-", "_")
        if name in seen:
            raise InputError(f"{path}:{_line(key)} sets {name} again; line {seen[name]} sets it already.")
        seen[name] = _line(key)
        yield name, (key, value)


def _flattened(path: Path, name: str, key: yaml.Node, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Settings of a key by flat name: one for a flag's name, several for a group's."""
    is_mapping = isinstance(node, yaml.MappingNode)
    if name == "task" and is_mapping:
        inner = dict(_pairs(path, node))
        flat = {"name": "task"} | {field: flag for task in TASKS.values() for field, flag in flat_names(task).items()}
        _check_known(path, inner, set(flat), "the task")
        return {flat[field]: place for field, place in inner.items()}
    if name in GROUPS and is_mapping:
        inner, flat = dict(_pairs(path, node)), flat_names(GROUPS[name])
        _check_known(path, inner, set(flat), f"the group {name}")
        return {flat[field]: place for field, place in inner.items()}
    _check_known(path, {name: (key, node)}, {*known_settings(), *GROUPS, *BESIDE, *OF_A_RUN}, "rljax")
    return {name: (key, node)}


def _check_known(path: Path, names: Mapping[str, tuple[yaml.Node, yaml.Node]], known: set[str], owner: str) -> None:
    for name, (key, _) in names.items():
        if name not in known:
            raise InputError(
                f"{path}:{_line(key)}: {owner} has no setting {name!r}{did_you_mean(name, known)} "
                "`rljax train --help-all` lists all settings."
            )


def _value(path: Path, name: str, node: yaml.Node) -> Any:
    """Value of a setting, of the setting's type."""
    loader = _Loader("")
    try:
        value = loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}:{_line(node)}: the value of {name} cannot be read ({one_line(error)}).") from error
    kinds = known_settings() | dict.fromkeys(BESIDE, str | None) | dict(OF_A_RUN)
    if name not in kinds:  # the name of a group, without its settings
        raise InputError(f"{path}:{_line(node)}: {name} is a group of settings; write them below it as `name: value`.")
    try:
        return fit_value(value, kinds[name])
    except ValueError as error:
        raise InputError(f"{path}:{_line(node)}: {name} is {value!r:.80}, but {error}.") from error


def experiment_files() -> list[Path]:
    """Experiments that come with rljax."""
    package = Path(__file__).resolve().parents[2]
    folders = (package / "experiments", package.parent / "experiments")  # in a wheel, in a checkout
    return sorted(file for folder in folders for file in folder.glob("*.py"))


@documented
class Experiment(NamedTuple):
    """The settings of a Python experiment."""

    config: TrainConfig
    """Its CONFIG."""
    origins: dict[str, str]
    """FILE:LINE of each setting that it sets; FILE alone where the line cannot be found."""


def read_experiment(name: str) -> Experiment:
    """Read CONFIG from an experiment, by name or by file.

    Raises:
        InputError: there is no such file, it cannot be run, or it defines no CONFIG.
    """
    own = {file.stem: file for file in experiment_files()}
    file = own[name] if name in own else Path(name)
    if not file.is_file() or file.suffix != ".py":
        raise InputError(
            f"There is no experiment {name!r}; give a Python file that defines CONFIG, or one of {', '.join(own)}."
        )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"The experiment {str(file)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (InputError, KeyboardInterrupt):  # the message of the first already says what to change
        raise
    except BaseException as error:  # an experiment is user code, and may raise anything, `sys.exit()` included
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        place = f" at line {lines[-1]}" if lines else ""
        raise InputError(f"The experiment {str(file)!r} cannot be run{place} ({one_line(error)}); correct it.") from error
    config = vars(module).get("CONFIG")
    if not isinstance(config, TrainConfig):
        raise InputError(f"The experiment {str(file)!r} does not define CONFIG as an rljax.TrainConfig.")
    shown = file.name if name in own else str(file)
    lines, default = _keyword_lines(file), TrainConfig().to_flat()
    origins = {
        setting: f"{shown}:{lines[setting]}" if setting in lines else shown
        for setting, value in config.to_flat().items()
        if setting in lines or setting not in default or value != default[setting]
    }
    return Experiment(config, origins)


def _keyword_lines(file: Path) -> dict[str, int]:
    """Line of each keyword argument in the expression that CONFIG is assigned."""
    assigned = [
        node.value
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "CONFIG" for name in node.targets)
    ]
    words = [node for value in assigned for node in ast.walk(value) if isinstance(node, ast.keyword)]
    return {word.arg: word.lineno for word in words if word.arg is not None}
