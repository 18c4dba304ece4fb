"""Settings of a rollout: how much is sampled, and how tokens are drawn."""

from dataclasses import dataclass

from rljax.errors import InputError
from rljax.records import documented
from rljax.training.config.checks import check_at_least, check_positive, check_positive_share


@documented
@dataclass(frozen=True)
class SamplingConfig:
    """Rollouts: how much is sampled, and how tokens are drawn."""

    prompts: int = 32
    """Prompts (groups) a rollout trains on."""
    group_size: int = 8
    """Responses a prompt."""
    max_response_tokens: int = 256
    """Budget of a response, EOS included."""
    temperature: float = 1.0
    """Of sampling and scoring alike."""
    top_k: int | None = None
    """Sample from the k likeliest tokens only."""
    top_p: float | None = None
    """Sample from the smallest set of tokens with this share of probability."""
    oversample: float = 1.5
    """Dynamic sampling: prompts sampled at a time, as a multiple of `prompts`."""
    max_tries: int = 4
    """Dynamic sampling: how often to sample for one rollout before training on fewer groups."""
    token_budget: int | None = None
    """Response tokens that a rollout of `prompts` groups may be expected to take. Each prompt gets as many responses as fit its
    share, by the lengths of its responses so far: 2 where they are long, up to `group_size` where they are short."""
    remembered_rewards: int = 0
    """Temporal groups: how many earlier rewards of a prompt its new responses are compared with as well."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(1, self, ["prompts", "group_size", "max_response_tokens", "max_tries", "top_k", "oversample"])
        check_at_least(0, self, ["remembered_rewards"])
        check_positive(self, ["temperature"])
        check_positive_share(self, ["top_p"])
        least = 2 * self.prompts * self.max_response_tokens
        if self.token_budget is not None and (self.token_budget < least or self.group_size < 2):
            raise InputError(
                f"token_budget={self.token_budget} with group_size={self.group_size} cannot hold the smallest groups, 2 responses "
                f"of max_response_tokens={self.max_response_tokens} to each of prompts={self.prompts}; give at least {least} and "
                "a group_size of 2 or more."
            )

    @property
    def sampled_prompts(self) -> int:
        """Prompts sampled at a time when groups may be dropped."""
        return round(self.prompts * self.oversample)
