"""Write peer_advantages.json: advantages computed by other projects' functions, in float64. The tests do not run this script.

Generated on 2026-11-22 with torch 2.13.0, verl 0.9.1 from PyPI, and two public repositories at the commits below:

    pip install torch==2.13.0 numpy
    pip install --no-deps --target peers verl==0.9.1
    python tests/ops/make_peer_advantages.py peers MAXRL PKPO

    MAXRL  github.com/tajwarfahim/maxrl at c0698ebb4, by the authors of the MaxRL paper: verl/trainer/ppo/core_algos.py
    PKPO   github.com/kpahwa16/pass-k-policy-optimization at 1b0928e6e, in NumPy, not by PKPO's authors: pkpo_core.py

Each function is extracted from its file and called with its body unchanged. TRL's GDPO is part of a long method
and cannot be called alone.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np

GROUP_SIZE, KS, WEIGHTS = 6, (2, 3, 5), (1.0, 0.5)
FIRST_REWARDS = [[1, 0, 0, 1, 0, 0], [0.5, 0, 1, 0.25, 0.125, 0.75], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 1]]
SECOND_REWARDS = [[0, 1, 0, 2, 0.5, 0], [3, 1, 1, 0, 0.25, 2], [0, 1, 0, 1, 1, 0], [0.5, -1, 0, -0.5, 2, 1]]


def run_verl(folder, torch):
    """Compute verl's GDPO on responses of one token, because verl normalizes over tokens and would count longer ones repeatedly."""
    from make_verl_trl_outputs import extract_functions

    float64_numpy = SimpleNamespace(**vars(np) | {"float32": np.float64})
    namespace = {"torch": torch, "np": float64_numpy, "defaultdict": defaultdict, "Optional": Optional, "AlgoConfig": dict}
    names = ("masked_sum", "masked_mean", "masked_var", "masked_whiten")
    namespace["verl_F"] = extract_functions(folder / "verl/utils/torch_functional.py", names, {"torch": torch, "Any": Any})
    names = ("compute_grpo_outcome_advantage", "compute_gdpo_outcome_advantage")
    verl = extract_functions(folder / "verl/trainer/ppo/core_algos.py", names, namespace)
    rewards_by_name = {"first": np.ravel(FIRST_REWARDS), "second": np.ravel(SECOND_REWARDS)}
    responses = len(rewards_by_name["first"])
    one, groups = torch.ones(responses, 1, dtype=torch.float64), np.arange(responses) // GROUP_SIZE
    advantages = verl.compute_gdpo_outcome_advantage(
        0 * one,
        one,
        groups,
        config={"gdpo_reward_keys": list(rewards_by_name), "gdpo_reward_weights": WEIGHTS},
        non_tensor_batch=rewards_by_name,
        batch={"prompts": one, "attention_mask": torch.cat([one, one], 1).long()},
    )[0]
    return advantages.reshape(-1, GROUP_SIZE).tolist()


def run_maxrl(folder, torch):
    """Compute MaxRL with its authors' code, whose epsilon is 1e-6."""
    from make_verl_trl_outputs import extract_functions

    names = ("compute_maxrl_outcome_advantage",)
    namespace = {"torch": torch, "np": np, "defaultdict": defaultdict}
    maxrl = extract_functions(folder / "verl/trainer/ppo/core_algos.py", names, namespace)
    rewards = torch.tensor(FIRST_REWARDS, dtype=torch.float64).reshape(-1, 1)
    advantages = maxrl.compute_maxrl_outcome_advantage(
        rewards, torch.ones_like(rewards), np.arange(len(rewards)) // GROUP_SIZE
    )
    return advantages[0].reshape(-1, GROUP_SIZE).tolist()


def run_pkpo(folder):
    """Compute each response's credit in PKPO's three gradient estimators, which are sums over the responses, not means."""
    namespace: dict[str, Any] = {"__name__": "pkpo_core"}
    exec((folder / "pkpo_core.py").read_text(), namespace)
    peer = SimpleNamespace(**namespace)
    groups = [np.array(group, float) for group in SECOND_REWARDS]
    names = ("s", "sloo", "sloo_minus_one")
    return {name: {k: [getattr(peer, name)(group, k).tolist() for group in groups] for k in KS} for name in names}


def main(peers, maxrl, pkpo):
    import torch

    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float64
    outputs = {"gdpo": run_verl(peers, torch), "max_rl": run_maxrl(maxrl, torch), "pkpo": run_pkpo(pkpo)}
    contents = {"inputs": {"first": FIRST_REWARDS, "second": SECOND_REWARDS, "weights": WEIGHTS}, "outputs": outputs}
    Path(__file__).with_name("peer_advantages.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
