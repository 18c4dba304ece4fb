"""Floor 1: equations of papers, arrays in and arrays out. Each module is imported when it is first used: `rljax.ops.gae.gae`."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljax.ops import (
        arrays,
        baseline,
        batch,
        categorical,
        checks,
        correction,
        direct_preference,
        distillation,
        divergence,
        gae,
        group,
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
        weights,
    )

__all__ = [
    "arrays",
    "baseline",
    "batch",
    "categorical",
    "checks",
    "correction",
    "direct_preference",
    "distillation",
    "divergence",
    "gae",
    "group",
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
    "weights",
]


def __getattr__(name: str) -> object:
    """Import a module when it is first used."""
    if name in __all__:
        return importlib.import_module(f"rljax.ops.{name}")
    raise AttributeError(f"module 'rljax.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All modules, imported or not."""
    return __all__
