"""Settings of rollouts: how many responses are sampled, and how their tokens are drawn."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.checks import check_at_least, check_positive, check_positive_share, check_stop
from rljax.settings.sizes import byte_count


@documented
@dataclass(frozen=True)
class SamplingConfig:
    """Rollouts: how many responses are sampled, and how their tokens are drawn."""

    prompts: int = 32
    """Prompts (groups) to train on per rollout."""
    group_size: int = 8
    """Responses per prompt."""
    max_response_tokens: int = 256
    """Token budget of a response, EOS included."""
    temperature: float = 1.0
    """Temperature of sampling, and of the log-probabilities that are trained on."""
    top_k: int | None = None
    """Sample from the k most likely tokens only."""
    top_p: float | None = None
    """Sample from the smallest set of most likely tokens that holds this share of the probability."""
    stop: tuple[str, ...] = ()
    """Texts that end a response, as EOS does, such as `--stop "</answer>"`. A response ends with the token that completes one, and
    keeps it: the reward reads it, and its tokens are trained on. Texts are found inside of tokens and across them. A
    special token, such as `<|im_end|>`, is not text: give its id as `stop_ids`."""
    stop_ids: tuple[int, ...] = ()
    """Ids of further tokens that end a response, which keeps them: `--stop-ids 7 13`. The tokenizer's end token always ends one,
    and so do all tokens that the model's generation_config.json, or else its config.json, names as `eos_token_id`."""
    decode_slots: int | None = None
    """Most responses that are decoded at once; the others wait until some have ended. The key/value cache holds as many rows. By
    default as many as --cache-memory holds; on CPUs, where it is not set, at most 256."""
    cache_memory: str | None = None
    """Memory of the key/value cache on each device, such as 8GB: as many rows are decoded at once as it holds when every prompt and
    every response has its full length. By default what state and weights leave of nine tenths of the device's memory, or of
    that of the host with the least, and 256 rows where that is not known."""
    oversample: float = 1.5
    """Dynamic sampling: prompts sampled at a time, as a multiple of `prompts`."""
    max_tries: int = 4
    """Dynamic sampling: maximum number of sampling rounds for one rollout, before it trains on fewer groups."""
    token_budget: int | None = None
    """Upper bound on the expected number of response tokens in a rollout of `prompts` groups. Each prompt gets as many responses
    as fit its share, given the length of its responses so far: from 2, if they are long, to `group_size`, if they are short."""
    remembered_rewards: int = 0
    """Temporal groups: number of earlier rewards of a prompt that its new responses are also compared with."""
    delay: Annotated[int, tyro.conf.arg(name="sampler-delay")] = 0
    """Draw the responses of a step with the parameters of this many RL steps ago, as the sampler of an asynchronous trainer does;
    the first steps draw with the first ones. All of them are kept: a copy of what is trained for each step of the delay. The ratio
    is taken to the policy that sampled. With a --correction it is taken to the policy before the updates, which scores the
    responses again, and the correction weighs how far the two are apart. Evaluations use the newest parameters."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(
            1, self, ["prompts", "group_size", "max_response_tokens", "decode_slots", "max_tries", "top_k", "oversample"]
        )
        check_at_least(0, self, ["remembered_rewards", "delay"])
        check_positive(self, ["temperature"])
        check_positive_share(self, ["top_p"])
        check_stop(self.stop)
        if self.cache_memory is not None:
            byte_count(self.cache_memory)
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
