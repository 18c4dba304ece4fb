"""The settings of a run: one record per group of settings, and `TrainConfig`, which contains all groups."""

from rljax.lazy import lazy_names
from rljax.training.config.algorithm import AlgorithmConfig, RewardConfig
from rljax.training.config.model import DevicesConfig, ModelConfig
from rljax.training.config.setting_groups import (
    AdapterConfig,
    CriticConfig,
    DataConfig,
    OptimizationConfig,
    RunConfig,
    SamplingConfig,
    WarmStartConfig,
)
from rljax.training.config.train_config import MICROBATCH_TOKENS, TrainConfig

__all__ = [
    "MICROBATCH_TOKENS",
    "AdapterConfig",
    "AlgorithmConfig",
    "CriticConfig",
    "DataConfig",
    "DevicesConfig",
    "ModelConfig",
    "OptimizationConfig",
    "RewardConfig",
    "RunConfig",
    "SamplingConfig",
    "TrainConfig",
    "WarmStartConfig",
]

__getattr__, __dir__ = lazy_names(__name__)
