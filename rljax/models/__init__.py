"""The policy as a record of functions, the Flax transformer, and pure functions of its parameters."""

from rljax.lazy import lazy_names
from rljax.models.config import RopeScaling, TransformerConfig
from rljax.models.language_model import Model, abstract_params, count_parameters, init_params, score_tokens
from rljax.models.packed import Features, Packed, Scores
from rljax.models.policy import (
    Decoder,
    Params,
    Policy,
    TurnDecoder,
    ValueFunction,
    on_every_device,
    policy_of_logits,
    refuse_to_save,
    scores_of_logits,
)
from rljax.models.transformer_policy import transformer_policy

__all__ = [
    "Decoder",
    "Features",
    "Model",
    "Packed",
    "Params",
    "Policy",
    "RopeScaling",
    "Scores",
    "TransformerConfig",
    "TurnDecoder",
    "ValueFunction",
    "abstract_params",
    "count_parameters",
    "init_params",
    "on_every_device",
    "policy_of_logits",
    "refuse_to_save",
    "score_tokens",
    "scores_of_logits",
    "transformer_policy",
]

__getattr__, __dir__ = lazy_names(
    __name__, renamed={"not_saved": "refuse_to_save", "symbolic": "mixed_policy", "rule_mixture": "learned_mixture"}
)
