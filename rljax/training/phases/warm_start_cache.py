"""Warm starts that are kept between runs, beside the compiled programs: a run that would compute the same one begins with it.

What a warm start computes depends on the settings that it reads, the sources, the packages and the machine. The name of the file is
a hash of all of them, so what is kept is bit for bit what the run would compute. It is kept only where nothing else can matter: the
model starts from random weights, the problems are generated, and no part is the caller's own.
"""

import hashlib
import io
import json
import math
import zipfile
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from rljax.errors import InputError
from rljax.files import atomic_write
from rljax.models import Params
from rljax.parallel import numerical_setup
from rljax.records import documented
from rljax.tracking.rows import Row, read_metrics
from rljax.tracking.starts import devices, versions
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.initial_state import place_state
from rljax.training.phases.warm_start import warm_start
from rljax.training.run import Run

CACHE_FOLDER, CACHE_ENABLED = "jax_compilation_cache_dir", "jax_enable_compilation_cache"
"""JAX's settings of the compiled programs: their folder, and whether they are kept."""
GROUPS_READ = ("model", "task", "data", "warm_start", "optimization", "devices")
"""Groups of settings that a warm start reads, beside those of `settings_read`."""
SETTINGS_UNREAD = MappingProxyType(
    {
        "data": (
            *("on_error", "prompt_column", "answer_column", "demonstration_column"),
            *("difficulty_window", "difficulty_window_end", "history_decay", "length_weights"),
        ),
        "warm_start": ("eval_every", "keep"),
        "optimization": (
            *("steps", "minibatches", "passes", "kl_limit", "microbatch_rows", "learning_rate", "schedule", "remedy"),
            "auxiliary",
        ),
        "devices": ("host_timeout",),
    }
)
"""Settings of these groups that it does not read where it is kept (see `place_of`). A setting that is new is read."""


@documented
class CachedWarmStart(NamedTuple):
    """Result of a warm start."""

    params: Params
    """Parameters of the policy."""
    rows: list[Row]
    """Its rows of `metrics.jsonl`."""


def settings_read(config: TrainConfig) -> dict:
    """The settings that a warm start depends on, as JSON."""
    groups = config.to_json()
    for group, names in SETTINGS_UNREAD.items():
        for name in names:
            del groups[group][name]
    sampling = {name: groups["sampling"][name] for name in ("max_response_tokens", "temperature")}
    return {name: groups[name] for name in GROUPS_READ} | {"sampling": sampling, "seed": config.run.seed}


def key_of(config: TrainConfig) -> str:
    """Hash of all that a warm start depends on."""
    package = Path(rljax.__file__).parent
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    read = [settings_read(config), sources.hexdigest(), versions(), devices(), numerical_setup()]
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def local_programs() -> Path | None:
    """Folder of the compiled programs on this machine; None where they are kept elsewhere, or not at all."""
    folder = getattr(jax.config, CACHE_FOLDER)
    is_local = folder and "://" not in folder and getattr(jax.config, CACHE_ENABLED)
    return Path(folder) if is_local else None


def place_of(run: Run, checkpoint: Checkpoint) -> Path | None:
    """File of this run's warm start; None where it is not kept."""
    config, folder = run.config, local_programs()
    is_generated = (
        config.model.path is None and config.generated_task is not None and not run.folder.config.get("seams", ())
    )
    is_fixed = config.warm_start.accuracy is None and config.model.tokenizer in (None, "characters", "bytes")
    is_alone = jax.process_count() == 1 and config.adapter.rank is None and config.algorithm.anchor is None
    is_possible = config.warm_start.keep and is_generated and is_fixed and is_alone
    if folder is None or not is_possible or int(checkpoint.state.warm_step):
        return None
    return folder / f"warm-start-{key_of(config)[:32]}.npz"


def write_cache(place: Path, outcome: CachedWarmStart) -> None:
    """Write a warm start atomically.

    Raises:
        OSError: it cannot be written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    rows = np.frombuffer(json.dumps(outcome.rows).encode(), np.uint8)
    np.savez(file, rows, *jax.tree.leaves(jax.device_get(outcome.params)))
    atomic_write(place, file.getvalue())


def read_cache(place: Path, like: Params) -> CachedWarmStart:
    """Read a warm start whose parameters have these shapes.

    Raises:
        ValueError: the file is not such a warm start.
        OSError: it cannot be read.
    """
    leaves, structure = jax.tree.flatten(like)
    try:
        with np.load(io.BytesIO(place.read_bytes()), allow_pickle=False) as file:
            rows, *arrays = (file[name] for name in file.files)
            rows = json.loads(rows.tobytes())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if [(a.shape, a.dtype) for a in arrays] != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise ValueError("it holds parameters of other shapes")
    return CachedWarmStart(jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays]), rows)


def rows_of_warm_start(metrics: Path, steps: int) -> list[Row]:
    """Rows of `metrics.jsonl` of a warm start that has made so many steps.

    Raises:
        InputError: the file cannot be read, or does not hold one row of each step.
    """
    rows = [row for row in read_metrics(metrics) if row["phase"] == "warm_start"]
    if len(rows) != steps:
        raise InputError(f"{metrics} holds {len(rows)} rows of its {steps} steps.")
    return rows


def cached_or_new_warm_start(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """The warm start that is kept from an earlier run, or a new one, which is then kept for later ones."""
    place = place_of(run, checkpoint)
    if place is None:
        return warm_start(run, checkpoint)
    earlier = None
    try:
        earlier = read_cache(place, checkpoint.state.params) if place.is_file() else None
    except (OSError, ValueError) as error:
        run.display.warning(f"{place} holds no warm start that can be used ({error}); it is made again.")
    if earlier is not None:
        return after_cached(run, checkpoint, earlier)
    after = warm_start(run, checkpoint)
    try:
        rows = rows_of_warm_start(run.folder.metrics, int(after.state.warm_step))
        write_cache(place, CachedWarmStart(after.state.params, rows))
    except (OSError, InputError) as error:
        run.display.warning(f"The warm start could not be kept for later runs: {error}")
    return after


def after_cached(run: Run, checkpoint: Checkpoint, earlier: CachedWarmStart) -> Checkpoint:
    """The checkpoint after the warm start of an earlier run; its rows are logged as they were."""
    for row in earlier.rows:
        numbers = {
            name: math.nan if value is None else value for name, value in row.items() if name not in ("phase", "step")
        }
        run.record("warm_start", row["step"], numbers)
    run.display.message(
        f"warm start: {len(earlier.rows)} steps, taken from an earlier run with the same settings, seed, sources, packages and "
        "machine. --no-keep-warm-start makes them again."
    )
    state = checkpoint.state._replace(params=earlier.params, warm_step=jnp.int32(len(earlier.rows)))
    return checkpoint._replace(state=place_state(run.setup, state))
