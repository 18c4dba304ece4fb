"""The settings that a run starts from, before any flag: an experiment, a file of settings, or the defaults for own data.

A file of settings means the same as flags of the same names.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rljax.errors import InputError
from rljax.records import documented
from rljax.tasks.sums import SumsConfig
from rljax.training.config.config_files import SUFFIXES, Contents, Experiment, Setting, read_experiment, read_settings
from rljax.training.config.train import TrainConfig

DEFAULT_EXPERIMENT = "arithmetic_dapo"
DEFAULT = "default"
"""Origin of a setting that nobody set."""
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
"""Upper bounds of a smoke test. It is as small as the run's parts allow, and passes through every phase."""
SAMPLING_SLOT = "keep_group="
"""Beginning of a part in the slot of dynamic sampling."""


@documented
class Words(NamedTuple):
    """Flags that decide which settings a run starts from; None where the flag is absent."""

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


@documented
class Start(NamedTuple):
    """Settings, and where each comes from."""

    config: TrainConfig
    """The settings."""
    origins: Mapping[str, str]
    """FILE:LINE, or another reason, by flat name; settings that are not in it have their default."""
    notes: tuple[str, ...] = ()
    """Settings that were changed without a flag, in words."""

    def origin(self, name: str) -> str:
        """Origin of a setting, by its flat name."""
        return self.origins.get(name, DEFAULT)

    def changed(self, settings: Mapping[str, Setting]) -> "Start":
        """Change settings.

        Raises:
            InputError: the values cannot work; the message names the place of the first one that it is about.
        """
        try:
            config = self.config.replace(**{name: setting.value for name, setting in settings.items()})
        except InputError as error:
            about = [setting.origin for name, setting in settings.items() if re.search(rf"\b{name}\b", str(error))]
            places = about or [setting.origin for setting in settings.values()]
            raise InputError(f"{places[0]}: {error}") from error
        origins = {name: setting.origin for name, setting in settings.items()}
        return self._replace(config=config, origins={**self.origins, **origins})


def load_config(source: str | Path) -> TrainConfig:
    """Read settings as `rljax train --config SOURCE` does.

    Args:
        source: a YAML or JSON file of settings, the config.json of a run, a Python file that defines CONFIG, or the name of an
            experiment that comes with rljax.

    Raises:
        InputError: there is no such file, or a setting cannot be used; the message has the file and the line.

    Example:
        >>> load_config("arithmetic_dapo").warm_start.steps
        480
    """
    is_name = Path(source).suffix == "" and not Path(source).exists()
    return start(Words(experiment=str(source)) if is_name else Words(file=Path(source))).config


def start(words: Words) -> Start:
    """Find the settings that a run starts from.

    Raises:
        InputError: a file or an experiment cannot be read, the algorithm or the task does not exist, or settings exclude each
            other.
    """
    if words.file is not None and words.file.suffix not in SUFFIXES:
        raise InputError(f"--config {words.file}: the file must end in {', '.join(SUFFIXES)}.")
    if words.file is not None and words.file.suffix == ".py":
        if words.experiment is not None:
            raise InputError(f"--config {words.file} and --experiment {words.experiment} exclude each other; set only one.")
        words = words._replace(experiment=str(words.file), file=None)
    contents = Contents({}, is_run=False) if words.file is None else read_settings(words.file)
    settings = dict(contents.settings)
    if words.dataset is not None and words.task is not None:
        raise InputError(f"--dataset {words.dataset} and --task {words.task} exclude each other; set only one of them.")
    if words.task is not None:
        settings["task"] = Setting(words.task, "--task")
    base = _base(words, settings, is_run=contents.is_run)
    settings.pop("experiment", None)
    if words.dataset is not None:
        base = base._replace(config=base.config.replace(task=None))
    algorithm = words.algorithm
    if algorithm is None and "algorithm" in settings:
        algorithm = settings["algorithm"].value
    shared = with_shared_options(base.config, algorithm)
    unset = () if shared.algorithm.options else ("algorithm_options",)
    begun = Start(shared, {name: origin for name, origin in base.origins.items() if name not in unset})
    if settings.get("task") is not None and settings["task"].value == begun.config.to_flat().get("task"):
        settings.pop("task")  # the base has it, with settings of its own
    begun = begun.changed(settings) if settings else begun
    return _smoke(begun, words.algorithm) if words.smoke else _cut_warm_start(begun, base, words.steps)


def _base(words: Words, settings: Mapping[str, Setting], *, is_run: bool) -> Experiment:
    """The settings below a file's."""
    if is_run:
        return Experiment(TrainConfig(), {})
    own = [words.model, words.dataset, *(settings[name].value for name in ("model", "dataset") if name in settings)]
    experiment = words.experiment
    if experiment is None and "experiment" in settings:
        experiment = settings["experiment"].value
    if experiment is None and any(name is not None for name in own):
        return Experiment(TrainConfig(task=SumsConfig()), {})
    return read_experiment(DEFAULT_EXPERIMENT if experiment is None else experiment)


def with_shared_options(config: TrainConfig, algorithm: str | None) -> TrainConfig:
    """Keep those of the experiment's options that another algorithm has too."""
    if algorithm in (None, config.algorithm.name):
        return config
    from rljax.training.config.algorithm_options import option_names  # noqa: PLC0415  --help need not wait for JAX

    known = option_names(algorithm)
    options = {name: value for name, value in config.algorithm.options.items() if name in known}
    return config.replace(algorithm_options=options)


def _cut_warm_start(begun: Start, base: Experiment, steps: int | None) -> Start:
    """Cut the experiment's warm start in proportion, if a flag asks for less than a tenth of its RL steps."""
    planned, whole = base.config.optimization.steps, base.config.warm_start.steps
    is_own = begun.origin("warm_start_steps") == base.origins.get("warm_start_steps")
    if steps is None or steps * 10 >= planned or not whole or not is_own:
        return begun
    cut = max(1, -(-whole * steps // planned))
    after = begun.changed({"warm_start_steps": Setting(cut, f"{whole} cut in proportion to --steps")})
    note = (
        f"{steps} of {planned} RL steps are a trial, so the warm start has {cut} of {whole} steps; "
        f"--warm-start-steps {whole} makes all of them."
    )
    return after._replace(notes=(*begun.notes, note))


def _smoke(begun: Start, algorithm: str | None) -> Start:
    """Make every part of a run small, so that the run passes through all its phases in about a minute.

    Dynamic sampling is left out, and so is another part in its slot: after so short a warm start it would keep no group, and no
    update would be tested. The warm start is made, even if an earlier run has kept it.
    """
    from rljax.algorithms import ABLATIONS  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.config.algorithm_options import factory_of  # noqa: PLC0415  as above

    flat, name = begun.config.to_flat(), begun.config.algorithm.name if algorithm is None else algorithm
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
    return begun.changed({key: Setting(value, "--smoke") for key, value in small.items()})
