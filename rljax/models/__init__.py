"""Floor 2: the Flax transformer and the pure functions over its parameters."""

from rljax.models.config import RopeScaling, TransformerConfig
from rljax.models.language_model import Model, Params, Scores, abstract_params, count_parameters, init_params, score_tokens

__all__ = [
    "Model",
    "Params",
    "RopeScaling",
    "Scores",
    "TransformerConfig",
    "abstract_params",
    "count_parameters",
    "init_params",
    "score_tokens",
]
