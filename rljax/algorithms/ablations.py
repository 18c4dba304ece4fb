"""Rows of published ablation tables: each row removes one part of an algorithm, by changing one slot of its record."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from rljax.algorithms.algorithm import Algorithm, Critic
from rljax.ops.surrogate import clipped
from rljax.ops.weights import overlong_filter, sequence_mean


def _require_critic(algorithm: Algorithm) -> Critic:
    if algorithm.critic is None:
        raise ValueError("algorithm must have a critic for this ablation to change, got critic=None")
    return algorithm.critic


def _replace_in_critic(**slots: Any) -> Callable[[Algorithm], Algorithm]:
    return lambda algorithm: algorithm._replace(critic=_require_critic(algorithm)._replace(**slots))


def _replace_slots(**slots: Any) -> Callable[[Algorithm], Algorithm]:
    return lambda algorithm: algorithm._replace(**slots)


def _couple_lambdas(algorithm: Algorithm) -> Algorithm:
    """Make the policy use the critic's λ, whatever the response length."""
    critic = _require_critic(algorithm)
    if not isinstance(critic.target, partial):
        raise ValueError(
            f"critic.target must be a functools.partial with the keyword lambda_, which the policy will use, got {critic.target}"
        )
    lambda_ = float(critic.target.keywords["lambda_"])

    def policy_lambda(lengths: Array) -> Array:
        return jnp.full(lengths.shape, lambda_, float)

    return algorithm._replace(critic=critic._replace(policy_lambda=policy_lambda))


ABLATIONS: Mapping[str, Mapping[str, Callable[[Algorithm], Algorithm]]] = MappingProxyType(
    {
        "dapo": MappingProxyType(
            {
                "clip_higher": _replace_slots(surrogate=partial(clipped, low=0.2, high=0.2)),
                "soft_overlong": _replace_slots(shape_reward=None),
                "token_level": _replace_slots(weights=sequence_mean),
                "dynamic_sampling": _replace_slots(keep_group=None),
            }
        ),
        "vapo": MappingProxyType(
            {
                "value_pretraining": _replace_in_critic(pretraining_steps=0),
                "decoupled_gae": _couple_lambdas,
                "length_adaptive": _replace_in_critic(policy_lambda=None),
                "clip_higher": _replace_slots(surrogate=partial(clipped, low=0.2, high=0.2)),
                "token_level": _replace_slots(weights=sequence_mean),
                "positive_examples": _replace_slots(terms=()),
                "group_sampling": _replace_slots(group_size=1),
            }
        ),
        "vc_ppo": MappingProxyType(
            {
                "value_pretraining": _replace_in_critic(pretraining_steps=0),
                "decoupled_gae": _couple_lambdas,
            }
        ),
    }
)
"""Algorithm -> part -> function that removes the part from the algorithm's record.

The parts of `vapo` and `vc_ppo` are the leave-one-out rows of VAPO's Table 1 (arXiv:2504.05118) and of VC-PPO (arXiv:2503.01491).
Without "decoupled_gae", the policy uses the critic's λ = 1, because VC-PPO reports equal scores for this row and for λ_policy = 1;
VAPO does not specify this λ. Without "length_adaptive", λ_policy is VC-PPO's 0.95. Without "group_sampling", there is one
response per prompt (8192 prompts in the paper). DAPO's Table 1 (arXiv:2503.14476) is a ladder; see `dapo_ladder`.
"""


def without(name: str, algorithm: Algorithm, part: str) -> Algorithm:
    """Remove one part of an algorithm.

    Args:
        name: the algorithm, a key of `ABLATIONS`.
        algorithm: the record to change, usually `BY_NAME[name]()`.
        part: the part to remove, a key of `ABLATIONS[name]`.

    Returns:
        The record with one slot changed; if the part belongs to the critic, a slot of the record's `Critic`.

    Raises:
        ValueError: an unknown algorithm or part; the message lists the known ones.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> without("vapo", BY_NAME["vapo"](), "positive_examples").terms
        ()
    """
    if name not in ABLATIONS:
        raise ValueError(f"name must be one of {', '.join(ABLATIONS)}, got {name!r}")
    if part not in ABLATIONS[name]:
        raise ValueError(f"part of {name} must be one of {', '.join(ABLATIONS[name])}, got {part!r}")
    return ABLATIONS[name][part](algorithm)


def dapo_ladder(algorithm: Algorithm) -> dict[str, Algorithm]:
    """Build the rows of DAPO's Table 1, from naive GRPO to the full method; each changes one slot of the row above it.

    The table uses overlong filtering in every row but the first, whereas the authors' code and `dapo` do not filter. The last row
    here is therefore `dapo` with `filter_tokens=overlong_filter`, so that each row changes only one slot.

    Args:
        algorithm: DAPO, with the hyperparameters of your choice.

    Returns:
        Row name -> record, in the table's order.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> list(dapo_ladder(BY_NAME["dapo"]()))[:3]
        ['naive_grpo', 'overlong_filtering', 'clip_higher']

    Source:
        DAPO, arXiv:2503.14476, Table 1.
    """
    row = algorithm._replace(filter_tokens=overlong_filter)
    rows = {}
    for part in ("dynamic_sampling", "token_level", "soft_overlong", "clip_higher"):
        rows[part] = row
        row = without("dapo", row, part)
    rows["overlong_filtering"] = row
    rows["naive_grpo"] = row._replace(filter_tokens=None)
    return dict(reversed(rows.items()))
