"""Advance learning-rate schedules past updates that were skipped."""

from typing import Any

from jax.tree_util import tree_map_with_path


def advance_schedules(opt_state: Any, count: int) -> Any:
    """Advance an Optax state's schedules past updates that were planned but skipped, so that the schedules still reach their end.

    Only schedules under `optax.inject_hyperparams` advance; moments, and the counts that correct their bias, stay unchanged.

    Args:
        opt_state: state of the optimizer.
        count: number of skipped updates.

    Example:
        >>> import optax
        >>> state = optax.inject_hyperparams(optax.adam)(optax.linear_schedule(1.0, 0.0, 4)).init({})
        >>> advance_schedules(state, 3).hyperparams_states["learning_rate"].count.item()
        3
    """
    return tree_map_with_path(lambda path, leaf: leaf + count if "hyperparams_states" in str(path) else leaf, opt_state)
