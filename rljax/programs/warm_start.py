"""The warm start: supervised training on demonstrations. Its result may be cached between runs, next to the compiled programs.

The result depends on the settings that a warm start reads, rljax's code, the packages and the machine. The name of the cached file
is a hash of all of these, so the file contains bit for bit what the run would compute. A result is cached only if nothing else can
affect it (see `cache_file_of`): for example, the model must start from random weights, and the problems must be generated.
"""

import hashlib
import io
import json
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.evaluation.heldout import evaluate
from rljax.files import atomic_write
from rljax.models import Params
from rljax.parallel import numerical_setup, row_shards
from rljax.records import required
from rljax.rollout import lay_out_examples, sequences_of_demonstrations
from rljax.text import counted
from rljax.tracking.rows import Row, metrics_of, read_metrics
from rljax.tracking.start_records import describe_devices, read_versions
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import MICROBATCH_TOKENS, TrainConfig
from rljax.training.lifecycle.initial_state import place_state
from rljax.training.metrics import present
from rljax.training.objective.optimizer import learning_rate_of, warm_start_optimizer
from rljax.training.phase import Phase, RunStep, StepOutcome
from rljax.training.run import Run, stop_reason
from rljax.training.update import make_supervised_step, put_layout


def warm_start_phase(run: Run) -> Phase:
    """Return the phase that trains on demonstrations up to a step limit, or until held-out accuracy reaches a threshold."""
    settings, every = run.config.warm_start, run.config.run.checkpoint_every
    return Phase(
        name="warm_start",
        steps=settings.steps,
        steps_done=lambda state: int(state.warm_step),
        make_step=partial(make_step, run),
        explain_stop=lambda skipped, outcome: stop_reason(run, "--warm-start-learning-rate", skipped),
        saves_after=lambda done: done % every == 0,
        saves_start=False,
        evaluate=partial(evaluate_accuracy, run),
    )


def make_step(run: Run, checkpoint: Checkpoint) -> RunStep:
    """Build the step that trains on one batch of demonstrations."""
    config, setup = run.config, run.setup
    settings, demonstrations = config.warm_start, required(setup.demonstrations, "setup.demonstrations")
    if demonstrations.dropped:
        run.display.warning(f"Left out {counted(demonstrations.dropped, 'demonstration')} longer than the token limit.")
    sequences = sequences_of_demonstrations(demonstrations)
    order = PromptStream(range(len(sequences.tokens)), seed=config.run.seed)
    update = make_supervised_step(setup, warm_start_optimizer(config), checkpoint.state)
    devices = row_shards(setup.mesh)
    most = config.optimization.microbatch_rows or MICROBATCH_TOKENS // sum(
        array.shape[1] for array in (sequences.prompt_tokens, sequences.tokens)
    )
    sizes = {"rows": max(most // devices, 1) * devices, "devices": devices}

    def step(checkpoint: Checkpoint) -> StepOutcome:
        run.display.activity("learning from demonstrations", compiles=True)
        start, done = time.monotonic(), int(checkpoint.state.warm_step)
        rows = order.indices(done * settings.batch, settings.batch)
        batch = jax.tree.map(lambda array: array[rows], sequences)
        layout = lay_out_examples(batch, batch.learned, **sizes)
        state, measured = update(checkpoint.state, *put_layout(setup.mesh, layout, batch.learned))
        metrics = present(measured)
        metrics["learning_rate"] = required(learning_rate_of(state.opt_state), "opt_state.learning_rate")
        metrics["seconds"] = time.monotonic() - start
        return StepOutcome(checkpoint._replace(state=state), metrics, metrics["skipped_updates"])

    return step


def evaluate_accuracy(run: Run, outcome: StepOutcome) -> tuple[Checkpoint, bool]:
    """Answer the held-out problems at intervals, and compare the accuracy with the threshold, if there is one."""
    settings, state, setup = run.config.warm_start, outcome.checkpoint.state, run.setup
    done = int(state.warm_step)
    if settings.accuracy is None or done % settings.eval_every:
        return outcome.checkpoint, False
    run.display.activity("answering held-out problems", compiles=True)
    start = time.monotonic()
    accuracy = evaluate(replace(setup.heldout, extra_sets={}), setup.full_params(state.params)).metrics()["accuracy"]
    run.record("eval", 0, {"accuracy": accuracy, "seconds": time.monotonic() - start})
    run.display.evaluated(done, {"accuracy": accuracy})
    return outcome.checkpoint, accuracy >= settings.accuracy


CACHE_FOLDER, CACHE_ENABLED = "jax_compilation_cache_dir", "jax_enable_compilation_cache"
"""JAX's settings for the cache of compiled programs: its folder, and whether it is used."""
READ_GROUPS = ("model", "task", "data", "warm_start", "optimization", "devices")
"""Groups of settings that a warm start reads; `relevant_settings` adds a few others."""
UNREAD_SETTINGS = MappingProxyType(
    {
        "data": (
            *("on_error", "prompt_column", "answer_column", "demonstration_column"),
            *("difficulty_window", "difficulty_window_end", "history_decay", "length_weights"),
        ),
        "warm_start": ("eval_every", "keep"),
        "optimization": (
            *("steps", "minibatches", "passes", "kl_limit", "learning_rate", "schedule", "remedy"),
            "auxiliary",
        ),
        "devices": ("host_timeout",),
    }
)
"""Group -> its settings that cannot change a warm start that `cache_file_of` lets be cached. All other settings count as read."""


class CachedWarmStart(NamedTuple):
    """The result of a warm start."""

    params: Params
    """Parameters of the policy."""
    rows: list[Row]
    """The warm start's rows of `metrics.jsonl`."""


def relevant_settings(config: TrainConfig) -> dict:
    """Return the settings that a warm start depends on, as JSON."""
    groups = config.to_json()
    for group, names in UNREAD_SETTINGS.items():
        for name in names:
            del groups[group][name]
    sampling = {name: groups["sampling"][name] for name in ("max_response_tokens", "temperature")}
    return {name: groups[name] for name in READ_GROUPS} | {"sampling": sampling, "seed": config.run.seed}


def key_of(config: TrainConfig) -> str:
    """Return a hash of everything that a warm start depends on."""
    package = Path(rljax.__file__).parent
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    read = [relevant_settings(config), sources.hexdigest(), read_versions(), describe_devices(), numerical_setup()]
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def local_cache_folder() -> Path | None:
    """Return the local folder in which compiled programs are cached; None if they are cached elsewhere, or not at all."""
    folder = getattr(jax.config, CACHE_FOLDER)
    is_local = folder and "://" not in folder and getattr(jax.config, CACHE_ENABLED)
    return Path(folder) if is_local else None


def cache_file_of(run: Run, checkpoint: Checkpoint) -> Path | None:
    """Return the cache file of this run's warm start; None if it must not be cached."""
    config, folder, own_parts = run.config, local_cache_folder(), run.folder.config.get("seams", ())
    is_generated = config.model.path is None and config.generated_task is not None and not own_parts
    is_fixed = config.warm_start.accuracy is None and config.model.tokenizer in (None, "characters", "bytes")
    is_plain = jax.process_count() == 1 and config.adapter.rank is None and config.algorithm.anchor is None
    is_possible = config.warm_start.keep and is_generated and is_fixed and is_plain
    if folder is None or not is_possible or int(checkpoint.state.warm_step):
        return None
    return folder / f"warm-start-{key_of(config)[:32]}.npz"


def write_cache(place: Path, outcome: CachedWarmStart) -> None:
    """Write a warm start atomically.

    Raises:
        OSError: the file cannot be written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    rows = np.frombuffer(json.dumps(outcome.rows).encode(), np.uint8)
    np.savez(file, rows, *jax.tree.leaves(jax.device_get(outcome.params)))
    atomic_write(place, file.getvalue())


def read_cache(place: Path, like: Params) -> CachedWarmStart:
    """Read a warm start whose parameters have the shapes of `like`.

    Raises:
        ValueError: the file contains no such warm start.
        OSError: the file cannot be read.
    """
    leaves, structure = jax.tree.flatten(like)
    try:
        with np.load(io.BytesIO(place.read_bytes()), allow_pickle=False) as file:
            rows, *arrays = (file[name] for name in file.files)
            rows = json.loads(rows.tobytes())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if [(a.shape, a.dtype) for a in arrays] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise ValueError("its parameters have other shapes")
    return CachedWarmStart(jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays]), rows)


def rows_of_warm_start(metrics: Path, steps: int) -> list[Row]:
    """Return the rows of `metrics.jsonl` from a warm start of this many steps.

    Raises:
        InputError: the file cannot be read, or does not have one row per step.
    """
    rows = [row for row in read_metrics(metrics) if row["phase"] == "warm_start"]
    if len(rows) != steps:
        raise InputError(f"{metrics} has {counted(len(rows), 'row')} for {counted(steps, 'step')} of the warm start.")
    return rows


def cached_warm_start(run: Run, checkpoint: Checkpoint) -> Phase:
    """Return the warm-start phase. If `cache_file_of` names a file, the phase reads its result from there, or writes it there."""
    phase, place = warm_start_phase(run), cache_file_of(run, checkpoint)
    if place is None:
        return phase
    return replace(phase, enter=partial(load_cached, run, place), leave=partial(cache_result, run, place))


def load_cached(run: Run, place: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint after the cached warm start, and log its metrics; without a cached one, return `checkpoint` unchanged.

    A damaged file is removed.
    """
    if not place.is_file():
        return checkpoint
    try:
        earlier = read_cache(place, checkpoint.state.params)
    except (OSError, ValueError) as error:
        run.display.warning(f"{place} has no warm start that can be used ({error}); the warm start is computed again.")
        place.unlink(missing_ok=True)
        return checkpoint
    for row in earlier.rows:
        run.record("warm_start", row["step"], metrics_of(row))
    run.display.message(
        f"warm start: {counted(len(earlier.rows), 'step')}, taken from an earlier run with the same settings, seed, sources, "
        "packages and machine. --no-keep-warm-start computes the warm start again."
    )
    state = checkpoint.state._replace(params=earlier.params, warm_step=jnp.int32(len(earlier.rows)))
    return checkpoint._replace(state=place_state(run.setup, state))


def cache_result(run: Run, place: Path, checkpoint: Checkpoint) -> None:
    """Cache the result of a warm start for later runs, unless it is cached already."""
    if place.is_file():
        return
    try:
        rows = rows_of_warm_start(run.folder.metrics, int(checkpoint.state.warm_step))
        write_cache(place, CachedWarmStart(checkpoint.state.params, rows))
    except (OSError, InputError) as error:
        run.display.warning(f"The warm start could not be cached for later runs: {error}")
