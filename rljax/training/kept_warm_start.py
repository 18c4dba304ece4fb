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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from rljax.files import atomic_write
from rljax.models import Params
from rljax.parallel import numerical_setup
from rljax.records import documented
from rljax.tracking.rows import Row, read_metrics
from rljax.tracking.starts import devices, versions
from rljax.training.beginning import placed
from rljax.training.checkpoint import Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.run import Run
from rljax.training.warm_start import warm_start

FOLDER, ENABLED = "jax_compilation_cache_dir", "jax_enable_compilation_cache"
"""JAX's settings of the compiled programs: their folder, and whether they are kept."""
READ = ("model", "adapter", "task", "data", "warm_start", "devices")
"""Groups of settings that a warm start reads, but for those of `settings_read`."""


@documented
class KeptWarmStart(NamedTuple):
    """What a warm start has made."""

    params: Params
    """Parameters of the policy."""
    rows: list[Row]
    """Its rows of `metrics.jsonl`."""


def settings_read(config: TrainConfig) -> dict:
    """The settings that a warm start depends on, as JSON."""
    groups, optimization = config.to_json(), dict(config.to_json()["optimization"])
    for name in ("steps", "minibatches", "microbatch_rows", "learning_rate", "remedy"):
        del optimization[name]
    lengths = {name: groups["sampling"][name] for name in ("max_response_tokens", "temperature")}
    whole = {name: groups[name] for name in READ}
    return whole | {"optimization": optimization, "sampling": lengths, "seed": config.run.seed}


def key_of(config: TrainConfig) -> str:
    """Hash of all that a warm start depends on."""
    package = Path(rljax.__file__).parent
    sources = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sources.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    read = [settings_read(config), sources.hexdigest(), versions(), devices(), numerical_setup()]
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def place_of(run: Run, checkpoint: Checkpoint) -> Path | None:
    """File of this run's warm start; None where it is not kept."""
    config, folder = run.config, getattr(jax.config, FOLDER)
    is_generated = (
        config.model.path is None and config.generated_task is not None and not run.folder.config.get("seams", ())
    )
    is_fixed = config.warm_start.accuracy is None and config.model.tokenizer in (None, "characters", "bytes")
    is_alone = jax.process_count() == 1 and config.adapter.rank is None
    is_kept = config.warm_start.keep and folder and getattr(jax.config, ENABLED)
    if not (is_kept and is_generated and is_fixed and is_alone) or int(checkpoint.state.warm_step):
        return None
    return Path(folder) / f"warm-start-{key_of(config)[:32]}.npz"


def write_kept(place: Path, kept: KeptWarmStart) -> None:
    """Write a warm start atomically.

    Raises:
        OSError: it cannot be written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    rows = np.frombuffer(json.dumps(kept.rows).encode(), np.uint8)
    np.savez(file, rows, *jax.tree.leaves(jax.device_get(kept.params)))
    atomic_write(place, file.getvalue())


def read_kept(place: Path, like: Params) -> KeptWarmStart:
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
    return KeptWarmStart(jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays]), rows)


def kept_or_new_warm_start(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """The warm start that is kept from an earlier run, or a new one, which is then kept for later ones."""
    place = place_of(run, checkpoint)
    if place is None:
        return warm_start(run, checkpoint)
    kept = None
    try:
        kept = read_kept(place, checkpoint.state.params) if place.is_file() else None
    except (OSError, ValueError) as error:
        run.display.warning(f"{place} holds no warm start that can be used ({error}); it is made again.")
    if kept is not None:
        return taken(run, checkpoint, kept)
    after = warm_start(run, checkpoint)
    rows = [row for row in read_metrics(run.folder.metrics) if row["phase"] == "warm_start"]
    try:
        write_kept(place, KeptWarmStart(after.state.params, rows))
    except OSError as error:
        run.display.warning(f"The warm start could not be kept for later runs: {error}")
    return after


def taken(run: Run, checkpoint: Checkpoint, kept: KeptWarmStart) -> Checkpoint:
    """The checkpoint after a warm start that is kept; its rows are logged as they were."""
    for row in kept.rows:
        numbers = {
            name: math.nan if value is None else value for name, value in row.items() if name not in ("phase", "step")
        }
        run.record("warm_start", row["step"], numbers)
    run.display.message(
        f"warm start: {len(kept.rows)} steps, taken from an earlier run with the same settings, seed, sources, packages and "
        "machine. --no-keep-warm-start makes them again."
    )
    state = checkpoint.state._replace(params=kept.params, warm_step=jnp.int32(len(kept.rows)))
    return checkpoint._replace(state=placed(run.setup, state))
