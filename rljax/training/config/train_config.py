"""`TrainConfig`: all settings of a run, in groups in code and flat on the command line. One frozen instance defines a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rljax.errors import InputError
from rljax.settings.checks import check_numbers, check_types, fit_setting, fit_value, hints_of
from rljax.settings.flat import flat_names
from rljax.tasks import TaskConfig, default_task, task_name
from rljax.tasks.sums import SumsConfig
from rljax.text import did_you_mean
from rljax.training.config.algorithm import AlgorithmConfig, RewardConfig
from rljax.training.config.model import DevicesConfig, ModelConfig
from rljax.training.config.setting_groups import (
    AdapterConfig,
    CriticConfig,
    DataConfig,
    OptimizationConfig,
    RunConfig,
    SamplingConfig,
    WarmStartConfig,
)

MICROBATCH_TOKENS = 16_384
"""Maximum number of tokens whose activations are in memory at once if `microbatch_rows` is not set."""

GROUPS = MappingProxyType(
    {
        "algorithm": AlgorithmConfig,
        "reward": RewardConfig,
        "model": ModelConfig,
        "adapter": AdapterConfig,
        "data": DataConfig,
        "warm_start": WarmStartConfig,
        "sampling": SamplingConfig,
        "optimization": OptimizationConfig,
        "critic": CriticConfig,
        "devices": DevicesConfig,
        "run": RunConfig,
    }
)
"""Groups of settings that every run has. The generated task is not here, because a run on a dataset has none."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run; the run folder stores them in `config.json`.

    Settings are grouped: `config.optimization.learning_rate`. Each setting also has a flat name, the name of its flag:
    `TrainConfig.flat(learning_rate=1e-5)` and `config.replace(learning_rate=1e-5)` are `--learning-rate 1e-5`.

    Example:
        >>> config = TrainConfig.flat(dataset="problems.jsonl", learning_rate=1e-5)
        >>> config.data.dataset, config.replace(critic_learning_rate=1e-4).critic.learning_rate
        ('problems.jsonl', 0.0001)
    """

    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """The algorithm."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """The reward, which judges responses."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The model. The sizes apply to the small transformer that is built when no model is given."""
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    """The low-rank adapter, if one is trained instead of the full model."""
    task: TaskConfig | None = None
    """The generated task; None with a dataset. Without a dataset, None means `sums` with its default settings."""
    data: DataConfig = field(default_factory=DataConfig)
    """The dataset and the selection of prompts."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    """The supervised warm start on the problems' demonstrations."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """Rollouts: how many responses are sampled, and how their tokens are sampled."""
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    """RL steps and the policy's optimizer."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """The critic, for the algorithms that have one."""
    devices: DevicesConfig = field(default_factory=DevicesConfig)
    """The device mesh."""
    run: RunConfig = field(default_factory=RunConfig)
    """The run folder, checkpoints and output."""

    def __post_init__(self):
        """Reject values of the wrong type, infinite, NaN or too large numbers, and values that cannot work together."""
        for group in self.groups().values():
            check_types(group)
            check_numbers(group)
        if self.task is not None and self.data.dataset is not None:
            raise InputError(
                f"Both a dataset ({self.data.dataset!r}) and a generated task ({task_name(self.task)}) are set; choose one of them."
            )
        prompts, minibatches = self.sampling.prompts, self.optimization.minibatches
        if prompts % minibatches:
            raise InputError(f"minibatches={minibatches} does not divide prompts={prompts}; choose a divisor.")
        if self.warm_start.optimizer == "muon" and self.optimization.second_moment == "factored":
            raise InputError(
                "second_moment='factored' cannot be used with warm_start_optimizer='muon'; leave one of the two out."
            )
        split_axis = next((name for name in ("tensor", "context") if (getattr(self.devices, name) or 1) > 1), None)
        if self.model.calculator is not None and split_axis:
            raise InputError(
                f"{split_axis}={getattr(self.devices, split_axis)} cannot be combined with calculator={self.model.calculator}, "
                "which needs full distributions over the tokens; leave one of the two out."
            )
        steps, delay = self.optimization.steps, self.sampling.lag
        if delay and 0 < steps <= delay:
            name = "staleness" if self.sampling.staleness else "sampler_delay"
            raise InputError(
                f"{name}={delay} with steps={steps}: all responses would be sampled with the initial parameters; set a "
                f"delay below {steps}, or more steps."
            )
        if self.model.images is not None and (split_axis or self.adapter.rank is not None):
            raise InputError(
                f"{split_axis or 'lora_rank'} cannot be combined with images={self.model.images}, whose patch embedding is "
                "replicated on every device and is trained in full; leave one of the two out."
            )
        if self.algorithm.anchor is not None and self.adapter.rank is not None:
            raise InputError(
                f"anchor={self.algorithm.anchor} cannot be used with an adapter (lora_rank={self.adapter.rank}): one of its "
                "factors starts at 0, so the Fisher information of the other is 0; leave one of the two settings out."
            )

    @property
    def minibatch_rows(self) -> int:
        """Number of responses in one optimizer update."""
        return self.sampling.prompts // self.optimization.minibatches * self.sampling.group_size

    @property
    def generated_task(self) -> TaskConfig | None:
        """The task whose problems are generated; None if the run uses a dataset."""
        return SumsConfig() if self.task is None and self.data.dataset is None else self.task

    @classmethod
    def flat(cls, **settings: Any) -> "TrainConfig":
        """Build a configuration from flat names, which are the names of the flags; `task` takes the task's name.

        Raises:
            InputError: one of the names is not a setting, or the values cannot work together.
        """
        return cls().replace(**settings)

    def replace(self, **settings: Any) -> "TrainConfig":
        """Change settings by their flat names, which are the names of the flags; `task` takes the task's name.

        Raises:
            InputError: one of the names is not a setting, or the values cannot work together.

        Example:
            >>> TrainConfig().replace(task="iteration", iterations=(2, 4), steps=10).task.iterations
            (2, 4)
        """
        changes: dict[str, Any] = {}
        if "task" in settings:
            task = settings.pop("task")
            changes["task"] = default_task(task) if isinstance(task, str) else task
        sets_reward = "reward" in settings
        for name, group in self.groups(changes).items():
            flat, hints = flat_names(type(group)), hints_of(type(group))
            values = {
                entry: fit_setting(flag, settings.pop(flag), hints[flag])
                for entry, flag in flat.items()
                if flag in settings
            }
            if values:
                changes[name] = replace(group, **values)
        if settings:
            known = {name for group in self.groups(changes).values() for name in flat_names(type(group)).values()}
            raise InputError(
                f"There is no setting {', '.join(map(repr, settings))}{did_you_mean(next(iter(settings)), known)} "
                "`rljax train --help-all` lists all of them."
            )
        if changes.get("data", self.data).dataset is not None and "task" not in changes:
            changes["task"] = None
        if "task" in changes and not sets_reward:
            changes["reward"] = self._reward_for(changes["task"], changes.get("reward", self.reward))
        return replace(self, **changes)

    def _reward_for(self, task: TaskConfig | None, reward: RewardConfig) -> RewardConfig:
        """Replace the current task's reward with the new task's; return any other reward unchanged."""
        before, after = (RewardConfig().name if each is None else each.reward for each in (self.generated_task, task))
        return replace(reward, name=after) if reward.name == before != after else reward

    def to_flat(self) -> dict[str, Any]:
        """Return every setting by its flat name; `task` is the task's name.

        Example:
            >>> TrainConfig().to_flat()["warm_start_steps"]
            0
        """
        task = {} if self.task is None else {"task": task_name(self.task)}
        return task | {
            flag: getattr(group, entry)
            for group in self.groups().values()
            for entry, flag in flat_names(type(group)).items()
            if not (group is self.generated_task and self.task is None)
        }

    def groups(self, changes: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Return the groups by name, with the `changes` applied; the task is among them only if problems are generated."""
        groups = {name: changes.get(name, getattr(self, name)) for name in GROUPS}
        for name, kind in {**GROUPS, "task": TaskConfig | None}.items():
            group = groups[name] if name in groups else changes.get(name, self.task)
            if not isinstance(group, kind):
                advice = (
                    "TrainConfig.flat() takes each setting by the name of its flag, as in TrainConfig.flat(task='sums')."
                )
                raise InputError(f"{name} is {group!r:.80}; a {GROUPS.get(name, TaskConfig).__name__} is needed. {advice}")
        task = changes.get("task", self.generated_task)
        return groups if task is None else {"task": task} | groups

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON from which `from_json` builds an equal configuration."""
        raw = asdict(self)
        if self.task is not None:
            settings = {name: raw["task"][name] for name in flat_names(type(self.task))}
            raw["task"] = {"name": task_name(self.task)} | settings
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "TrainConfig":
        """Build a configuration from the output of `to_json`.

        Raises:
            InputError: this version has no such group or setting, or a value has the wrong type.
        """
        _check_known(set(raw) - {"task", *GROUPS})
        groups: dict[str, Any] = {name: GROUPS[name](**_read(GROUPS[name], raw[name])) for name in GROUPS if name in raw}
        if raw.get("task") is None:
            return cls(**groups)
        if not isinstance(raw["task"], Mapping) or not isinstance(raw["task"].get("name"), str):
            raise InputError(f"The run's config.json has {raw['task']!r:.80} for task; an object with its name is needed.")
        settings = dict(raw["task"])
        task = default_task(settings.pop("name"))
        return cls(task=replace(task, **_read(type(task), settings)), **groups)


def _check_known(unknown: set[str]) -> None:
    if unknown:
        raise InputError(
            f"The run's config.json has settings unknown to this version of rljax: {', '.join(sorted(unknown))}. Runs of another "
            "version cannot be opened; train again, or install the version that wrote the run."
        )


def _read(group: type, raw: Any) -> dict[str, Any]:
    """Return the settings of one group; JSON's lists become tuples again."""
    flat, hints = flat_names(group), hints_of(group)
    _check_known(set(raw) - set(flat) if isinstance(raw, Mapping) else {str(raw)})
    values = {}
    for name, value in raw.items():
        try:
            values[name] = fit_value(_number(value), hints[flat[name]])
        except ValueError as error:
            raise InputError(
                f"The run's config.json has {value!r:.80} for {flat[name]}, but {error}; correct it."
            ) from error
    return values


def _number(value: object) -> object:
    """Convert the words that `json_safe` writes for infinity and NaN, which JSON lacks, back to numbers."""
    if isinstance(value, Mapping):
        return {name: _number(entry) for name, entry in value.items()}
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value
