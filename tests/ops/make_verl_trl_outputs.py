"""Write verl_trl_outputs.json: outputs of verl's and TRL's functions, in float64 with PyTorch. The tests do not run this script.

Generated on 2026-11-22 with torch 2.13.0, verl 0.9.1 and TRL 1.16.0, installed as follows:

    pip install torch==2.13.0 numpy
    pip install --no-deps --target peers verl==0.9.1 trl==1.16.0
    python tests/ops/make_verl_trl_outputs.py peers

Each function is extracted from its installed file, without decorators, and called with its body unchanged, so no other parts of
the libraries are needed. verl's files: `core_algos.py` and `rollout_corr_helper.py` in `verl/trainer/ppo`, and
`verl/utils/torch_functional.py`. TRL's file: `trl/trainer/grpo_trainer.py`.
"""

import ast
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np

BOUNDS, TOKEN_SHARE, DIVERGENCE = (0.7, 1.4), 0.18, 0.05
SETTINGS = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.1,
    "clip_ratio_high": 0.15,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "global_batch_info": {},
    "policy_loss": SimpleNamespace(
        clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=0.6, kl_cov_ratio=TOKEN_SHARE, ppo_kl_coef=0.7
    ),
}


class Settings(SimpleNamespace):
    """The fields of verl's ActorConfig that verl's losses read."""

    def get(self, name, default=None):
        return getattr(self, name, default)


def extract_functions(file, names, namespace):
    """Execute the named functions and methods of a file, without their decorators, and return them in one namespace."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list = []
            exec(ast.unparse(node), namespace)
    return SimpleNamespace(**{name: namespace[name] for name in names})


def extract_constants(file, names):
    """Execute the assignments to the named constants in a file, and return their values."""
    namespace = {}
    for node in ast.parse(file.read_text()).body:
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        if isinstance(target, ast.Name) and target.id in names:
            exec(ast.unparse(node), namespace)
    return {name: namespace[name] for name in names}


def sample_inputs():
    """Two prompts with three responses each, padded to five tokens; a prompt's two longest responses have equal length."""
    rng = np.random.default_rng(0)
    lengths = np.array([5, 5, 2, 4, 3, 4])
    mask = np.arange(5) < lengths[:, None]
    old = -np.round(rng.uniform(0.05, 2.0, (6, 5)), 3)
    rewards = np.array([1.0, 0.0, 0.25, 0.0, 1.0, 0.5])
    return {
        "mask": mask.astype(float),
        "old": old,
        "logp": np.minimum(np.round(old + rng.normal(0, 0.25, (6, 5)), 3), -0.01),
        "advantage": np.round(rng.normal(size=6), 3)[:, None] * np.ones((6, 5)),
        "token_rewards": np.where(np.arange(5) == lengths[:, None] - 1, rewards[:, None], 0.0),
        "greedy": np.repeat([0.5, 0.0], 3),
        "square_sum": np.round(rng.uniform(0.1, 0.9, (6, 5)), 3),
        "entropy": np.round(rng.uniform(0.0, 3.0, (6, 5)), 3),
    }


def run_verl(folder, tensor, torch):
    """Compute verl's weights, masks, advantages, and losses with their gradients."""
    ppo = folder / "verl/trainer/ppo"
    basic = {"torch": torch, "math": math, "Optional": Optional, "Any": Any, "defaultdict": defaultdict, "np": np}
    basic |= dict.fromkeys(("ActorConfig", "AlgoConfig", "DictConfig"), Settings)
    names = ("masked_sum", "masked_mean")
    basic["verl_F"] = extract_functions(folder / "verl/utils/torch_functional.py", names, dict(basic))
    helper = ppo / "rollout_corr_helper.py"
    constants = ("SAFETY_BOUND", "SUPPORTED_ROLLOUT_RS_OPTIONS", "TOKEN_LEVEL_ROLLOUT_RS_OPTIONS")
    names = ("_parse_rollout_is_threshold", "_parse_rollout_rs_thresholds", "compute_rollout_correction_weights")
    namespace = (
        basic
        | extract_constants(helper, constants)
        | {"compute_is_metrics": lambda **_: {}, "compute_rs_metrics": lambda **_: {}}
    )
    correction = extract_functions(helper, (*names, "compute_rollout_rejection_mask"), namespace)
    log_ratio, mask = (tensor["logp"] - tensor["old"]).detach(), tensor["mask"]
    low, high = BOUNDS
    outputs = {}
    for level in ("token", "sequence"):
        for name, bounds in (("truncated", high), ("masked", f"{low}_{high}")):
            outputs[f"{level}_{name}"] = correction.compute_rollout_correction_weights(log_ratio, mask, level, bounds)[0]
    keep = correction.compute_rollout_rejection_mask(log_ratio, mask, "seq_mean_k1", f"{1 / 1.05}_{1 / 0.95}")[0]
    outputs["geometric"] = keep

    names = ("compute_opo_outcome_advantage", "compute_remax_outcome_advantage", "compute_optimal_token_baseline_advantage")
    losses = ("dppo_tv", "dppo_kl", "gspo", "sapo", "clip_cov", "kl_cov")
    names += ("agg_loss", *(f"compute_policy_loss_{name}" for name in losses))
    verl = extract_functions(ppo / "core_algos.py", names, {**basic, "AlgoConfig": type("AlgoConfig", (), {})})
    groups = np.repeat(["p", "q"], 3)
    rewards = tensor["token_rewards"]
    outputs["opo"] = verl.compute_opo_outcome_advantage(rewards.clone(), mask, groups)[0]
    outputs["remax"] = verl.compute_remax_outcome_advantage(rewards, tensor["greedy"], mask)[0]
    outputs["otb"] = verl.compute_optimal_token_baseline_advantage(
        rewards, mask, groups, tensor["old"], tensor["square_sum"], epsilon=1e-300
    )[0]
    for name in losses:
        overrides = {"gspo": {"clip_ratio_low": 0.02, "clip_ratio_high": 0.03}}.get(name, {})
        if "dppo" in name:
            overrides = dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), DIVERGENCE)
        loss = getattr(verl, f"compute_policy_loss_{name}")(
            tensor["old"], tensor["logp"], tensor["advantage"], mask, config=Settings(**SETTINGS | overrides)
        )[0]
        outputs[name] = {"loss": loss, "gradient": torch.autograd.grad(loss, tensor["logp"])[0]}
    return outputs


def run_trl(folder, tensor, torch):
    """Compute the masks and weights of TRL's GRPO trainer."""
    names = ("get_high_entropy_mask", "get_off_policy_mask", "get_gamma_weights")
    trl = extract_functions(folder / "trl/trainer/grpo_trainer.py", names, {"torch": torch, "math": math})
    one_process = SimpleNamespace(pad_across_processes=lambda x, **_: x, gather=lambda x: x)
    trainer, mask, advantage = SimpleNamespace(accelerator=one_process), tensor["mask"], tensor["advantage"][:, :1]
    logp, old = tensor["logp"].detach(), tensor["old"]
    return {
        "high_entropy": trl.get_high_entropy_mask(trainer, tensor["entropy"], mask, 1 - TOKEN_SHARE),
        "off_policy_sequence": trl.get_off_policy_mask(advantage, logp, old, mask, 0.02).expand_as(mask),
        "gamma": trl.get_gamma_weights(advantage, logp - old, mask, None).expand_as(mask),
    }


def main(folder):
    import torch

    torch.Tensor.float = torch.Tensor.double
    inputs = sample_inputs()
    tensor = {name: torch.tensor(array) for name, array in inputs.items()}
    tensor["logp"].requires_grad_(True)
    outputs = run_verl(folder, tensor, torch) | run_trl(folder, tensor, torch)

    def to_lists(value):
        return {name: to_lists(part) for name, part in value.items()} if isinstance(value, dict) else value.tolist()

    numbers = {"bounds": BOUNDS, "share": TOKEN_SHARE, "divergence": DIVERGENCE}
    contents = {"inputs": to_lists(inputs), "settings": numbers, "outputs": to_lists(outputs)}
    Path(__file__).with_name("verl_trl_outputs.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
