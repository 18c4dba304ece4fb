"""A rollout in NumPy float64, as oracles and checks read it.

Axes: P prompts, G responses to a prompt, T tokens.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Example:
    """Responses, their rewards, and values that models compute for them. Every algorithm needs the first five fields."""

    mask: Bool[np.ndarray, "P G T"]
    """Response tokens."""
    logp: Float[np.ndarray, "P G T"]
    """Log-probability under the policy being trained."""
    old_logp: Float[np.ndarray, "P G T"]
    """Log-probability under the policy before the update, the ratio's denominator."""
    ref_logp: Float[np.ndarray, "P G T"]
    """Log-probability under the reference policy."""
    rewards: Float[np.ndarray, "P G"]
    """Reward of each response."""
    sampled_logp: Float[np.ndarray, "P G T"] | None = None
    """Log-probability as the engine sampled, if it differs from `old_logp`."""
    values: Float[np.ndarray, "P G T"] | None = None
    """The critic's values at sampling."""
    new_values: Float[np.ndarray, "P G T"] | None = None
    """The critic's values now."""
    entropy: Float[np.ndarray, "P G T"] | None = None
    """Entropy of the policy being trained."""
    behaviour_entropy: Float[np.ndarray, "P G T"] | None = None
    """Entropy of the sampling policy."""
    teacher_logp: Float[np.ndarray, "P G T"] | None = None
    """Log-probability under a teacher."""
    teacher_divergence: Float[np.ndarray, "P G T"] | None = None
    """Divergence from the teacher over the vocabulary."""
    square_sum: Float[np.ndarray, "P G T"] | None = None
    """Sum of the squared probabilities of the sampling policy."""
    greedy_rewards: Float[np.ndarray, "P"] | None = None
    """Reward of a greedy response to each prompt."""
    form: Float[np.ndarray, "P G"] | None = None
    """A second reward."""
    step_rewards: Float[np.ndarray, "P G T"] | None = None
    """Reward of each reasoning step, where it ends."""
    step_end: Bool[np.ndarray, "P G T"] | None = None
    """Tokens at which a reasoning step ends."""
    valid: Bool[np.ndarray, "P G"] | None = None
    """Responses that have a reward; None: all of them."""
    truncated: Bool[np.ndarray, "P G"] | None = None
    """Responses that were cut off at the length limit; None: no response was."""

    @property
    def prompts(self) -> int:
        """P."""
        return self.mask.shape[0]

    @property
    def group(self) -> int:
        """G."""
        return self.mask.shape[1]

    @property
    def length(self) -> int:
        """T."""
        return self.mask.shape[2]

    @property
    def lengths(self) -> Int[np.ndarray, "P G"]:
        """Tokens of each response."""
        return self.mask.sum(-1)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Every response."""
        return [(p, i) for p in range(self.prompts) for i in range(self.group)]

    @property
    def mixed(self) -> list[tuple[int, int]]:
        """The responses of groups whose rewards differ."""
        return [(p, i) for p, i in self.rows if np.ptp(self.rewards[p]) > 0]

    def compact(self) -> "Example":
        """Return the same responses without gaps, beginning in column 0, and with 0 outside the mask."""
        order = np.argsort(~self.mask, axis=-1, kind="stable")

        def moved(x: np.ndarray) -> np.ndarray:
            together = np.take_along_axis(np.where(self.mask, x, np.zeros_like(x)), order, -1)
            return together

        per_token = {
            field.name: moved(value)
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None and value.ndim == 3
        }
        return replace(self, **per_token)

    def spread(self, x: Float[np.ndarray, "P G T"]) -> Float[np.ndarray, "P G T"]:
        """Move per-token values of `compact()` back to the slots of their tokens; 0 outside the mask."""
        place = np.maximum(np.cumsum(self.mask, -1) - 1, 0)
        return np.where(self.mask, np.take_along_axis(x, place, -1), 0.0)
