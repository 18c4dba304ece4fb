"""Last layers of a critic: a single number, a mixture of heads, or a distribution over values."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from jaxtyping import Array, Float

from rljax.ops.arrays import check_at_least
from rljax.ops.categorical import categorical_mean_of_logits, hl_gauss, two_hot, uniform_support
from rljax.ops.unpublished.mixture import multi_head_value


class ValueHead(NamedTuple):
    """Size of a critic's last layer, and how its outputs become a value."""

    size: int
    """Number of outputs per token."""
    value: Callable[[Float[Array, "B T N"]], Float[Array, "B T"]]
    """Outputs at each token -> the value, in the reward's unit."""
    distribution: Callable[[Float[Array, "B T"]], Float[Array, "B T N"]] | None = None
    """Maps returns to target distributions. The outputs are then logits, trained by cross-entropy instead of `Critic.loss`."""
    support: tuple[float, float] | None = None
    """Lowest and highest return that the head can represent; None: any."""


def scalar() -> ValueHead:
    """A single number, the value itself.

    Example:
        >>> scalar().size
        1
    """
    return ValueHead(1, lambda outputs: outputs.squeeze(-1))


def mixture(*, heads: int = 4) -> ValueHead:
    """A weighted mean of several values, with weights that depend on the state.

    ::

        V(s) = Σ_h w_h(s) V_h(s)        V_h: the first half of the outputs        w: softmax of the second half

    Args:
        heads: H, number of values, at least 2.

    Raises:
        ValueError: fewer than 2 heads.

    Example:
        >>> import jax.numpy as jnp
        >>> mixture(heads=2).value(jnp.array([[[1.0, 3.0, 0.0, 0.0]]])).tolist()
        [[2.0]]

    Source:
        unpublished: a design document (not a paper), Eq. 21 (`rljax.ops.unpublished.mixture.multi_head_value`).
    """
    check_at_least(2, heads=heads)
    return ValueHead(2 * heads, lambda outputs: multi_head_value(outputs[..., :heads], outputs[..., heads:]))


def categorical_two_hot(*, low: float = -0.5, high: float = 1.5, bins: int = 21) -> ValueHead:
    """A distribution over support points, trained on the two points next to the return.

    Args:
        low: lowest support point, in the reward's unit.
        high: highest support point.
        bins: number of support points, at least 2.

    Raises:
        ValueError: `low` not below `high`, or fewer than 2 bins.

    Example:
        >>> import jax.numpy as jnp
        >>> categorical_two_hot(low=0.0, high=1.0, bins=3).value(jnp.zeros((1, 1, 3))).tolist()
        [[0.5]]

    Source:
        arXiv:2403.03950, Section 3.1 (`rljax.ops.categorical.two_hot`); Eq. 22 of an unpublished design document.
    """
    support = uniform_support(low, high, bins)
    value = partial(categorical_mean_of_logits, support=support)
    return ValueHead(bins, value, partial(two_hot, support=support), (low, high))


def categorical_hl_gauss(*, low: float = -0.5, high: float = 1.5, bins: int = 21, sigma_ratio: float = 0.75) -> ValueHead:
    """A distribution over bins, trained on a normal distribution around the return.

    Args:
        low: center of the lowest bin, in the reward's unit; leave room for a few bins below the lowest return.
        high: center of the highest bin; leave room for a few bins above the highest return.
        bins: number of bins, at least 2.
        sigma_ratio: standard deviation of the normal, in bin widths, positive.

    Raises:
        ValueError: `low` not below `high`, fewer than 2 bins, or `sigma_ratio` not positive.

    Example:
        >>> head = categorical_hl_gauss()
        >>> head.size, head.support
        (21, (-0.5, 1.5))

    Source:
        arXiv:2403.03950, Section 3.1 (`rljax.ops.categorical.hl_gauss`); Eq. 22 of an unpublished design document.
    """
    support = uniform_support(low, high, bins)
    value = partial(categorical_mean_of_logits, support=support)
    return ValueHead(bins, value, partial(hl_gauss, support=support, sigma_ratio=sigma_ratio), (low, high))


HEADS: Mapping[str, Callable[..., ValueHead]] = MappingProxyType(
    {
        "scalar": scalar,
        "mixture": mixture,
        "two_hot": categorical_two_hot,
        "c51": categorical_two_hot,  # another name for "two_hot"
        "hl_gauss": categorical_hl_gauss,
    }
)
"""Name -> factory; its keyword arguments are the head's options."""
