"""The settings that a run starts from, before any flag: an experiment, a settings file, or the defaults for the user's own data.

Settings in a file (YAML, JSON, the config.json of a run, or a Python experiment) mean the same as flags of the same names. The line
of each setting is kept for error messages.
"""

import ast
import importlib.util
import json
import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from rljax.errors import InputError
from rljax.files import CODE_SETTINGS, check_local, experiments_folder
from rljax.importing import check_trusted, importing_from_folder_of
from rljax.settings.checks import fit_value, hints_of
from rljax.settings.flat import flat_names
from rljax.tasks import TASKS
from rljax.tasks.sums import SumsConfig
from rljax.text import counted, did_you_mean, nearest_first, one_line
from rljax.training.config.train_config import GROUPS, TrainConfig

SUFFIXES = (".yaml", ".yml", ".json", ".py")
MOST_CHARACTERS = 65_536
"""Maximum number of characters in a settings file; a YAML parser takes minutes for some longer files."""
NOT_IN_GROUPS = ("task", "experiment")
"""Keys of a file that are flags of `rljax train` but not settings of a group."""
RUN_ENTRIES: Mapping[str, Any] = MappingProxyType({"seams": tuple[str, ...], "base_fingerprint": str})
"""Entries of a run's config.json that are not settings, with their types."""


class Setting(NamedTuple):
    """A setting's value, and where it was set."""

    value: Any
    """Value, converted to the type of the setting."""
    origin: str
    """The source of the value: FILE:LINE, a flag, or the reason why another part of the program set it."""


class _Loader(yaml.SafeLoader):
    """Loader of YAML in which 1e-5 is a number, as in YAML 1.2; PyYAML follows YAML 1.1, in which it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class SettingsFile(NamedTuple):
    """The contents of a YAML or JSON settings file."""

    settings: dict[str, Setting]
    """The settings by flat name, and `task` and `experiment` by these names."""
    is_run: bool
    """Whether the file is the config.json of a run, which contains every setting."""


def known_settings() -> dict[str, Any]:
    """Return the type of every setting by its flat name, including the settings of all generated tasks."""
    groups = [*TASKS.values(), *GROUPS.values()]
    return {name: hint for group in groups for name, hint in hints_of(group).items()}


def read_settings(path: Path) -> SettingsFile:
    """Read a YAML or JSON settings file.

    A key is the name of a flag (`learning_rate`, or `learning-rate`), or the name of a group with a mapping of that group's
    fields, as in the config.json of a run. The setting `run` of a config.json is not read, because a new run needs its own folder.

    Args:
        path: a `.yaml`, `.yml` or `.json` file.

    Raises:
        InputError: the file cannot be read, or a key or a value cannot be used; the message names the file and the line.
    """
    root = _parse_tree(path)
    if root is None:
        return SettingsFile({}, is_run=False)
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}:{_line_of(root)} must have settings as `name: value`; see `rljax config`.")
    top = dict(_read_pairs(path, root))
    is_run = "seams" in top
    settings: dict[str, Setting] = {}
    for name, (key, node) in top.items():
        for flat, (own_key, value) in _flatten_key(path, name, key, node).items():
            if flat in settings:
                raise InputError(f"{path}:{_line_of(own_key)} sets {flat} again; {settings[flat].origin} sets it already.")
            settings[flat] = Setting(_read_value(path, flat, value), f"{path}:{_line_of(own_key)}")
    if is_run:
        for name in ("run", "base_fingerprint"):  # a new run has its own folder and base model
            settings.pop(name, None)
        parts = settings.pop("seams")
        if parts.value:
            raise InputError(
                f"{parts.origin}: this run was started with {', '.join(parts.value)} passed to rljax.train(), which a file cannot "
                f"store; pass the same arguments to rljax.train() again, or copy {path.name} without the line `seams`."
            )
        settings = {name: entry for name, entry in settings.items() if (name, entry.value) != ("task", None)}
    return SettingsFile(settings, is_run)


def _parse_tree(path: Path) -> yaml.Node | None:
    """Parse the document into a tree; None for an empty file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if len(text) > MOST_CHARACTERS:
            raise InputError(
                f"the configuration file {str(path)!r} has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read. Check "
                "whether it is a file of settings."
            )
        if path.suffix == ".json":
            json.loads(text)  # rejects YAML, and its error messages for JSON are better than those of a YAML parser
            text = text.replace("\t", " ")  # JSON allows tabs for indentation, YAML does not; JSON strings have no raw tabs
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


def _line_of(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _read_pairs(path: Path, node: yaml.MappingNode) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
    """Yield the keys of a mapping, with underscores, each with the nodes of key and value; a key must not occur twice."""
    first_lines: dict[str, int] = {}
    for key, value in node.value:
        name = str(key.value).replace("-", "_")
        if name in first_lines:
            raise InputError(f"{path}:{_line_of(key)} sets {name} again; line {first_lines[name]} sets it already.")
        first_lines[name] = _line_of(key)
        yield name, (key, value)


def _flatten_key(path: Path, name: str, key: yaml.Node, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Return the settings that a key sets, by flat name: one if the key is a flag, several if it is a group."""
    is_mapping = isinstance(node, yaml.MappingNode)
    if name == "task" and is_mapping:
        inner = dict(_read_pairs(path, node))
        flat = {"name": "task"} | {field: flag for task in TASKS.values() for field, flag in flat_names(task).items()}
        _check_known(path, inner, set(flat), "the task")
        return {flat[field]: nodes for field, nodes in inner.items()}
    if name in GROUPS and is_mapping:
        inner, flat = dict(_read_pairs(path, node)), flat_names(GROUPS[name])
        _check_known(path, inner, set(flat), f"the group {name}")
        return {flat[field]: nodes for field, nodes in inner.items()}
    _check_known(path, {name: (key, node)}, {*known_settings(), *GROUPS, *NOT_IN_GROUPS, *RUN_ENTRIES}, "rljax")
    return {name: (key, node)}


def _check_known(path: Path, names: Mapping[str, tuple[yaml.Node, yaml.Node]], known: set[str], owner: str) -> None:
    for name, (key, _) in names.items():
        if name not in known:
            raise InputError(
                f"{path}:{_line_of(key)}: {owner} has no setting {name!r}{did_you_mean(name, known)} "
                "`rljax train --help-all` lists all settings."
            )


def _read_value(path: Path, name: str, node: yaml.Node) -> Any:
    """Return the value of a setting, converted to the setting's type."""
    loader = _Loader("")
    try:
        value = loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}:{_line_of(node)}: the value of {name} cannot be read ({one_line(error)}).") from error
    kinds = known_settings() | dict.fromkeys(NOT_IN_GROUPS, str | None) | dict(RUN_ENTRIES)
    shown = "null" if value is None else f"{value!r:.80}"
    if name not in kinds:  # a group without a mapping of settings
        raise InputError(
            f"{path}:{_line_of(node)}: {name} is {shown}, but it is a group of settings; write them below it as `name: value`, or "
            f"leave {name} out."
        )
    try:
        return fit_value(value, kinds[name])
    except ValueError as error:
        raise InputError(f"{path}:{_line_of(node)}: {name} is {shown}, but {error}.") from error


def experiment_files() -> list[Path]:
    """Return the experiments that come with rljax: the files that define CONFIG."""
    files = sorted(experiments_folder().glob("*.py"))
    return [file for file in files if re.search("^CONFIG\\b", file.read_text(encoding="utf-8"), re.MULTILINE)]


class Experiment(NamedTuple):
    """The settings of a Python experiment."""

    config: TrainConfig
    """The experiment's CONFIG."""
    origins: dict[str, str]
    """FILE:LINE of each setting that the experiment sets; only FILE if the line cannot be found."""


def read_experiment(name: str) -> Experiment:
    """Read CONFIG from an experiment, by name or by file.

    Raises:
        InputError: there is no such file, it cannot be run, or it does not define CONFIG.
    """
    experiments = {file.stem: file for file in experiment_files()}
    file = experiments[name] if name in experiments else Path(name)
    if not file.is_file() or file.suffix != ".py":
        advice = f"give a Python file that defines CONFIG, or one of {', '.join(experiments)}."
        raise InputError(f"There is no experiment {name!r}{nearest_first(name, experiments, advice)}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"The experiment {str(file)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        with importing_from_folder_of(file):
            spec.loader.exec_module(module)
    except (InputError, KeyboardInterrupt):  # an InputError already says what to change
        raise
    except BaseException as error:  # an experiment is user code and may raise anything, including SystemExit
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        place = f" at line {lines[-1]}" if lines else ""
        raise InputError(f"The experiment {str(file)!r} cannot be run{place} ({one_line(error)}); correct it.") from error
    config = vars(module).get("CONFIG")
    if not isinstance(config, TrainConfig):
        raise InputError(f"The experiment {str(file)!r} does not define CONFIG as an rljax.TrainConfig.")
    shown = file.name if name in experiments else str(file)
    lines, default = _keyword_lines(file), TrainConfig().to_flat()
    origins = {
        setting: f"{shown}:{lines[setting]}" if setting in lines else shown
        for setting, value in config.to_flat().items()
        if setting in lines or setting not in default or value != default[setting]
    }
    return Experiment(config, origins)


REPLACEMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType({"problems": ("dataset", "task"), "reward": ("reward",)})
"""Part of a run that an experiment may pass to `train` -> the settings that replace it."""


def check_complete(name: str, from_flags: Collection[str]) -> str | None:
    """Refuse to train an experiment whose problems or reward are not in its CONFIG, because the run would not be the experiment.

    Args:
        name: name or file of the experiment.
        from_flags: names of the settings that flags set.

    Returns:
        A note if the experiment's own code trains with other settings than CONFIG, for example in several arms; else None.

    Raises:
        InputError: the experiment's own code passes a part to `train`, and no flag replaces that part.
    """
    experiments = {file.stem: file for file in experiment_files()}
    file = experiments[name] if name in experiments else Path(name)
    calls = [
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) == "train"
    ]
    parts = {word.arg for call in calls for word in call.keywords}
    config = read_experiment(name).config
    if file in experiments.values() and config.task is None and config.data.dataset is None:
        parts.add("problems")
    missing = [
        part for part, settings in REPLACEMENTS.items() if part in parts and not {*settings}.intersection(from_flags)
    ]
    if missing:
        flags = " and ".join(f"--{REPLACEMENTS[part][0]}" for part in missing)
        raise InputError(
            f"--experiment {name}: its CONFIG is not the complete experiment, because its code makes the {' and '.join(missing)}; "
            f"start it with `python {file}`, or give {flags}."
        )
    is_plain = any(isinstance(arg, ast.Name) and arg.id == "CONFIG" for call in calls for arg in call.args)
    if is_plain or not calls:
        return None
    return f"this run has the settings in CONFIG of {file.name}; `python {file}` starts all runs of the experiment."


def _keyword_lines(file: Path) -> dict[str, int]:
    """Return the line of each keyword argument in the expression that is assigned to CONFIG."""
    assigned = [
        node.value
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "CONFIG" for name in node.targets)
    ]
    words = [node for value in assigned for node in ast.walk(value) if isinstance(node, ast.keyword)]
    return {word.arg: word.lineno for word in words if word.arg is not None}


DEFAULT_EXPERIMENT = "arithmetic_dapo"
DEFAULT = "default"
"""Origin of a setting that was not set."""
SMOKE = {
    "warm_start_steps": 10,
    "value_pretraining_steps": 1,
    "steps": 2,
    "prompts": 4,
    "group_size": 4,
    "max_tries": 1,
    "heldout_problems": 16,
    "eval_every": 0,
}
"""Setting -> its maximum in a smoke test, which passes through every phase and is as small as the run's parts allow."""
SAMPLING_SLOT = "keep_group="
"""Prefix of a `--with` part that replaces dynamic sampling."""


class StartFlags(NamedTuple):
    """Flags that decide which settings a run starts from; None if a flag is absent."""

    file: Path | None = None
    """`--config`: a file of settings, or a Python experiment."""
    experiment: str | None = None
    """`--experiment`."""
    model: str | None = None
    """`--model`."""
    dataset: str | None = None
    """`--dataset`."""
    task: str | None = None
    """`--task`."""
    algorithm: str | None = None
    """`--algorithm`."""
    steps: int | None = None
    """`--steps`."""
    smoke: bool = False
    """`--smoke`."""


class Start(NamedTuple):
    """Settings, and the origin of each."""

    config: TrainConfig
    """The settings."""
    origins: Mapping[str, str]
    """Flat name -> where the setting was set, as in `Setting.origin`; settings that are not listed have their default."""
    notes: tuple[str, ...] = ()
    """Messages about settings that were changed without a flag."""
    experiment: str | None = None
    """Name or file of the experiment whose CONFIG the settings start from; None if none was named."""

    def origin(self, name: str) -> str:
        """Return the origin of a setting, by its flat name."""
        return self.origins.get(name, DEFAULT)

    def with_settings(self, settings: Mapping[str, Setting]) -> "Start":
        """Return a copy with some settings replaced.

        Raises:
            InputError: a value is invalid, alone or with the others; the message names the origin of the first setting at fault.
        """
        try:
            config = self.config.replace(**{name: setting.value for name, setting in settings.items()})
        except InputError as error:
            about = [setting.origin for name, setting in settings.items() if re.search(rf"\b{name}\b", str(error))]
            places = about or [setting.origin for setting in settings.values()]
            raise InputError(f"{places[0]}: {error}") from error
        origins = {name: setting.origin for name, setting in settings.items()}
        return self._replace(config=config, origins={**self.origins, **origins})


def choose_start(flags: StartFlags) -> Start:
    """Find the settings that a run starts from.

    Raises:
        InputError: a file or an experiment cannot be read, the algorithm or the task does not exist, or settings exclude each
            other.
    """
    for source, flag in ((flags.file, "--config"), (flags.experiment, "--experiment")):
        check_local(source or "", flag)
    if flags.file is not None and flags.file.suffix not in SUFFIXES:
        raise InputError(f"--config {flags.file}: the file must end in {', '.join(SUFFIXES)}.")
    if flags.file is not None and flags.file.suffix == ".py":
        if flags.experiment is not None:
            raise InputError(f"--config {flags.file} and --experiment {flags.experiment} exclude each other; set only one.")
        flags = flags._replace(experiment=str(flags.file), file=None)
    contents = SettingsFile({}, is_run=False) if flags.file is None else read_settings(flags.file)
    settings = dict(contents.settings)
    if flags.dataset is not None and flags.task is not None:
        raise InputError(f"--dataset {flags.dataset} and --task {flags.task} exclude each other; set only one of them.")
    if flags.task is not None:
        settings["task"] = Setting(flags.task, "--task")
    experiment = flags.experiment
    if experiment is None and "experiment" in settings and not contents.is_run:
        experiment = settings["experiment"].value
    base = _base_of(flags, settings, experiment, is_run=contents.is_run)
    settings.pop("experiment", None)
    if flags.dataset is not None:
        base = base._replace(config=base.config.replace(task=None))
    algorithm = flags.algorithm
    if algorithm is None and "algorithm" in settings:
        algorithm = settings["algorithm"].value
    shared = with_shared_options(base.config, algorithm)
    unset = () if shared.algorithm.options else ("algorithm_options",)
    start = Start(shared, {name: origin for name, origin in base.origins.items() if name not in unset})
    start = start._replace(experiment=experiment)
    if settings.get("task") is not None and settings["task"].value == start.config.to_flat().get("task"):
        settings.pop("task")  # the base already has this task, with settings for it
    start = start.with_settings(settings) if settings else start
    return _shrink_for_smoke(start, flags.algorithm) if flags.smoke else _cut_warm_start(start, base, flags.steps)


def _base_of(flags: StartFlags, settings: Mapping[str, Setting], experiment: str | None, *, is_run: bool) -> Experiment:
    """Return the settings to which those of a file are applied."""
    if is_run:
        return Experiment(TrainConfig(), {})
    named = [flags.model, flags.dataset, *(settings[name].value for name in ("model", "dataset") if name in settings)]
    if experiment is None and any(name is not None for name in named):
        return Experiment(TrainConfig(task=SumsConfig()), {})
    return read_experiment(DEFAULT_EXPERIMENT if experiment is None else experiment)


def with_shared_options(config: TrainConfig, algorithm: str | None) -> TrainConfig:
    """Keep only the algorithm options that the algorithm to use also has; None stands for the algorithm of `config`."""
    if algorithm in (None, config.algorithm.name):
        return config
    from rljax.training.config.algorithm import option_defaults  # noqa: PLC0415  --help need not wait for JAX

    known = option_defaults(algorithm)
    options = {name: value for name, value in config.algorithm.options.items() if name in known}
    return config.replace(algorithm_options=options)


def _cut_warm_start(start: Start, base: Experiment, steps: int | None) -> Start:
    """Shorten the experiment's warm start in proportion, if --steps is less than a tenth of its RL steps."""
    planned, full = base.config.optimization.steps, base.config.warm_start.steps
    is_own = start.origin("warm_start_steps") == base.origins.get("warm_start_steps")
    if steps is None or steps * 10 >= planned or not full or not is_own:
        return start
    cut = max(1, -(-full * steps // planned))
    after = start.with_settings({"warm_start_steps": Setting(cut, f"{full} cut in proportion to --steps")})
    note = (
        f"--steps {steps} is far below the experiment's {planned} RL steps, so the warm start is also shortened, from {full} to "
        f"{counted(cut, 'step')}; --warm-start-steps {full} runs all of them."
    )
    return after._replace(notes=(*start.notes, note))


def _shrink_for_smoke(start: Start, algorithm: str | None) -> Start:
    """Make every part of a run small, so that the run passes through all its phases in about a minute.

    Dynamic sampling, or another part in its slot, is left out: after such a short warm start it would keep no group, and no update
    would be tested. The warm start is always computed, even if an earlier run has cached it.
    """
    from rljax.algorithms import ABLATIONS  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.config.algorithm import factory_of  # noqa: PLC0415  as above

    flat, name = start.config.to_flat(), start.config.algorithm.name if algorithm is None else algorithm
    small: dict[str, Any] = {key: most if flat[key] is None else min(flat[key], most) for key, most in SMOKE.items()}
    if factory_of(name)().critic is None:
        del small["value_pretraining_steps"]
    if name in ABLATIONS and "dynamic_sampling" in ABLATIONS[name]:
        small["without"] = tuple(dict.fromkeys([*flat["without"], "dynamic_sampling"]))
    parts = tuple(part for part in flat["with"] if not part.startswith(SAMPLING_SLOT))
    if parts != tuple(flat["with"]):
        small["with"] = parts
    small |= {"name": "smoke", "keep_warm_start": False}
    small |= {"prompts": -(-SMOKE["prompts"] // flat["minibatches"]) * flat["minibatches"]}
    return start.with_settings({key: Setting(value, "--smoke") for key, value in small.items()})


TEXT_SUFFIXES = (".json", ".yaml", ".yml")
"""Suffixes of settings files that are only read. A Python file is executed, which the caller permits by naming it."""


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
    check_local(source, "source")
    is_name = Path(source).suffix == "" and not Path(source).exists()
    if is_name:
        return choose_start(StartFlags(experiment=str(source))).config
    check_code(Path(source), trust=trust)
    return choose_start(StartFlags(file=Path(source))).config


def check_code(path: Path, *, trust: bool, replaced: Collection[str] = ()) -> None:
    """Refuse to execute untrusted code that only a run's config.json names. Other settings files count as the caller's own code.

    Args:
        path: a file of settings.
        trust: whether the caller trusts the code.
        replaced: names of settings that the caller sets, so that the file's values are not used.

    Raises:
        InputError: the file cannot be read, or names code that is not trusted.
    """
    from rljax.training.parts.reward import custom_part_names  # noqa: PLC0415  --help need not wait for JAX

    check_local(path, "--config")
    if path.suffix not in TEXT_SUFFIXES:
        return
    contents = read_settings(path)
    if contents.is_run or (path.parent / "starts.jsonl").exists():
        settings = {name: setting.value for name, setting in contents.settings.items() if name not in replaced}
        named = {name: value for name, value in settings.items() if name in CODE_SETTINGS}
        experiments = [name for name in [str(settings.get("experiment", ""))] if name.endswith(".py")]
        check_trusted(path.parent, [*custom_part_names(TrainConfig.flat(**named)), *experiments], trust=trust)
