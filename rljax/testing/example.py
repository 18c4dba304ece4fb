"""The rollout in NumPy float64 that oracles and checks read.

Axes: P prompts, G responses per prompt, T tokens.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Example:
    """Responses, their rewards, and what models compute for their tokens. Every algorithm needs the first five fields."""

    mask: Bool[np.ndarray, "P G T"]
    """True at response tokens."""
    logp: Float[np.ndarray, "P G T"]
    """Log-probability under the policy being trained."""
    old_logp: Float[np.ndarray, "P G T"]
    """Log-probability under the policy before the update, which is the ratio's denominator."""
    ref_logp: Float[np.ndarray, "P G T"]
    """Log-probability under the reference policy."""
    rewards: Float[np.ndarray, "P G"]
    """Reward of each response."""
    sampled_logp: Float[np.ndarray, "P G T"] | None = None
    """Log-probability under the engine's sampling distribution, if it differs from `old_logp`."""
    values: Float[np.ndarray, "P G T"] | None = None
    """The critic's values before the update."""
    new_values: Float[np.ndarray, "P G T"] | None = None
    """The values of the critic being trained."""
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
    """A second reward of each response, for the form of the answer."""
    step_rewards: Float[np.ndarray, "P G T"] | None = None
    """Reward of each reasoning step, at the token where the step ends."""
    step_end: Bool[np.ndarray, "P G T"] | None = None
    """Tokens at which a reasoning step ends."""
    valid: Bool[np.ndarray, "P G"] | None = None
    """Responses that have a reward; None if all have one."""
    truncated: Bool[np.ndarray, "P G"] | None = None
    """Responses that were cut off at the length limit; None if no response was cut off."""

    @property
    def prompts(self) -> int:
        """P, the number of prompts."""
        return self.mask.shape[0]

    @property
    def group(self) -> int:
        """G, the number of responses per prompt."""
        return self.mask.shape[1]

    @property
    def length(self) -> int:
        """T, the number of token positions per response."""
        return self.mask.shape[2]

    @property
    def lengths(self) -> Int[np.ndarray, "P G"]:
        """Number of tokens in each response."""
        return self.mask.sum(-1)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(prompt, response) indices of every response."""
        return [(p, i) for p in range(self.prompts) for i in range(self.group)]

    @property
    def mixed(self) -> list[tuple[int, int]]:
        """(prompt, response) indices of the responses in groups whose rewards differ."""
        return [(p, i) for p, i in self.rows if np.ptp(self.rewards[p]) > 0]

    def compact(self) -> "Example":
        """Return the same responses without gaps, beginning in column 0, and with 0 outside the mask."""
        order = np.argsort(~self.mask, axis=-1, kind="stable")

        def gather(x: np.ndarray) -> np.ndarray:
            return np.take_along_axis(np.where(self.mask, x, np.zeros_like(x)), order, -1)

        per_token = {
            field.name: gather(value)
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None and value.ndim == 3
        }
        return replace(self, **per_token)

    def spread(self, x: Float[np.ndarray, "P G T"]) -> Float[np.ndarray, "P G T"]:
        """Move per-token values of `compact()` back to the positions of their tokens; 0 outside the mask."""
        index = np.maximum(np.cumsum(self.mask, -1) - 1, 0)
        return np.where(self.mask, np.take_along_axis(x, index, -1), 0.0)
