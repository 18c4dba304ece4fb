"""Federated averaging: the mean of several models that began with the same weights and were trained separately."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array, PyTree

from rljax.errors import InputError
from rljax.models import Params
from rljax.models.huggingface import locate
from rljax.ops.arrays import Number
from rljax.parallel import agree, run_together
from rljax.programs.export import check_new, model_of
from rljax.programs.trained_policy import Which, parameters_of
from rljax.settings.shared_groups import SIZES
from rljax.text import counted
from rljax.training.config import TrainConfig
from rljax.training.parts.model_folder import save_model, write_atomically


def average(
    runs: Sequence[str | Path], folder: str | Path, *, weights: Sequence[float] | None = None, which: Which = "best"
) -> Path:
    """Write the weighted mean of the models of several runs as a model folder.

    ::

        θ = Σ_k w_k θ_k / Σ_k w_k

    Adapters are first merged into their base models. The models are read one after the other, so that at most two models are in
    memory at a time. If there are several hosts, all processes call this together, and the first process writes.

    Args:
        runs: folders of runs, or of their checkpoints (`RUN/checkpoints/last`), at least two; their models must have begun with
            the same weights.
        folder: folder to write, which must not exist yet; it appears only when it is complete.
        weights: one weight per run, such as the number of problems that it was trained on; None means 1 each.
        which: which checkpoint of each run to use, "best" or "last".

    Returns:
        The folder.

    Raises:
        InputError: there are fewer than two runs, a weight is missing or not above 0, a run cannot be opened or has a custom
            policy, the runs began with different weights or with different tokenizers, or the folder exists.

    Source:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", arXiv:1602.05629, Algorithm 1.
    """
    folder = Path(folder)
    chosen = check_weights([str(run) for run in runs], weights)
    agree("arguments of the average", repr((list(map(str, runs)), str(folder), chosen, which)))
    run_together(lambda: check_new(folder))
    opened = run_together(lambda: [model_of(run, which, None) for run in runs])
    run_together(lambda: check_same_start({str(run): model[0] for run, model in zip(runs, opened, strict=True)}))
    _, _, _, policy, mesh, extra = opened[0]
    mean, total = None, 0.0
    for (config, run, place, *_), weight in zip(opened, chosen, strict=True):
        params, total = parameters_of(config, policy, mesh, run, place), total + weight
        mean = params if mean is None else move_towards(mean, params, weight / total)
    write_atomically(folder, lambda part: save_model(part, policy, mean, extra))
    return folder


@partial(jax.jit, donate_argnums=0)
def move_towards(mean: PyTree[Array], params: PyTree[Array], share: Number) -> Params:
    """Move a mean towards further parameters by a fraction of the distance. Equal parameters leave the mean bitwise unchanged.

    Args:
        mean: mean of the earlier parameters; it is donated.
        params: the next parameters, of the same shapes.
        share: the weight of `params` divided by the total weight so far, which includes it.

    Example:
        >>> import jax.numpy as jnp
        >>> move_towards({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([5.0, 2.0])}, 0.25)["w"].tolist()
        [2.0, 2.0]
    """
    return jax.tree.map(lambda old, new: old + share * (new - old), mean, params)


def check_weights(runs: Sequence[str], weights: Sequence[float] | None) -> list[float]:
    """Return one weight for each run.

    Raises:
        InputError: there are fewer than two runs, or a weight is missing or not a finite number above 0.

    Example:
        >>> check_weights(["runs/a", "runs/b"], None)
        [1.0, 1.0]
    """
    if len(runs) < 2:
        raise InputError(
            f"there is nothing to average in {counted(len(runs), 'run')}; give two runs or more, and the folder to write."
        )
    chosen = [1.0] * len(runs) if weights is None else [float(weight) for weight in weights]
    if len(chosen) != len(runs):
        raise InputError(
            f"weights has {counted(len(chosen), 'number')} for {counted(len(runs), 'run')}; give one number per run."
        )
    wrong = next((weight for weight in chosen if not 0 < weight < float("inf")), None)
    if wrong is not None:
        raise InputError(f"weights has {wrong}; each must be a finite number above 0.")
    return chosen


def start_of(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that determine the initial weights and the tokenizer of a run."""
    model, task = config.model, config.generated_task
    if model.path is not None:
        return {"model": str(locate(model.path).resolve()), "tokenizer": model.tokenizer}
    tokenizer = ("bytes" if task is None else task.tokenizer) if model.tokenizer is None else model.tokenizer
    settings = {"model": None, "tokenizer": tokenizer, "seed": config.run.seed}
    return settings | {name: getattr(model, name) for name in SIZES}


def check_same_start(configs: dict[str, TrainConfig]) -> None:
    """Reject runs that did not begin with the same weights.

    Args:
        configs: name of a run -> its settings.

    Raises:
        InputError: a run began with other weights; the message names the first setting that differs.
    """
    (first, start), *others = [(name, start_of(config)) for name, config in configs.items()]
    for name, other in others:
        setting = next((key for key in {**start, **other} if start.get(key) != other.get(key)), None)
        if setting is not None:
            shown = [values.get(setting) for values in (start, other)]
            raise InputError(
                f"{first!r} began with {setting}={shown[0]!r} and {name!r} with {setting}={shown[1]!r}; the mean of two models is "
                "a useful model only if both began with the same weights. Average runs that began with the same model; runs from "
                "random weights also need the same sizes and the same seed."
            )
