"""Router metrics of a mixture of experts, in every RL step: how the routers distribute some responses' tokens over the experts.

The metrics are computed in one forward pass over at most `TOKENS` token slots, with the parameters before the updates.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from rljax.caching import cache_results
from rljax.models import Model, Params, TransformerConfig
from rljax.models.language_model import positions_of
from rljax.models.router_statistics import RouterStatistics, statistics_by_layer
from rljax.options import config_with_experts
from rljax.parallel import fetch, put_rows, row_shards
from rljax.records import required
from rljax.rollout import Groups
from rljax.training.scoring import policy_params
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates

NAME = "router_metrics"
TOKENS = 4_096
"""Maximum number of token slots that are measured, unless one row per device has more."""


def install(setup: Setup) -> Setup:
    """Measure the routers before the updates of each rollout, and report them after the updates."""
    config = required(config_with_experts(setup.policy), "config_with_experts(setup.policy)")
    measured: dict[str, float] = {}

    def measure(state: TrainState, scored: Any) -> TrainState:
        rows = first_responses(scored.groups, devices=row_shards(setup.mesh))
        program = _program(config, setup.mesh)
        measured.update(summarize(fetch(program(policy_params(setup.base, state.params), *put_rows(setup.mesh, rows)))))
        return state

    def report(state: TrainState, metrics: object, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        del metrics, updates
        return state, dict(measured)

    return setup.with_option(Option(NAME, before_updates=measure, after_updates=report))


def first_responses(groups: Groups, *, devices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the prompt and the first response of some groups, one group per row.

    Args:
        groups: the rollout.
        devices: number of devices; the number of rows is rounded up to a multiple of this number.

    Returns:
        Tokens, attention, and a mask of the counted tokens (the responses'), each `[B, L + T]`. Rows beyond the number of groups
        repeat the first groups, and have no counted tokens.
    """
    slots = groups.prompt_tokens.shape[1] + groups.tokens.shape[2]
    rows = min(groups.count, max(1, TOKENS // slots))
    rows += -rows % devices
    chosen = np.arange(rows) % groups.count
    tokens = np.concatenate([groups.prompt_tokens, groups.tokens[:, 0]], axis=1)[chosen]
    attention = np.concatenate([groups.prompt_attention, groups.attention[:, 0]], axis=1)[chosen]
    counted = np.concatenate([np.zeros_like(groups.prompt_attention), groups.attention[:, 0]], axis=1)[chosen]
    counted[groups.count :] = False
    return tokens, attention, counted


def summarize(statistics: RouterStatistics) -> dict[str, float]:
    """Reduce the layers' statistics over the layers: the maximum of `largest_share`, and the means of the other statistics.

    Example:
        >>> layers = np.array([0.25, 0.75])
        >>> summarize(RouterStatistics(layers, layers, layers, layers))["router_largest_share"]
        0.75
    """
    return {
        "router_balance": float(np.mean(statistics.balance)),
        "router_entropy": float(np.mean(statistics.entropy)),
        "router_largest_share": float(np.max(statistics.largest_share)),
        "router_unused_share": float(np.mean(statistics.unused_share)),
    }


@cache_results
def _program(config: TransformerConfig, mesh: Mesh) -> Callable[..., RouterStatistics]:
    def measure(params: Params, tokens: Array, attention: Array, counted: Array) -> RouterStatistics:
        positions, segments = positions_of(attention), attention.astype(np.int32)
        return statistics_by_layer(Model(config, mesh), params, tokens, positions, segments, counted)

    return jax.jit(measure)
