"""Layer 1: equations of papers, arrays in and arrays out. Each module is imported on first use: `rljax.ops.gae.gae`."""

from typing import TYPE_CHECKING

from rljax.lazy import lazy_names

if TYPE_CHECKING:
    from rljax.ops import (
        arrays,
        baseline,
        batch,
        binary_feedback,
        categorical,
        correction,
        direct_preference,
        distillation,
        divergence,
        entropy_control,
        gae,
        group,
        later_tokens,
        length_reward,
        masked,
        off_policy,
        pass_at_k,
        preference,
        ratio,
        reference,
        reference_free,
        regularise,
        selection,
        shaping,
        surrogate,
        token_choice,
        unpublished,
        value,
        weighted_preference,
        weights,
    )

__all__ = [
    "arrays",
    "baseline",
    "batch",
    "binary_feedback",
    "categorical",
    "correction",
    "direct_preference",
    "distillation",
    "divergence",
    "entropy_control",
    "gae",
    "group",
    "later_tokens",
    "length_reward",
    "masked",
    "off_policy",
    "pass_at_k",
    "preference",
    "ratio",
    "reference",
    "reference_free",
    "regularise",
    "selection",
    "shaping",
    "surrogate",
    "token_choice",
    "unpublished",
    "value",
    "weighted_preference",
    "weights",
]

__getattr__, __dir__ = lazy_names(__name__)
