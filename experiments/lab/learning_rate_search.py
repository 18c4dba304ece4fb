"""Learning-rate search for the arms of a comparison; every arm is tuned in the same way, so that none has an advantage."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lab.tabular_training import Setting, _quick_compilation, measure, train
from lab.worlds import Key

RATES = (0.03, 0.1, 0.3, 1.0)
"""Learning rates that the search tries."""
WIDE_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Learning rates for a wider search, for arms whose best rate may be outside `RATES`."""
TUNING_SEEDS = range(1000, 1008)
"""Seeds of the search; no claim is tested with these seeds."""


def tune(
    settings: Sequence[Setting],
    *,
    number: str = "area",
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = TUNING_SEEDS,
) -> Setting:
    """Return the setting of an arm, and the learning rate, with the highest mean pass rate over the seeds.

    Args:
        settings: candidate settings of one arm; each is tried at every rate.
        number: metric to maximize: "area", the mean pass rate during training, or "success", the final pass rate.
        rates: learning rates to try, instead of the settings' own.
        seeds: seeds of the search.

    Returns:
        The best setting, with the best rate as its learning rate; of equally good ones, the first.

    Raises:
        ValueError: `number` is neither "area" nor "success", or `settings`, `rates` or `seeds` is empty.

    Example:
        >>> from rljax.algorithms import rloo
        >>> from lab.worlds import codes, leaning
        >>> world = codes(contexts=2, length=2, tokens=2)
        >>> setting = Setting(world, leaning(world, lean=-1.0), rloo(), steps=20, points=2)
        >>> tune([setting], rates=(1e-6, 0.1), seeds=[0, 1]).learning_rate
        0.1
    """
    if number not in ("area", "success"):
        raise ValueError(f"number must be area or success, got {number!r}")
    if not settings or not rates or not seeds:
        counts = f"{len(settings)} settings, {len(rates)} rates and {len(seeds)} seeds"
        raise ValueError(f"settings, rates and seeds must not be empty, got {counts}")
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    grid = jnp.asarray(rates, jnp.float32)
    scores = np.stack([_mean_rates(setting, grid, keys, number) for setting in settings])
    best, rate = divmod(int(scores.argmax()), len(rates))
    return settings[best]._replace(learning_rate=rates[rate])


def _mean_rates(setting: Setting, rates: Float[Array, "K"], keys: Key, number: str) -> np.ndarray:
    """Compute the metric of a setting at each learning rate, averaged over the seeds."""

    def score(rate: Float[Array, ""], key: Key) -> Float[Array, ""]:
        curve = train(setting._replace(learning_rate=rate), key)[0].success.mean(-1)  # pyright: ignore[reportArgumentType]  traced
        return curve.mean() if number == "area" else curve[-1]

    over_seeds = jax.vmap(score, in_axes=(None, 0))
    search = jax.jit(jax.vmap(over_seeds, in_axes=(0, None)), compiler_options=_quick_compilation())
    with jax.numpy_dtype_promotion("standard"):  # Optax raises its decays to the power of an integer count
        return np.asarray(search(rates, keys)).mean(-1)


def measure_tuned(
    settings: Setting | Sequence[Setting],
    seeds: Sequence[int],
    *,
    number: str = "area",
    rates: Sequence[float] = RATES,
) -> dict[str, np.ndarray]:
    """Train an arm with several seeds, using the candidate and the learning rate that are best on `TUNING_SEEDS`.

    Args:
        settings: the setting of an arm, or several candidates.
        seeds: seeds that test a claim.
        number: metric that the search maximizes, as in `tune`.
        rates: learning rates of the search.

    Returns:
        The metrics of `lab.tabular_training.measure`, `learning_rate`, and `candidate`, the index of the chosen setting.

    Raises:
        ValueError: as in `tune`.
    """
    candidates = [settings] if isinstance(settings, Setting) else list(settings)
    best = tune(candidates, number=number, rates=rates)
    candidate = [one._replace(learning_rate=best.learning_rate) for one in candidates].index(best)
    chosen = {"learning_rate": best.learning_rate, "candidate": candidate}
    return measure(best, seeds) | {name: np.full(len(seeds), float(value)) for name, value in chosen.items()}


def measure_at_rate_of(
    baseline: Setting,
    settings: Setting,
    seeds: Sequence[int],
    *,
    number: str = "area",
    rates: Sequence[float] = WIDE_RATES,
) -> dict[str, np.ndarray]:
    """Train an arm with several seeds at the learning rate that is best for the baseline.

    Use it for metrics that the learning rate itself changes, such as entropy and length: if each arm had its own rate, the arms
    would differ in two ways.

    Args:
        baseline: setting for which the rate is searched.
        settings: setting of the arm to train.
        seeds: seeds that test a claim.
        number: metric that the search maximizes, as in `tune`.
        rates: learning rates of the search.

    Returns:
        The metrics of `lab.tabular_training.measure`, and `learning_rate`.
    """
    rate = tune([baseline], number=number, rates=rates).learning_rate
    return measure(settings._replace(learning_rate=rate), seeds) | {"learning_rate": np.full(len(seeds), rate)}
