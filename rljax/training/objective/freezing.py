"""Parameters that are not trained: no gradient flows into them, and the optimiser holds no moments for them."""

from collections.abc import Callable

import jax
import optax
from jax.tree_util import KeyPath, tree_leaves_with_path, tree_map_with_path
from jaxtyping import Array, PyTree

from rljax.errors import InputError
from rljax.models import Packed, Params, Policy, Scores
from rljax.models.packed import Features
from rljax.models.patterns import matches, selected
from rljax.models.policy import path_names
from rljax.records import required
from rljax.sharing import shared
from rljax.training.config import TrainConfig


def is_frozen(path: KeyPath, patterns: tuple[str, ...]) -> bool:
    """True if one of the patterns matches the path of a parameter."""
    return any(matches(pattern, path_names(path)) for pattern in patterns)


def check_freeze(config: TrainConfig, policy: Policy) -> None:
    """Refuse patterns that match no parameter of the policy, or all of them.

    Args:
        config: the settings.
        policy: the model.

    Raises:
        InputError: the message names the parameters there are; or an adapter is trained.
    """
    patterns = config.optimization.freeze
    if not patterns:
        return
    if config.adapter.rank is not None:
        raise InputError(
            "freeze cannot apply where lora_rank is set, because the whole model is frozen below its adapter; choose the matrices "
            "that have one with lora_targets."
        )
    key = jax.random.key(config.run.seed)
    shapes = jax.eval_shape(policy.init, key) if policy.shapes is None else policy.shapes()
    paths = [path_names(path) for path, _ in tree_leaves_with_path(shapes)]
    if len(selected(patterns, paths, setting="freeze")) == len(paths):
        raise InputError(
            f"freeze={' '.join(patterns)} matches every parameter, so nothing could be learned; leave some out."
        )


def with_frozen(policy: Policy, patterns: tuple[str, ...]) -> Policy:
    """The policy without a gradient of the parameters that the patterns match.

    Args:
        policy: the model.
        patterns: of the frozen parameters; without one, the policy is returned as it is.
    """
    if not patterns:
        return policy
    score, features, supervised = _with_frozen(policy.score, policy.features, policy.supervised_score, patterns)
    return policy._replace(score=score, features=features, supervised_score=supervised)


@shared
def _with_frozen(
    score_of: Callable[[Params, Packed, float], Scores],
    features_of: Callable[[Params, Packed], Features] | None,
    supervised_of: Callable[[Params, Packed, float], Scores] | None,
    patterns: tuple[str, ...],
) -> tuple[Callable, Callable | None, Callable | None]:
    """The scores, the features, and the scores of demonstrations; not the whole policy, whose `init` may hold parameters that would
    then be kept."""

    def stopped(params: Params) -> Params:
        return tree_map_with_path(
            lambda path, leaf: jax.lax.stop_gradient(leaf) if is_frozen(path, patterns) else leaf, params
        )

    def score(params: Params, packed: Packed, temperature: float) -> Scores:
        return score_of(stopped(params), packed, temperature)

    def features(params: Params, packed: Packed) -> Features:
        return required(features_of, "policy.features")(stopped(params), packed)

    def supervised(params: Params, packed: Packed, temperature: float) -> Scores:
        return required(supervised_of, "policy.supervised_score")(stopped(params), packed, temperature)

    return score, None if features_of is None else features, None if supervised_of is None else supervised


@shared
def without_frozen(optimizer: optax.GradientTransformation, patterns: tuple[str, ...]) -> optax.GradientTransformation:
    """An optimiser that neither changes the parameters that the patterns match nor holds a state for them.

    Args:
        optimizer: of the other parameters.
        patterns: of the frozen parameters; without one, the optimiser is returned as it is.
    """
    if not patterns:
        return optimizer

    def labels(params: PyTree[Array]) -> PyTree[str]:
        return tree_map_with_path(lambda path, _: "frozen" if is_frozen(path, patterns) else "trained", params)

    return optax.multi_transform({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)
