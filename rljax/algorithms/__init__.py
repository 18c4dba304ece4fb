"""Algorithms, each built as an `Algorithm` record of equations. An algorithm's module is imported on first use."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rljax.lazy import LazyTable, lazy_names

if TYPE_CHECKING:
    from rljax.algorithms.a_star_po import a_star_po
    from rljax.algorithms.ablations import ABLATIONS, dapo_ladder, without
    from rljax.algorithms.algorithm import (
        Algorithm,
        Batch,
        Correction,
        Credit,
        Critic,
        EarlierRewards,
        Rollout,
        Term,
        TermInputs,
    )
    from rljax.algorithms.cispo import cispo
    from rljax.algorithms.clip_cov import clip_cov, kl_cov
    from rljax.algorithms.dapo import dapo, dapo_grpo
    from rljax.algorithms.deepseek_v32 import deepseek_v32
    from rljax.algorithms.dppo import dppo
    from rljax.algorithms.dr_grpo import dr_grpo
    from rljax.algorithms.forking_tokens import forking_tokens
    from rljax.algorithms.gdpo import gdpo
    from rljax.algorithms.gepo import gepo
    from rljax.algorithms.gkd import gkd
    from rljax.algorithms.gmpo import gmpo
    from rljax.algorithms.gpg import gpg
    from rljax.algorithms.grpo import grpo, grpo_process, mt_grpo
    from rljax.algorithms.gspo import gspo, gspo_token
    from rljax.algorithms.kimi_k15 import kimi_k15
    from rljax.algorithms.lite_ppo import lite_ppo
    from rljax.algorithms.losses import loss, value_loss
    from rljax.algorithms.luspo import luspo
    from rljax.algorithms.max_rl import max_rl
    from rljax.algorithms.metrics import LossMetrics, ValueMetrics, explained_variance_of
    from rljax.algorithms.minillm import minillm
    from rljax.algorithms.nash_md import nash_md
    from rljax.algorithms.on_policy_distillation import on_policy_distillation
    from rljax.algorithms.online_dpo import online_dpo, xpo
    from rljax.algorithms.open_reasoner_zero import open_reasoner_zero
    from rljax.algorithms.opo import opo
    from rljax.algorithms.otb import otb
    from rljax.algorithms.pass_at_k import pass_at_k
    from rljax.algorithms.pkpo import pkpo
    from rljax.algorithms.ppo import ppo
    from rljax.algorithms.preparation import prepare, response_rewards
    from rljax.algorithms.reinforce_pp import reinforce_pp, reinforce_pp_baseline
    from rljax.algorithms.remax import remax
    from rljax.algorithms.rloo import rloo
    from rljax.algorithms.sapo import sapo
    from rljax.algorithms.scale_rl import scale_rl
    from rljax.algorithms.t1 import t1
    from rljax.algorithms.vapo import vapo, vapo_grpo
    from rljax.algorithms.vc_ppo import vc_ppo
    from rljax.algorithms.vespo import vespo

_OTHER_NAMES = {
    "ablations": "ABLATIONS dapo_ladder without",
    "algorithm": "Algorithm Batch Correction Credit Critic EarlierRewards Rollout Term TermInputs",
    "losses": "loss value_loss",
    "metrics": "LossMetrics ValueMetrics explained_variance_of",
    "preparation": "prepare response_rewards",
}
_ALGORITHMS = {
    "a_star_po": "a_star_po",
    "cispo": "cispo",
    "clip_cov": "clip_cov kl_cov",
    "dapo": "dapo dapo_grpo",
    "deepseek_v32": "deepseek_v32",
    "dppo": "dppo",
    "dr_grpo": "dr_grpo",
    "forking_tokens": "forking_tokens",
    "gdpo": "gdpo",
    "gepo": "gepo",
    "gkd": "gkd",
    "gmpo": "gmpo",
    "gpg": "gpg",
    "grpo": "grpo grpo_process mt_grpo",
    "gspo": "gspo gspo_token",
    "kimi_k15": "kimi_k15",
    "lite_ppo": "lite_ppo",
    "luspo": "luspo",
    "max_rl": "max_rl",
    "minillm": "minillm",
    "nash_md": "nash_md",
    "on_policy_distillation": "on_policy_distillation",
    "online_dpo": "online_dpo xpo",
    "open_reasoner_zero": "open_reasoner_zero",
    "opo": "opo",
    "otb": "otb",
    "pass_at_k": "pass_at_k",
    "pkpo": "pkpo",
    "ppo": "ppo",
    "reinforce_pp": "reinforce_pp reinforce_pp_baseline",
    "remax": "remax",
    "rloo": "rloo",
    "sapo": "sapo",
    "scale_rl": "scale_rl",
    "t1": "t1",
    "vapo": "vapo vapo_grpo",
    "vc_ppo": "vc_ppo",
    "vespo": "vespo",
}
"""Module -> names of the algorithms that it builds, separated by spaces."""
_MODULES = {
    name: f"rljax.algorithms.{module}"
    for module, names in {**_ALGORITHMS, **_OTHER_NAMES}.items()
    for name in names.split()
}

BY_NAME: LazyTable["Callable[..., Algorithm]"] = LazyTable(
    {name: f"{_MODULES[name]}:{name}" for name in sorted(" ".join(_ALGORITHMS.values()).split())}
)
"""Name of an algorithm, as passed to `--algorithm` -> the function that builds its record."""

__all__ = [
    "ABLATIONS",
    "BY_NAME",
    "Algorithm",
    "Batch",
    "Correction",
    "Credit",
    "Critic",
    "EarlierRewards",
    "LossMetrics",
    "Rollout",
    "Term",
    "TermInputs",
    "ValueMetrics",
    "a_star_po",
    "cispo",
    "clip_cov",
    "dapo",
    "dapo_grpo",
    "dapo_ladder",
    "deepseek_v32",
    "dppo",
    "dr_grpo",
    "explained_variance_of",
    "forking_tokens",
    "gdpo",
    "gepo",
    "gkd",
    "gmpo",
    "gpg",
    "grpo",
    "grpo_process",
    "gspo",
    "gspo_token",
    "kimi_k15",
    "kl_cov",
    "lite_ppo",
    "loss",
    "luspo",
    "max_rl",
    "minillm",
    "mt_grpo",
    "nash_md",
    "on_policy_distillation",
    "online_dpo",
    "open_reasoner_zero",
    "opo",
    "otb",
    "pass_at_k",
    "pkpo",
    "ppo",
    "prepare",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "response_rewards",
    "rloo",
    "sapo",
    "scale_rl",
    "t1",
    "value_loss",
    "vapo",
    "vapo_grpo",
    "vc_ppo",
    "vespo",
    "without",
    "xpo",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES, renamed={"Past": "EarlierRewards"})
