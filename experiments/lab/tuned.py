"""Search the learning rate of every arm of a comparison in the same way, so that no arm profits from a rate tuned for it alone."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lab.tabular import Setting, _quick_compilation, measure, train
from lab.worlds import Key

RATES = (0.03, 0.1, 0.3, 1.0)
"""Learning rates of the search."""
WIDE_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Learning rates of a wider search, for arms whose best rate may be outside `RATES`."""
TUNING_SEEDS = range(1000, 1008)
"""Seeds of the search; no claim is decided on them."""


def tune(
    settings: Sequence[Setting],
    *,
    number: str = "area",
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = TUNING_SEEDS,
) -> Setting:
    """Find the candidate and the learning rate with the highest pass rate.

    Args:
        settings: candidates of one arm; all of them are tried at all rates.
        number: "area", the mean pass rate during training, or "success", the final pass rate.
        rates: learning rates to try; they replace the settings' own.
        seeds: seeds of the search.

    Returns:
        The best setting, with the best rate as its learning rate; the first one in case of a tie.

    Raises:
        ValueError: `number` is not one of these, or there is nothing to try.

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
        raise ValueError(f"tuning needs settings, rates and seeds, got {len(settings)}, {len(rates)} and {len(seeds)}")
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    grid = jnp.asarray(rates, jnp.float32)
    scores = np.stack([_mean_rates(setting, grid, keys, number) for setting in settings])
    best, rate = divmod(int(scores.argmax()), len(rates))
    return settings[best]._replace(learning_rate=rates[rate])


def _mean_rates(setting: Setting, rates: Float[Array, "K"], keys: Key, number: str) -> np.ndarray:
    """Compute the mean score of a setting over the seeds at each learning rate."""

    def one(rate: Float[Array, ""], key: Key) -> Float[Array, ""]:
        curve = train(setting._replace(learning_rate=rate), key)[0].success.mean(-1)  # pyright: ignore[reportArgumentType]  traced
        return curve.mean() if number == "area" else curve[-1]

    over_seeds = jax.vmap(one, in_axes=(None, 0))
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
    """Train with several seeds, using the candidate and the learning rate that are best on other seeds.

    Args:
        settings: an arm, or its candidates.
        seeds: seeds that decide a claim.
        number: metric that the search maximizes, as in `tune`.
        rates: learning rates of the search.

    Returns:
        The metrics of `lab.tabular.measure`, `learning_rate`, and `candidate`, its index among the settings.

    Raises:
        ValueError: as in `tune`.
    """
    candidates = [settings] if isinstance(settings, Setting) else list(settings)
    best = tune(candidates, number=number, rates=rates)
    place = [one._replace(learning_rate=best.learning_rate) for one in candidates].index(best)
    chosen = {"learning_rate": best.learning_rate, "candidate": place}
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

    For outcomes that the rate itself changes, such as entropy and length: at rates of their own, the arms would differ in two ways.

    Args:
        baseline: the arm whose rate is searched.
        settings: the arm.
        seeds: seeds that decide a claim.
        number: metric that the search maximizes, as in `tune`.
        rates: learning rates of the search.

    Returns:
        The metrics of `lab.tabular.measure`, and `learning_rate`.
    """
    rate = tune([baseline], number=number, rates=rates).learning_rate
    return measure(settings._replace(learning_rate=rate), seeds) | {"learning_rate": np.full(len(seeds), rate)}
