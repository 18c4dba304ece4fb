"""`rljax.train`: training with the built-in options, in three phases: warm start, value pretraining and RL.

Each phase passes a checkpoint to the next.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path

import optax

from rljax.algorithms import Algorithm
from rljax.data.plain_text import is_text
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Policy
from rljax.models.peft_folder import read_adapter_config
from rljax.options import INSTALLERS
from rljax.programs.value_pretraining import value_pretraining
from rljax.programs.warm_start import cached_warm_start
from rljax.records import required
from rljax.rollout import Engine, Environment
from rljax.settings.flat import flat_names
from rljax.tracking.trackers import Tracker
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.finish import finish, write_final_models
from rljax.training.lifecycle.start import AUTO, Consent
from rljax.training.loop import Result, run_training
from rljax.training.objective.algorithm import make_algorithm
from rljax.training.parts.custom_parts import ROWS_PLACEHOLDER, CustomParts, check_parts
from rljax.training.phase import run_phase
from rljax.training.rl_phase import make_rl_phase
from rljax.training.run import Run
from rljax.training.setup import Install
from rljax.training.state import RL, VALUE_PRETRAINING, WARM_START

UNJUDGED = "none"
"""Name of the reward in a supervised run whose answers are not scored."""

UnusedIf = tuple[bool, tuple[str, ...], str]
"""Whether some settings have no effect in this run, their names, and the reason."""

SHARED_OPTIMIZER_SETTINGS = (
    "learning_rate_warmup",
    "adam_b1",
    "adam_b2",
    "weight_decay",
    "max_grad_norm",
    "moments_dtype",
    "second_moment",
)
"""Settings of the policy's optimizer in RL that the optimizers of the warm start and of a critic read, too."""


def train(
    config: TrainConfig | None = None,
    reward: Callable | Sequence[Callable | str] | None = None,
    *,
    dataset: str | Path | Iterable[Mapping[str, object]] | None = None,
    policy: Policy | None = None,
    engine: Engine | None = None,
    environment: Environment | None = None,
    optimizer: optax.GradientTransformation | None = None,
    algorithm: Algorithm | None = None,
    problems: tuple[Sequence[Problem], Sequence[Problem]] | None = None,
    options: Sequence[Install] | None = None,
    trackers: Sequence[Tracker] = (),
    resume: str | Path | None = None,
    trust: bool = False,
    accept_changes: bool = False,
) -> Result:
    """Train a language model with reinforcement learning.

    If there are several hosts (after `jax.distributed.initialize()`), every process must make the same call. All hosts must be able
    to reach the run folder, and the returned parameters are sharded over the devices of all hosts. Compiled programs are cached
    for the next process only if JAX is configured to do so: `rljax.use_compilation_cache()` does that, as the commands do.

    Args:
        config: all settings. Omit it on resume, when the settings are read from the run's config.json.
        reward: `f(prompts, completions, **columns) -> list[float | None]`, instead of `config.reward`. The columns are the
            dataset's, with one entry per completion; a function receives the columns that it names, or all of them if it takes
            `**kwargs`. Several rewards are summed with the weights `config.reward.weights`.
        dataset: rows (dicts, or a `datasets.Dataset`), or the name of a file, folder or hub id; instead of `config.data.dataset`.
        policy: your own model, instead of `config.model`; see `rljax.models.Policy`.
        engine: samples the responses, instead of the built-in engine; see `rljax.rollout.Engine`.
        environment: responds to the policy turn by turn, instead of a reward; see `rljax.rollout.Environment`.
        optimizer: any Optax transformation for the policy in RL, instead of AdamW. Warm start and critic still use AdamW.
        algorithm: your own algorithm, instead of `config.algorithm`.
        problems: training and held-out problems, instead of the dataset or the generated task.
        options: functions `f(setup) -> setup.with_option(Option(...))`, each of which adds an idea to the run, after the built-in
            options; see `rljax.training.state.Option`.
        trackers: trackers to use in addition to JSON lines and TensorBoard; see `rljax.tracking.trackers.Tracker`.
        resume: folder of a run to continue. Every argument except the configuration must be passed again. If a configuration is
            passed, the settings in which it differs from the run's are changed; see `rljax.training.lifecycle.resume`. "auto"
            continues the run in the folder that the configuration names, or begins one there if there is none.
        trust: whether to execute code that is named only in the config.json of a resumed run (a reward, step reward or algorithm);
            not needed with a configuration.
        accept_changes: whether to continue a run even if its rows, rewards, environment, chat template or tokenizer have changed
            since the run was last started; otherwise a changed run is rejected. `starts.jsonl` of the run records the change.

    Returns:
        The run folder, held-out accuracy before and after RL, and the parameters.

    Raises:
        InputError: the configuration, the data, the reward or another argument is invalid; nothing was overwritten.
        Interrupted: Ctrl-C or SIGTERM; the run can be resumed. It is saved up to its last step, or up to its last checkpoint if
            it was stopped while waiting for disk space.
    """
    config, rows = with_dataset(config, dataset)
    custom = CustomParts(policy, engine, environment, reward, optimizer, algorithm, problems, rows, options)
    if reward is not None and not callable(reward) and not isinstance(reward, Sequence):
        raise InputError(f"reward: a function, or a list of functions and names, is needed; got {reward!r:.80}.")
    if config is not None and resume in (None, AUTO):
        check_parts(custom)
        refuse_unused_settings(config, custom)
    if config is not None and config.data.dataset is not None and is_text(config.data.dataset):
        raise InputError(
            "Plain text has nothing that a reward could judge; learn it with `rljax pretrain FILES`, then train the model."
        )
    if (
        config is not None
        and config.reward.name == UNJUDGED
        and config.optimization.steps
        and reward is environment is None
    ):
        raise InputError(
            "The reward is 'none', so there is nothing to learn from: this is a run of `rljax sft` without a reward. Start RL from "
            "its model with a reward: `rljax train --model RUN/last --reward NAME`."
        )
    consent = Consent(trust=trust, changes=accept_changes)
    return run_training(
        config, custom, run_phases, installers=INSTALLERS, trackers=trackers, resume=resume, consent=consent
    )


def refuse_unused_settings(config: TrainConfig, custom: CustomParts) -> None:
    """Refuse settings of a new run that have no effect, because of another setting, or because a part is passed to `train`.

    Raises:
        InputError: a setting has no effect; the message names it, and the reason.
    """
    chosen, defaults = config.to_flat(), _default_values(config)
    for is_unused, names, reason in _unused_settings(config, custom):
        unused = next((name for name in names if is_unused and chosen[name] != defaults[name]), None)
        if unused is not None:
            raise InputError(f"{unused}={chosen[unused]!r:.80} {reason}; leave {unused} out.")
    _check_stored_adapter(config)
    run = config.run
    if run.keep_period is not None and run.keep_period % run.checkpoint_every:
        raise InputError(
            f"keep_period={run.keep_period} keeps checkpoints that are not saved: it must be a multiple of "
            f"checkpoint_every={run.checkpoint_every}."
        )


def _unused_settings(config: TrainConfig, custom: CustomParts) -> tuple[UnusedIf, ...]:
    """List all groups of settings that may have no effect in a run."""
    algorithm = make_algorithm(config, custom.algorithm)
    return (
        *_settings_of_replaced_parts(config, custom, algorithm),
        *_settings_of_absent_features(config, custom, algorithm),
    )


def _settings_of_replaced_parts(config: TrainConfig, custom: CustomParts, algorithm: Algorithm) -> tuple[UnusedIf, ...]:
    """List settings of built-in parts; they have no effect if a server or a part that is passed to `train` replaces the part."""
    sampling, passed = config.sampling, "is passed to train()"
    has_environment = custom.environment is not None or config.reward.environment is not None
    # in an environment, the built-in engine may sample another player
    memory = () if has_environment else ("cache_memory", "decode_slots")
    return (
        (
            sampling.engine_url is not None,
            ("cache_dtype", "shard_sampler", *memory),
            "applies to the built-in engine, but the engine is a server",
        ),
        (
            custom.engine is not None,
            ("paged_cache", "cache_dtype", "shard_sampler", *memory),
            f"applies to the built-in engine, but an engine {passed}",
        ),
        (custom.optimizer is not None, ("schedule",), f"applies to the built-in optimizer, but an optimizer {passed}"),
        (
            custom.optimizer is not None and algorithm.critic is None,
            ("learning_rate", *(() if config.warm_start.steps else SHARED_OPTIMIZER_SETTINGS)),
            f"applies to the built-in optimizer, but an optimizer {passed}",
        ),
        (
            custom.algorithm is not None,
            ("algorithm", "algorithm_options", "without"),
            f"applies to built-in algorithms, but your own algorithm {passed}",
        ),
        (
            custom.policy is not None,
            ("attention", "scan_layers", "cache_dtype", "shard_sampler", "images"),
            f"applies to the built-in transformer, but a policy {passed}",
        ),
        (
            has_environment,
            ("reward_messages", "reward_weights", "reward_combine"),
            "applies to a reward, but an environment judges the responses",
        ),
    )


def _settings_of_absent_features(config: TrainConfig, custom: CustomParts, algorithm: Algorithm) -> tuple[UnusedIf, ...]:
    """List settings of features; they have no effect in a run without the feature."""
    sampling = config.sampling
    return (
        (
            sampling.engine_url is None,
            ("engine_server", "engine_folder", "engine_patience"),
            "applies only with engine_url",
        ),
        (config.adapter.rank is None, ("lora_alpha", "lora_targets", "lora_start"), "applies only with lora_rank"),
        (config.critic.head is None, ("critic_head_options",), "applies only with critic_head"),
        (
            algorithm.critic is None,
            ("value_pretraining_passes", "value_pretraining_explained_variance", "value_pretraining_loss"),
            "applies to a critic, but the algorithm has none",
        ),
        (
            algorithm.group_size == 1,
            ("token_budget",),
            "divides tokens among the responses to a prompt, but the algorithm samples only one",
        ),
        (
            config.data.difficulty_window is None and sampling.token_budget is None,
            ("history_decay",),
            "applies only with difficulty_window or token_budget",
        ),
        (
            config.generated_task is not None or custom.problems is not None,
            ("heldout_dataset", "demonstration_column"),
            "applies to a dataset, but this run has none",
        ),
        (config.optimization.steps == 0, ("skip_first_eval",), "applies to RL, but this run has none"),
        (
            config.optimization.steps == 0 and config.reward.name == UNJUDGED,
            ("schedule", "length_weights"),
            "applies to RL, but this run has none",
        ),
    )


def _check_stored_adapter(config: TrainConfig) -> None:
    """Refuse a rank or a scale that differs from that of the adapter to continue from."""
    adapter = config.adapter
    if adapter.start is None:
        return
    stored = read_adapter_config(Path(adapter.start).expanduser())
    if (adapter.rank, adapter.alpha) != (stored.rank, stored.alpha):
        raise InputError(
            f"lora_rank={adapter.rank} and lora_alpha={adapter.alpha:g} are not those of the adapter {adapter.start!r}; set "
            f"lora_rank={stored.rank} and lora_alpha={stored.alpha:g}."
        )


def _default_values(config: TrainConfig) -> dict[str, object]:
    """Return the default value of each setting, by flat name."""
    return {
        flat_names(type(group))[entry.name]: entry.default if entry.default_factory is MISSING else entry.default_factory()
        for group in config.groups().values()
        for entry in fields(group)
        if entry.name in flat_names(type(group))
    }


def run_phases(run: Run, owned: list[Checkpoint]) -> Result:
    """Run the remaining phases and return the result.

    Args:
        run: the run.
        owned: a list with the checkpoint to continue from; the checkpoint is removed, so that only the running phase owns its
            arrays.
    """
    phases = [
        (WARM_START, lambda: cached_warm_start(run, owned[0])),
        (VALUE_PRETRAINING, lambda: value_pretraining(run)),
        (RL, lambda: make_rl_phase(run)),
    ]
    for number, make_phase in phases:
        if int(owned[0].state.phase) <= number:
            run_phase(run, owned, make_phase())
    checkpoint = owned.pop()
    finish(run, checkpoint, write_final_models(run, checkpoint))
    notes = checkpoint.notes
    before, after = required(notes.quality_before, "notes.quality_before"), required(notes.quality, "notes.quality")
    return Result(run.folder.path, before.accuracy, after.accuracy, run.setup.full_params(checkpoint.state.params))


def with_dataset(
    config: TrainConfig | None, dataset: str | Path | Iterable[Mapping[str, object]] | None
) -> tuple[TrainConfig | None, Iterable[Mapping[str, object]] | None]:
    """Put the name of the dataset into the settings; return them with the rows, if rows were passed.

    Raises:
        InputError: the configuration has the wrong type; or a dataset name is passed when a run is resumed without a
            configuration.
    """
    if config is not None and not isinstance(config, TrainConfig):
        raise InputError(
            f"config: an rljax.TrainConfig is needed, such as rljax.TrainConfig.flat(steps=100); got {config!r:.80}."
        )
    is_name = isinstance(dataset, str | Path)
    if dataset is None or (config is None and not is_name):
        return config, dataset
    if config is None:
        raise InputError(f"The run has the name of its dataset in config.json; leave dataset={str(dataset)!r} out.")
    return config.replace(dataset=str(dataset) if is_name else ROWS_PLACEHOLDER, task=None), None if is_name else dataset
