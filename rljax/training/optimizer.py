"""AdamW with a linear warm-up and a clipped gradient norm, from Optax."""

import optax

from rljax.training.config import TrainConfig


def make_schedule(peak: float, warmup: int) -> optax.Schedule:
    """Rise linearly to `peak` over `warmup` updates (the first is not 0), then stay."""
    return optax.schedules.linear_schedule(peak / (warmup + 1), peak, warmup)


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Scale the gradient down to `max_grad_norm`, then AdamW."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(schedule, b1=config.adam_b1, b2=config.adam_b2, weight_decay=config.weight_decay),
    )
