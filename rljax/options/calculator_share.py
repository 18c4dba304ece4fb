"""`--calculator-rate`: report the calculator's share of the policy's mixture, which the flag makes learnable."""

from functools import partial

from rljax.errors import InputError
from rljax.models.learned_mixture import learned_share
from rljax.records import required
from rljax.training.metrics import LearnMetrics
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates

NAME = "calculator_share"


def install(setup: Setup) -> Setup:
    """Report the calculator's share as a metric.

    Raises:
        InputError: an adapter is trained, so the share could not be learned.
    """
    model, rank = setup.config.model, setup.config.adapter.rank
    rate, share = required(model.calculator_rate, "calculator_rate"), required(model.calculator, "calculator")
    if rank is not None:
        raise InputError(
            f"calculator_rate={rate} trains the calculator's share, but lora_rank={rank} trains only an adapter of the model's "
            "matrices; leave one of the two out."
        )
    return setup.with_option(Option(NAME, after_updates=partial(report, share=share, rate=rate)))


def report(
    state: TrainState, metrics: LearnMetrics, updates: Updates, *, share: float, rate: float
) -> tuple[TrainState, dict[str, float]]:
    """Report the share after each step."""
    del metrics, updates
    return state, {NAME: float(learned_share(state.params.shift, share=share, rate=rate))}
