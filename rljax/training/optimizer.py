"""AdamW with a linear warm-up and a clipped gradient norm, from Optax."""

import optax

from rljax.training.config import TrainConfig


def constant_schedule(peak: float, warmup: int) -> optax.Schedule:
    """Rise linearly to `peak` over `warmup` updates (the first is not 0), then stay."""
    return optax.schedules.linear_schedule(peak / (warmup + 1), peak, warmup)


def cosine_schedule(peak: float, warmup: int, total: int) -> optax.Schedule:
    """Rise linearly to `peak` over `warmup` updates (the first is not 0), then fall to a tenth of it at `total` on a cosine."""
    fall = optax.schedules.cosine_decay_schedule(peak, max(total - warmup, 1), alpha=0.1)
    return optax.schedules.join_schedules([constant_schedule(peak, warmup), fall], [warmup])


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Scale the gradient down to `max_grad_norm`, then AdamW."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(schedule, b1=config.adam_b1, b2=config.adam_b2, weight_decay=config.weight_decay),
    )


def updates_done(state: optax.OptState) -> int:
    """How many updates an optimiser of `make_optimizer` has made: where its schedule stands.

    Example:
        >>> import jax.numpy as jnp
        >>> optimizer = make_optimizer(TrainConfig(), constant_schedule(0.1, 10))
        >>> state = optimizer.init(jnp.ones(2))
        >>> updates_done(optimizer.update(jnp.ones(2), state, jnp.ones(2))[1])
        1
    """
    return int(optax.tree.get(state, "count", filtering=lambda path, _: path[-1].tuple_name == "ScaleByScheduleState"))
